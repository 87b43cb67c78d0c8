#include "serve/http/event_loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <optional>
#include <thread>
#include <unordered_set>

namespace tandem::serve {

namespace asio = boost::asio;

struct EventLoop::Impl {
  std::unordered_set<Guest*> guests;  // outlives the context, whose destruction may end guests
  bool stopping = false;
  asio::io_context context{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work{
      asio::make_work_guard(context)};
  std::thread thread;
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

asio::io_context& EventLoop::context() { return impl_->context; }

void EventLoop::Start() {
  impl_->thread = std::thread([this] { impl_->context.run(); });
}

void EventLoop::Stop() {
  asio::post(impl_->context, [this] {
    impl_->stopping = true;
    for (Guest* guest : impl_->guests) guest->Abort();
    impl_->work.reset();
  });
}

void EventLoop::Join() { impl_->thread.join(); }

bool EventLoop::stopping() const { return impl_->stopping; }
void EventLoop::Add(Guest& guest) { impl_->guests.insert(&guest); }
void EventLoop::Remove(Guest& guest) { impl_->guests.erase(&guest); }

}  // namespace tandem::serve
