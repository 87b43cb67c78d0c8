// The round's kernels. Sequences are independent except for the positions of their rows in a pass:
// these are sums over all sequences, which one block computes (for at most a few thousand
// sequences).
#include "ops/cuda/round.cuh"
#include "ops/round_rules.h"

namespace tandem::ops::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kBlockThreads = 1024;  // of the single-block kernels
constexpr int kFillThreads = 128;
constexpr int kLookUpThreads = 256;
constexpr int kItemThreads = 64;
constexpr int kKeepThreads = 256;
constexpr unsigned kKeepBlocks = 32;  // of an item: enough to fill the bus with one item's row

unsigned BlocksOver(int32_t count, int32_t threads) {
  return static_cast<unsigned>(CeilDiv(count, threads));
}

// The sum of `value` over the threads before this one, in a block of kBlockThreads. Every thread
// calls it; `sums` is shared scratch of kWarp numbers.
__device__ int32_t ExclusiveSum(int32_t value, int32_t* sums, int32_t* total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int32_t inclusive = value;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, inclusive, offset);
    if (lane >= offset) inclusive += before;
  }
  if (lane == kWarp - 1) sums[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    int32_t sum = sums[lane];
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += before;
    }
    sums[lane] = sum;
  }
  __syncthreads();
  *total = sums[kWarp - 1];
  const int32_t before_warp = warp > 0 ? sums[warp - 1] : 0;
  __syncthreads();  // the scratch is free again
  return before_warp + inclusive - value;
}

enum class Lay {
  kDraft,      // the draft model's first pass: only sequences that have rows, without gaps
  kNextDraft,  // its next pass: every sequence keeps its position
  kTarget,     // sequence s is item s
};

template <Lay kLay>
__device__ const PassArrays& PassOf(const Round& round) {
  return kLay == Lay::kTarget ? round.target : round.draft;
}

template <Lay kLay>
__device__ RowRange NextRange(const Round& round, int32_t index, int32_t* broken) {
  if constexpr (kLay == Lay::kNextDraft) {
    return rules::KeepDraft(round, round.draft.ranges[index]);
  } else {
    const RoundItem& item = round.items[index];
    SlotRecord& record = round.slots.records[item.slot];
    RowRange range = kLay == Lay::kDraft ? rules::DraftRange(record, item, broken)
                                         : rules::TargetRange(record, item, broken);
    range.item = index;
    return range;
  }
}

// One block: the ranges of a pass, their positions, and inert entries after them.
template <Lay kLay>
__global__ void __launch_bounds__(kBlockThreads) RangesKernel(Round round, PassBounds bounds) {
  __shared__ int32_t scratch[kWarp];
  const PassArrays& pass = PassOf<kLay>(round);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t count = kLay == Lay::kNextDraft ? bounds.num_seqs : round.header->num_items;
  int32_t seqs = 0;
  int32_t rows = 0;
  int32_t logits = 0;
  int32_t broken = 0;
  for (int32_t base = 0; base < count; base += kBlockThreads) {
    const int32_t index = base + thread;
    RowRange range;
    if (index < count) range = NextRange<kLay>(round, index, &broken);
    const bool taken = index < count && (kLay != Lay::kDraft || range.num_rows > 0);
    int32_t total = 0;
    const int32_t seq = seqs + ExclusiveSum(taken ? 1 : 0, scratch, &total);
    seqs += total;
    const int32_t first_row = rows + ExclusiveSum(range.num_rows, scratch, &total);
    rows += total;
    const int32_t first_logits = logits + ExclusiveSum(rules::LogitsOf(range), scratch, &total);
    logits += total;
    if (!taken) continue;
    if (seq >= bounds.num_seqs) {
      broken |= kBrokenRows;
      continue;
    }
    rules::Place(first_row, first_logits, bounds, range, &broken);
    pass.ranges[seq] = range;
    pass.query_start[seq] = rules::Smaller(first_row, bounds.num_rows);
    rules::FillSeq(round.slots, pass, range, seq);
    if (kLay == Lay::kNextDraft && range.num_rows > 0) {
      rules::FillRow(round.slots, pass, range, seq, 0);
      rules::FillLogitsRow(pass, range, 0);
    }
  }
  rows = rules::Smaller(rows, bounds.num_rows);
  for (int32_t seq = seqs + thread; seq < bounds.num_seqs; seq += kBlockThreads) {
    rules::ClearSeq(pass, seq);
    pass.query_start[seq] = rows;
  }
  if (thread == 0) pass.query_start[bounds.num_seqs] = rows;
  for (int32_t row = rows + thread; row < bounds.num_rows; row += kBlockThreads) {
    rules::ClearRow(pass, row);
  }
  for (int32_t i = logits + thread; i < bounds.num_logits; i += kBlockThreads) {
    pass.logits_rows[i] = 0;
  }
  if (broken != 0) atomicOr(&round.status->broken, broken);
}

// One block per sequence: its rows and its block table.
template <Lay kLay>
__global__ void __launch_bounds__(kFillThreads) FillKernel(Round round) {
  const PassArrays& pass = PassOf<kLay>(round);
  const auto seq = static_cast<int32_t>(blockIdx.x);
  const RowRange range = pass.ranges[seq];
  if (range.slot < 0) return;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < range.num_rows; i += kFillThreads) {
    rules::FillRow(round.slots, pass, range, seq, i);
  }
  for (int32_t i = thread; i < rules::LogitsOf(range); i += kFillThreads) {
    rules::FillLogitsRow(pass, range, i);
  }
  const int32_t num_blocks = round.slots.records[range.slot].num_blocks;
  const int32_t* blocks = rules::BlocksOf(round.slots, range.slot);
  int32_t* table = pass.block_table + int64_t{seq} * round.slots.max_blocks;
  for (int32_t i = thread; i < num_blocks; i += kFillThreads) table[i] = blocks[i];
  if (!rules::HasWindows(round.slots, pass)) return;
  int32_t* windows = pass.window_table + int64_t{seq} * round.slots.max_blocks;
  for (int32_t i = thread; i < num_blocks; i += kFillThreads) {
    windows[i] = round.slots.window_of[blocks[i]];
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    StartSlotKernel(SlotArrays slots, const SlotPatch* patch) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t slot = patch->slot;
  const int32_t known = patch->record.known;
  const int32_t num_values = patch->num_values;
  int32_t* lists = patch->lists;
  const auto* tokens = reinterpret_cast<const int32_t*>(patch + 1);
  int32_t* kept = rules::TokensOf(slots, slot);
  const int32_t num_tokens = known + patch->num_sent;
  for (int32_t i = thread; i < num_tokens; i += kBlockThreads) kept[i] = tokens[i];
  for (int32_t i = thread; i < num_values; i += kBlockThreads) lists[i] = tokens[num_tokens + i];
  if (thread == 0) {
    rules::StartRecords(slots, *patch);
  }
  if (patch->record.counted == 0) return;
  int32_t* counts = slots.counts + int64_t{slot} * slots.vocab;
  for (int64_t i = thread; i < slots.vocab; i += kBlockThreads) counts[i] = 0;
  __syncthreads();
  for (int32_t i = thread; i < known; i += kBlockThreads) atomicAdd(counts + tokens[i], 1);
}

__global__ void EndSlotKernel(SlotArrays slots, int32_t slot) {
  slots.records[slot] = SlotRecord{};
}

// One thread: a block may be mapped twice, and the later mapping holds.
__global__ void MapWindowsKernel(Round round) {
  const int32_t* pairs = round.new_blocks + round.header->first_mapping;
  for (int32_t i = 0; i < round.header->num_mappings; ++i) {
    round.slots.window_of[pairs[2 * i]] = pairs[2 * i + 1];
  }
}

// One warp per item.
__global__ void __launch_bounds__(kItemThreads) ApplyPlanKernel(Round round) {
  const auto thread = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  const int32_t index = thread / kWarp;
  const int32_t lane = thread % kWarp;
  if (index >= round.header->num_items) return;
  const RoundItem item = round.items[index];
  unsigned long long place = 0;
  if (lane == 0) {
    int32_t* blocks = rules::AppendBlocks(round.slots, item);
    if (blocks == nullptr) atomicOr(&round.status->broken, static_cast<int>(kBrokenBlocks));
    rules::ForgetDrafts(round.slots.records[item.slot]);
    if (item.sent != 0) rules::TakeSent(round.slots, item);
    place = reinterpret_cast<unsigned long long>(blocks);
  }
  auto* blocks = reinterpret_cast<int32_t*>(__shfl_sync(kAllLanes, place, 0));
  if (blocks == nullptr) return;
  for (int32_t i = lane; i < item.num_new_blocks; i += kWarp) {
    blocks[i] = round.new_blocks[item.first_new_block + i];
  }
}

// One block.
__global__ void __launch_bounds__(kBlockThreads)
    SentRowsKernel(Round round, int32_t num_rows, const float* logits) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < num_rows; i += kBlockThreads) round.sent_samples[i] = SampleRow{};
  __syncthreads();
  for (int32_t index = thread; index < round.header->num_items; index += kBlockThreads) {
    const RoundItem item = round.items[index];
    if (item.first_sent_row < 0) continue;
    const int32_t count = round.slots.records[item.slot].num_drafts;
    for (int32_t i = 0; i < count; ++i) {
      round.sent_samples[item.first_sent_row + i] = rules::SentSample(round, item, i, logits);
    }
  }
}

// One block per item: the longest match, of equal ones the latest.
__global__ void __launch_bounds__(kLookUpThreads) LookUpKernel(Round round) {
  __shared__ unsigned long long best_of_warp[kLookUpThreads / kWarp];
  const auto index = static_cast<int32_t>(blockIdx.x);
  if (index >= round.header->num_items) return;
  const SlotArrays& slots = round.slots;
  const RoundItem& item = round.items[index];
  SlotRecord& record = slots.records[item.slot];
  const int32_t wanted = rules::DraftsWanted(record, item);
  if (wanted == 0 || item.sent != 0) return;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t* tokens = rules::TokensOf(slots, item.slot);
  const int32_t size = record.known;
  unsigned long long best =
      rules::BestMatch(tokens, size, size - 1 - thread, kLookUpThreads, round.lookup_ngram);
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const unsigned long long other = __shfl_down_sync(kAllLanes, best, offset);
    if (other > best) best = other;
  }
  if (thread % kWarp == 0) best_of_warp[thread / kWarp] = best;
  __syncthreads();
  if (thread == 0) {
    for (const unsigned long long other : best_of_warp) {
      if (other > best) best = other;
    }
    if (best != 0) {
      rules::TakeLookedUp(slots, item.slot, rules::PlaceOf(best), wanted);
    }
  }
  __syncthreads();
  if (!round.ratio) return;
  // A look-up proposes exactly this token.
  float* probs = round.draft_probs + item.first_prob_row * slots.vocab;
  const int32_t* drafts = rules::DraftsOf(slots, item.slot);
  const int32_t num_drafts = record.num_drafts;
  for (int32_t draft = 0; draft < num_drafts; ++draft) {
    for (int64_t token = thread; token < slots.vocab; token += kLookUpThreads) {
      probs[draft * slots.vocab + token] = token == drafts[draft] ? 1.0f : 0.0f;
    }
  }
}

// One block: the sample rows of a pass.
template <Lay kLay>
__global__ void __launch_bounds__(kBlockThreads)
    SamplesKernel(Round round, PassBounds bounds, const float* logits, int64_t stride) {
  const PassArrays& pass = PassOf<kLay>(round);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < bounds.num_logits; i += kBlockThreads) {
    pass.samples[i] = SampleRow{};
  }
  __syncthreads();
  for (int32_t seq = thread; seq < bounds.num_seqs; seq += kBlockThreads) {
    RowRange range = pass.ranges[seq];
    if (range.slot < 0) continue;
    if constexpr (kLay == Lay::kTarget) {
      rules::CheckMasks(round, range);
      pass.ranges[seq] = range;
      for (int32_t i = 0; i < range.num_logits; ++i) {
        pass.samples[range.first_logits + i] = rules::TargetSample(round, range, i, logits);
      }
    } else if (range.num_logits > 0) {
      pass.samples[range.first_logits] =
          rules::DraftSample(round, range, logits + range.first_logits * stride);
    }
  }
}

// The draft draws from the tokens that both models know: other tokens have probability zero.
__global__ void __launch_bounds__(kFillThreads) ClearProbsKernel(Round round) {
  const RowRange range = round.draft.ranges[blockIdx.x];
  if (range.slot < 0 || range.num_logits == 0) return;
  float* probs = round.draft.samples[range.first_logits].probs;
  for (int64_t i = round.draw_vocab + threadIdx.x; i < round.slots.vocab; i += kFillThreads) {
    probs[i] = 0.0f;
  }
}

__global__ void __launch_bounds__(kItemThreads) VerifyRowsKernel(Round round, int32_t num_seqs) {
  const auto seq = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (seq < num_seqs) round.verify[seq] = rules::VerifyOf(round, round.target.ranges[seq]);
}

__global__ void __launch_bounds__(kItemThreads) ChosenRowsKernel(Round round, int32_t num_seqs) {
  const auto seq = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (seq >= num_seqs) return;
  const RowRange range = round.target.ranges[seq];
  for (int32_t i = 0; i < range.num_logits; ++i) rules::GiveChosen(round, range, i);
}

__global__ void __launch_bounds__(kItemThreads)
    AcceptKernel(Round round, int32_t num_seqs, const float* logits) {
  const auto seq = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (seq >= num_seqs) return;
  const RowRange range = round.target.ranges[seq];
  if (range.slot >= 0) round.results[seq] = rules::AcceptTokens(round, range, logits);
}

// Blocks (x, y) share the rows that item x keeps, which the device writes to host memory.
__global__ void __launch_bounds__(kKeepThreads)
    KeepLogitsKernel(Round round, const float* logits, float* kept) {
  const auto seq = static_cast<int32_t>(blockIdx.x);
  const RowRange range = round.target.ranges[seq];
  if (range.slot < 0) return;
  const RoundItem& item = round.items[range.item];
  const int64_t vocab = round.slots.vocab;
  const int64_t count = rules::NumKept(item, range, round.results[seq]) * vocab;
  if (count == 0) return;
  const float* from = logits + (range.first_logits - range.num_context) * vocab;
  float* to = kept + item.first_kept * vocab;
  const int64_t stride = int64_t{gridDim.y} * kKeepThreads;
  for (int64_t i = int64_t{blockIdx.y} * kKeepThreads + threadIdx.x; i < count; i += stride) {
    to[i] = from[i];
  }
}

}  // namespace

void CudaRoundOps::StartSlot(const SlotArrays& slots, const SlotPatch* patch) {
  StartSlotKernel<<<1, kBlockThreads, 0, context_.stream>>>(slots, patch);
  CheckLaunch("StartSlot");
}

void CudaRoundOps::EndSlot(const SlotArrays& slots, int32_t slot) {
  EndSlotKernel<<<1, 1, 0, context_.stream>>>(slots, slot);
  CheckLaunch("EndSlot");
}

void CudaRoundOps::ApplyPlan(const Round& round, int32_t max_items) {
  if (max_items == 0) return;
  if (round.slots.window_of != nullptr) {
    MapWindowsKernel<<<1, 1, 0, context_.stream>>>(round);
    CheckLaunch("MapWindows");
  }
  ApplyPlanKernel<<<BlocksOver(max_items, kItemThreads / kWarp), kItemThreads, 0,
                    context_.stream>>>(round);
  CheckLaunch("ApplyPlan");
}

void CudaRoundOps::LaySentRows(const Round& round, int32_t /*max_items*/, int32_t num_rows,
                               const float* logits) {
  SentRowsKernel<<<1, kBlockThreads, 0, context_.stream>>>(round, num_rows, logits);
  CheckLaunch("LaySentRows");
}

void CudaRoundOps::LookUpDrafts(const Round& round, int32_t max_items) {
  if (max_items == 0) return;
  LookUpKernel<<<static_cast<unsigned>(max_items), kLookUpThreads, 0, context_.stream>>>(round);
  CheckLaunch("LookUpDrafts");
}

void CudaRoundOps::LayDraftRows(const Round& round, const PassBounds& bounds) {
  RangesKernel<Lay::kDraft><<<1, kBlockThreads, 0, context_.stream>>>(round, bounds);
  FillKernel<Lay::kDraft>
      <<<static_cast<unsigned>(bounds.num_seqs), kFillThreads, 0, context_.stream>>>(round);
  CheckLaunch("LayDraftRows");
}

void CudaRoundOps::LayDraftSamples(const Round& round, const PassBounds& bounds,
                                   const float* logits, int64_t stride) {
  SamplesKernel<Lay::kDraft>
      <<<1, kBlockThreads, 0, context_.stream>>>(round, bounds, logits, stride);
  if (round.ratio && round.draw_vocab < round.slots.vocab) {
    ClearProbsKernel<<<static_cast<unsigned>(bounds.num_seqs), kFillThreads, 0, context_.stream>>>(
        round);
  }
  CheckLaunch("LayDraftSamples");
}

void CudaRoundOps::KeepDrafts(const Round& round, const PassBounds& bounds) {
  RangesKernel<Lay::kNextDraft><<<1, kBlockThreads, 0, context_.stream>>>(round, bounds);
  CheckLaunch("KeepDrafts");
}

void CudaRoundOps::LayTargetRows(const Round& round, const PassBounds& bounds) {
  RangesKernel<Lay::kTarget><<<1, kBlockThreads, 0, context_.stream>>>(round, bounds);
  FillKernel<Lay::kTarget>
      <<<static_cast<unsigned>(bounds.num_seqs), kFillThreads, 0, context_.stream>>>(round);
  CheckLaunch("LayTargetRows");
}

void CudaRoundOps::LayTargetSamples(const Round& round, const PassBounds& bounds,
                                    const float* logits) {
  SamplesKernel<Lay::kTarget>
      <<<1, kBlockThreads, 0, context_.stream>>>(round, bounds, logits, round.slots.vocab);
  CheckLaunch("LayTargetSamples");
}

void CudaRoundOps::LayVerifyRows(const Round& round, const PassBounds& bounds) {
  VerifyRowsKernel<<<BlocksOver(bounds.num_seqs, kItemThreads), kItemThreads, 0, context_.stream>>>(
      round, bounds.num_seqs);
  CheckLaunch("LayVerifyRows");
}

void CudaRoundOps::LayChosenRows(const Round& round, const PassBounds& bounds) {
  ChosenRowsKernel<<<BlocksOver(bounds.num_seqs, kItemThreads), kItemThreads, 0, context_.stream>>>(
      round, bounds.num_seqs);
  CheckLaunch("LayChosenRows");
}

void CudaRoundOps::Accept(const Round& round, const PassBounds& bounds, const float* logits) {
  AcceptKernel<<<BlocksOver(bounds.num_seqs, kItemThreads), kItemThreads, 0, context_.stream>>>(
      round, bounds.num_seqs, logits);
  CheckLaunch("Accept");
}

void CudaRoundOps::KeepLogits(const Round& round, const PassBounds& bounds, const float* logits,
                              float* kept) {
  const dim3 grid(static_cast<unsigned>(bounds.num_seqs), kKeepBlocks);
  KeepLogitsKernel<<<grid, kKeepThreads, 0, context_.stream>>>(round, logits, kept);
  CheckLaunch("KeepLogits");
}

}  // namespace tandem::ops::cuda
