// HttpClient: one blocking HTTP/1.1 connection, for tests and load generators: plain requests, and
// streams of server-sent events read one at a time. Connects on first use and again when the server
// has closed an idle connection. Owned and used by one thread.
//
// Not Beast's client: its blocking calls know no timeouts, tests need bytes as they come from the
// socket, and the server reads requests with Beast's parser, whose faults a second one shows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "serve/http/message.h"

namespace tandem::serve {

struct HttpEndpoint {
  std::string host = "127.0.0.1";
  uint16_t port = 80;
  std::string path;  // the path prefix after host and port: "/v1"
};
// "http://host:port/path", the scheme optional. https is refused: UNIMPLEMENTED.
Result<HttpEndpoint> ParseUrl(std::string_view url);

struct ClientResponse {
  int status = 0;
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string_view Header(std::string_view name) const;
};

class HttpClient {
 public:
  HttpClient(std::string host, uint16_t port, Nanos timeout = std::chrono::seconds(120));
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&& other) noexcept;

  Result<ClientResponse> Get(std::string_view path, const HttpHeaders& headers = {});
  Result<ClientResponse> Post(std::string_view path, std::string_view body,
                              const HttpHeaders& headers = {});
  Result<ClientResponse> Send(std::string_view method, std::string_view path, std::string_view body,
                              const HttpHeaders& headers = {});

  // Sends a request and reads the response's head; if it is a stream of events, NextEvent() reads
  // them. Any other response (an error) is complete, including the body.
  Result<ClientResponse> OpenStream(std::string_view path, std::string_view body,
                                    const HttpHeaders& headers = {});
  // The data of the next event ("[DONE]" included); empty at the stream's regular end. UNAVAILABLE
  // when the connection broke off before it.
  Result<std::optional<std::string>> NextEvent();

  // For tests of the wire format.
  int fd() const { return fd_; }
  Status Connect();
  Status WriteRaw(std::string_view bytes) const;
  Result<std::string> ReadRaw(size_t max_bytes);  // one read; empty at the end
  Result<ClientResponse> ReadResponse(std::string_view method = "GET");  // of the request
  void ShutdownWrite() const;  // announces that nothing more will be sent; still reads
  void Close();

 private:
  Status WriteRequest(std::string_view method, std::string_view path, std::string_view body,
                      const HttpHeaders& headers);
  Result<ClientResponse> ReadHead();
  Status ReadBody(ClientResponse& response);
  Result<bool> ReadChunk(std::string& out);  // false at the last one
  Result<bool> ReadPiece(std::string& out);  // more of a stream's body; false at its end
  Result<std::string> ReadLine();
  Status Fill();  // at least one more byte in buffer_

  std::string host_;
  uint16_t port_;
  Nanos timeout_;  // for each read and write
  int fd_ = -1;
  std::string buffer_;   // read but not consumed
  bool reused_ = false;  // a response has been read on this connection
  // Of the stream being read.
  bool chunked_ = false;
  bool until_close_ = false;
  size_t bytes_left_ = 0;  // of a body of known length
  bool stream_ended_ = true;
  std::string stream_;
};

}  // namespace tandem::serve
