// Executor: runs batch plans on a backend. Owns the device-resident state of every slot (tokens,
// computed lengths, block table, sampling record), the models' key-value pools and all workspaces.
// Engine thread only. Propose, Run and Sample enqueue the parts of a step; Land returns the results
// of the oldest step in flight, waiting for them if need be, and the times of the step's parts
// without any further wait. Executors measure; Speculation learns.
// Nothing here allocates in steady state.
//
// A device failure (lost, or refusing memory) is reported by Land only; from then on every Land
// fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/sampling.h"
#include "base/status.h"
#include "runtime/execution/slot_init.h"
#include "runtime/request/request.h"
#include "runtime/scheduling/batch_plan.h"
#include "runtime/speculation/step_times.h"

namespace tandem {

struct StepResult {
  uint64_t step = 0;
  std::vector<SequenceResult> sequences;
  std::vector<SampledToken> tokens;
  const float* kept = nullptr;  // [rows, vocab] logits for clients, valid until the next Propose
  StepTimes times;
};

class Executor {
 public:
  virtual ~Executor() = default;

  // The engine's thread calls this before any other function.
  virtual void BindThread() {}
  // Runs `steps`, which launches and lands steps as frequent ones will be, as the backend's WarmUp
  // wants them.
  virtual void WarmUp(const std::function<void()>& steps) { steps(); }
  // Fills a slot; no step in flight may name it. The constraint (null without one) is used until
  // RemoveSequence, or until the mask is made that a thread is at by then.
  virtual void AddSequence(int32_t slot, const SlotInit& init,
                           std::shared_ptr<TokenConstraint> constraint) = 0;
  // Clears it; no step in flight may name it.
  virtual void RemoveSequence(int32_t slot) = 0;

  // Enqueue the three parts of a step, called in this order with the same plan. A slot that ended
  // in a step still in flight (an end id, its longest length) may be named in the steps after it:
  // nothing is computed for it and its results have no token.
  virtual void Propose(const BatchPlan& plan) = 0;
  virtual void Run(const BatchPlan& plan) = 0;
  virtual void Sample(const BatchPlan& plan) = 0;
  // The results of the oldest step in flight. `result` is reused between calls. The error is the
  // device's failure; after one only RemoveSequence may be called.
  virtual Status Land(StepResult& result) = 0;
  // A failure that is known although no step has met it: another process of the model has ended.
  // After an error as after one of Land.
  virtual Status Health() const { return {}; }
  // Ends what the executor waits for besides its device: the engine is not needed any more. Any
  // thread; Land fails from then on.
  virtual void Abandon() {}
};

}  // namespace tandem
