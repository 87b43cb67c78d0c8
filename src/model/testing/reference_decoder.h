// The forward pass of a Llama, or of one over latents, written once more, plainly and in double
// precision over the whole sequence, without cache, batching or ops: the reference for Decoder. On
// demand it rounds the values that a backend stores, and nothing else: the remaining difference is
// the order of sums. Test code, pure functions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "model/rope.h"
#include "model/weight_source.h"
#include "ops/testing/round_to_fp8.h"
#include "tensor/buffer.h"
#include "tensor/convert.h"

namespace tandem {

using Matrix = std::vector<std::vector<double>>;  // [rows][cols]

// Which stored values are rounded; by default none.
struct StoredTypes {
  std::optional<DType> activations = {};  // outputs of ops, except the logits
  bool fp8_linears = false;  // the layers' weights, one scale per row, as Backend::PackLinear does
  std::optional<DType> cache =
      {};  // keys and values: fp8 or int8, by the model's scales if it has any
  // Ops::LinearAdd, where the width of the product before a norm is a multiple of this many
  // columns: rows are multiplied by the norm's weight and rounded, then divided by their root mean
  // square. 0: nowhere.
  int64_t late_norms_multiple = 0;
};

class ReferenceDecoder {
 public:
  explicit ReferenceDecoder(WeightSource& source, const StoredTypes& types = {})
      : source_(source), spec_(source.spec()), types_(types) {}

  // Logits after every token, [tokens][vocab].
  Matrix Logits(std::span<const int32_t> tokens, int64_t max_positions) {
    max_positions_ = max_positions;
    const Matrix embedding = Weight(WeightRole::kEmbedding, 0);
    Matrix x;
    for (const int32_t token : tokens) x.push_back(embedding[static_cast<size_t>(token)]);
    for (int64_t layer = 0; layer < spec_.num_layers(); ++layer) {
      Add(x, Attention(Norm(x, WeightRole::kInputNorm, layer), layer));
      Store(x);
      Add(x, Mlp(Norm(x, WeightRole::kPostNorm, layer), layer));
      Store(x);
    }
    const Matrix normed = Norm(x, WeightRole::kFinalNorm, 0);
    return Product(normed, spec_.tied_head ? embedding : Weight(WeightRole::kHead, 0), {});
  }

 private:
  Matrix Weight(WeightRole role, int64_t layer, WeightPart part = WeightPart::kWeight) {
    const auto tensor = source_.Get({role, layer, part});
    EXPECT_TRUE(tensor.ok()) << tensor.status().message();
    const Buffer buffer = Buffer::OnHost(static_cast<size_t>(tensor->NumElements()) * 4);
    const Tensor values = buffer.View(DType::kF32, tensor->shape);
    ConvertElements(*tensor, values);
    source_.Release();
    const int64_t rows = values.shape.rank() == 1 ? 1 : values.dim(0);
    const int64_t cols = values.NumElements() / rows;
    Matrix out(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = values.As<float>() + r * cols;
      out[static_cast<size_t>(r)].assign(row, row + cols);
    }
    return out;
  }

  // Rounds as an activation.
  void Store(Matrix& x) const {
    if (!types_.activations) return;
    for (auto& row : x) {
      for (double& value : row) {
        const auto narrow = static_cast<float>(value);
        value = *types_.activations == DType::kBF16 ? ToFloat(ToBFloat16(narrow))
                                                    : ToFloat(ToFloat16(narrow));
      }
    }
  }
  // Rounds as a key or a value.
  void StoreInCache(Matrix& x, WeightRole role, int64_t layer) {
    if (!types_.cache) return Store(x);
    const AttentionSpec& spec = spec_.layer(layer).attention;
    const auto dim = static_cast<size_t>(spec.head_dim);
    std::vector<double> scales(static_cast<size_t>(spec.num_kv_heads), 1.0);
    if (spec_.cache_scales) scales = Weight(role, layer, WeightPart::kCacheScale)[0];
    for (auto& row : x) {
      for (size_t i = 0; i < row.size(); ++i) {
        const double element = row[i] / scales[i / dim];
        row[i] = scales[i / dim] * (*types_.cache == DType::kF8E4M3
                                        ? ops::RoundToFp8(element)
                                        : std::clamp(std::nearbyint(element), -127.0, 127.0));
      }
    }
  }
  // Rounds as the weights of a layer's product.
  void StoreLinear(Matrix& weight) const {
    if (!types_.fp8_linears) return;
    for (auto& row : weight) {
      double largest = 0;
      for (const double value : row) largest = std::max(largest, std::abs(value));
      const float scale = largest > 0 ? static_cast<float>(largest) / 448.0f : 1.0f;
      for (double& value : row) {
        value = ops::RoundToFp8(static_cast<float>(value) / scale) * static_cast<double>(scale);
      }
    }
  }

  static void Add(Matrix& x, const Matrix& delta) {
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x[i].size(); ++j) x[i][j] += delta[i][j];
    }
  }

  bool IsLate(WeightRole role, int64_t layer) const {
    if (types_.late_norms_multiple == 0) return false;
    int64_t width = 0;  // of the product before
    if (role == WeightRole::kPostNorm) width = spec_.layer(layer).attention.out_columns();
    if (role == WeightRole::kInputNorm && layer > 0) {
      width = spec_.layer(layer - 1).mlp.intermediate_size;
    }
    return width > 0 && width % types_.late_norms_multiple == 0;
  }
  Matrix Norm(const Matrix& x, WeightRole role, int64_t layer) {
    return Norm(x, role, layer, spec_.norm.epsilon, IsLate(role, layer));
  }
  Matrix Norm(const Matrix& x, WeightRole role, int64_t layer, double epsilon, bool late = false) {
    const Matrix weight = Weight(role, layer);
    Matrix out = x;
    std::vector<double> scales;
    for (const auto& row : x) {
      double squares = 0;
      for (const double value : row) squares += value * value;
      scales.push_back(1.0 / std::sqrt(squares / static_cast<double>(row.size()) + epsilon));
    }
    const auto divide = [&] {
      for (size_t i = 0; i < out.size(); ++i) {
        for (double& value : out[i]) value *= scales[i];
      }
    };
    if (!late) divide();
    for (auto& row : out) {
      for (size_t j = 0; j < row.size(); ++j) row[j] *= weight[0][j];
    }
    Store(out);
    if (late) divide();
    return out;
  }

  static Matrix Product(const Matrix& x, const Matrix& weight, const Matrix& bias) {
    Matrix out(x.size(), std::vector<double>(weight.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t r = 0; r < weight.size(); ++r) {
        double sum = bias.empty() ? 0.0 : bias[0][r];
        for (size_t c = 0; c < x[i].size(); ++c) sum += x[i][c] * weight[r][c];
        out[i][r] = sum;
      }
    }
    return out;
  }

  Matrix Linear(const Matrix& x, WeightRole role, int64_t layer) {
    Matrix weight = Weight(role, layer);
    StoreLinear(weight);
    const bool biased = HasBias(spec_, role, layer);
    Matrix out = Product(x, weight, biased ? Weight(role, layer, WeightPart::kBias) : Matrix{});
    Store(out);
    return out;
  }

  // Turns rope.dim elements of each head of `dim`, from `first` on.
  void Rotate(Matrix& x, const RopeSpec& rope, int64_t dim, int64_t first) const {
    const auto half = static_cast<size_t>(rope.dim / 2);
    const auto frequencies = RopeFrequencies(rope, max_positions_);
    for (size_t position = 0; position < x.size(); ++position) {
      for (auto head = static_cast<size_t>(first); head < x[position].size();
           head += static_cast<size_t>(dim)) {
        for (size_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(position) * frequencies[i];
          double& low = x[position][head + i];
          double& high = x[position][head + i + half];
          const double rotated = low * std::cos(angle) - high * std::sin(angle);
          high = high * std::cos(angle) + low * std::sin(angle);
          low = rotated;
        }
      }
    }
  }

  Matrix Attention(const Matrix& x, int64_t layer) {
    const AttentionSpec& spec = spec_.layer(layer).attention;
    if (spec.has_latents()) return LatentAttention(x, layer);
    Matrix query = Linear(x, WeightRole::kQuery, layer);
    Matrix key = Linear(x, WeightRole::kKey, layer);
    Matrix value = Linear(x, WeightRole::kValue, layer);
    Rotate(query, spec.rope, spec.head_dim, 0);
    Rotate(key, spec.rope, spec.head_dim, 0);
    Store(query);
    StoreInCache(key, WeightRole::kKey, layer);
    StoreInCache(value, WeightRole::kValue, layer);
    const double scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
    Matrix out = Attend(query, key, value, spec.num_heads, spec.num_kv_heads, scale);
    Store(out);
    return Linear(out, WeightRole::kAttentionOut, layer);
  }

  // Nothing is absorbed: every head has keys and values of its own.
  Matrix LatentAttention(const Matrix& x, int64_t layer) {
    const AttentionSpec& spec = spec_.layer(layer).attention;
    const LatentSpec& latent = spec.latent;
    Matrix query_in = x;
    if (latent.query_rank > 0) {
      query_in = Norm(Linear(x, WeightRole::kQueryDown, layer), WeightRole::kQueryDownNorm, layer,
                      latent.norm_epsilon);
    }
    Matrix query = Linear(query_in, WeightRole::kQuery, layer);
    Matrix cached = Linear(x, WeightRole::kLatent, layer);
    const auto rank = static_cast<ptrdiff_t>(latent.rank);
    Matrix latents;
    for (const auto& row : cached) latents.emplace_back(row.begin(), row.begin() + rank);
    latents = Norm(latents, WeightRole::kLatentNorm, layer, latent.norm_epsilon);
    for (size_t row = 0; row < x.size(); ++row)
      std::ranges::copy(latents[row], cached[row].begin());
    Rotate(query, spec.rope, spec.query_dim(), latent.key_dim);
    Rotate(cached, spec.rope, spec.head_dim, latent.rank);
    Store(query);
    StoreInCache(cached, WeightRole::kLatent, layer);
    for (size_t row = 0; row < x.size(); ++row) {
      std::copy_n(cached[row].begin(), rank, latents[row].begin());
    }
    const Matrix own = Product(latents, Weight(WeightRole::kLatentKey, layer), {});
    const Matrix value = Product(latents, Weight(WeightRole::kLatentValue, layer), {});
    Matrix key(x.size());
    for (size_t row = 0; row < x.size(); ++row) {
      for (int64_t head = 0; head < spec.num_heads; ++head) {
        const auto first = own[row].begin() + head * latent.key_dim;
        key[row].insert(key[row].end(), first, first + latent.key_dim);
        key[row].insert(key[row].end(), cached[row].begin() + rank, cached[row].end());
      }
    }
    Matrix out = Attend(query, key, value, spec.num_heads, spec.num_heads, spec.scale);
    Store(out);
    return Linear(out, WeightRole::kAttentionOut, layer);
  }

  // Causal attention of heads that are as wide as their queries or their values.
  static Matrix Attend(const Matrix& query, const Matrix& key, const Matrix& value,
                       int64_t num_heads, int64_t num_kv_heads, double scale) {
    const auto heads = static_cast<size_t>(num_heads), kv_heads = static_cast<size_t>(num_kv_heads);
    const size_t dim = query[0].size() / heads, value_dim = value[0].size() / kv_heads;
    Matrix out(query.size(), std::vector<double>(heads * value_dim, 0.0));
    for (size_t head = 0; head < heads; ++head) {
      const size_t kv = head / (heads / kv_heads);
      for (size_t row = 0; row < query.size(); ++row) {
        std::vector<double> score(row + 1);
        double sum = 0;
        for (size_t other = 0; other <= row; ++other) {
          double dot = 0;
          for (size_t i = 0; i < dim; ++i) {
            dot += query[row][head * dim + i] * key[other][kv * dim + i];
          }
          score[other] = std::exp(dot * scale);
          sum += score[other];
        }
        for (size_t other = 0; other <= row; ++other) {
          for (size_t i = 0; i < value_dim; ++i) {
            out[row][head * value_dim + i] += score[other] / sum * value[other][kv * value_dim + i];
          }
        }
      }
    }
    return out;
  }

  Matrix Mlp(const Matrix& x, int64_t layer) {
    Matrix gate = Linear(x, WeightRole::kGate, layer);
    const Matrix up = Linear(x, WeightRole::kUp, layer);
    for (size_t i = 0; i < gate.size(); ++i) {
      for (size_t j = 0; j < gate[i].size(); ++j) {
        gate[i][j] = gate[i][j] / (1.0 + std::exp(-gate[i][j])) * up[i][j];
      }
    }
    Store(gate);
    return Linear(gate, WeightRole::kDown, layer);
  }

  WeightSource& source_;
  const ModelSpec spec_;
  const StoredTypes types_;
  int64_t max_positions_ = 0;  // of the current call
};

}  // namespace tandem
