// RankMessages: what the rank that leads tells the others, as bytes: for a thread, a process of the
// same machine or another machine of the same kind (values are sent as they lie in memory). Pure
// functions over memory that the caller owns and reuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/wire.h"
#include "runtime/execution/slot_init.h"
#include "runtime/scheduling/batch_plan.h"

namespace tandem {

// The calls of an Executor. kStep is Propose, Run and Sample; what comes between kWarmUp and
// kWarmedUp is what a WarmUp runs.
enum class RankCall : uint8_t {
  kAddSequence,
  kRemoveSequence,
  kStep,
  kLand,
  kWarmUp,
  kWarmedUp,
  kStop
};

// Each replaces the message.
void WriteCall(RankCall call, RankMessage& out);
void WriteAddSequence(int32_t slot, const SlotInit& init, RankMessage& out);
void WriteRemoveSequence(int32_t slot, RankMessage& out);
void WriteStep(const BatchPlan& plan, RankMessage& out);

// What a message says; reused from message to message, to keep its memory.
struct RankOrder {
  RankCall call = RankCall::kStop;
  int32_t slot = 0;
  SlotInit init;                   // but for sent_logits
  std::vector<float> sent_logits;  // the caller's, to be kept until the sequence is removed
  BatchPlan plan;
};
// DATA_LOSS if it is none of the above.
Status ReadMessage(std::span<const std::byte> message, RankOrder& order);

}  // namespace tandem
