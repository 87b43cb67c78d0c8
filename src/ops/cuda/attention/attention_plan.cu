#include <algorithm>

#include "ops/cuda/attention/attention_parts.cuh"
#include "ops/cuda/attention/attention_plan.cuh"

namespace tandem::ops::cuda {
namespace {

struct PlanParams {
  CutRule rule;
  const int32_t* query_start = nullptr;
  const int32_t* context_len = nullptr;
  int32_t num_seqs = 0;
  AttentionPlan to;
};

// number / by for numbers below 2^21, rounded down: (number + 1/2) / by is at least 1 / (2 by) away
// from a whole number, and the rounding errors are smaller.
__device__ int SmallQuotient(int number, int by) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(static_cast<float>(by)));
  return static_cast<int>(__fmul_rn(static_cast<float>(number) + 0.5f, inverse));
}

// The division of short sequences' keys; every warp computes the same. For whole warps.
class Chunks {
 public:
  __device__ explicit Chunks(const PlanParams& params) : params_(params), rule_(params.rule) {
    if (rule_.chunk_keys > 0) {
      units_ = rule_.chunk_keys / kUnit;
      return;
    }
    const int units = SumShort([](int keys) { return Units(keys); });
    if (FitResident(units)) return;
    const int64_t share = (int64_t{units} * kUnit + rule_.target_chunks - 1) / rule_.target_chunks;
    share_ = max(static_cast<int>(share), kUnit);
  }
  __device__ Part FindItem(int index) const {
    return FindPart(params_.num_seqs, index, [&](int seq) { return Items(seq); });
  }
  __device__ AttentionItem ItemOf(const Part& where) const {
    AttentionItem item;
    if (where.seq < 0) return item;
    item.seq = where.seq;
    item.first_query = params_.query_start[where.seq];
    item.query_rows = params_.query_start[where.seq + 1] - item.first_query;
    item.context = params_.context_len[where.seq];
    const int keys = Keys(where.seq);
    item.chunk_keys = UnitsOfChunk(keys) * kUnit;
    item.first_chunk = where.part * rule_.item_chunks;
    item.num_chunks = Count(keys);
    if (rule_.chunk_keys > 0) {
      item.first_slot = where.before * rule_.item_chunks;
    } else if (item.num_chunks > 1) {
      item.first_slot = CountParts(where.seq, [&](int other) {
        const int chunks = Items(other);
        return chunks > 1 ? chunks : 0;
      });
    }
    return item;
  }

 private:
  static constexpr int kUnit = kWarps * kStepKeys;
  // The longest chunk may be this many times the mean share of a block: when other blocks have
  // ended, those that remain read faster.
  static constexpr int kMostUnequal = 2;
  static_assert(kInvariantChunkKeys % kUnit == 0);
  __device__ bool IsShort(int seq) const {
    const int rows = params_.query_start[seq + 1] - params_.query_start[seq];
    return rows > rule_.above_rows && rows <= rule_.short_rows;
  }
  // That are cut.
  __device__ int Keys(int seq) const {
    const int context = params_.context_len[seq];
    const int rows = params_.query_start[seq + 1] - params_.query_start[seq];
    // A sequence whose state contradicts the plan may have more rows than keys.
    const int position = max(context - rows, 0);
    return context - rule_.seen.Skipped(position, SkipUnit(rule_.chunk_keys > 0));
  }
  __device__ static int Units(int keys) {
    return static_cast<int>((static_cast<unsigned>(keys) + kUnit - 1) / kUnit);
  }
  // of_keys(keys), summed over the short sequences.
  template <typename OfKeys>
  __device__ int SumShort(const OfKeys& of_keys) const {
    return CountParts(params_.num_seqs,
                      [&](int seq) { return IsShort(seq) ? of_keys(Keys(seq)) : 0; });
  }
  // Looks for a length of chunks, units_, with which all of them run at a time and none is too
  // long. all: the units of all sequences.
  __device__ bool FitResident(int all) {
    const int resident = rule_.resident_chunks;
    if (SumShort([](int keys) { return keys > 0 ? 1 : 0; }) > resident) return false;
    for (units_ = max((all + resident - 1) / resident, 1);
         int64_t{units_ - 1} * resident < int64_t{kMostUnequal} * all; units_ += 1 + units_ / 16) {
      if (SumShort([&](int keys) { return Count(keys); }) <= resident) return true;
    }
    units_ = 0;
    return false;
  }
  // A sequence's chunks are equal, and a multiple of what the warps of a block take at a time, so
  // that no warp has more steps than another.
  __device__ int UnitsOfChunk(int keys) const {
    if (units_ > 0) return units_;
    const int count = max(SmallQuotient(keys + share_ / 2, share_), 1);
    return max(SmallQuotient(Units(keys) + count - 1, count), 1);
  }
  __device__ int Count(int keys) const {
    const int units = UnitsOfChunk(keys);
    return SmallQuotient(Units(keys) + units - 1, units);
  }
  __device__ int Items(int seq) const {
    if (!IsShort(seq)) return 0;
    const int chunks = Count(Keys(seq));
    return SmallQuotient(chunks + rule_.item_chunks - 1, rule_.item_chunks);
  }
  const PlanParams& params_;
  const CutRule& rule_;
  int units_ = 0;  // of every chunk; 0: a sequence has as many chunks as its keys are shares
  int share_ = 0;  // keys per block
};

// A warp finds an item at a time.
__global__ void __launch_bounds__(kBlockThreads)
    PlanAttentionKernel(const __grid_constant__ PlanParams params) {
  BeginKernel();
  const int num_threads = static_cast<int>(gridDim.x) * kBlockThreads;
  const int thread = static_cast<int>(blockIdx.x) * kBlockThreads + static_cast<int>(threadIdx.x);
  for (int i = thread; i < params.rule.num_counters; i += num_threads) params.to.counters[i] = 0;
  const Chunks chunks(params);
  for (int index = thread / 32; index < params.rule.max_items; index += num_threads / 32) {
    const Part where = chunks.FindItem(index);
    // Every block has met an item without a sequence before.
    if (where.seq < 0 && index >= where.before + params.rule.blocks) return;
    const AttentionItem item = chunks.ItemOf(where);
    if (threadIdx.x % 32 == 0) params.to.items[index] = item;
  }
}

constexpr size_t kMemoryBytes = size_t{4} << 20;
constexpr size_t kAlignment = 256;

Buffer MakeMemory(const Context& context) {
  return Buffer(AllocateWorkspace(kMemoryBytes, "the plans of attention"), kMemoryBytes,
                {Device::Kind::kCuda, context.device},
                [](void* memory, size_t) { cudaFree(memory); });
}

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

AttentionPlans::AttentionPlans(const Context& context)
    : context_(context), memory_(MakeMemory(context)) {}

void AttentionPlans::Forget() {
  num_made_ = 0;
  used_bytes_ = 0;
}

void AttentionPlans::BeginPass(const BatchView& batch) {
  Forget();
  pass_ = batch;
}

void AttentionPlans::EndPass() { BeginPass({}); }

bool AttentionPlans::IsOfPass(const BatchView& batch) const {
  return pass_.query_start != nullptr && pass_.query_start == batch.query_start &&
         pass_.context_len == batch.context_len && pass_.num_seqs == batch.num_seqs;
}

std::optional<AttentionPlan> AttentionPlans::Get(const CutRule& rule, const BatchView& batch) {
  if (!IsOfPass(batch) || !made_in_pass_) Forget();
  made_in_pass_ = IsOfPass(batch);
  for (size_t i = 0; i < num_made_; ++i) {
    if (made_[i].rule == rule) {
      AttentionPlan plan = made_[i].plan;
      plan.is_new = false;
      return plan;
    }
  }
  const size_t item_bytes = Aligned(static_cast<size_t>(rule.max_items) * sizeof(AttentionItem));
  const size_t bytes =
      item_bytes + Aligned(static_cast<size_t>(rule.num_counters) * sizeof(uint32_t));
  if (bytes > memory_.bytes()) return std::nullopt;
  // Earlier plans have been used by what was enqueued before; what needs them again makes them
  // anew.
  if (num_made_ == made_.size() || used_bytes_ + bytes > memory_.bytes()) Forget();
  auto* const memory = memory_.As<std::byte>() + used_bytes_;
  const AttentionPlan plan = {reinterpret_cast<AttentionItem*>(memory),
                              reinterpret_cast<uint32_t*>(memory + item_bytes)};
  used_bytes_ += bytes;
  made_[num_made_++] = {rule, plan};
  const auto blocks = static_cast<unsigned>(
      std::min(CeilDiv(rule.max_items, kWarps), int64_t{2} * context_.num_sms));
  LaunchEarly(context_, "the plan of attention", PlanAttentionKernel, dim3(blocks), kBlockThreads,
              0, PlanParams{rule, batch.query_start, batch.context_len, batch.num_seqs, plan});
  return plan;
}

}  // namespace tandem::ops::cuda
