#include "checkpoint/trtllm/checkpoint_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "checkpoint/stored/stored_tensor.h"
#include "checkpoint/trtllm/int4_pairs.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

using Element = QuantScheme::Element;
using Inputs = QuantScheme::Inputs;

constexpr const char* kScales = ".weights_scaling_factor";
// Of SmoothQuant and of weights that were rounded without calibration.
constexpr const char* kRowScales = ".per_channel_scale";
constexpr const char* kOutputScale = ".act_scale";
constexpr const char* kZeros = ".zero";
constexpr const char* kFactors = ".prequant_scaling_factor";
constexpr const char* kDivisors = ".smoother";
constexpr const char* kInputScale = ".activation_scaling_factor";

// Ends of the names of tensors that TensorRT-LLM's graphs want and that hold nothing new.
constexpr std::array<std::string_view, 9> kUnused = {".weights_scaling_factor_2",
                                                     ".alpha",
                                                     ".act_scale",
                                                     ".scale_to_int",
                                                     "rotary_inv_freq",
                                                     ".quantization_scaling_factor",
                                                     "embed_positions_for_gpt_attention",
                                                     "cache_scaling_factor",
                                                     "cache_rcp_scaling_factor"};

// The name of a product without the suffix of its part.
std::string BaseOf(const FusedTensor& fused) {
  return fused.name.substr(0, fused.name.size() - RowOf(fused.part).trtllm_suffix.size());
}

// SmoothQuant's kernels quantize inputs where they are made: the tensor with what static inputs are
// multiplied by.
std::string InputMultiplierOf(const FusedTensor& fused) {
  const WeightRow& row = RowOf(fused.roles.front());
  const std::string base = BaseOf(fused);
  const std::string layer = base.substr(0, base.size() - row.trtllm_name.size());
  switch (row.input) {
    case InputGroup::kAttention:
      return layer + "input_layernorm.scale_to_int";
    case InputGroup::kAttentionOut:
      return layer + "attention.quantization_scaling_factor";
    case InputGroup::kMlp:
      return layer + "post_layernorm.scale_to_int";
    case InputGroup::kMlpOut:
      return layer + "mlp.quantization_scaling_factor";
    case InputGroup::kExpertOut:
    case InputGroup::kNone:
      break;
  }
  return base + kInputScale;
}

// [1, n] and [n, 1] as [n].
Tensor AsVector(Tensor tensor) {
  if (tensor.shape.rank() == 2 && (tensor.dim(0) == 1 || tensor.dim(1) == 1)) {
    tensor.shape = {tensor.NumElements()};
  }
  return tensor;
}

KernelMatrix KernelMatrixOf(const RankTensor& tensor, const Tensor& stored) {
  const auto per_byte = tensor.scheme.elements_per_byte();
  return {stored.data, tensor.shape[0], tensor.shape[1] * per_byte, per_byte == 2 ? 4 : 8};
}

}  // namespace

Result<std::unique_ptr<CheckpointRank>> CheckpointRank::Open(const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
  return std::unique_ptr<CheckpointRank>(new CheckpointRank(std::move(file)));
}

const Tensor* CheckpointRank::FindOrNull(const std::string& name) const {
  const auto found = file_->tensors().find(name);
  return found == file_->tensors().end() ? nullptr : &found->second;
}

Result<CheckpointRank::Stored> CheckpointRank::Find(
    std::initializer_list<std::string> names) const {
  for (const std::string& name : names) {
    if (const Tensor* tensor = FindOrNull(name)) return Stored{*tensor, name};
  }
  return NotFound(PlaceOf(*names.begin()) + " is missing");
}

Result<float> CheckpointRank::ReadNumber(const std::string& name) const {
  TANDEM_ASSIGN_OR_RETURN(const Stored stored, Find({name}));
  Tensor one = stored.tensor;
  if (one.NumElements() == 1) one.shape = {1};
  TANDEM_RETURN_IF_ERROR(
      CheckStored(one, WeightPart::kInputScale, {1}, DType::kF32, PlaceOf(name)));
  TANDEM_RETURN_IF_ERROR(CheckScaleValues(one, PlaceOf(name)));
  float value = 0.0f;
  ConvertElements(one, {&value, DType::kF32, {1}, {}});
  return value;
}

Result<QuantScheme> CheckpointRank::SchemeOf(const FusedTensor& weight,
                                             const QuantScheme& described,
                                             const Shape& plain) const {
  TANDEM_ASSIGN_OR_RETURN(const Stored stored, Find({weight.name}));
  if (IsFloat(stored.tensor.dtype) && stored.tensor.shape == plain) return QuantScheme{};
  const std::string base = BaseOf(weight);
  QuantScheme scheme = described;
  scheme.zero_points = scheme.zero_points || FindOrNull(base + kZeros) != nullptr;
  scheme.input_factors =
      FindOrNull(base + kFactors) != nullptr || FindOrNull(base + kDivisors) != nullptr;
  return scheme;
}

bool CheckpointRank::HasScalesOf(const CheckpointRank& other, const FusedTensor& weight) const {
  const std::string base = BaseOf(weight);
  return std::ranges::all_of(std::array{kScales, kRowScales}, [&](const char* suffix) {
    const Tensor* ours = FindOrNull(base + suffix);
    const Tensor* theirs = other.FindOrNull(base + suffix);
    if (ours == nullptr || theirs == nullptr) return ours == theirs;
    return SameBytes(*ours, *theirs);
  });
}

void CheckpointRank::CountBitsOfKernels(BitCounts& counts) const {
  for (const KernelMatrix& matrix : of_kernels_) CountBits(matrix, counts);
}

// What the converters prepared for kernels has scales by row, or elements under a floating-point
// type.
CheckpointRank::Form CheckpointRank::FormOf(const RankTensor& tensor) const {
  const QuantScheme& scheme = tensor.scheme;
  const bool integers = scheme.element == Element::kInt4 || scheme.element == Element::kInt8;
  const std::string base = BaseOf(tensor.fused);
  const Tensor* weight = FindOrNull(base + ".weight");
  if (!integers || weight == nullptr) return Form::kAsInMemory;
  const bool rounded = scheme.inputs == Inputs::kPlain && FindOrNull(base + kRowScales) != nullptr;
  if (rounded || IsFloat(weight->dtype)) return Form::kKernels;
  return scheme.element == Element::kInt4 ? Form::kPairsOfRows : Form::kAsInMemory;
}

Status CheckpointRank::CheckElements(const RankTensor& tensor) {
  TANDEM_ASSIGN_OR_RETURN(const Stored stored, Find({tensor.fused.name}));
  const std::string where = PlaceOf(stored.name);
  Tensor found = stored.tensor;
  // fp8 and pairs of int4 are written as plain bytes too.
  const bool bytes =
      !tensor.scheme.is_plain() && SizeOf(found.dtype) == 1 && SizeOf(tensor.dtype) == 1;
  switch (FormOf(tensor)) {
    case Form::kAsInMemory:
      if (bytes && found.dtype == DType::kI8) found.dtype = tensor.dtype;
      return CheckStored(found, WeightPart::kWeight, tensor.shape, tensor.dtype, where);
    case Form::kPairsOfRows:
      if (tensor.shape[0] % 2 != 0) {
        return InvalidArgument(where + ": a byte holds two rows, but there are " +
                               std::to_string(tensor.shape[0]));
      }
      if (bytes) found.dtype = tensor.dtype;
      return CheckStored(found, WeightPart::kWeight, {tensor.shape[0] / 2, tensor.shape[1] * 2},
                         tensor.dtype, where);
    case Form::kKernels:
      break;
  }
  const KernelMatrix matrix = KernelMatrixOf(tensor, found);
  const int64_t per_value = static_cast<int64_t>(SizeOf(found.dtype)) * 8 / matrix.bits;
  if (!FitsKernels(matrix) || matrix.rows % per_value != 0 || SizeOf(found.dtype) > 2) {
    return Unimplemented(
        fmt::format("{}: {} of {} x {} elements is no matrix that TensorRT-LLM's kernels read",
                    where, SafetensorsName(found.dtype), matrix.rows, matrix.columns));
  }
  const DType dtype = found.dtype == DType::kU8 ? DType::kI8 : found.dtype;
  found.dtype = dtype;
  TANDEM_RETURN_IF_ERROR(CheckStored(found, WeightPart::kWeight,
                                     {matrix.columns, matrix.rows / per_value}, dtype, where));
  of_kernels_.push_back(matrix);
  return {};
}

// Checked for its shape and type.
Result<CheckpointRank::Stored> CheckpointRank::FindPart(const RankTensor& tensor) const {
  const std::string base = BaseOf(tensor.fused);
  const WeightPart part = tensor.fused.part;
  Stored stored;
  Shape shape = tensor.shape;
  DType dtype = tensor.dtype;
  switch (part) {
    case WeightPart::kScale: {
      TANDEM_ASSIGN_OR_RETURN(stored, Find({base + kScales, base + kRowScales}));
      if (stored.name.ends_with(kRowScales)) stored.tensor = AsVector(stored.tensor);
      break;
    }
    case WeightPart::kInputFactors: {
      TANDEM_ASSIGN_OR_RETURN(stored, Find({base + kFactors, base + kDivisors}));
      stored.tensor = AsVector(stored.tensor);
      break;
    }
    case WeightPart::kInputScale: {
      TANDEM_ASSIGN_OR_RETURN(stored, Find({base + kInputScale, InputMultiplierOf(tensor.fused)}));
      if (stored.tensor.NumElements() == 1) stored.tensor.shape = {1};
      break;
    }
    default: {
      TANDEM_ASSIGN_OR_RETURN(stored, Find({tensor.fused.name}));
      break;
    }
  }
  const bool blocks = part == WeightPart::kScale || part == WeightPart::kZero;
  // A rank's one group of columns, where the ranks' scales differ, is stored as a vector of rows.
  const bool one_group = blocks && shape.rank() == 2 && shape[1] == 1;
  if (blocks && shape.rank() == 2 && FormOf(tensor) == Form::kKernels) shape = {shape[1], shape[0]};
  if (one_group && AsVector(stored.tensor).shape == Shape{tensor.shape[0]}) {
    stored.tensor.shape = shape;
  } else if (one_group && stored.tensor.NumElements() == 1) {
    shape = {tensor.shape[0]};  // for which there may be one scale
  }
  if (part == WeightPart::kZero && IsFloat(stored.tensor.dtype)) dtype = DType::kF32;
  TANDEM_RETURN_IF_ERROR(CheckStored(stored.tensor, part, shape, dtype, PlaceOf(stored.name)));
  return stored;
}

Status CheckpointRank::Check(const RankTensor& tensor) {
  if (tensor.fused.part == WeightPart::kWeight) {
    known_.insert(tensor.fused.name);
    return CheckElements(tensor);
  }
  TANDEM_ASSIGN_OR_RETURN(const Stored stored, FindPart(tensor));
  known_.insert(stored.name);
  const bool smoothed = tensor.fused.part == WeightPart::kScale &&
                        tensor.scheme.inputs == Inputs::kStatic &&
                        stored.name.ends_with(kRowScales);
  if (!smoothed) return {};
  TANDEM_RETURN_IF_ERROR(ReadNumber(BaseOf(tensor.fused) + kOutputScale).status());
  return ReadNumber(InputMultiplierOf(tensor.fused)).status();
}

Status CheckpointRank::CheckOthers() const {
  for (const auto& [name, tensor] : file_->tensors()) {
    const bool unused = std::ranges::any_of(
        kUnused, [&](std::string_view suffix) { return name.ends_with(suffix); });
    // Tied heads are stored all the same, and plain ones have scales left over.
    if (known_.contains(name) || unused || name.starts_with("lm_head.")) continue;
    return Unimplemented(PlaceOf(name) + " is none that config.json describes");
  }
  return {};
}

Result<Tensor> CheckpointRank::BlocksOf(const RankTensor& tensor, const Stored& stored,
                                        ScratchBuffers& scratch) const {
  const bool transposed = tensor.shape.rank() == 2 && FormOf(tensor) == Form::kKernels;
  return transposed ? ToTransposedFloats(stored.tensor, tensor.shape, scratch)
                    : ToFloats(stored.tensor, tensor.shape, scratch);
}

// Where inputs are static, SmoothQuant's scales map a product of integers to an integer output.
Result<Tensor> CheckpointRank::ReadScales(const RankTensor& tensor, const Stored& stored,
                                          ScratchBuffers& scratch) const {
  TANDEM_RETURN_IF_ERROR(CheckScaleValues(stored.tensor, PlaceOf(stored.name)));
  TANDEM_ASSIGN_OR_RETURN(const Tensor scales, BlocksOf(tensor, stored, scratch));
  const bool of_outputs =
      stored.name.ends_with(kRowScales) && tensor.scheme.inputs == Inputs::kStatic;
  if (!of_outputs) return scales;
  TANDEM_ASSIGN_OR_RETURN(const float output, ReadNumber(BaseOf(tensor.fused) + kOutputScale));
  TANDEM_ASSIGN_OR_RETURN(const float input, ReadNumber(InputMultiplierOf(tensor.fused)));
  for (int64_t i = 0; i < scales.NumElements(); ++i) scales.As<float>()[i] *= output * input;
  return scales;
}

// GPTQ's are stored as what is added to an element times its scale.
Result<Tensor> CheckpointRank::ReadZeros(const RankTensor& tensor, const Stored& stored,
                                         ScratchBuffers& scratch) const {
  if (!IsFloat(stored.tensor.dtype)) return stored.tensor;
  RankTensor scale = tensor;
  scale.fused.part = WeightPart::kScale;
  scale.fused.name = BaseOf(tensor.fused) + kScales;
  scale.dtype = DType::kF32;
  TANDEM_ASSIGN_OR_RETURN(const Stored stored_scales, FindPart(scale));
  TANDEM_ASSIGN_OR_RETURN(const Tensor scales, ReadScales(scale, stored_scales, scratch));
  TANDEM_ASSIGN_OR_RETURN(const Tensor added, BlocksOf(tensor, stored, scratch));
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(tensor.dtype, tensor.shape));
  const bool pairs = tensor.scheme.element == Element::kInt4;
  const float lowest = pairs ? 0.0f : -128.0f;
  const float highest = pairs ? 15.0f : 127.0f;
  for (int64_t i = 0; i < out.NumElements(); ++i) {
    const float zero =
        std::round((pairs ? 8.0f : 0.0f) - added.As<float>()[i] / scales.As<float>()[i]);
    if (!(zero >= lowest && zero <= highest)) {
      return InvalidArgument(fmt::format("{}: holds {}, which with the scale {} is no zero point",
                                         PlaceOf(stored.name), added.As<float>()[i],
                                         scales.As<float>()[i]));
    }
    static_cast<uint8_t*>(out.data)[i] = static_cast<uint8_t>(static_cast<int>(zero));
  }
  return out;
}

Status CheckpointRank::Verify(const std::string& name) {
  if (verified_.contains(name)) return {};
  TANDEM_RETURN_IF_ERROR(file_->Verify(name));
  verified_.insert(name);
  return {};
}

Result<Tensor> CheckpointRank::Read(const RankTensor& tensor, ScratchBuffers& scratch) {
  if (tensor.fused.part == WeightPart::kWeight) {
    return ReadRows(tensor, 0, tensor.shape[0], scratch);
  }
  TANDEM_ASSIGN_OR_RETURN(const Stored stored, FindPart(tensor));
  TANDEM_RETURN_IF_ERROR(Verify(stored.name));
  switch (tensor.fused.part) {
    case WeightPart::kScale:
      return ReadScales(tensor, stored, scratch);
    case WeightPart::kZero:
      return ReadZeros(tensor, stored, scratch);
    case WeightPart::kInputFactors:
    case WeightPart::kInputScale:
      break;
    default:
      return stored.tensor;
  }
  TANDEM_RETURN_IF_ERROR(CheckScaleValues(stored.tensor, PlaceOf(stored.name)));
  const std::string base = BaseOf(tensor.fused);
  const bool as_stored = stored.name == base + kFactors || stored.name == base + kInputScale;
  if (as_stored) return stored.tensor;
  TANDEM_ASSIGN_OR_RETURN(const Tensor values, ToFloats(stored.tensor, tensor.shape, scratch));
  for (int64_t i = 0; i < values.NumElements(); ++i) {
    values.As<float>()[i] = 1.0f / values.As<float>()[i];
  }
  return values;
}

Result<Tensor> CheckpointRank::ReadRows(const RankTensor& tensor, int64_t first, int64_t count,
                                        ScratchBuffers& scratch) {
  TANDEM_ASSIGN_OR_RETURN(const Stored stored, Find({tensor.fused.name}));
  TANDEM_RETURN_IF_ERROR(Verify(stored.name));
  const Form form = tensor.fused.part == WeightPart::kWeight ? FormOf(tensor) : Form::kAsInMemory;
  if (form == Form::kAsInMemory) {
    Tensor view = stored.tensor;
    if (!tensor.scheme.is_plain() && SizeOf(view.dtype) == 1) view.dtype = tensor.dtype;
    return view.RowRange(first, count);
  }
  TANDEM_ASSIGN_OR_RETURN(const Tensor out,
                          scratch.Allocate(tensor.dtype, {count, tensor.shape[1]}));
  if (form == Form::kPairsOfRows) {
    UnpairRows(stored.tensor, first, out);
  } else {
    FromKernelOrder(KernelMatrixOf(tensor, stored.tensor), kernel_order_, first, out);
  }
  return out;
}

}  // namespace tandem
