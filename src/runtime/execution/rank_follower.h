// RankFollower: what a rank that follows does: it runs the calls of the one that leads, in their
// order, and tells a hash of the tokens that it drew in each step. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/rank_messages.h"

namespace tandem {

// A rank's share of an engine.
struct RankParts {
  std::shared_ptr<Communicator> ranks;  // outlives the executor
  std::unique_ptr<Executor> executor;
};

// Of what a step has drawn: the ranks must agree on it.
uint64_t HashOf(const StepResult& result);

// Between a rank that follows and the one that leads.
class LeaderLine {
 public:
  virtual ~LeaderLine() = default;
  // Waits for the next call. An error when there will be none.
  virtual Status Receive(RankMessage& message) = 0;
  virtual void TellDrawn(uint64_t hash) = 0;
  // The rank has failed, and draws nothing any more.
  virtual void TellFailed() = 0;
};

class RankFollower {
 public:
  // What it is given outlives it.
  RankFollower(Executor& executor, Communicator& ranks, int32_t max_batch_size, LeaderLine& line);

  // Until the leader ends it. The error is the line's, which ended before, or the device's, after
  // which no step was run.
  Status Run();

 private:
  RankCall ObeyUntilEndOrWarm();
  void Fail(const Status& why);
  void Obey();  // order_

  Executor& executor_;
  Communicator& ranks_;
  LeaderLine& line_;
  std::vector<std::vector<float>> sent_logits_;  // by slot: used until the sequence is removed
  RankMessage message_;
  RankOrder order_;
  StepResult result_;
  Status failure_;  // of the device, or of the line
};

}  // namespace tandem
