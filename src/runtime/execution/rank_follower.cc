#include "runtime/execution/rank_follower.h"

#include <string>
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

RankFollower::RankFollower(Executor& executor, Communicator& ranks, int32_t max_batch_size,
                           LeaderLine& line)
    : executor_(executor),
      ranks_(ranks),
      line_(line),
      sent_logits_(static_cast<size_t>(max_batch_size)) {}

Status RankFollower::Run() {
  executor_.BindThread();
  while (ObeyUntilEndOrWarm() != RankCall::kStop) {
  }
  return failure_;
}

void RankFollower::Fail(const Status& why) {
  ranks_.Fail(why);
  if (failure_.ok()) failure_ = why;
  line_.TellFailed();
}

// Until kWarmedUp or kStop, which it returns.
RankCall RankFollower::ObeyUntilEndOrWarm() {
  for (;;) {
    if (const Status received = line_.Receive(message_); !received.ok()) {
      ranks_.Fail(received);
      if (failure_.ok()) failure_ = received;
      return RankCall::kStop;
    }
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
        executor_.WarmUp([this, &last] { last = ObeyUntilEndOrWarm(); });
        if (last == RankCall::kStop) return last;
        break;
      }
      default:
        Obey();
    }
  }
}

// After a failure only what does not touch the device.
void RankFollower::Obey() {
  if (!failure_.ok() && order_.call != RankCall::kRemoveSequence) return;
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
      return line_.TellDrawn(HashOf(result_));
    }
    default:
      return;
  }
}

}  // namespace tandem
