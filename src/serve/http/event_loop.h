// EventLoop: one thread that waits for sockets, and the guests that live on it. Owned by
// HttpServer; members not marked for any thread belong to the loop's own.
#pragma once

#include <memory>

namespace boost::asio {
class io_context;  // NOLINT(readability-identifier-naming): Boost's name
}

namespace tandem::serve {

class EventLoop {
 public:
  // Called when the loop stops, so that the guest ends on the loop's thread.
  class Guest {
   public:
    virtual ~Guest() = default;
    virtual void Abort() = 0;
  };

  EventLoop();
  // After Join, if there was a Start.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Any thread.
  boost::asio::io_context& context();
  void Start();
  void Stop();  // aborts the guests; the thread ends when nothing is left to do
  void Join();

  bool stopping() const;
  void Add(Guest& guest);
  void Remove(Guest& guest);  // also one that was never added

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
