#include "runtime/scheduling/scheduler.h"

#include <algorithm>
#include <iterator>
#include <ranges>

#include "base/check.h"
#include "ops/round_rules.h"
#include "runtime/scheduling/commit.h"

namespace tandem {
namespace {

// Plans for which a slot in which a request ended is kept for the next one: longer than a client
// takes to send a request after its answer.
constexpr uint64_t kPlansKept = 8;
// Tokens that a choice draws before its slot may be taken from it: a pause costs its prompt again.
constexpr int32_t kTokensBeforePause = 4;

bool StartsBefore(const Sequence* a, const Sequence* b) {
  const double priority_a = a->request().priority;
  const double priority_b = b->request().priority;
  if (priority_a != priority_b) return priority_a > priority_b;
  if (a->open->slots != b->open->slots) return a->open->slots < b->open->slots;
  if (a->open->turn != b->open->turn) return a->open->turn < b->open->turn;
  return a->choice < b->choice;
}

bool RunsBefore(const Sequence* a, const Sequence* b) {
  const double priority_a = a->request().priority;
  const double priority_b = b->request().priority;
  return priority_a != priority_b ? priority_a > priority_b : a->started < b->started;
}

}  // namespace

StepPlan::StepPlan(int32_t max_batch_size, int32_t max_num_tokens, int32_t block_tokens) {
  const auto slots = static_cast<size_t>(max_batch_size);
  batch.sequences.reserve(slots);
  batch.copies.reserve(slots);
  // The sequence's own rows, a partial block at either end, and a length that is not known yet.
  batch.blocks.reserve(static_cast<size_t>(max_num_tokens / block_tokens) + 3 * slots);
  batch.mappings.reserve(batch.blocks.capacity());
  sequences.reserve(slots);
  vacated_slots.reserve(slots);
  started.reserve(slots);
}

void StepPlan::Clear(uint64_t step) {
  batch.Clear();
  batch.step = step;
  sequences.clear();
  vacated_slots.clear();
  started.clear();
}

Scheduler::Scheduler(const SchedulerLimits& limits, KvCache& kv, Speculation& speculation)
    : limits_(limits),
      bounds_{limits.max_batch_size, limits.max_num_tokens},
      kv_(kv),
      speculation_(speculation) {
  TANDEM_CHECK(limits.max_logits_rows >= limits.max_batch_size, "every slot may sample");
  const auto slots = static_cast<size_t>(limits.max_batch_size);
  for (int32_t slot = limits.max_batch_size - 1; slot >= 0; --slot) free_slots_.push_back({slot});
  active_.reserve(slots);
  decoding_.reserve(slots);
  candidates_.reserve(slots);
  moved_.reserve(slots);
}

void Scheduler::SetBounds(const StepBounds& bounds) {
  TANDEM_CHECK(bounds.sequences >= 1, "a step takes something");
  TANDEM_CHECK(bounds.sequences <= limits_.max_batch_size, "there are no more slots");
  TANDEM_CHECK(bounds.tokens <= limits_.max_num_tokens, "there are no more rows");
  TANDEM_CHECK(limits_.chunked_prefill || bounds.tokens == limits_.max_num_tokens,
               "whole prompts need every row");
  bounds_ = bounds;
  // A row for every slot, and one request's drafts.
  const int32_t least = limits_.max_batch_size + limits_.max_sent_drafts;
  bounds_.tokens = std::max(bounds.tokens, std::min(least, limits_.max_num_tokens));
}

void Scheduler::Enqueue(Sequence& sequence) {
  OpenRequest& request = *sequence.open;
  if (request.sequences++ == 0) {
    request.turn = ++turns_;
    ++requests_;
  }
  InsertWaiting(sequence);
}

void Scheduler::InsertWaiting(Sequence& sequence) {
  sequence.phase = Phase::kWaiting;
  sequence.in_flight.resize(static_cast<size_t>(limits_.max_launched));
  waiting_.insert(std::ranges::upper_bound(waiting_, &sequence, StartsBefore), &sequence);
}

void Scheduler::Dequeue(Sequence& sequence) {
  std::erase(waiting_, &sequence);
  if (sequence.started > 0) --paused_;
  Forget(*sequence.open);
}

void Scheduler::Forget(OpenRequest& request) {
  if (--request.sequences == 0) --requests_;
}

void Scheduler::Plan(uint64_t step, StepPlan& plan) {
  plan.Clear(step);
  // No plan is made while nothing is open: the clients of before are gone.
  plans_ += active_.empty() ? kPlansKept : 1;
  budget_ = {.rows = bounds_.tokens,
             .draft_rows = bounds_.tokens,
             .spare_logits = limits_.max_logits_rows - limits_.max_batch_size,
             .sent_rows = limits_.MaxSentRows()};
  ShareSlots(plan);
  const size_t vacated = plan.vacated_slots.size();
  PlanDecodes(plan);
  PlanPrefills(plan);
  // In a step that had to pause for blocks, those it freed are meant for the running sequences.
  if (plan.vacated_slots.size() == vacated || active_.empty()) StartWaiting(plan);
  if (plan.batch.empty()) return;
  kv_.MoveMappings(plan.batch.mappings);
  kv_.MoveHostCopies(plan.batch.host_copies);
}

// ---- Slots ----

// Of the waiting requests with the fewest slots, as many as the rows of a step serve get one each:
// a slot that is free or about to be, else one of a request that holds at least two more. So a
// request with many choices cannot keep the others waiting until one of its answers is complete.
void Scheduler::ShareSlots(StepPlan& plan) {
  if (limits_.policy != SchedulerPolicy::kMaxUtilization) return;
  if (waiting_.empty() || requests_with_many_slots_ == 0) return;
  CountStaying();
  const auto staying = static_cast<int32_t>(std::ranges::count_if(
      active_, [](const Sequence* sequence) { return sequence->phase == Phase::kActive; }));
  int32_t free = bounds_.sequences - staying;
  const double priority = waiting_.front()->request().priority;
  const int32_t fewest = waiting_.front()->open->slots;
  const OpenRequest* served = nullptr;
  int32_t rows = bounds_.tokens;
  // By index: a pause changes the list, but only after the requests with the fewest slots.
  for (size_t i = 0; i < waiting_.size() && rows > 0; ++i) {
    const Sequence& sequence = *waiting_[i];
    if (sequence.request().priority != priority || sequence.open->slots != fewest) return;
    if (sequence.open.get() == served) continue;
    served = sequence.open.get();
    rows -= static_cast<int32_t>(sequence.tokens.size());
    if (free > 0) {
      --free;
      continue;
    }
    Sequence* const given = NextToGive(priority, fewest);
    if (given == nullptr) return;
    --given->open->staying;
    Pause(*given, plan);
  }
}

void Scheduler::CountStaying() {
  for (const Sequence* sequence : active_) sequence->open->staying = 0;
  for (const Sequence* sequence : active_) {
    if (sequence->phase == Phase::kActive) ++sequence->open->staying;
  }
}

// The last started choice of the request that holds most slots, at least two more than `fewest`.
Sequence* Scheduler::NextToGive(double priority, int32_t fewest) {
  Sequence* next = nullptr;
  for (Sequence* sequence : active_) {
    const int32_t drawn = static_cast<int32_t>(sequence->tokens.size()) - sequence->started_with;
    if (sequence->phase != Phase::kActive || drawn < kTokensBeforePause) continue;
    const int32_t staying = sequence->open->staying;
    if (sequence->request().priority > priority || staying < fewest + 2) continue;
    if (next == nullptr || staying > next->open->staying ||
        (staying == next->open->staying && sequence->started > next->started)) {
      next = sequence;
    }
  }
  return next;
}

// Slots divided by requests, rounded up. A slot that is kept counts as the request to come, so that
// the share does not move with each request of a steady stream.
int32_t Scheduler::Share() const {
  const auto coming = static_cast<int32_t>(
      std::ranges::count_if(free_slots_, [this](const FreeSlot& slot) { return Kept(slot); }));
  const int32_t requests = requests_ + coming;
  return (bounds_.sequences + requests - 1) / requests;
}

// Free slots within the bound.
int32_t Scheduler::UsableSlots() const {
  const int32_t within = bounds_.sequences - static_cast<int32_t>(active_.size());
  return std::clamp(within, 0, static_cast<int32_t>(free_slots_.size()));
}

// The free slot that the waiting request takes; end() if it may take none of them.
std::vector<Scheduler::FreeSlot>::iterator Scheduler::FindSlot(const OpenRequest& request) {
  const auto last = std::prev(free_slots_.end());
  if (request.slots == 0 || limits_.policy == SchedulerPolicy::kStaticBatch) return last;
  const bool below = request.slots < Share();
  if (!below && request.slots > waiting_.front()->open->slots) return free_slots_.end();
  const auto slot =
      std::ranges::find_if(free_slots_, [this](const FreeSlot& free) { return !Kept(free); });
  return slot == free_slots_.end() && below ? last : slot;
}

// ---- Decoding sequences ----

void Scheduler::PlanDecodes(StepPlan& plan) {
  GatherDecoding(plan);
  ChooseDrafts();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    PlanDecode(*decoding_[i], candidates_[i].num_drafts, plan);
  }
}

// The sequences that decode in this step, each with the block its next token needs; drafts are
// planned after all of them.
void Scheduler::GatherDecoding(StepPlan& plan) {
  decoding_.clear();
  for (size_t i = 0; i < active_.size();) {
    Sequence& sequence = *active_[i];
    // A sequence at its longest length ends with the step in flight.
    const int32_t sent = sequence.SentDrafts();
    const bool runs = sequence.phase == Phase::kActive && sequence.Decoding() &&
                      sequence.KnownLow() < sequence.max_length &&
                      static_cast<int32_t>(decoding_.size()) < budget_.rows && HasRoomForSent(sent);
    if (runs && ReserveByPausing(sequence, sequence.KnownHigh() + sent, plan)) {
      decoding_.push_back(&sequence);
      TakeRoomForSent(sent);
    }
    // A pause removes sequences after this one, or this one itself.
    if (i < active_.size() && active_[i] == &sequence) ++i;
  }
}

// A step always has room for the drafts of one request, which go before the engine's own.
bool Scheduler::HasRoomForSent(int32_t sent) const { return sent == 0 || sent < budget_.sent_rows; }

void Scheduler::TakeRoomForSent(int32_t sent) {
  if (sent > 0) budget_.sent_rows -= sent + 1;
}

void Scheduler::ChooseDrafts() {
  candidates_.clear();
  if (limits_.draft_mode == DraftMode::kOff) {
    candidates_.resize(decoding_.size());
    return;
  }
  auto decodes = static_cast<int32_t>(decoding_.size());
  int32_t spare_logits = budget_.spare_logits;
  for (const Sequence* sequence : decoding_) {
    candidates_.push_back(CandidateOf(*sequence));
    decodes += sequence->SentDrafts();
    spare_logits -= sequence->SentDrafts();
  }
  const bool context_logits = std::ranges::any_of(active_, [](const Sequence* sequence) {
    return sequence->KeepsContext() && !sequence->Decoding();
  });
  if (context_logits) spare_logits /= 2;
  const int32_t rows_left = budget_.rows - decodes;
  const int32_t backlog = std::min(PrefillBacklog(), rows_left);
  // Drafts leave half of the free rows to waiting prompts, half of the spare logits to prompts
  // whose logits the client gets, and one row to sample from to every slot.
  const int32_t max_drafts = std::min(backlog > 0 ? rows_left / 2 : rows_left, spare_logits);
  if (limits_.draft_mode == DraftMode::kFixed) {
    ChooseFixedDrafts(max_drafts);
  } else if (limits_.draft_mode == DraftMode::kAdaptive) {
    speculation_.Choose(candidates_, decodes + backlog, max_drafts);
  }
}

void Scheduler::ChooseFixedDrafts(int32_t max_drafts) {
  for (DraftCandidate& candidate : candidates_) {
    candidate.num_drafts = std::min({limits_.fixed_draft_len, candidate.max_drafts, max_drafts});
    max_drafts -= candidate.num_drafts;
  }
}

DraftCandidate Scheduler::CandidateOf(const Sequence& sequence) const {
  DraftCandidate candidate;
  candidate.acceptance = speculation_.EstimateAcceptance(sequence.acceptance);
  candidate.max_drafts = MaxDrafts(sequence);
  // Most tokens that the draft may lag after a round in flight. Look-ups have nothing to catch up.
  if (limits_.draft_model) {
    candidate.draft_lag =
        sequence.DraftsInFlight() ? ops::rules::kRoundLag : std::max(sequence.DraftLagHigh(), 1);
  }
  candidate.expected_tokens = speculation_.ExpectOutput(sequence.max_length - sequence.KnownLow());
  candidate.probe = sequence.probe;
  return candidate;
}

int32_t Scheduler::MaxDrafts(const Sequence& sequence) const {
  if (sequence.request().max_draft_len == 0 || sequence.SentDrafts() > 0) return 0;
  const bool constrained = sequence.constraint != nullptr;
  if (!(constrained ? limits_.drafts_constrained : limits_.drafts_unconstrained)) return 0;
  int32_t most = std::min(limits_.max_draft_len, sequence.request().max_draft_len);
  // The last token of a sequence needs no draft after it.
  most = std::min(most, sequence.max_length - sequence.KnownLow() - 1);
  if (limits_.draft_model) {
    most = std::min(most, limits_.draft_max_positions - sequence.KnownHigh() + 1);
  }
  return std::max(most, 0);
}

void Scheduler::PlanDecode(Sequence& sequence, int32_t num_drafts, StepPlan& plan) {
  const int32_t known = sequence.KnownHigh();
  const int32_t sent = sequence.SentDrafts();
  if (sent > 0) num_drafts = sent;
  if (!Reserve(sequence, std::min(known + num_drafts, sequence.max_length))) {
    num_drafts = std::clamp(Capacity(sequence) - known, 0, num_drafts);
  }
  const int32_t draft_tokens = sent > 0 ? 0 : PlanDraftTokens(sequence, num_drafts);
  Add(sequence,
      {.planned = true,
       .samples = true,
       .target_tokens = 1,
       .num_drafts = num_drafts,
       .draft_tokens = draft_tokens},
      plan);
}

// A sequence that starts with one token left to compute.
void Scheduler::VerifyAtOnce(Sequence& sequence, StepPlan& plan) {
  const int32_t sent = sequence.SentDrafts();
  const bool room = HasRoomForSent(sent) && sent < budget_.rows && sent <= budget_.spare_logits;
  if (!room || !Reserve(sequence, sequence.KnownHigh() + sent)) return;
  TakeRoomForSent(sent);
  PlanDecode(sequence, sent, plan);
}

// The draft model's range. If it lags too far for this step's rows, it catches up without drafting.
int32_t Scheduler::PlanDraftTokens(const Sequence& sequence, int32_t& num_drafts) {
  if (num_drafts == 0 || !limits_.draft_model) return 0;
  const int32_t lag = sequence.DraftLagHigh();
  int32_t tokens = lag;
  if (lag > budget_.draft_rows) {
    num_drafts = 0;
    // With drafts in flight the lag is not exact, but a catch-up needs an exact one.
    const bool exact = sequence.KnownLow() == sequence.KnownHigh();
    const int32_t start = sequence.KnownHigh() - lag;
    const bool whole = budget_.draft_rows >= sequence.LeastRows(ModelIndex::kDraft, start);
    tokens = exact && whole ? budget_.draft_rows : 0;
  }
  budget_.draft_rows -= tokens;
  return tokens;
}

// ---- Prompts ----

int32_t Scheduler::PrefillBacklog() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : active_) {
    if (sequence->phase == Phase::kActive && !sequence->Decoding()) tokens += sequence->Remaining();
  }
  const size_t starting = std::min(waiting_.size(), static_cast<size_t>(UsableSlots()));
  for (size_t i = 0; i < starting && tokens < bounds_.tokens; ++i) {
    tokens += static_cast<int64_t>(waiting_[i]->tokens.size());
  }
  return static_cast<int32_t>(std::min<int64_t>(tokens, bounds_.tokens));
}

void Scheduler::PlanPrefills(StepPlan& plan) {
  // By index: a pause shortens the list after the current sequence.
  for (size_t i = 0; i < active_.size() && budget_.rows > 0; ++i) {
    Sequence& sequence = *active_[i];
    const bool planned = sequence.WorkOf(plan.batch.step).planned;
    if (sequence.phase == Phase::kActive && !planned && !sequence.Decoding()) {
      PlanPrefill(sequence, plan);
    }
  }
}

// How many of the `remaining` tokens from `start` on one step must compute. A re-prefill after a
// pause may be longer than the longest prompt allowed.
int32_t Scheduler::LeastRows(const Sequence& sequence, int32_t start, int32_t remaining) const {
  const bool whole = !limits_.chunked_prefill && remaining <= limits_.max_num_tokens;
  return whole ? remaining : sequence.LeastRows(ModelIndex::kTarget, start);
}

void Scheduler::PlanPrefill(Sequence& sequence, StepPlan& plan) {
  int32_t remaining = sequence.Remaining();
  const int32_t start = sequence.KnownLow() - remaining;
  // Drafts that the client sent are verified after the prompt's last token, in a step like those
  // that verify the engine's own.
  const bool has_sent = sequence.SentDrafts() > 0;
  if (has_sent) --remaining;
  int32_t chunk = std::min(remaining, budget_.rows);
  const bool keeps_context = sequence.KeepsContext();
  if (keeps_context) chunk = std::min(chunk, budget_.spare_logits + 1);
  const int32_t least = keeps_context ? 0 : LeastRows(sequence, start, remaining);
  if (chunk < least) return;
  if (!Reserve(sequence, start + chunk)) {
    const int32_t fitting = Capacity(sequence) + kv_.AvailableBlocks() * kv_.block_tokens() - start;
    if (fitting >= std::max(least, 1)) chunk = std::min(chunk, fitting);
    if (!ReserveByPausing(sequence, start + chunk, plan)) return;
  }
  const bool samples = chunk == remaining && !has_sent;
  Add(sequence, {.planned = true, .samples = samples, .target_tokens = chunk}, plan);
}

// ---- New sequences ----

void Scheduler::StartWaiting(StepPlan& plan) {
  const bool is_static = limits_.policy == SchedulerPolicy::kStaticBatch;
  if (is_static && !active_.empty()) return;
  const Sequence* kept_out = nullptr;
  for (size_t i = 0; i < waiting_.size();) {
    if (UsableSlots() == 0 || (budget_.rows == 0 && !is_static)) return;
    Sequence& sequence = *waiting_[i];
    // A slot that is kept is not for the less important ones.
    if (kept_out != nullptr && sequence.request().priority < kept_out->request().priority) return;
    if (FindSlot(*sequence.open) == free_slots_.end()) {
      kept_out = &sequence;
      ++i;
      continue;
    }
    if (!is_static && AnotherComputesNextBlock(sequence)) {
      ++i;
      continue;
    }
    // Nobody overtakes the first one that does not fit: otherwise it could wait for ever.
    if (!TryStart(sequence, plan)) return;
    if (sequence.request().num_choices > 1) sequence.open->turn = ++turns_;
    i -= MoveWaiting(*sequence.open, i);
  }
}

// Moves the waiting choices of a request, whose slots or turn have changed, to their place. Returns
// how many of them were before `place`.
size_t Scheduler::MoveWaiting(const OpenRequest& request, size_t place) {
  if (request.request.num_choices == 1) return 0;
  const auto moves = [&](const Sequence* sequence) { return sequence->open.get() == &request; };
  const auto begin = waiting_.begin();
  const auto before = std::count_if(begin, begin + static_cast<ptrdiff_t>(place), moves);
  moved_.clear();
  std::copy_if(begin, waiting_.end(), std::back_inserter(moved_), moves);
  std::erase_if(waiting_, moves);
  for (Sequence* sequence : moved_) InsertWaiting(*sequence);
  return static_cast<size_t>(before);
}

// Whether waiting a step or two lets the sequence share a block instead of computing it again.
// Logits come only of tokens that are computed.
bool Scheduler::MayReuse(const Sequence& sequence) const {
  return limits_.prefix_reuse && !sequence.KeepsContext();
}

bool Scheduler::AnotherComputesNextBlock(const Sequence& sequence) const {
  if (!MayReuse(sequence)) return false;
  const int32_t size = kv_.block_tokens();
  const std::string& key = sequence.request().cache_key;
  const int32_t end = (kv_.PeekMatch(sequence.tokens, key) / size + 1) * size;
  // A hit leaves at least one token to compute.
  if (static_cast<int32_t>(sequence.tokens.size()) <= end) return false;
  for (const Sequence* other : active_) {
    const bool computes = other->phase == Phase::kActive && other->computed[0] < end &&
                          static_cast<int32_t>(other->tokens.size()) >= end &&
                          other->request().cache_key == key;
    if (computes &&
        std::equal(other->tokens.begin(), other->tokens.begin() + end, sequence.tokens.begin())) {
      return true;
    }
  }
  return false;
}

bool Scheduler::TryStart(Sequence& sequence, StepPlan& plan) {
  const auto known = static_cast<int32_t>(sequence.tokens.size());
  const bool optimistic = limits_.policy == SchedulerPolicy::kMaxUtilization;
  const int32_t length =
      optimistic ? std::min(known + 1, sequence.max_length) : sequence.max_length;
  PrefixMatch match;
  if (MayReuse(sequence)) match = kv_.Match(sequence.tokens, sequence.request().cache_key);
  // A copy runs in the step that computes the tokens after it; it is not made without rows for
  // those, which a draft's verification may lack, nor if its source is a block that the sequence
  // needs.
  const bool verifies = sequence.SentDrafts() > 0 && known - match.computed[0] == 1;
  if (budget_.rows == 0 || verifies || !Fits(sequence, match, length)) kv_.DropPartial(match);
  if (!Fits(sequence, match, length)) {
    kv_.Drop(match);
    return false;
  }
  Start(sequence, match);
  TANDEM_CHECK(Reserve(sequence, optimistic ? match.computed[0] : length), "blocks were counted");
  if (match.partial_tokens > 0) {
    const BlockId to = sequence.blocks[static_cast<size_t>(match.num_whole())];
    TakeWindows(sequence, match.num_whole() + 1);
    if (match.partial_on_host >= 0) {
      kv_.CopyFromHost(match.partial_on_host, to);
    } else {
      plan.batch.copies.push_back(
          {match.partial_source, to, match.partial_tokens, match.source_window, kv_.WindowOf(to)});
    }
  }
  plan.started.push_back(&sequence);
  if (budget_.rows == 0) return true;
  if (sequence.SentDrafts() > 0 && sequence.Decoding()) {
    VerifyAtOnce(sequence, plan);
  } else {
    PlanPrefill(sequence, plan);
  }
  return true;
}

// Whether there are blocks for `length` tokens, of which those on the host need fresh ones too, and
// rows for those of the known ones after the match that one step must compute.
bool Scheduler::Fits(const Sequence& sequence, const PrefixMatch& match, int32_t length) const {
  const int32_t needed = BlocksFor(length) - static_cast<int32_t>(match.blocks.size());
  const int32_t start = match.computed[0];
  const int32_t remaining = static_cast<int32_t>(sequence.tokens.size()) - start;
  return needed <= kv_.AvailableBlocks() && LeastRows(sequence, start, remaining) <= budget_.rows;
}

void Scheduler::Start(Sequence& sequence, const PrefixMatch& match) {
  const auto slot = FindSlot(*sequence.open);
  std::erase(waiting_, &sequence);
  if (sequence.started > 0) --paused_;
  sequence.phase = Phase::kActive;
  sequence.slot = slot->slot;
  free_slots_.erase(slot);
  if (++sequence.open->slots == 2) ++requests_with_many_slots_;
  sequence.started = ++starts_;
  sequence.started_with = static_cast<int32_t>(sequence.tokens.size());
  sequence.blocks.reserve(static_cast<size_t>(BlocksFor(sequence.max_length)));
  sequence.blocks.assign(match.blocks.begin(), match.blocks.end());
  kv_.Onboard(match.on_host, sequence.blocks);
  if (kv_.has_windows()) sequence.windows.reserve(sequence.blocks.capacity());
  sequence.windows.assign(match.windows.begin(), match.windows.end());
  sequence.first_window = match.first_window;
  sequence.usage.kv_blocks_reused += match.num_whole();
  sequence.blocks_told = 0;
  sequence.copy_source = match.partial_source;
  sequence.copy_source_window = match.source_window;
  sequence.computed = match.computed;
  sequence.published = match.computed;
  sequence.context_logits.clear();  // of a prompt that is computed again
  sequence.prompt_logprobs.clear();
  if (!sequence.ever_started) {
    sequence.usage.cached_tokens = std::min(match.computed[0], sequence.prompt_tokens());
    kv_.CountLookup(sequence.prompt_tokens(), sequence.usage.cached_tokens);
  }
  active_.insert(std::ranges::upper_bound(active_, &sequence, RunsBefore), &sequence);
}

// ---- Blocks ----

// Window blocks for the sequence's first `num_blocks` blocks, as far as it has none.
void Scheduler::TakeWindows(Sequence& sequence, int32_t num_blocks) {
  const auto end = static_cast<size_t>(sequence.first_window) + sequence.windows.size();
  if (!kv_.has_windows() || static_cast<size_t>(num_blocks) <= end) return;
  kv_.TakeWindows(std::span(sequence.blocks).first(static_cast<size_t>(num_blocks)).subspan(end),
                  sequence.windows);
}

int32_t Scheduler::BlocksFor(int32_t tokens) const {
  return (tokens + kv_.block_tokens() - 1) / kv_.block_tokens();
}

int32_t Scheduler::Capacity(const Sequence& sequence) const {
  return static_cast<int32_t>(sequence.blocks.size()) * kv_.block_tokens();
}

bool Scheduler::Reserve(Sequence& sequence, int32_t tokens) {
  const int32_t missing = BlocksFor(tokens) - static_cast<int32_t>(sequence.blocks.size());
  if (missing <= 0) return true;
  if (!kv_.Allocate(missing, sequence.blocks)) return false;
  sequence.usage.kv_blocks_new += missing;
  return true;
}

bool Scheduler::ReserveByPausing(Sequence& sequence, int32_t tokens, StepPlan& plan) {
  while (!Reserve(sequence, tokens)) {
    TANDEM_CHECK(limits_.policy == SchedulerPolicy::kMaxUtilization,
                 "blocks were reserved at start");
    if (!PauseLast(sequence, plan)) return false;
  }
  return true;
}

// Pauses the last sequence in order that is not in this plan, which may be `needy` itself. False if
// `needy` gains nothing from it now: it has paused itself, blocks come back only when a step ends,
// or there is nobody to pause.
bool Scheduler::PauseLast(const Sequence& needy, StepPlan& plan) {
  for (Sequence* const sequence : std::views::reverse(active_)) {
    if (sequence->phase != Phase::kActive) return false;  // its blocks will be released
    if (sequence->WorkOf(plan.batch.step).planned) continue;
    // A sequence that is alone lacks a block only while a step in flight, or the tree's copy of its
    // own prefix, holds it.
    if (active_.size() == 1 && sequence->InFlightAny()) return false;
    return Pause(*sequence, plan) && sequence != &needy;
  }
  return false;
}

// True if its slot and blocks are free at once: no step in flight names the sequence.
bool Scheduler::Pause(Sequence& sequence, StepPlan& plan) {
  ++preemptions_;
  sequence.phase = Phase::kPausing;
  if (sequence.InFlightAny()) return false;
  plan.vacated_slots.push_back(FinishPause(sequence));
  return true;
}

int32_t Scheduler::Release(Sequence& sequence) {
  TANDEM_CHECK(!sequence.InFlightAny(), "a step in flight names the sequence");
  KeepWindows(sequence, 0, 0, kv_);
  kv_.Release(sequence.blocks);
  sequence.blocks.clear();
  ReleaseCopySource(sequence, kv_);
  std::erase(active_, &sequence);
  if (--sequence.open->slots == 1) --requests_with_many_slots_;
  const int32_t slot = sequence.slot;
  sequence.slot = -1;
  if (sequence.phase != Phase::kPausing) Forget(*sequence.open);
  if (sequence.open->sequences == 0) {
    free_slots_.push_back({slot, plans_ + kPlansKept});
  } else {
    free_slots_.insert(free_slots_.begin(), {slot});
  }
  MoveWaiting(*sequence.open, 0);
  return slot;
}

int32_t Scheduler::FinishPause(Sequence& sequence) {
  const int32_t slot = Release(sequence);
  sequence.computed = {0, 0};
  sequence.published = {0, 0};
  ++paused_;
  InsertWaiting(sequence);
  return slot;
}

void Scheduler::Add(Sequence& sequence, const Sequence::InFlight& work, StepPlan& plan) {
  const int32_t end =
      sequence.KnownHigh() - sequence.Remaining() + work.target_tokens + work.num_drafts;
  TakeWindows(sequence, std::min(BlocksFor(end), static_cast<int32_t>(sequence.blocks.size())));
  SequencePlan item;
  item.slot = sequence.slot;
  item.target_tokens = work.target_tokens;
  item.samples = work.samples;
  item.num_drafts = work.num_drafts;
  item.sent = work.samples && sequence.SentDrafts() > 0;
  item.draft_tokens = work.draft_tokens;
  item.keeps_context = sequence.KeepsContext();
  item.keeps_drawn = work.samples && sequence.request().return_generation_logits;
  item.first_new_block = static_cast<int32_t>(plan.batch.blocks.size());
  plan.batch.blocks.insert(plan.batch.blocks.end(), sequence.blocks.begin() + sequence.blocks_told,
                           sequence.blocks.end());
  item.num_new_blocks = static_cast<int32_t>(plan.batch.blocks.size()) - item.first_new_block;
  sequence.blocks_told = static_cast<int32_t>(sequence.blocks.size());
  sequence.WorkOf(plan.batch.step) = work;
  budget_.rows -= work.target_tokens + work.num_drafts;
  budget_.spare_logits -= item.SpareLogits();
  plan.batch.sequences.push_back(item);
  plan.sequences.push_back(&sequence);
}

}  // namespace tandem
