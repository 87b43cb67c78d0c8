#include "model/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace tandem {
namespace {

using ops::RandomWords;

// Binades of a weight: sign, mantissa and the exponents from -15 to 0. A query weight's exponents
// go from -15 to -8, which gives scores of a few units from keys and hidden states of ordinary
// size; those of a weight that adds to the residual go from -47 to -32. Float16 does not reach that
// far down: there all exponents go from -7 to 0, and LayerNormScale makes the results small; where
// the norms are the stream itself (Residual::kNormed), these stay and the weights are below 2^-11.
RandomWords WeightWords(DType dtype, uint64_t key, DummyValues values, bool faint) {
  if (dtype == DType::kF16) {
    return faint ? RandomWords{key, 0x8fff8fff8fff8fffu, 0}
                 : RandomWords{key, 0x9fff9fff9fff9fffu, 0x2000200020002000u};
  }
  const uint64_t set = values == DummyValues::kToResidual ? 0x28002800u : 0x38003800u;
  const uint64_t keep = values == DummyValues::kScores ? 0x83ff83ffu : 0x87ff87ffu;
  if (dtype == DType::kBF16) return {key, keep << 32 | keep, set << 32 | set};
  return {key, (keep << 32 | keep) | 0x00ffffff00ffffffu, (set << 32 | set) & 0xff000000ff000000u};
}

// The words of a vector shared by embedding and head: sign and mantissa of a number in [1, 2).
RandomWords VectorWords(DType dtype, uint64_t key) {
  if (dtype == DType::kBF16) return {key, 0x807f807f807f807fu, 0x3f803f803f803f80u};
  if (dtype == DType::kF16) return {key, 0x83ff83ff83ff83ffu, 0x3c003c003c003c00u};
  return {key, 0x807fffff807fffffu, 0x3f8000003f800000u};
}

// A norm of what a block adds to the residual, which it would make as large as the stream itself.
constexpr float kOutputNorm = 0x1p-10f;
bool IsOutputNorm(const ModelSpec& spec, const WeightId& id) {
  if (id.role == WeightRole::kAttentionOutNorm || id.role == WeightRole::kMlpOutNorm) return true;
  return (id.role == WeightRole::kInputNorm || id.role == WeightRole::kPostNorm) &&
         spec.layer(id.layer).residual == Residual::kPostNorm;
}

// Every weight has a separate random stream, whatever the order in which weights are requested.
// A rank's part has values of its own; of what is whole on every rank all have the same.
uint64_t StreamOf(const WeightId& id, const RankPlace& place) {
  constexpr uint64_t kMaxRoles = 256;
  const uint64_t of_model =
      static_cast<uint64_t>(id.expert) * kMaxLayers + static_cast<uint64_t>(id.layer);
  const uint64_t of_all = 1 + of_model * kMaxRoles + static_cast<uint64_t>(id.role);
  const bool whole = RowOf(id.role).shard == ShardRule::kWhole;
  return of_all + (whole ? 0 : static_cast<uint64_t>(place.rank) << 48);
}

constexpr int64_t kGrainBytes = int64_t{256} << 10;  // a thread's piece: some tens of microseconds

// Standard deviation of a random weight, roughly: binades 2^-15 (2^-7) .. 2^0, mantissas in [1, 2).
constexpr double kWeightDeviation = 0.5;
constexpr float kCacheScale = 1.0f / 32.0f;  // largest int8: 4

// A stride with one cycle through all tokens, and not an obvious one.
int64_t CycleStride(int64_t tokens) {
  if (tokens <= 2) return tokens - 1;
  auto stride = static_cast<int64_t>(static_cast<double>(tokens) * 0.6180339887);
  while (std::gcd(stride, tokens) != 1) ++stride;
  return stride % tokens;
}

}  // namespace

DummyMap::DummyMap(const DummyOptions& options, int64_t vocab_size)
    : seed_(options.seed),
      agreement_(options.agreement),
      map_tokens_(options.map_tokens > 0 ? options.map_tokens : vocab_size),
      stride_(CycleStride(map_tokens_)) {}

DummySource::DummySource(ModelSpec spec, const DummyOptions& options)
    : spec_(std::move(spec)),
      options_(options),
      map_(options, spec_.vocab_size),
      pool_(options.num_threads, /*pin=*/false) {}

Result<std::unique_ptr<DummySource>> DummySource::FromSpec(ModelSpec spec,
                                                           const DummyOptions& options) {
  spec.tied_head = false;
  spec.quantization = {};
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  if (!(options.agreement >= 0.0 && options.agreement <= 1.0)) {
    return InvalidArgument("the agreement of a dummy draft must lie between 0 and 1");
  }
  if (options.map_tokens < 0 || options.map_tokens > spec.vocab_size) {
    return InvalidArgument("the map of a dummy model cannot have more tokens than its vocabulary");
  }
  return std::unique_ptr<DummySource>(new DummySource(std::move(spec), options));
}

bool DummyMap::Agrees(int32_t token) const {
  const uint64_t hash =
      ops::ScrambleBits(seed_ * ops::kCounterStep + static_cast<uint64_t>(token % map_tokens_) + 1);
  return static_cast<double>(hash >> 11) * 0x1.0p-53 < agreement_;
}

// Where the model does not agree it looks up its neighbour's vector, and so answers as after that
// token.
int64_t DummyMap::VectorOfEmbedding(int64_t token) const {
  const int64_t mapped = token % map_tokens_;
  return Agrees(static_cast<int32_t>(mapped)) ? mapped : (mapped + 1) % map_tokens_;
}

// The vector of the previous token; the vector of a token outside the map is never looked up.
int64_t DummyMap::VectorOfHead(int64_t token) const {
  if (token >= map_tokens_) return token;
  return (token + map_tokens_ - stride_) % map_tokens_;
}

int32_t DummyMap::Expected(int32_t token) const {
  return static_cast<int32_t>((VectorOfEmbedding(token) + stride_) % map_tokens_);
}

// Only float16 needs it: its weights cannot be small enough. A layer adds at most about deviation^2
// * sqrt(hidden * attention) * scale to each element of the residual, whose elements are between 1
// and 2; over all layers that stays near 1/32.
double DummySource::LayerNormScale() const {
  const auto fan_in = static_cast<double>(spec_.hidden_size) *
                      static_cast<double>(spec_.layers.front().attention.out_columns());
  const double gain = kWeightDeviation * kWeightDeviation * std::sqrt(fan_in) *
                      std::sqrt(static_cast<double>(spec_.num_layers()));
  return std::exp2(std::floor(std::log2(1.0 / (32.0 * gain))));
}

Result<Tensor> DummySource::Scratch(DType dtype, const Shape& shape, bool on_backend) {
  const auto bytes = static_cast<size_t>(shape.NumElements()) * SizeOf(dtype);
  ScratchList& list = on_backend ? backend_scratch_ : host_scratch_;
  if (list.used == list.buffers.size()) list.buffers.emplace_back();
  Buffer& buffer = list.buffers[list.used++];
  if (buffer.bytes() < bytes) {
    buffer = {};  // freed before the next allocation
    if (on_backend) {
      TANDEM_ASSIGN_OR_RETURN(buffer, options_.backend->Allocate(bytes));
    } else {
      buffer = Buffer::OnHost(bytes);
    }
  }
  if (buffer.data() == nullptr) {
    return ResourceExhausted("no memory for a dummy tensor of " + std::to_string(bytes) + " bytes");
  }
  return buffer.View(dtype, shape);
}

void DummySource::Release() {
  // Embedding and head are much larger than the layers' tensors: do not keep their memory.
  constexpr size_t kKeptBytes = size_t{128} << 20;
  for (ScratchList* list : {&host_scratch_, &backend_scratch_}) {
    list->used = 0;
    std::erase_if(list->buffers, [](const Buffer& buffer) { return buffer.bytes() > kKeptBytes; });
  }
}

void DummySource::FillRandom(const Tensor& out, uint64_t stream, DummyValues values, bool faint) {
  const uint64_t key = ops::ScrambleBits(options_.seed + stream * ops::kCounterStep);
  const RandomWords words = WeightWords(spec_.dtype, key, values, faint);
  if (out.device.kind == Device::Kind::kCuda) return options_.backend->FillRandom(out, words);
  auto* bytes = static_cast<std::byte*>(out.data);
  pool_.ParallelFor(out.NumBytes(), kGrainBytes, [&](int64_t begin, int64_t end) {
    ops::FillBytes(bytes + begin, words, static_cast<uint64_t>(begin / 8), end - begin);
  });
}

template <typename RowOf>
void DummySource::FillVectors(const Tensor& out, RowOf row_of) {
  const int64_t row_bytes = out.NumBytes() / out.dim(0);
  const int64_t row_words = (row_bytes + 7) / 8;
  // The same key for every shape: draft and target may have different shapes.
  const RandomWords words = VectorWords(spec_.dtype, ops::ScrambleBits(options_.seed));
  auto* bytes = static_cast<std::byte*>(out.data);
  pool_.ParallelFor(out.dim(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto first = static_cast<uint64_t>(row_of(row) * row_words);
      ops::FillBytes(bytes + row * row_bytes, words, first, row_bytes);
    }
  });
}

void DummySource::FillConstant(const Tensor& out, float value) {
  const int64_t count = out.NumElements();
  for (int64_t i = 0; i < count; ++i) {
    if (out.dtype == DType::kBF16) {
      out.As<BFloat16>()[i] = ToBFloat16(value);
    } else if (out.dtype == DType::kF16) {
      out.As<Float16>()[i] = ToFloat16(value);
    } else {
      out.As<float>()[i] = value;
    }
  }
}

// Only the layers' products are large and random; everything else is made on the host.
bool DummySource::MadeOnBackend(const WeightId& id) const {
  return options_.backend != nullptr && id.part == WeightPart::kWeight &&
         RowOf(id.role).quantizable && RowOf(id.role).by_head == HeadProducts::kNone &&
         options_.backend->device().kind != Device::Kind::kCpu;
}

Result<Tensor> DummySource::Get(const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(
      const Tensor out, Scratch(WeightDType(spec_, id), WeightShape(spec_, id), MadeOnBackend(id)));
  if (id.part == WeightPart::kBias || id.part == WeightPart::kCacheScale) {
    FillConstant(out, id.part == WeightPart::kBias ? 0.0f : kCacheScale);
    return out;
  }
  const DummyValues values = RowOf(id.role).dummy;
  const bool normed = spec_.layer(id.layer).residual == Residual::kNormed;
  const auto offset = static_cast<float>(spec_.norm.weight_offset);
  if (id.part == WeightPart::kWeight && IsOutputNorm(spec_, id)) {
    FillConstant(out, kOutputNorm - offset);
    return out;
  }
  switch (values) {
    case DummyValues::kEmbedding:
      FillVectors(out, [this](int64_t row) {
        const int64_t token = spec_.first_vocab_row() + row;
        return map_.VectorOfEmbedding(std::min(token, spec_.vocab_size - 1));
      });
      break;
    case DummyValues::kHead:
      FillVectors(out, [this](int64_t row) {
        const int64_t token = spec_.first_vocab_row() + row;
        return map_.VectorOfHead(std::min(token, spec_.vocab_size - 1));
      });
      break;
    case DummyValues::kZeros:
      FillConstant(out, 0.0f);
      break;
    case DummyValues::kOnes:
      FillConstant(out, 1.0f - offset);
      break;
    case DummyValues::kLayerNorm: {
      const bool tiny = spec_.dtype == DType::kF16 && !normed;
      FillConstant(out, (tiny ? static_cast<float>(LayerNormScale()) : 1.0f) - offset);
      break;
    }
    case DummyValues::kProduct:
    case DummyValues::kScores:
    case DummyValues::kToResidual:
      FillRandom(out, StreamOf(id, spec_.place), values,
                 normed && values == DummyValues::kToResidual);
  }
  return out;
}

}  // namespace tandem
