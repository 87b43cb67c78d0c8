#include "serve/kserve/models/timed_model.h"

#include <model_config.pb.h>

#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace tandem::serve::kserve {
namespace {

// Calls functions at their times, on a thread of its own. Every method on any thread.
class Alarms {
 public:
  using Ticket = std::pair<Nanos, uint64_t>;  // the time, and a number that tells equal times apart

  Alarms() : thread_([this] { Run(); }) {}
  ~Alarms() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.NotifyOne();
    thread_.join();
  }
  Alarms(const Alarms&) = delete;
  Alarms& operator=(const Alarms&) = delete;

  Nanos Now() const { return clock_.Now(); }

  Ticket Set(Nanos time, Wake wake) {
    const MutexLock lock(mutex_);
    const Ticket ticket{time, ++last_number_};
    waiting_.emplace(ticket, std::move(wake));
    changed_.NotifyOne();
    return ticket;
  }
  // The function may still be running when this returns.
  void Cancel(const Ticket& ticket) {
    Wake dropped;  // released after the lock
    const MutexLock lock(mutex_);
    const auto found = waiting_.find(ticket);
    if (found == waiting_.end()) return;
    dropped = std::move(found->second);
    waiting_.erase(found);
  }

 private:
  void Run() {
    while (const Wake wake = AwaitNext()) wake();
  }

  // The next function whose time has come; empty at the end.
  Wake AwaitNext() {
    MutexLock lock(mutex_);
    while (!stop_) {
      if (waiting_.empty()) {
        changed_.Wait(lock);
        continue;
      }
      const auto first = waiting_.begin();
      const Ticket ticket = first->first;
      if (ticket.first <= clock_.Now()) {
        Wake wake = std::move(first->second);
        waiting_.erase(first);
        return wake;
      }
      changed_.WaitFor(lock, ticket.first - clock_.Now(), [&]() TANDEM_REQUIRES(mutex_) {
        return stop_ || waiting_.empty() || waiting_.begin()->first != ticket;
      });
    }
    return {};
  }

  const SteadyClock clock_;
  Mutex mutex_;
  Condition changed_;
  std::map<Ticket, Wake> waiting_ TANDEM_GUARDED_BY(mutex_);
  uint64_t last_number_ TANDEM_GUARDED_BY(mutex_) = 0;
  bool stop_ TANDEM_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the other members
};

class TimedCall final : public InferCall {
 public:
  // `alarms` outlives the call.
  TimedCall(Alarms& alarms, Result<Series> series, Wake wake)
      : alarms_(alarms), wake_(std::move(wake)) {
    if (series.ok()) {
      series_ = *std::move(series);
    } else {
      is_refused_ = true;
      series_.count = 0;
      series_.failure = series.status();
    }
    AwaitTurn();
  }
  ~TimedCall() override { alarms_.Cancel(alarm_); }

  bool is_refused() const override { return is_refused_; }
  CallNews Next(InferResponse& response, Status& error) override {
    if (is_over_) return CallNews::kDone;
    if (next_ < series_.count) {
      if (alarms_.Now() < due_) return CallNews::kNone;
      response = series_.response(next_++);
      is_over_ = next_ == series_.count && series_.is_last_final && series_.failure.ok();
      response.is_final = is_over_;
      AwaitTurn();
      return CallNews::kEvent;
    }
    is_over_ = true;
    if (!series_.failure.ok()) {
      error = series_.failure;
      return CallNews::kFailed;
    }
    response.is_final = true;
    return CallNews::kEvent;
  }

 private:
  // Sees to it that the call is polled when the next response is due.
  void AwaitTurn() {
    if (next_ == series_.count || !series_.delay) return;
    const Nanos delay = series_.delay(next_);
    due_ = alarms_.Now() + delay;
    if (delay > Nanos(0)) alarm_ = alarms_.Set(due_, wake_);
  }

  Alarms& alarms_;
  const Wake wake_;
  Series series_;
  int64_t next_ = 0;  // response
  Nanos due_{0};      // its time
  Alarms::Ticket alarm_;
  bool is_refused_ = false;
  bool is_over_ = false;
};

class TimedModel final : public InferModel {
 public:
  TimedModel(const inference::ModelConfig& config, Answer answer)
      : config_(config), answer_(std::move(answer)) {}

  const inference::ModelConfig& config() const override { return config_; }

  std::unique_ptr<InferCall> Infer(InferRequest request, Wake wake) const override {
    return std::make_unique<TimedCall>(alarms_, answer_(request), std::move(wake));
  }

 private:
  const inference::ModelConfig config_;
  const Answer answer_;
  mutable Alarms alarms_;
};

}  // namespace

InferModelPtr MakeTimedModel(const inference::ModelConfig& config, Answer answer) {
  return std::make_shared<TimedModel>(config, std::move(answer));
}

}  // namespace tandem::serve::kserve
