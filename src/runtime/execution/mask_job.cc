#include "runtime/execution/mask_job.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/sample_rules.h"

namespace tandem {

MaskJob::MaskJob(std::shared_ptr<TokenConstraint> constraint, int64_t vocab, int32_t max_ahead)
    : constraint_(std::move(constraint)),
      vocab_(vocab),
      mask_(static_cast<size_t>((vocab + 31) / 32)) {
  ahead_.reserve(static_cast<size_t>(max_ahead));
  committed_.reserve(static_cast<size_t>(max_ahead) + 1);
}

void MaskJob::Commit(int32_t token) {
  was_late_ = false;
  committed_.push_back(token);
  // One that was busy when an earlier token came may not be any more.
  if (!busy()) CommitWaiting();
}

void MaskJob::CommitWaiting() {
  if (committed_.empty()) return;
  keeps_first_ = false;
  for (const int32_t token : committed_) constraint_->Commit(&token, 1);
  committed_.clear();
}

void MaskJob::Leave() {
  const MutexLock lock(mutex_);
  has_left_ = true;
  if (busy()) return;
  CommitWaiting();
  constraint_.reset();
}

bool MaskJob::Return(const TokenConstraint* constraint) {
  const MutexLock lock(mutex_);
  if (constraint_ == nullptr || constraint_.get() != constraint) return false;
  has_left_ = false;
  return true;
}

void MaskJob::Ask(const Order& order) {
  TANDEM_CHECK(!busy(), "a constraint is asked while a thread is at it");
  order_ = order;
  ahead_.assign(order.ahead.begin(), order.ahead.end());
  wants_forced_ = false;
  Begin();
}

void MaskJob::AskForced() {
  TANDEM_CHECK(!busy(), "a constraint is asked while a thread is at it");
  wants_forced_ = true;
  Begin();
}

void MaskJob::Begin() {
  CommitWaiting();
  {
    const MutexLock lock(mutex_);
    open_ = true;
    complete_ = false;
  }
  busy_.store(true, std::memory_order_release);
}

bool MaskJob::Close() {
  const MutexLock lock(mutex_);
  open_ = false;
  was_late_ = !complete_;
  return complete_;
}

void MaskJob::Run() {
  {
    const MutexLock lock(mutex_);
    if (has_left_) return;
  }
  Fulfil();
}

void MaskJob::Fulfil() {
  if (wants_forced_) forced_ = constraint_->Forced();
  const std::span<const int32_t> ahead(ahead_);
  for (size_t i = order_.from; !wants_forced_ && i <= ahead.size(); ++i) {
    const bool any = Fill(ahead.first(i));
    if (!Deliver(i, any)) return;
    if (!any || i == ahead.size() || !ops::IsAllowed(mask_.data(), ahead[i])) break;
  }
  const MutexLock lock(mutex_);
  complete_ = true;
}

void MaskJob::Finish() {
  const MutexLock lock(mutex_);
  if (has_left_) {
    CommitWaiting();
    constraint_.reset();
  }
  busy_.store(false, std::memory_order_release);
}

// The tokens that may follow the committed tokens and then `ahead`; false if no token may.
bool MaskJob::Fill(std::span<const int32_t> ahead) {
  if (ahead.empty() && keeps_first_) return first_any_;
  keeps_first_ = false;
  std::ranges::fill(mask_, ~0u);
  constraint_->FillMask(ahead, mask_);
  // The bits past the end of the vocabulary belong to no token.
  const auto in_last_word = static_cast<uint32_t>(vocab_ % 32);
  if (in_last_word != 0) mask_.back() &= (1u << in_last_word) - 1;
  return std::ranges::any_of(mask_, [](uint32_t word) { return word != 0; });
}

// Hands the mask to the step; false if that has gone on without it.
bool MaskJob::Deliver(size_t num_ahead, bool any) {
  const MutexLock lock(mutex_);
  if (!open_) {
    keeps_first_ = num_ahead == 0;
    first_any_ = any;
    return false;
  }
  if (any) {
    std::ranges::copy(mask_, order_.bits + order_.masks->count++ * order_.stride);
  } else {
    order_.masks->dead_end = 1;
  }
  return true;
}

}  // namespace tandem
