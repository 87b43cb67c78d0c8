#include "serve/grpc/poll_executor.h"

#include <utility>

#include "base/check.h"

namespace tandem::serve {

PollExecutor::PollExecutor(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

PollExecutor::~PollExecutor() { TANDEM_CHECK(threads_.empty(), "Stop() comes first"); }

void PollExecutor::Schedule(std::shared_ptr<Polled> polled) {
  if (polled->waits_.exchange(true)) return;
  const MutexLock lock(mutex_);
  if (stopped_) return;
  waiting_.push_back(std::move(polled));
  changed_.NotifyOne();
}

void PollExecutor::Stop() {
  std::deque<std::shared_ptr<Polled>> dropped;  // destroyed after the lock
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    dropped.swap(waiting_);
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void PollExecutor::Run() {
  while (true) {
    std::shared_ptr<Polled> polled;
    {
      MutexLock lock(mutex_);
      changed_.Wait(lock,
                    [this]() TANDEM_REQUIRES(mutex_) { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      polled = std::move(waiting_.front());
      waiting_.pop_front();
    }
    polled->waits_ = false;  // news from here on needs another turn
    polled->Poll();
  }
}

}  // namespace tandem::serve
