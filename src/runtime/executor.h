// Executor: runs batch plans on a backend. Owns the device-resident state of every slot (tokens,
// computed lengths, block table, sampling record), the models' key-value pools and all workspaces.
// Engine thread only. Launch enqueues Propose, Run and Sample of a step; Land gives the results of the
// oldest step in flight, waiting for it if need be. Nothing in Launch or Land allocates in steady state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/sampling.h"
#include "runtime/batch_plan.h"
#include "runtime/request.h"

namespace tandem {

// What a slot starts with.
struct SlotInit {
  std::span<const int32_t> tokens;  // prompt, and after a preemption the output so far
  int32_t prompt_tokens = 0;
  ComputedLengths computed{0, 0};  // what the prefix tree brought
  const Request* request = nullptr;
  ops::SamplingParams sampling;     // with the seed and choice of this sequence
  TokenConstraint* constraint = nullptr;  // owned by the sequence; null without one
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SequenceResult> sequences;
  std::vector<ops::SampledToken> tokens;
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Fills a slot; no step in flight may name it.
  virtual void AddSequence(int32_t slot, const SlotInit& init) = 0;
  // Clears it; no step in flight may name it.
  virtual void RemoveSequence(int32_t slot) = 0;

  virtual void Launch(const BatchPlan& plan) = 0;
  // `result` is reused between calls.
  virtual void Land(StepResult& result) = 0;
};

}  // namespace tandem
