#include "runtime/execution/round_executor.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/check.h"
#include "ops/round_rules.h"

namespace tandem {
namespace {

using ops::rules::kRoundLag;

ops::BatchView ViewOf(const ops::PassArrays& pass, const ops::PassBounds& bounds,
                      const RangeLengths& lengths, int32_t max_blocks) {
  return {.num_rows = bounds.num_rows,
          .num_seqs = bounds.num_seqs,
          .num_logits = bounds.num_logits,
          .max_query_len = lengths.longest,
          .chunks = lengths.chunks,
          .tokens = pass.tokens,
          .positions = pass.positions,
          .row_seq = pass.row_seq,
          .query_start = pass.query_start,
          .context_len = pass.context_len,
          .block_table = pass.block_table,
          .window_table = pass.window_table,
          .max_blocks = max_blocks,
          .logits_rows = pass.logits_rows,
          .prefix_len = pass.prefix_len,
          .turns = pass.turns,
          .second_positions = pass.second_positions};
}

StepFault FaultOf(int32_t fault) {
  switch (fault) {
    case ops::kFaultNoTokenAllowed:
      return StepFault::kNoTokenAllowed;
    case ops::kFaultBadLogits:
      return StepFault::kBadLogits;
    default:
      return StepFault::kNone;
  }
}

template <typename T>
std::span<T> First(T* data, int32_t count) {
  return {data, static_cast<size_t>(count)};
}

// The rows laid out within the bounds, read in place: on the host only.
ops::PassBounds Laid(const ops::PassArrays& pass, const ops::PassBounds& bounds) {
  ops::PassBounds laid;
  laid.num_rows = pass.query_start[bounds.num_seqs];
  while (laid.num_seqs < bounds.num_seqs && pass.ranges[laid.num_seqs].slot >= 0) {
    laid.num_logits += ops::rules::LogitsOf(pass.ranges[laid.num_seqs++]);
  }
  return laid;
}

}  // namespace

void RangeLengths::Add(int32_t least, int32_t most, int64_t keys, bool decode) {
  longest = std::max(longest, most);
  if (decode) {
    chunks.max_decode_len = std::max(chunks.max_decode_len, most);
    return;
  }
  chunks.min_len = decodes() ? least : std::min(chunks.min_len, least);
  ++chunks.num_seqs;
  chunks.num_rows += most;
  chunks.num_keys += keys;
}

RoundExecutor::RoundExecutor(const ExecutorConfig& config, ops::Backend& backend,
                             ExecutorModels models, const Clock& clock,
                             std::unique_ptr<DeviceMemory> memory,
                             std::unique_ptr<DeviceSlots> slots)
    : config_(config),
      backend_(backend),
      models_(std::move(models)),
      clock_(clock),
      memory_(std::move(memory)),
      device_slots_(std::move(slots)),
      graphs_(backend, config.max_num_tokens,
              models_.ranks != nullptr && !config.on_host ? [this] { Quieten(); }
                                                          : std::function<void()>()),
      masks_(config, memory_->round(), models_.ranks),
      sent_(static_cast<size_t>(config.max_batch_size)),
      draft_lag_(static_cast<size_t>(config.max_batch_size)),
      room_(static_cast<size_t>(config.max_batch_size)),
      computed_(static_cast<size_t>(config.max_batch_size)),
      steps_(static_cast<size_t>(config.max_launched)) {
  TANDEM_CHECK(RunMarkOf(0) + config.max_launched <= ops::Backend::kNumMarks,
               "more steps at once than marks");
  for (const ops::KvGroup& group : models_.target_pool.groups) {
    (group.windowed ? window_groups_ : whole_groups_).groups.push_back(group);
  }
  for (Step& step : steps_) step.times.passes.reserve(max_passes());
  backend_.ops().ReserveSampling(std::max(config.max_logits_rows, config.max_batch_size),
                                 models_.target->vocab_size());
}

Result<std::unique_ptr<RoundExecutor>> RoundExecutor::Create(const ExecutorConfig& config,
                                                             ops::Backend& backend,
                                                             ExecutorModels models,
                                                             const Clock& clock) {
  const int64_t draft_vocab = models.draft == nullptr ? 0 : models.draft->vocab_size();
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                          DeviceMemory::Create(config, models.target->vocab_size(), draft_vocab,
                                               models.target_pool.window_of, backend));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceSlots> slots,
                          DeviceSlots::Create(*memory, backend, config.max_launched));
  return std::unique_ptr<RoundExecutor>(new RoundExecutor(config, backend, std::move(models), clock,
                                                          std::move(memory), std::move(slots)));
}

// The memory is freed when nothing enqueued uses it any more; failures have been reported when
// their step should have ended.
RoundExecutor::~RoundExecutor() { static_cast<void>(backend_.Synchronize()); }

void RoundExecutor::AddSequence(int32_t slot, const SlotInit& init,
                                std::shared_ptr<TokenConstraint> constraint) {
  TANDEM_CHECK(!Full(), "too many steps in flight");
  masks_.Set(slot, init.constrained, std::move(constraint));
  draft_lag_[static_cast<size_t>(slot)] =
      static_cast<int32_t>(init.tokens.size()) - init.computed[1];
  room_[static_cast<size_t>(slot)] = 0;
  computed_[static_cast<size_t>(slot)] = init.computed;
  sent_[static_cast<size_t>(slot)] = {init.sent_by_probability, init.sent_threshold,
                                      init.sent_logits};
  Note(device_slots_->Add(sampled_, slot, init));
}

void RoundExecutor::RemoveSequence(int32_t slot) {
  masks_.Set(slot, false, nullptr);
  sent_[static_cast<size_t>(slot)] = {};
  device_slots_->Remove(slot);
}

// ---- The plan ----

void RoundExecutor::Propose(const BatchPlan& plan) {
  TANDEM_CHECK(!Full(), "too many steps in flight");
  // Before the step's mark: what it waits for its blocks is no part of its passes' times.
  if (models_.host_blocks) models_.host_blocks->Enqueue(plan.host_copies);
  step_started_ = clock_.Now();
  times().Clear();
  times().complete = true;
  backend_.Mark(BeginMarkOf(sampled_));
  SendPlan(plan);
  for (const BlockCopy& copy : plan.copies) {
    backend_.ops().CopyBlock(whole_groups_, copy.from, copy.to, copy.tokens);
    backend_.ops().CopyBlock(window_groups_, copy.from_window, copy.to_window, copy.tokens);
    if (models_.draft) {
      backend_.ops().CopyBlock(models_.draft_pool, copy.from, copy.to, copy.tokens);
    }
  }
  const bool masks_drafts = config_.on_host && shape_.constrained && shape_.max_drafts > 0;
  if (masks_drafts) SettleLaunched();
  if (config_.lookup_ngram > 0 && shape_.max_drafts > 0) {
    backend_.round().LookUpDrafts(memory_->round(), shape_.items);
    if (masks_drafts) masks_.CutLookUps(plan);
  }
  if (config_.draft_forced && masks_drafts) masks_.DraftForced(plan);
  if (shape_.draft_rows > 0) {
    if (config_.on_host) {
      RunLaidDrafts();
    } else {
      RunDrafts();
    }
  }
  if (!config_.on_host && shape_.constrained) {
    memory_->EnqueueDrafts(sampled_);
    backend_.Mark(DraftsMarkOf(sampled_));
  }
}

void RoundExecutor::SendPlan(const BatchPlan& plan) {
  const DeviceMemory::HostPlan host = memory_->PlanOf(sampled_);
  shape_ = {};
  shape_.items = static_cast<int32_t>(plan.sequences.size());
  host.header->num_items = shape_.items;
  int32_t prob_rows = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    host.items[i] = ItemOf(plan.sequences[i]);
    if (host.items[i].by_probability != 0) {
      host.items[i].first_prob_row = prob_rows;
      prob_rows += host.items[i].num_drafts + 1;
    }
    if (host.items[i].sent != 0) CopySent(host.items[i]);
    if (plan.sequences[i].keeps_context || plan.sequences[i].keeps_drawn) {
      host.items[i].first_kept = shape_.kept;
      shape_.kept += 1 + plan.sequences[i].SpareLogits();
    }
    AddToShape(host.items[i]);
  }
  TANDEM_CHECK(shape_.kept == 0 || (config_.takes_logits && shape_.kept <= config_.max_logits_rows),
               "more logits for clients than there is room for");
  int32_t* const mappings = std::ranges::copy(plan.blocks, host.blocks).out;
  host.header->first_mapping = static_cast<int32_t>(plan.blocks.size());
  host.header->num_mappings = static_cast<int32_t>(plan.mappings.size());
  TANDEM_CHECK(host.header->num_mappings <= config_.MaxMappings(config_.block_tokens),
               "more window blocks than a step maps");
  for (size_t i = 0; i < plan.mappings.size(); ++i) {
    mappings[2 * i] = plan.mappings[i].block;
    mappings[2 * i + 1] = plan.mappings[i].window;
  }
  memory_->EnqueuePlan(sampled_, plan.blocks.size() + 2 * plan.mappings.size());
  backend_.round().ApplyPlan(memory_->round(), shape_.items);
}

// Copies the logits that the client sent with the item's drafts to where the device reads them.
void RoundExecutor::CopySent(ops::RoundItem& item) {
  const Sent& sent = sent_[static_cast<size_t>(item.slot)];
  if (sent.logits.empty()) return;
  TANDEM_CHECK(shape_.sent_rows + item.num_drafts <= config_.MaxSentRows(),
               "more drafts of clients than a step verifies");
  const int64_t vocab = memory_->round().slots.vocab;
  item.first_sent_row = shape_.sent_rows;
  std::copy_n(sent.logits.begin(), item.num_drafts * vocab,
              memory_->SentOf(sampled_) + shape_.sent_rows * vocab);
  shape_.sent_rows += item.num_drafts;
}

ops::RoundItem RoundExecutor::ItemOf(const SequencePlan& planned) const {
  ops::RoundItem item;
  item.slot = planned.slot;
  item.target_tokens = planned.target_tokens;
  item.samples = planned.samples ? 1 : 0;
  item.num_drafts = planned.num_drafts;
  item.draft_tokens = planned.draft_tokens;
  item.first_new_block = planned.first_new_block;
  item.num_new_blocks = planned.num_new_blocks;
  if (planned.sent) {
    const Sent& sent = sent_[static_cast<size_t>(planned.slot)];
    item.sent = 1;
    item.by_probability = sent.by_probability && planned.num_drafts > 0 ? 1 : 0;
    item.threshold = sent.threshold;
  } else {
    item.by_probability = config_.ratio_acceptance && planned.num_drafts > 0 ? 1 : 0;
  }
  item.keeps_context = planned.keeps_context ? 1 : 0;
  item.keeps_drawn = planned.keeps_drawn ? 1 : 0;
  item.constrained = masks_.Constrains(planned.slot) && planned.samples ? 1 : 0;
  TANDEM_CHECK(item.constrained == 0 || item.by_probability == 0 || config_.on_host,
               "drafts accepted by probability under a constraint, on a device");
  return item;
}

void RoundExecutor::AddToShape(const ops::RoundItem& item) {
  shape_.target_rows += item.target_tokens + item.num_drafts;
  int32_t& room = room_[static_cast<size_t>(item.slot)];
  room += item.num_new_blocks * config_.block_tokens;
  // At most all blocks are full; they may be reserved up to the last token of an answer.
  const auto keys_after = [&](ModelIndex model, int32_t rows) {
    int32_t& length = computed_[static_cast<size_t>(item.slot)][static_cast<size_t>(model)];
    return length = std::min(length + rows, room);
  };
  const int32_t target_rows = item.target_tokens + item.num_drafts;
  shape_.target.Add(item.target_tokens, target_rows, keys_after(ModelIndex::kTarget, target_rows),
                    item.target_tokens <= 1);
  if (item.sent == 0) shape_.max_drafts = std::max(shape_.max_drafts, item.num_drafts);
  shape_.verifies = shape_.verifies || item.num_drafts > 0;
  shape_.by_probability = shape_.by_probability || item.by_probability != 0;
  shape_.constrained = shape_.constrained || item.constrained != 0;
  if (item.samples != 0) shape_.target_logits += 1 + item.num_drafts;
  if (item.keeps_context != 0) shape_.target_logits += item.target_tokens - item.samples;
  const int32_t draft_rows = models_.draft == nullptr ? 0 : TakeDraftRows(item);
  if (draft_rows == 0) return;
  shape_.draft_rows += draft_rows;
  ++shape_.draft_seqs;
  if (item.num_drafts > 0) ++shape_.draft_logits;
  // A sequence may lag less than is known.
  shape_.draft.Add(1, draft_rows, keys_after(ModelIndex::kDraft, draft_rows + item.num_drafts),
                   draft_rows <= kRoundLag);
}

// Upper bound of the rows of the draft model's first pass for a sequence. The plan's bound assumes
// that every draft in flight may be accepted; the draft's lag after that is known better here.
int32_t RoundExecutor::TakeDraftRows(const ops::RoundItem& item) {
  int32_t& lag = draft_lag_[static_cast<size_t>(item.slot)];
  const int32_t rows = std::min(lag, item.draft_tokens);
  if (item.num_drafts > 0) {
    // A round with look-ups, forced tokens or drafts of the client does not change the draft
    // model's state.
    const bool drafts = config_.lookup_ngram == 0 && !config_.draft_forced && item.sent == 0;
    lag = drafts ? kRoundLag : lag + 1 + item.num_drafts;
  } else {
    lag += item.samples - rows;
  }
  return rows;
}

// ---- Passes ----

// Room for `rows` rows of unknown distribution: every row may be a separate sequence.
ops::PassBounds RoundExecutor::BoundsOf(int32_t rows, int32_t max_logits) const {
  const int32_t bucket = graphs_.Bucket(rows);
  return {.num_rows = bucket,
          .num_seqs = std::min(bucket, config_.max_batch_size),
          .num_logits = std::min(bucket, max_logits)};
}

void RoundExecutor::RunDrafts() {
  const ops::PassBounds next = BoundsOf(shape_.draft_seqs, config_.max_batch_size);
  if (shape_.draft.decodes()) {
    const ops::PassBounds first = BoundsOf(shape_.draft_rows, config_.max_batch_size);
    graphs_.Run(GraphKind::kDraftFirst, 0, first.num_rows, [this, first] {
      backend_.round().LayDraftRows(memory_->round(), first);
      DraftPass(first, {kRoundLag}, first);
    });
  } else {
    const ops::PassBounds first = {.num_rows = shape_.draft_rows,
                                   .num_seqs = next.num_seqs,
                                   .num_logits = shape_.draft_logits};
    graphs_.RunOnce(ModelIndex::kDraft, first.num_rows, [this, first, next] {
      backend_.round().LayDraftRows(memory_->round(), first);
      DraftPass(first, shape_.draft, next);
    });
  }
  if (shape_.draft_logits == 0) return;
  for (int32_t draft = 1; draft < shape_.max_drafts; ++draft) {
    graphs_.Run(GraphKind::kDraftNext, 0, next.num_rows,
                [this, next] { DraftPass(next, {1}, next); });
  }
}

// The same on the host: each pass has exactly the rows laid out, and there are at most as many
// passes as sequences want drafts.
void RoundExecutor::RunLaidDrafts() {
  const ops::Round& round = memory_->round();
  ops::PassBounds bounds = {.num_rows = shape_.draft_rows,
                            .num_seqs = shape_.draft_seqs,
                            .num_logits = shape_.draft_logits};
  backend_.round().LayDraftRows(round, bounds);
  while (true) {
    bounds = Laid(round.draft, bounds);
    if (bounds.num_rows == 0) return;
    const Nanos start = clock_.Now();
    DraftPass(bounds, {}, bounds);
    if (bounds.num_logits == 0) {
      times().complete = false;
      return;
    }
    times().passes.push_back({.model = ModelIndex::kDraft,
                              .rows = bounds.num_logits,
                              .catch_up = bounds.num_rows - bounds.num_logits,
                              .seconds = SecondsSince(start)});
  }
}

// Draws one draft after each range, and lays out the rows of a pass of bounds `next` for sequences
// that want another.
void RoundExecutor::DraftPass(const ops::PassBounds& bounds, const RangeLengths& lengths,
                              const ops::PassBounds& next) {
  const ops::Round& round = memory_->round();
  const ops::BatchView view = ViewOf(round.draft, bounds, lengths, round.slots.max_blocks);
  const Tensor logits = models_.draft->Forward(view, models_.draft_pool);
  if (bounds.num_logits == 0) return;
  TANDEM_CHECK(draft_logits_ == nullptr || draft_logits_ == logits.As<float>(),
               "the draft's logits have moved");
  draft_logits_ = logits.As<float>();
  backend_.round().LayDraftSamples(round, bounds, draft_logits_, models_.draft->vocab_size());
  if (config_.on_host && shape_.constrained) masks_.MaskDrafts(bounds);
  backend_.ops().Sample(First<const ops::SampleRow>(round.draft.samples, bounds.num_logits),
                        round.draw_vocab, First(round.draft.drawn, bounds.num_logits));
  backend_.round().KeepDrafts(round, next);
}

// Whether the step runs as graphs, which are made for drafts of the engine's own lengths.
bool RoundExecutor::Replays() const {
  return shape_.target.decodes() &&
         shape_.target.chunks.max_decode_len <= 1 + config_.max_draft_len;
}

void RoundExecutor::Run(const BatchPlan& /*plan*/) {
  target_bounds_ = {
      .num_rows = shape_.target_rows, .num_seqs = shape_.items, .num_logits = shape_.target_logits};
  if (config_.on_host) {
    target_started_ = clock_.Now();
    backend_.round().LayTargetRows(memory_->round(), target_bounds_);
    target_bounds_ = Laid(memory_->round().target, target_bounds_);
    if (target_bounds_.num_rows > 0) TargetForward(target_bounds_, {});
    return;
  }
  backend_.Mark(RunMarkOf(sampled_));
  // Attention is planned for the longest range: powers of two, up to the largest number of drafts.
  // Beside chunks what decodes is laid out as without them.
  const int32_t longest_decode = shape_.target.chunks.max_decode_len;
  const auto width =
      static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(std::max(longest_decode, 1) - 1)));
  const int32_t variant = std::min(width, kNumVariants - 1);
  const int32_t all = std::max(1 + config_.max_draft_len, longest_decode);
  const int32_t decode_len = variant == kNumVariants - 1 ? all : std::min(1 << variant, all);
  if (!Replays()) {
    RangeLengths lengths = shape_.target;
    if (longest_decode > 0) lengths.chunks.max_decode_len = decode_len;
    graphs_.RunOnce(ModelIndex::kTarget, target_bounds_.num_rows,
                    [this, &lengths] { TargetPass(target_bounds_, lengths); });
    return;
  }
  target_bounds_ = BoundsOf(shape_.target_rows, config_.max_logits_rows);
  graphs_.Run(GraphKind::kRun, variant, target_bounds_.num_rows,
              [this, decode_len] { TargetPass(target_bounds_, {decode_len}); });
}

void RoundExecutor::TargetPass(const ops::PassBounds& bounds, const RangeLengths& lengths) {
  backend_.round().LayTargetRows(memory_->round(), bounds);
  TargetForward(bounds, lengths);
}

void RoundExecutor::TargetForward(const ops::PassBounds& bounds, const RangeLengths& lengths) {
  const ops::Round& round = memory_->round();
  const ops::BatchView view = ViewOf(round.target, bounds, lengths, round.slots.max_blocks);
  const Tensor logits = models_.target->Forward(view, models_.target_pool);
  if (bounds.num_logits == 0) return;
  TANDEM_CHECK(target_logits_ == nullptr || target_logits_ == logits.As<float>(),
               "the target's logits have moved");
  target_logits_ = logits.As<float>();
}

// Of several ranks on devices: when the ranks have met here, each has enqueued all earlier steps,
// so that its device's work ends without anything more from the others.
void RoundExecutor::Quieten() {
  std::byte nothing{};
  models_.ranks->Broadcast({&nothing, 1});
  Note(backend_.Synchronize());
}

// Keeps the first failure for Land. The other ranks hear of it at once: the first one may wait for
// this one long before it asks for the step.
void RoundExecutor::Note(const Status& failure) {
  if (failure.ok() || !failure_.ok()) return;
  failure_ = failure;
  if (models_.ranks == nullptr) return;
  const int rank = models_.ranks->rank();
  models_.ranks->Fail(rank == 0 ? failure : failure.Annotate("rank " + std::to_string(rank)));
}

// ---- Draws ----

void RoundExecutor::Sample(const BatchPlan& plan) {
  if (shape_.constrained) SendMasks(plan);
  const bool verifies = shape_.by_probability;
  if (shape_.sent_rows > 0) {
    const ops::Round& round = memory_->round();
    backend_.round().LaySentRows(round, shape_.items, shape_.sent_rows, memory_->SentOf(sampled_));
    backend_.ops().Sample(First<const ops::SampleRow>(round.sent_samples, shape_.sent_rows),
                          round.slots.vocab, First(round.sent_drawn, shape_.sent_rows));
  }
  if (Replays() && !config_.on_host) {
    graphs_.Run(GraphKind::kSample, verifies ? 1 : 0, target_bounds_.num_rows,
                [this, verifies] { DrawAndAccept(target_bounds_, verifies); });
  } else {
    DrawAndAccept(target_bounds_, verifies);
  }
  if (config_.on_host) TimeTarget();
  if (shape_.kept > 0) {
    backend_.round().KeepLogits(memory_->round(), target_bounds_, target_logits_,
                                memory_->KeptOf(sampled_));
  }
  memory_->EnqueueResults(sampled_, target_bounds_.num_logits);
  backend_.Mark(MarkOf(sampled_));
  Step& step = StepOf(sampled_);
  step.number = plan.step;
  step.items = shape_.items;
  step.logits = target_bounds_.num_logits;
  step.is_round = shape_.max_drafts > 0 && shape_.target.decodes();
  if (!config_.on_host) {
    NotePasses();
  } else if (step.is_round) {
    step.times.round_seconds = SecondsSince(step_started_);
  }
  ++sampled_;
}

void RoundExecutor::DrawAndAccept(const ops::PassBounds& bounds, bool verifies) {
  const ops::Round& round = memory_->round();
  const int64_t vocab = round.slots.vocab;
  const auto rows = First<const ops::SampleRow>(round.target.samples, bounds.num_logits);
  backend_.round().LayTargetSamples(round, bounds, target_logits_);
  if (!rows.empty())
    backend_.ops().Sample(rows, vocab, First(round.target.drawn, bounds.num_logits));
  if (verifies) {
    backend_.round().LayVerifyRows(round, bounds);
    backend_.ops().VerifyAndAccept(First<const ops::VerifyRow>(round.verify, bounds.num_seqs),
                                   vocab);
    // Again, for the log-probabilities of the chosen tokens.
    backend_.round().LayChosenRows(round, bounds);
    backend_.ops().Sample(rows, vocab, First(round.chosen, bounds.num_logits));
  }
  backend_.round().Accept(round, bounds, target_logits_);
}

// ---- Masks ----

// Waits for the results of every earlier step and for this step's drafts: masks follow from both.
void RoundExecutor::SendMasks(const BatchPlan& plan) {
  SettleLaunched();
  if (failure_.ok() && !config_.on_host) Note(backend_.WaitFor(DraftsMarkOf(sampled_)));
  if (!failure_.ok()) return;  // Land reports it; the host's copy is meaningless
  const ops::SlotArrays& slots = memory_->round().slots;
  const DeviceMemory::HostDrafts drafts =
      config_.on_host ? DeviceMemory::HostDrafts{slots.records, slots.drafts}
                      : memory_->DraftsOf(sampled_);
  const int32_t count = masks_.FillTarget(plan, drafts, memory_->MasksOf(sampled_));
  memory_->EnqueueMasks(sampled_, count);
}

// ---- Times ----

double RoundExecutor::SecondsSince(Nanos start) const { return InSeconds(clock_.Now() - start); }

// On the host: the target's pass and its draws.
void RoundExecutor::TimeTarget() {
  if (!shape_.target.decodes() || target_bounds_.num_rows == 0 ||
      target_bounds_.num_logits < target_bounds_.num_rows) {
    times().complete = false;
    return;
  }
  const bool verifies =
      std::ranges::any_of(First(memory_->round().target.ranges, target_bounds_.num_seqs),
                          [](const ops::RowRange& range) { return range.num_logits > 1; });
  times().passes.push_back({.model = ModelIndex::kTarget,
                            .rows = target_bounds_.num_rows,
                            .verifies = verifies,
                            .seconds = SecondsSince(target_started_)});
}

// On a device: the passes that lie between the marks of the step being launched. Which sequences
// the draft model drafted for is not known where drafts may have been looked up.
void RoundExecutor::NotePasses() {
  const bool for_clients = shape_.kept > 0 || shape_.sent_rows > 0;  // work that few steps have
  times().complete = shape_.target.decodes() && !for_clients;
  if (!times().complete) return;
  const bool known = shape_.draft_logits > 0 && config_.lookup_ngram == 0;
  if (known) {
    times().passes.push_back({.model = ModelIndex::kDraft,
                              .rows = shape_.draft_logits,
                              .catch_up = shape_.draft_rows - shape_.draft_logits,
                              .more = std::max(shape_.max_drafts - 1, 0),
                              .more_rows = shape_.draft_logits});
  }
  times().passes.push_back(
      {.model = ModelIndex::kTarget, .rows = shape_.target_rows, .verifies = shape_.verifies});
  times().complete = known || shape_.draft_rows == 0;
}

// On a device: their seconds, when the step has ended.
void RoundExecutor::ReadMarks(uint64_t step) {
  Step& done = StepOf(step);
  for (PassTime& passes : done.times.passes) {
    passes.seconds = passes.model == ModelIndex::kDraft
                         ? backend_.SecondsBetween(BeginMarkOf(step), RunMarkOf(step))
                         : backend_.SecondsBetween(RunMarkOf(step), MarkOf(step));
  }
  if (done.is_round) {
    done.times.round_seconds = backend_.SecondsBetween(BeginMarkOf(step), MarkOf(step));
  }
}

// ---- Results ----

void RoundExecutor::SettleLaunched() {
  for (uint64_t step = settled_; step < sampled_; ++step) Settle(step);
}

// Waits for a step's results and commits the emitted tokens to the constraints.
void RoundExecutor::Settle(uint64_t step) {
  if (step < settled_) return;
  settled_ = step + 1;
  if (failure_.ok()) Note(backend_.WaitFor(MarkOf(step)));
  if (!failure_.ok()) return;  // the host's memory holds an earlier step's results
  const DeviceMemory::HostResults host = memory_->ResultsOf(step);
  if (host.status->broken != 0) {
    Note(Internal("the plan does not fit the state on the device: " +
                  std::to_string(host.status->broken)));
    return;
  }
  masks_.Commit(host, StepOf(step).items);
}

Status RoundExecutor::Land(StepResult& result) {
  TANDEM_CHECK(landed_ < sampled_, "no step in flight");
  Settle(landed_);
  if (!failure_.ok()) return failure_;
  if (!config_.on_host) ReadMarks(landed_);
  const Step& step = StepOf(landed_);
  const DeviceMemory::HostResults host = memory_->ResultsOf(landed_);
  const ops::RoundItem* const items = memory_->PlanOf(landed_).items;
  result.step = step.number;
  result.kept = memory_->KeptOf(landed_);
  result.sequences.clear();
  result.tokens.clear();
  result.sequences.reserve(static_cast<size_t>(config_.max_batch_size));
  result.tokens.reserve(static_cast<size_t>(config_.max_logits_rows));
  result.times.passes.reserve(max_passes());
  result.times = step.times;
  for (int32_t i = 0; i < step.items; ++i) {
    const ops::RoundResult& from = host.results[i];
    const SampledToken* tokens = host.drawn + from.first_token;
    result.sequences.push_back({.slot = from.slot,
                                .proposed = from.proposed,
                                .accepted = from.accepted,
                                .first_token = static_cast<int32_t>(result.tokens.size()),
                                .num_tokens = from.num_tokens,
                                .end_id = from.end_id != 0,
                                .computed = {from.computed[0], from.computed[1]},
                                .fault = FaultOf(from.fault),
                                .first_kept = items[i].first_kept});
    result.tokens.insert(result.tokens.end(), tokens, tokens + from.num_tokens);
  }
  ++landed_;
  return {};
}

}  // namespace tandem
