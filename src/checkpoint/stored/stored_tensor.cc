#include "checkpoint/stored/stored_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tensor/convert.h"

namespace tandem {
namespace {

std::vector<float> FloatsOf(const Tensor& stored) {
  std::vector<float> values(static_cast<size_t>(stored.NumElements()));
  ConvertElements(stored, {values.data(), DType::kF32, stored.shape, {}});
  return values;
}

}  // namespace

Status CheckStored(const Tensor& stored, WeightPart part, const Shape& expected, DType dtype,
                   const std::string& where) {
  const Shape& shape = stored.shape;
  const bool spreads = IsScale(part) && expected.rank() == 1 &&
                       (shape.NumElements() == 1 || shape == Shape{expected[0], 1});
  if (shape != expected && !spreads) {
    const bool or_one = IsScale(part) && expected.rank() == 1 && expected[0] != 1;
    return InvalidArgument(where + ": has shape " + shape.ToString() + "; config.json requires " +
                           (or_one ? "[1] or " : "") + expected.ToString());
  }
  if (IsFloat(dtype) ? IsFloat(stored.dtype) : stored.dtype == dtype) return {};
  return Unimplemented(where + ": is stored as " + std::string(SafetensorsName(stored.dtype)) +
                       (IsFloat(dtype) ? "; it must be F32, F16 or BF16"
                                       : "; by the quantization in config.json it must be " +
                                             std::string(SafetensorsName(dtype))));
}

Status CheckScaleValues(const Tensor& stored, const std::string& where) {
  for (const float scale : FloatsOf(stored)) {
    // Of a denormal number the reciprocal, by which caches are quantized, is infinite.
    if (std::isnormal(scale) && scale > 0.0f) continue;
    return InvalidArgument(
        fmt::format("{}: holds {}; scales must be positive numbers, not denormal", where, scale));
  }
  return {};
}

Result<Tensor> ToFloats(const Tensor& stored, const Shape& shape, ScratchBuffers& scratch) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(DType::kF32, shape));
  if (stored.NumElements() == out.NumElements()) {
    ConvertElements(stored, out);
  } else {
    ConvertElements(stored, {out.data, DType::kF32, stored.shape, {}});
    std::fill_n(out.As<float>(), out.NumElements(), *out.As<float>());
  }
  return out;
}

Result<Tensor> ToTransposedFloats(const Tensor& stored, const Shape& shape,
                                  ScratchBuffers& scratch) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor floats, ToFloats(stored, stored.shape, scratch));
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(DType::kF32, shape));
  const int64_t groups = stored.dim(0);
  const int64_t rows = stored.dim(1);
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t row = 0; row < rows; ++row) {
      out.As<float>()[row * groups + group] = floats.As<float>()[group * rows + row];
    }
  }
  return out;
}

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.NumBytes())) == 0;
}

Status CheckInputOrder(const Tensor& stored, const std::string& where) {
  std::vector<bool> seen(static_cast<size_t>(stored.NumElements()));
  for (int64_t i = 0; i < stored.NumElements(); ++i) {
    int32_t input = 0;
    std::memcpy(&input, static_cast<const std::byte*>(stored.data) + i * int64_t{sizeof(input)},
                sizeof(input));
    const bool fits =
        input >= 0 && input < stored.NumElements() && !seen[static_cast<size_t>(input)];
    if (!fits) {
      return InvalidArgument(
          fmt::format("{}: holds {}; an order of inputs names each of the {} once", where, input,
                      stored.NumElements()));
    }
    seen[static_cast<size_t>(input)] = true;
  }
  return {};
}

}  // namespace tandem
