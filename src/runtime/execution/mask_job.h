// MaskJob: the masks of one sequence's constraint. A thread fills them and may take longer than the
// step that asked for them: the step then closes the job and goes on, the thread never writes to
// the step's memory again, and if the late mask follows the committed tokens, it is kept for the
// next step. Shared by the engine thread and one worker; the constraint is only called by the
// thread that runs the job or, while none does, by the engine thread. A job that its sequence has
// left lets go of the constraint as soon as no thread is at it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "ops/round.h"
#include "runtime/request/request.h"

namespace tandem {

class MaskJob {
 public:
  // Masks of `vocab` tokens after at most `max_ahead` drafts.
  MaskJob(std::shared_ptr<TokenConstraint> constraint, int64_t vocab, int32_t max_ahead);

  // What a step asks for: the masks after the committed tokens and the first `from`, `from` + 1,
  // ... and then all of the drafts. They end early after a draft that violates the constraint, and
  // where no token may follow.
  struct Order {
    std::span<const int32_t> ahead;
    size_t from = 0;
    ops::ItemMasks* masks = nullptr;  // its `count` and `dead_end` are filled
    uint32_t* bits = nullptr;         // [masks, stride]
    int64_t stride = 0;
  };

  // ---- The engine thread ----
  // A thread runs the job, or will.
  bool busy() const { return busy_.load(std::memory_order_acquire); }
  // The sequence has left its slot: it has ended, or may come back with its constraint.
  void Leave();
  // The sequence is back. False if the job has let go of this constraint, or never had it: it has
  // heard of all tokens, and another job may call it.
  bool Return(const TokenConstraint* constraint);
  // A step was closed before its masks were complete, and no token was committed since.
  bool was_late() const { return was_late_; }
  // A token was emitted. A busy constraint hears of it before its next mask.
  void Commit(int32_t token);
  // Not while busy.
  void Ask(const Order& order);
  // Asks for the tokens that the constraint forces instead.
  void AskForced();
  // After a Close that found them.
  std::span<const int32_t> forced() const { return forced_; }
  // The order's memory is not written from here on. True if it is complete.
  bool Close();

  // ---- The thread that runs it ----
  // Does nothing for a sequence that has left.
  void Run();
  void Finish();

 private:
  void Begin();
  void CommitWaiting();
  void Fulfil();
  bool Fill(std::span<const int32_t> ahead);
  bool Deliver(size_t num_ahead, bool any);

  std::shared_ptr<TokenConstraint>
      constraint_;  // null once a sequence that has left is done with it
  const int64_t vocab_;
  std::atomic<bool> busy_ = false;
  bool was_late_ = false;           // engine thread
  std::vector<int32_t> committed_;  // that the constraint has not heard of
  // Used only by the thread that may call the constraint.
  Order order_;
  std::vector<int32_t> ahead_;
  std::vector<uint32_t> mask_;
  bool wants_forced_ = false;
  std::vector<int32_t> forced_;
  bool keeps_first_ = false;  // mask_ is that of the committed tokens, and first_any_ holds
  bool first_any_ = false;    // some token may follow them
  Mutex mutex_;
  bool open_ TANDEM_GUARDED_BY(mutex_) = false;
  bool has_left_ TANDEM_GUARDED_BY(mutex_) = false;
  bool complete_ TANDEM_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
