// Layers of experts on the CPU: routing, and products in which each expert's weights are read once
// for all the rows that chose it.
#include <algorithm>
#include <array>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/pieces.h"
#include "ops/cpu/row_access.h"
#include "ops/route_rules.h"

namespace tandem::ops::cpu {
namespace {

// Rows of a pass start at multiples of it in the packed activations, because kernels may pack up to
// a whole tile.
constexpr int64_t kSegmentRows = 16;
constexpr int64_t kMaxSegments = kMaxLinearRows / kSegmentRows;

// Neighbouring rows that go through one expert.
struct Segment {
  const LinearWeight* weight = nullptr;
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t packed_at = 0;  // row of the packed activations
};

struct Pass {
  std::array<Segment, kMaxSegments> segments;
  int64_t count = 0;
  int64_t rows = 0;         // of all
  int64_t packed_rows = 0;  // with the gaps between them
};

// Goes through the rows of one expert after another, in passes that fit the packed activations.
class Passes {
 public:
  Passes(std::span<const int32_t> ends, std::span<const LinearWeight> weights, int64_t most_rows)
      : ends_(ends), weights_(weights), most_rows_(most_rows) {}

  // The next rows; none left: a pass without segments.
  Pass Next() {
    Pass pass;
    while (expert_ < ends_.size() && pass.count < kMaxSegments) {
      const int64_t left = ends_[expert_] - at_;
      if (left == 0) {
        ++expert_;
        continue;
      }
      const int64_t room = most_rows_ - pass.packed_rows;
      if (room <= 0) break;
      const int64_t rows = std::min(left, room);
      pass.segments[static_cast<size_t>(pass.count++)] = {&weights_[expert_], at_, rows,
                                                          pass.packed_rows};
      pass.rows += rows;
      pass.packed_rows += (rows + kSegmentRows - 1) / kSegmentRows * kSegmentRows;
      at_ += rows;
    }
    return pass;
  }

 private:
  std::span<const int32_t> ends_;
  std::span<const LinearWeight> weights_;
  int64_t most_rows_;
  size_t expert_ = 0;
  int64_t at_ = 0;
};

// The slots (row * experts of a token + choice) in the order of their experts, and where each slot
// has gone, -1 for one that names no expert; ends[e]: the end of expert e's slots.
struct Order {
  int32_t* slots;
  int32_t* places;
  int32_t count = 0;  // of slots that name one
  std::array<int32_t, kMaxExperts> ends = {};
};

Order SortByExpert(const ExpertChoice& choice, size_t num_experts, const Tensor& memory) {
  const auto count = static_cast<int32_t>(choice.experts.NumElements());
  Order order{memory.As<int32_t>(), memory.As<int32_t>() + count};
  const std::span experts(choice.experts.As<int32_t>(), static_cast<size_t>(count));
  const auto names_one = [&](int32_t expert) {
    return expert >= 0 && static_cast<size_t>(expert) < num_experts;
  };
  for (const int32_t expert : experts) {
    if (names_one(expert)) ++order.ends[static_cast<size_t>(expert)];
  }
  for (int32_t& end : order.ends) {
    const int32_t size = end;
    end = order.count;  // moves on to the end below
    order.count += size;
  }
  for (int32_t slot = 0; slot < count; ++slot) {
    const int32_t expert = experts[static_cast<size_t>(slot)];
    order.places[slot] = names_one(expert) ? order.ends[static_cast<size_t>(expert)]++ : -1;
    if (order.places[slot] >= 0) order.slots[order.places[slot]] = slot;
  }
  return order;
}

}  // namespace

void CpuOps::Route(const Tensor& scores, const Tensor& correction, const RoutingRule& rule,
                   const ExpertChoice& out) {
  const auto num_experts = static_cast<int32_t>(scores.dim(1));
  TANDEM_CHECK(scores.dtype == DType::kF32 && num_experts <= kMaxExperts,
               "scores of too many experts");
  TANDEM_CHECK(out.per_token() == rule.experts_per_token && out.experts.dim(0) == scores.dim(0),
               "the choice has another shape");
  ForEachPiece(pool_, scores.dim(0), 1, 20.0 * static_cast<double>(scores.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   const int64_t first = row * rule.experts_per_token;
                   RouteRow(rule, scores.As<float>() + row * num_experts, correction.As<float>(),
                            num_experts, out.experts.As<int32_t>() + first,
                            out.weights.As<float>() + first);
                 }
               });
}

void CpuOps::ExpertProducts(const Tensor& x, std::span<const int32_t> ends,
                            std::span<const LinearWeight> weights, const Tensor& out) {
  const LinearWeight& first = weights.front();
  TANDEM_CHECK(!first.scheme.is_plain() || x.dtype == first.dtype,
               "activations and weights differ in type");
  TANDEM_CHECK(x.dim(1) == first.cols && out.dim(1) == first.rows && x.dtype == out.dtype,
               "shapes do not fit the weights");
  ReserveLinear(first);
  const int64_t panels = NumPanels(first.rows);
  Passes passes(ends, weights, std::min(kernels_.linear_rows, kMaxLinearRows));
  for (Pass pass = passes.Next(); pass.count > 0; pass = passes.Next()) {
    const auto packing = [&](const Segment& segment) {
      PackJob pack = PackingOf(x, segment.begin, segment.rows, *segment.weight);
      pack.packed = activations_.As<float>() + segment.packed_at * pack.padded_inputs;
      return pack;
    };
    const auto at = [&](int64_t i) -> const Segment& {
      return pass.segments[static_cast<size_t>(i)];
    };
    ForEachPiece(pool_, pass.count, 1, 10.0 * static_cast<double>(pass.rows * first.cols),
                 [&](const Piece& piece) {
                   for (int64_t i = piece.begin; i < piece.end; ++i) {
                     const PackJob pack = packing(at(i));
                     kernels_.pack_activations(pack, 0, kernels_.num_linear_blocks(pack));
                   }
                 });
    // Panels that a kernel reads side by side; more of them stay in L2 for many rows.
    const int64_t grain = pass.rows > pass.count * kSmallLinearRows ? 16 : 4;
    const int64_t grains = (panels + grain - 1) / grain;
    const double operations = 2.0 * static_cast<double>(pass.rows * first.cols * first.rows);
    ForEachPiece(pool_, pass.count * grains, 1, operations, [&](const Piece& piece) {
      for (int64_t begin = piece.begin; begin < piece.end;) {
        const int64_t segment = begin / grains;
        const int64_t end = std::min(piece.end, (segment + 1) * grains);
        const PackJob pack = packing(at(segment));
        LinearJob job = ProductOf(pack, *at(segment).weight);
        job.out = RowOf(out, at(segment).begin);
        job.out_stride = out.dim(1);
        kernels_.linear_panels(job, begin % grains * grain,
                               std::min(panels, (end - segment * grains) * grain),
                               LinearScratch(piece.thread));
        begin = end;
      }
    });
  }
}

void CpuOps::Experts(const Tensor& x, const ExpertChoice& choice, const ExpertWeights& weights,
                     const ExpertScratch& scratch, const Tensor& out) {
  const int64_t rows = x.dim(0);
  const int64_t chosen = choice.per_token();
  const int64_t slots = rows * chosen;
  TANDEM_CHECK(chosen <= kMaxExpertsPerToken && weights.in.size() <= kMaxExperts &&
                   weights.in.size() == weights.down.size(),
               "more experts than routing computes with");
  TANDEM_CHECK(scratch.order.NumElements() >= 2 * slots && scratch.outputs.dim(0) == slots,
               "the scratch is for another number of rows");
  const Order order = SortByExpert(choice, weights.in.size(), scratch.order);
  const std::span ends = std::span(order.ends).first(weights.in.size());
  const Element element = ElementOf(x.dtype);
  const auto* factors = choice.weights.As<float>();
  // The rows by expert, where their outputs will be.
  const Tensor& gathered = scratch.outputs;
  ForEachPiece(pool_, order.count, 1, static_cast<double>(order.count * x.dim(1)),
               [&](const Piece& piece) {
                 for (int64_t place = piece.begin; place < piece.end; ++place) {
                   const int32_t slot = order.slots[place];
                   const void* row = RowOf(x, slot / chosen);
                   if (weights.scales_inputs) {
                     kernels_.weighted_sum(
                         {element, &row, factors + slot, 1, x.dim(1), RowOf(gathered, place)});
                   } else {
                     std::memcpy(RowOf(gathered, place), row, static_cast<size_t>(RowBytes(x)));
                   }
                 }
               });
  ExpertProducts(gathered, ends, weights.in, scratch.inner);
  ActivateRows(weights.activation, weights.limit, scratch.inner.RowRange(0, order.count),
               scratch.activated.RowRange(0, order.count));
  ExpertProducts(scratch.activated, ends, weights.down, scratch.outputs);
  ForEachPiece(pool_, rows, 1, 2.0 * static_cast<double>(scratch.outputs.NumElements()),
               [&](const Piece& piece) {
                 std::array<const void*, kMaxExpertsPerToken> parts;
                 std::array<float, kMaxExpertsPerToken> part_weights;
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   int64_t count = 0;
                   for (int64_t slot = row * chosen; slot < (row + 1) * chosen; ++slot) {
                     if (order.places[slot] < 0) continue;
                     parts[static_cast<size_t>(count)] = RowOf(scratch.outputs, order.places[slot]);
                     part_weights[static_cast<size_t>(count++)] =
                         weights.scales_inputs ? 1.0f : factors[slot];
                   }
                   if (count == 0) {
                     std::memset(RowOf(out, row), 0, static_cast<size_t>(RowBytes(out)));
                     continue;
                   }
                   kernels_.weighted_sum({element, parts.data(), part_weights.data(), count,
                                          out.dim(1), RowOf(out, row)});
                 }
               });
}

void CpuOps::AddGated(const Tensor& sum, const Tensor& gate, const Tensor& x) {
  if (gate.empty()) return Add(sum, x);
  TANDEM_CHECK(sum.dtype == x.dtype && sum.dim(1) == x.dim(1), "what is added has another shape");
  ForEachPiece(pool_, sum.dim(0), 1, 3.0 * static_cast<double>(sum.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   const void* const parts[] = {RowOf(sum, row), RowOf(x, row)};
                   const float weights[] = {1.0f, Sigmoid(gate.As<float>()[row])};
                   kernels_.weighted_sum(
                       {ElementOf(sum.dtype), parts, weights, 2, sum.dim(1), RowOf(sum, row)});
                 }
               });
}

}  // namespace tandem::ops::cpu
