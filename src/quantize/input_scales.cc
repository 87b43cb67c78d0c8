#include "quantize/input_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/vector_clones.h"
#include "ops/round_row.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

constexpr int kAlphaSteps = 20;
constexpr int64_t kRowsAtOnce = 1024;  // of weights: bounds the memory of the search
constexpr int64_t kGrainRows = 16;
constexpr float kLeastScale = 1e-5f;
// Shares that are tried: 1, 0.95 .. 0.55.
constexpr int kClipSteps = 10;
constexpr float kClipStep = 0.05f;
constexpr size_t kClipRows = 48;

// Inputs that share a scale have the largest of their values.
void TakeLargest(SharedScales shared, std::vector<float>& values) {
  std::vector<float> largest(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    float& one = largest[static_cast<size_t>(shared[i])];
    one = std::max(one, values[i]);
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] = largest[static_cast<size_t>(shared[i])];
}

// Scaled so that the largest and the smallest lie as far above as below 1.
void Center(std::vector<float>& scales) {
  const auto [least, most] = std::ranges::minmax(scales);
  const float center = std::sqrt(least * most);
  for (float& scale : scales) scale /= center;
}

// out = a * b
TANDEM_VECTOR_CLONES
void Multiply(const float* a, const float* b, size_t count, float* out) {
  size_t i = 0;
  for (; i + kVectorFloats <= count; i += kVectorFloats) {
    FloatX16 x, y;
    LoadVector(a + i, x);
    LoadVector(b + i, y);
    StoreVector(out + i, x * y);
  }
  for (; i < count; ++i) out[i] = a[i] * b[i];
}

// a = a * b - c
TANDEM_VECTOR_CLONES
void MultiplySubtract(float* a, const float* b, const float* c, size_t count) {
  size_t i = 0;
  for (; i + kVectorFloats <= count; i += kVectorFloats) {
    FloatX16 x, y, z;
    LoadVector(a + i, x);
    LoadVector(b + i, y);
    LoadVector(c + i, z);
    StoreVector(a + i, x * y - z);
  }
  for (; i < count; ++i) a[i] = a[i] * b[i] - c[i];
}

// Sum over rows of the squares of the changes' products with them. x: [count][kClipRows]
TANDEM_VECTOR_CLONES
float SquaredProducts(const float* rounded, const float* values, size_t count, const float* x) {
  static_assert(kClipRows == 3 * kVectorFloats);
  FloatX16 first{}, second{}, third{};
  for (size_t i = 0; i < count; ++i, x += kClipRows) {
    const float change = rounded[i] - values[i];
    FloatX16 a, b, c;
    LoadVector(x, a);
    LoadVector(x + kVectorFloats, b);
    LoadVector(x + 2 * kVectorFloats, c);
    first += change * a;
    second += change * b;
    third += change * c;
  }
  const FloatX16 squares = first * first + second * second + third * third;
  float sum = 0.0f;
  for (size_t lane = 0; lane < kVectorFloats; ++lane) sum += squares[lane];
  return sum;
}

// Sum of squares of what rounding the scaled weights changes in the products of the kept rows.
class LossOfRounding {
 public:
  LossOfRounding(const InputStatistics& inputs, const QuantScheme& scheme, ops::Backend& backend,
                 ThreadPool& pool)
      : scheme_(scheme), backend_(backend), pool_(pool), inputs_(inputs) {}

  // The kept rows become the weight of the products: packed once. `dtype`: of all weights.
  Status Prepare(DType dtype) {
    if (!changes_.empty()) return {};
    dtype_ = dtype;
    const Shape shape{inputs_.kept_rows, inputs_.columns()};
    std::vector<std::byte> rows(static_cast<size_t>(shape.NumElements()) * SizeOf(dtype_));
    const Tensor x{rows.data(), dtype_, shape, {}};
    ConvertElements({const_cast<float*>(inputs_.rows.data()), DType::kF32, shape, {}}, x);
    TANDEM_ASSIGN_OR_RETURN(x_, backend_.PackLinear({{{.weight = x}}}, {dtype_}));
    const auto elements = static_cast<size_t>(kRowsAtOnce * inputs_.columns());
    changes_.resize(elements * SizeOf(dtype_));
    TANDEM_ASSIGN_OR_RETURN(device_changes_, backend_.Allocate(changes_.size()));
    products_.resize(static_cast<size_t>(kRowsAtOnce * inputs_.kept_rows));
    TANDEM_ASSIGN_OR_RETURN(out_, backend_.Allocate(products_.size() * sizeof(float)));
    return {};
  }

  Result<double> Of(const GroupWeights& weights, std::span<const float> scales) {
    inverse_.resize(scales.size());
    for (size_t i = 0; i < scales.size(); ++i) inverse_[i] = 1.0f / scales[i];
    double loss = 0.0;
    for (int64_t row = 0; row < weights.rows; row += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, weights.rows - row);
      TANDEM_ASSIGN_OR_RETURN(const double of_rows, OfRows(weights, scales, row, count));
      loss += of_rows;
    }
    return loss;
  }

 private:
  Result<double> OfRows(const GroupWeights& weights, std::span<const float> scales, int64_t first,
                        int64_t count) {
    const Tensor changes{changes_.data(), dtype_, {count, weights.columns}, {}};
    pool_.ParallelFor(count, kGrainRows, [&](int64_t begin, int64_t end) {
      std::vector<float> scaled(scales.size());
      for (int64_t row = begin; row < end; ++row) {
        const std::span<const float> weight = weights.Row(first + row);
        Multiply(weight.data(), scales.data(), scaled.size(), scaled.data());
        ops::RoundedRow(scheme_, scaled, {}, scaled);
        MultiplySubtract(scaled.data(), inverse_.data(), weight.data(), scaled.size());
        ConvertElements({scaled.data(), DType::kF32, {1, weights.columns}, {}},
                        changes.RowRange(row, 1));
      }
    });
    backend_.CopyToDevice(device_changes_.data(), changes.data,
                          static_cast<size_t>(changes.NumBytes()));
    const Tensor out = out_.View(DType::kF32, {count, inputs_.kept_rows});
    backend_.ops().Linear(device_changes_.View(dtype_, changes.shape), x_, out);
    TANDEM_RETURN_IF_ERROR(backend_.Synchronize());
    backend_.CopyToHost(products_.data(), out.data, static_cast<size_t>(out.NumBytes()));
    double sum = 0.0;
    for (int64_t i = 0; i < out.NumElements(); ++i) {
      const double product = products_[static_cast<size_t>(i)];
      sum += product * product;
    }
    return sum;
  }

  const QuantScheme& scheme_;
  ops::Backend& backend_;
  ThreadPool& pool_;
  const InputStatistics& inputs_;
  DType dtype_ = DType::kF32;
  ops::LinearWeight x_;
  Buffer device_changes_, out_;
  std::vector<float> inverse_;  // of the scales
  std::vector<std::byte> changes_;
  std::vector<float> products_;
};

// The rows by which clipping is judged, an input's values side by side: [columns][kClipRows], zeros
// where there are fewer rows.
std::vector<float> ClipRows(const InputStatistics& inputs, std::span<const float> scales) {
  const int64_t rows = std::min<int64_t>(kClipRows, inputs.kept_rows);
  const auto columns = static_cast<size_t>(inputs.columns());
  std::vector<float> by_input(columns * kClipRows);
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = &inputs.rows[static_cast<size_t>(row * inputs.kept_rows / rows) * columns];
    for (size_t i = 0; i < columns; ++i) {
      by_input[i * kClipRows + static_cast<size_t>(row)] = from[i] / scales[i];
    }
  }
  return by_input;
}

// The best share of one block. x: [count][kClipRows]
float BestShare(const QuantScheme& scheme, std::span<const float> block, const float* x,
                std::span<float> rounded) {
  const QuantScheme alone = {scheme.element, 1, 0};
  float best_share = 1.0f;
  float least = std::numeric_limits<float>::max();
  for (int step = 0; step < kClipSteps; ++step) {
    const float share = 1.0f - kClipStep * static_cast<float>(step);
    ops::RoundedRow(alone, block, {&share, 1}, rounded);
    const float loss = SquaredProducts(rounded.data(), block.data(), block.size(), x);
    if (loss < least) {
      least = loss;
      best_share = share;
    }
  }
  return best_share;
}

}  // namespace

void RoundToPowersOfTwo(std::span<float> scales) {
  for (float& scale : scales) scale = std::exp2(std::round(std::log2(scale)));
}

void RaiseToLargest(const GroupWeights& weights, std::vector<float>& largest) {
  largest.resize(static_cast<size_t>(weights.columns));
  for (int64_t row = 0; row < weights.rows; ++row) {
    const std::span<const float> weight = weights.Row(row);
    for (size_t i = 0; i < weight.size(); ++i) {
      largest[i] = std::max(largest[i], std::abs(weight[i]));
    }
  }
}

std::vector<float> SmoothQuantScales(const InputStatistics& inputs,
                                     std::vector<float> largest_weight, SharedScales shared,
                                     double alpha) {
  std::vector<float> largest_input = inputs.largest;
  TakeLargest(shared, largest_input);
  TakeLargest(shared, largest_weight);
  std::vector<float> scales(largest_input.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    const double input = std::max(largest_input[i], kLeastScale);
    const double weight = std::max(largest_weight[i], kLeastScale);
    scales[i] = std::max(static_cast<float>(std::pow(input, alpha) / std::pow(weight, 1.0 - alpha)),
                         kLeastScale);
  }
  return scales;
}

struct AwqSearch::State {
  LossOfRounding loss;
  std::vector<std::vector<float>> candidates;
  std::vector<double> losses;  // of each
};

AwqSearch::AwqSearch(const InputStatistics& inputs, SharedScales shared, bool powers_of_two,
                     const QuantScheme& scheme, ops::Backend& backend, ThreadPool& pool)
    : state_(new State{.loss = {inputs, scheme, backend, pool},
                       .candidates = {},
                       .losses = std::vector<double>(kAlphaSteps)}) {
  std::vector<float> means(inputs.largest.size());
  for (size_t i = 0; i < means.size(); ++i) {
    means[i] = std::max(static_cast<float>(inputs.sum[i] / static_cast<double>(inputs.num_rows)),
                        kLeastScale);
  }
  TakeLargest(shared, means);
  for (int step = 0; step < kAlphaSteps; ++step) {
    const double alpha = static_cast<double>(step) / kAlphaSteps;
    std::vector<float>& scales = state_->candidates.emplace_back(means.size());
    for (size_t i = 0; i < means.size(); ++i) {
      scales[i] = static_cast<float>(std::pow(means[i], alpha));
    }
    Center(scales);
    if (powers_of_two) RoundToPowersOfTwo(scales);
  }
}

AwqSearch::~AwqSearch() = default;

Status AwqSearch::Add(const GroupWeights& weights) {
  TANDEM_RETURN_IF_ERROR(state_->loss.Prepare(weights.dtype));
  for (size_t i = 0; i < state_->candidates.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const double loss, state_->loss.Of(weights, state_->candidates[i]));
    state_->losses[i] += loss;
  }
  return {};
}

Result<std::vector<float>> AwqSearch::Best() const {
  const std::vector<float>* best = nullptr;
  double least = std::numeric_limits<double>::max();
  for (size_t i = 0; i < state_->losses.size(); ++i) {
    if (state_->losses[i] >= least || std::isnan(state_->losses[i])) continue;
    least = state_->losses[i];
    best = &state_->candidates[i];
  }
  if (best != nullptr) return *best;
  return DataLoss("the model's weights or activations are not finite: no scale can be chosen");
}

std::vector<float> AwqClipShares(const InputStatistics& inputs, std::span<const float> scales,
                                 const GroupWeights& weights, const QuantScheme& scheme,
                                 ThreadPool& pool) {
  if (scheme.block_columns == 0) return {};
  const std::vector<float> x = ClipRows(inputs, scales);
  const int64_t blocks = scheme.column_blocks(weights.columns);
  std::vector<float> shares(static_cast<size_t>(weights.rows * blocks));
  pool.ParallelFor(weights.rows, kGrainRows, [&](int64_t begin, int64_t end) {
    std::vector<float> rounded(static_cast<size_t>(scheme.block_columns));
    for (int64_t row = begin; row < end; ++row) {
      const std::span<const float> weight = weights.Row(row);
      for (int64_t block = 0; block < blocks; ++block) {
        const auto first = static_cast<size_t>(block * scheme.block_columns);
        const size_t count = std::min(rounded.size(), weight.size() - first);
        shares[static_cast<size_t>(row * blocks + block)] =
            BestShare(scheme, weight.subspan(first, count), &x[first * kClipRows],
                      std::span(rounded).first(count));
      }
    }
  });
  return shares;
}

}  // namespace tandem
