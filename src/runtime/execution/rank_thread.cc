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
      drawn_(kWaiting),
      thread_([this] { Loop(); }) {}

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

std::optional<uint64_t> RankThread::TakeDrawn() {
  const MutexLock lock(mutex_);
  if (taken_ == landed_) return std::nullopt;
  return drawn_[taken_++ % drawn_.size()];
}

bool RankThread::Receive(RankMessage& message) {
  MutexLock lock(mutex_);
  changed_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return received_ < sent_; });
  std::swap(message, waiting_[received_ % waiting_.size()]);
  ++received_;
  changed_.NotifyAll();
  return true;
}

void RankThread::Loop() {
  executor_.BindThread();
  RankMessage message;
  RankOrder order;
  for (;;) {
    Receive(message);
    const Status read = ReadMessage(message, order);
    if (!read.ok()) {
      failed_ = true;
      ranks_.Fail(read);
      continue;
    }
    if (order.call == RankCall::kStop) return;
    Obey(order);
  }
}

// After a failure only what does not touch the device.
void RankThread::Obey(RankOrder& order) {
  switch (order.call) {
    case RankCall::kAddSequence: {
      if (failed_) return;
      std::vector<float>& logits = sent_logits_[static_cast<size_t>(order.slot)];
      std::swap(logits, order.sent_logits);
      order.init.sent_logits = logits;
      executor_.AddSequence(order.slot, order.init, nullptr);
      return;
    }
    case RankCall::kRemoveSequence:
      executor_.RemoveSequence(order.slot);
      return;
    case RankCall::kStep:
      if (failed_) return;
      executor_.Propose(order.plan);
      executor_.Run(order.plan);
      executor_.Sample(order.plan);
      return;
    case RankCall::kLand: {
      if (failed_) return;
      if (const Status landed = executor_.Land(result_); !landed.ok()) {
        failed_ = true;
        ranks_.Fail(landed.Annotate("rank " + std::to_string(ranks_.rank())));
        return;
      }
      const uint64_t hash = HashOf(result_);
      const MutexLock lock(mutex_);
      drawn_[landed_++ % drawn_.size()] = hash;
      return;
    }
    case RankCall::kStop:
      return;
  }
}

}  // namespace tandem
