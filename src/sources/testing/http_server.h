// An HTTP server for tests, on a free port of this machine, that answers as a test tells it to: it
// cuts bodies, drips them, refuses. One thread for each connection, one request on each.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tandem::testing {

struct ServedRequest {
  std::string method;
  std::string target;                          // with its query
  std::map<std::string, std::string> headers;  // the names in small letters

  std::string Header(const std::string& name) const;
};

struct ServedReply {
  int status = 200;
  std::vector<std::string> headers = {};
  std::string body = {};
  int64_t cut_after = -1;  // close after these bytes of the body; -1: send all
  std::chrono::milliseconds pause_before_end{0};  // before the last byte of the body
};

class HttpServer {
 public:
  using Handler = std::function<ServedReply(const ServedRequest& request)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "http://127.0.0.1:1234"; `host` may be another name of this machine.
  std::string Url(const std::string& host = "127.0.0.1") const;
  // So far, in the order of their arrival.
  std::vector<ServedRequest> Requests() const;

  // The part of a file that a request asks for, as servers answer: 206 and the range, or all.
  static ServedReply Ranged(const ServedRequest& request, const std::string& file);

 private:
  void Accept();
  void Serve(int fd);

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stops_{false};
  mutable Mutex mutex_;
  std::vector<ServedRequest> requests_ TANDEM_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;  // of the connections: the accepting thread's
  std::thread acceptor_;
};

}  // namespace tandem::testing
