#include "runtime/execution/rank_thread.h"

#include <utility>

#include "base/checksum.h"

namespace tandem {

uint64_t HashOf(const StepResult& result) {
  uint64_t hash = result.step;
  const auto add = [&hash](int32_t value) {
    hash = Hash64(std::as_bytes(std::span(&value, 1)), hash);
  };
  for (const SequenceResult& sequence : result.sequences) {
    add(sequence.slot);
    add(sequence.num_tokens);
  }
  for (const SampledToken& token : result.tokens) add(token.token);
  return hash;
}

RankThread::RankThread(Executor& executor, Communicator& ranks, int32_t max_batch_size)
    : executor_(executor),
      ranks_(ranks),
      sent_logits_(static_cast<size_t>(max_batch_size)),
      waiting_(kWaiting),
      thread_([this] { Run(); }) {}

RankThread::~RankThread() {
  RankMessage stop;
  WriteCall(RankCall::kStop, stop);
  Send(stop);
  thread_.join();
}

void RankThread::Send(const RankMessage& message) {
  MutexLock lock(mutex_);
  changed_.Wait(lock,
                [this]() TANDEM_REQUIRES(mutex_) { return sent_ - received_ < waiting_.size(); });
  waiting_[sent_ % waiting_.size()].assign(message.begin(), message.end());
  ++sent_;
  changed_.NotifyAll();
}

std::optional<uint64_t> RankThread::AwaitDrawn() {
  MutexLock lock(mutex_);
  changed_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return drawn_.has_value() || failed_; });
  return std::exchange(drawn_, std::nullopt);
}

void RankThread::Fail(const Status& why) {
  ranks_.Fail(why);
  const MutexLock lock(mutex_);
  failed_ = true;
  changed_.NotifyAll();
}

void RankThread::Receive() {
  MutexLock lock(mutex_);
  changed_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return received_ < sent_; });
  std::swap(message_, waiting_[received_ % waiting_.size()]);
  ++received_;
  changed_.NotifyAll();
}

void RankThread::Run() {
  executor_.BindThread();
  while (ObeyUntilTheEnd() != RankCall::kStop) {
  }
}

// Until kWarmedUp or kStop, which it returns.
RankCall RankThread::ObeyUntilTheEnd() {
  for (;;) {
    Receive();
    if (const Status read = ReadMessage(message_, order_); !read.ok()) {
      Fail(read);
      continue;
    }
    switch (order_.call) {
      case RankCall::kStop:
      case RankCall::kWarmedUp:
        return order_.call;
      case RankCall::kWarmUp: {
        RankCall last = RankCall::kWarmedUp;
        executor_.WarmUp([this, &last] { last = ObeyUntilTheEnd(); });
        if (last == RankCall::kStop) return last;
        break;
      }
      default:
        Obey();
    }
  }
}

// After a failure only what does not touch the device.
void RankThread::Obey() {
  const bool failed = [this] {
    const MutexLock lock(mutex_);
    return failed_;
  }();
  if (failed && order_.call != RankCall::kRemoveSequence) return;
  switch (order_.call) {
    case RankCall::kAddSequence: {
      std::vector<float>& logits = sent_logits_[static_cast<size_t>(order_.slot)];
      std::swap(logits, order_.sent_logits);
      order_.init.sent_logits = logits;
      executor_.AddSequence(order_.slot, order_.init, nullptr);
      return;
    }
    case RankCall::kRemoveSequence:
      executor_.RemoveSequence(order_.slot);
      return;
    case RankCall::kStep:
      executor_.Propose(order_.plan);
      executor_.Run(order_.plan);
      executor_.Sample(order_.plan);
      return;
    case RankCall::kLand: {
      if (const Status landed = executor_.Land(result_); !landed.ok()) {
        return Fail(landed.Annotate("rank " + std::to_string(ranks_.rank())));
      }
      const uint64_t hash = HashOf(result_);
      const MutexLock lock(mutex_);
      drawn_ = hash;
      changed_.NotifyAll();
      return;
    }
    default:
      return;
  }
}

}  // namespace tandem
