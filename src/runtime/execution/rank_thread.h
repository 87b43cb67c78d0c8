// RankThread: a rank that follows. Its thread runs the calls that the leader sends, in their order,
// and tells a hash of the tokens that it drew in each step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/communicator.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/rank_messages.h"

namespace tandem {

// Of what a step has drawn: the ranks must agree on it.
uint64_t HashOf(const StepResult& result);

class RankThread {
 public:
  // Calls that may wait for the rank; further ones wait for room.
  static constexpr size_t kWaiting = 64;

  // The executor and the communicator outlive the thread.
  RankThread(Executor& executor, Communicator& ranks, int32_t max_batch_size);
  ~RankThread();

  // The leader's thread. Copies the message.
  void Send(const RankMessage& message);
  // Waits until the rank has landed the oldest step whose hash nobody has taken, and returns that;
  // empty when the rank has failed.
  std::optional<uint64_t> AwaitDrawn();

 private:
  void Run();
  RankCall ObeyUntilTheEnd();
  void Receive();  // into message_
  void Fail(const Status& why);
  void Obey();  // order_

  Executor& executor_;
  Communicator& ranks_;
  std::vector<std::vector<float>> sent_logits_;  // by slot: used until the sequence is removed
  RankMessage message_;
  RankOrder order_;
  StepResult result_;

  Mutex mutex_;
  Condition changed_;
  // A ring, whose memory is used again.
  std::vector<RankMessage> waiting_ TANDEM_GUARDED_BY(mutex_);
  uint64_t sent_ TANDEM_GUARDED_BY(mutex_) = 0;
  uint64_t received_ TANDEM_GUARDED_BY(mutex_) = 0;
  std::optional<uint64_t> drawn_ TANDEM_GUARDED_BY(mutex_);  // until it is taken
  bool failed_ TANDEM_GUARDED_BY(mutex_) = false;            // written by thread_ alone
  std::thread thread_;
};

}  // namespace tandem
