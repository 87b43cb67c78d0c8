#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/cuda/linear/pack.cuh"
#include "ops/cuda/linear/quantize.cuh"
#include "tensor/convert.h"

namespace tandem::ops::cuda {
namespace {

using Allocate = std::function<Result<Buffer>(size_t bytes)>;

// Staging memory for rows on the host that are to be rounded.
constexpr int64_t kStagingBytes = int64_t{64} << 20;

}  // namespace

// Weights are copied as they are, widened or rounded, to formats that there are kernels for.
Status CheckFormat(const WeightFormat& from, const WeightFormat& kept) {
  const bool plain = kept.scheme.is_plain();
  const bool computed =
      (kept.dtype == DType::kBF16 || kept.dtype == DType::kF16) && HasKernels(kept.scheme);
  const bool copied = plain ? from == kept || !from.scheme.is_plain() : from.scheme == kept.scheme;
  const bool rounded = !plain && from.scheme.is_plain() && IsFloat(from.dtype) &&
                       !kept.scheme.zero_points && !kept.scheme.input_factors &&
                       !kept.scheme.input_order;
  if (computed && (copied || rounded)) return {};
  return Unimplemented("weights of type " + DescribeFormat(from) + " kept as " +
                       DescribeFormat(kept) + " with activations of type " +
                       std::string(DTypeName(kept.dtype)) + " on CUDA");
}

namespace {

// A small vector of floating-point values, on the host or the device, as fp32 on the host.
std::vector<float> ToHostFloats(const Context& context, const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.NumBytes()));
  CheckCuda(
      cudaMemcpyAsync(bytes.data(), tensor.data, bytes.size(), cudaMemcpyDefault, context.stream),
      "reading a vector of a weight");
  CheckCuda(cudaStreamSynchronize(context.stream), "reading a vector of a weight");
  std::vector<float> values(static_cast<size_t>(tensor.NumElements()));
  ConvertElements({bytes.data(), tensor.dtype, tensor.shape, {}},
                  {values.data(), DType::kF32, tensor.shape, {}});
  return values;
}

// Copies the rows of a part unchanged to their padded places.
void CopyRows(const Context& context, const Tensor& part, void* packed, int64_t pitch_bytes) {
  const auto row_bytes = static_cast<size_t>(part.dim(1)) * SizeOf(part.dtype);
  CheckCuda(
      cudaMemcpy2DAsync(packed, static_cast<size_t>(pitch_bytes), part.data, row_bytes, row_bytes,
                        static_cast<size_t>(part.dim(0)), cudaMemcpyDefault, context.stream),
      "copying weights");
}

class Packer {
 public:
  Packer(const Context& context, const Allocate& allocate, DType activations, LinearWeight& weight)
      : context_(context), allocate_(allocate), activations_(activations), weight_(weight) {}

  Status Pack(std::span<const LinearPart> parts) {
    // Those of all parts are alike.
    CopyVector(parts.front().input_factors, weight_.input_factors);
    CopyVector(parts.front().input_order, weight_.input_order);
    int64_t row = 0;
    for (const LinearPart& part : parts) {
      TANDEM_RETURN_IF_ERROR(PackPart(part, row));
      row += part.weight.dim(0);
    }
    CheckCuda(cudaStreamSynchronize(context_.stream), "packing weights");
    return {};
  }

 private:
  Status PackPart(const LinearPart& part, int64_t row) {
    if (!part.bias.empty()) {
      TANDEM_CHECK(part.bias.NumElements() == part.weight.dim(0),
                   "a bias as long as its part has rows");
      CopyFloats(ToHostFloats(context_, part.bias), weight_.bias, row);
    }
    if (IsInt4(weight_.scheme)) return TileRows(part, row);
    const int64_t pitch = PackedPitch(weight_.cols, weight_.dtype);
    const int64_t pitch_bytes = pitch * static_cast<int64_t>(SizeOf(weight_.dtype));
    auto* const packed = weight_.data.As<std::byte>() + row * pitch_bytes;
    const bool widened = weight_.scheme.is_plain() && !part.scheme.is_plain();
    if (widened) return WidenRows(part, packed, pitch_bytes);
    if (part.weight.dtype != weight_.dtype) return RoundRows(part.weight, packed, row);
    CopyRows(context_, part.weight, packed, pitch_bytes);
    if (!part.scheme.is_plain()) CopyScales(part, row);
    return {};
  }

  // Quantized rows, which lie on the host, as plain ones.
  Status WidenRows(const LinearPart& part, std::byte* packed, int64_t pitch_bytes) {
    TANDEM_CHECK(part.weight.device.kind == Device::Kind::kCpu, "quantized rows on the host");
    const Shape row_shape{1, weight_.cols};
    std::vector<float> floats(static_cast<size_t>(weight_.cols));
    const int64_t row_bytes = weight_.cols * static_cast<int64_t>(SizeOf(weight_.dtype));
    const int64_t most = std::clamp<int64_t>(kStagingBytes / row_bytes, 1, part.rows());
    std::vector<std::byte> rounded(static_cast<size_t>(most * row_bytes));
    for (int64_t row = 0; row < part.rows(); row += most) {
      const int64_t count = std::min(most, part.rows() - row);
      for (int64_t i = 0; i < count; ++i) {
        WidenRow(part, row + i, floats.data());
        ConvertElements({floats.data(), DType::kF32, row_shape, {}},
                        {rounded.data() + i * row_bytes, weight_.dtype, row_shape, {}});
      }
      CopyRows(context_, {rounded.data(), weight_.dtype, {count, weight_.cols}, {}},
               packed + row * pitch_bytes, pitch_bytes);
      // The next rows replace these.
      CheckCuda(cudaStreamSynchronize(context_.stream), "copying weights");
    }
    return {};
  }

  // On the stream, like all work on the weight. The values are staged when it returns.
  void CopyFloats(const std::vector<float>& values, const Buffer& to, int64_t first) {
    CheckCuda(cudaMemcpyAsync(to.As<float>() + first, values.data(), values.size() * sizeof(float),
                              cudaMemcpyHostToDevice, context_.stream),
              "copying a vector of a weight");
  }

  // Into memory that the weight has for it, or not at all.
  void CopyVector(const Tensor& vector, const Buffer& to) {
    if (to.bytes() == 0) return;
    TANDEM_CHECK(static_cast<size_t>(vector.NumBytes()) == to.bytes(), "a value for each input");
    CheckCuda(
        cudaMemcpyAsync(to.data(), vector.data, to.bytes(), cudaMemcpyDefault, context_.stream),
        "copying a vector of a weight");
  }

  void CopyScales(const LinearPart& part, int64_t row) {
    const auto rows = static_cast<size_t>(part.weight.dim(0));
    std::vector<float> scales = ToHostFloats(context_, part.scale);
    if (scales.size() == 1) scales.resize(rows, scales[0]);
    TANDEM_CHECK(scales.size() == rows, "a scale for each row, or one for all");
    CopyFloats(scales, weight_.scales, row);
  }

  // Rounds to bytes.
  Status RoundRows(const Tensor& part, std::byte* packed, int64_t first_row) {
    const int64_t pitch = PackedPitch(weight_.cols, weight_.dtype);
    return ForRowsOnDevice(part, [&](const Tensor& rows, int64_t row) {
      QuantizeWeightRows(context_, rows, weight_.dtype, packed + row * pitch, pitch,
                         weight_.scales.As<float>() + first_row + row);
    });
  }

  // Elements of 4 bits, stored or rounded.
  Status TileRows(const LinearPart& part, int64_t first_row) {
    const Int4Layout layout(weight_.rows, weight_.cols, weight_.scheme);
    auto* const scales = weight_.scales.As<float2>();
    if (part.scheme.is_plain()) {
      return ForRowsOnDevice(part.weight, [&](const Tensor& rows, int64_t row) {
        QuantizeInt4Rows(context_, rows, layout, first_row + row, weight_.data.data(), scales);
      });
    }
    Buffer staged_scales, staged_zeros;
    TANDEM_ASSIGN_OR_RETURN(const Tensor part_scales, OnDevice(part.scale, staged_scales));
    TANDEM_ASSIGN_OR_RETURN(const Tensor part_zeros, OnDevice(part.zero, staged_zeros));
    TileInt4Factors(context_, part.rows(), part_scales, part_zeros, activations_, layout, first_row,
                    scales, weight_.zeros.As<uint32_t>());
    TANDEM_RETURN_IF_ERROR(ForRowsOnDevice(part.weight, [&](const Tensor& rows, int64_t row) {
      TileInt4Rows(context_, rows, layout, first_row + row, weight_.data.data());
    }));
    CheckCuda(cudaStreamSynchronize(context_.stream), "arranging weights");
    return {};
  }

  // A vector of a weight in the device's memory: itself, or a copy in `staged`.
  Result<Tensor> OnDevice(const Tensor& vector, Buffer& staged) {
    if (vector.empty() || vector.device.kind == Device::Kind::kCuda) return vector;
    const auto bytes = static_cast<size_t>(vector.NumBytes());
    TANDEM_ASSIGN_OR_RETURN(staged, allocate_(bytes));
    CheckCuda(
        cudaMemcpyAsync(staged.data(), vector.data, bytes, cudaMemcpyHostToDevice, context_.stream),
        "copying a vector of a weight");
    return Tensor{staged.data(), vector.dtype, vector.shape, staged.device()};
  }

  // Calls work(rows, row) for pieces of the rows from `row` on, in the device's memory; rows on the
  // host pass through the staging memory.
  template <typename Work>
  Status ForRowsOnDevice(const Tensor& part, const Work& work) {
    if (part.device.kind == Device::Kind::kCuda) {
      work(part, 0);
      return {};
    }
    const int64_t row_bytes = part.dim(1) * static_cast<int64_t>(SizeOf(part.dtype));
    const int64_t most = std::clamp<int64_t>(kStagingBytes / row_bytes, 1, part.dim(0));
    if (static_cast<int64_t>(staging_.bytes()) < most * row_bytes) {
      staging_ = {};
      TANDEM_ASSIGN_OR_RETURN(staging_, allocate_(static_cast<size_t>(most * row_bytes)));
    }
    for (int64_t row = 0; row < part.dim(0); row += most) {
      const Tensor rows = part.RowRange(row, std::min(most, part.dim(0) - row));
      CheckCuda(cudaMemcpyAsync(staging_.data(), rows.data, static_cast<size_t>(rows.NumBytes()),
                                cudaMemcpyHostToDevice, context_.stream),
                "copying weights");
      work(Tensor{staging_.data(), rows.dtype, rows.shape, staging_.device()}, row);
    }
    // The next part may replace the staging memory.
    CheckCuda(cudaStreamSynchronize(context_.stream), "rounding weights");
    return {};
  }

  const Context& context_;
  const Allocate& allocate_;
  const DType activations_;
  LinearWeight& weight_;
  Buffer staging_;
};

}  // namespace

Result<LinearWeight> PackLinear(const Context& context, const Allocate& allocate,
                                std::span<const LinearPart> parts, const WeightFormat& kept) {
  const StackedParts stacked = Stack(parts, kept);
  for (const LinearPart& part : parts) {
    TANDEM_RETURN_IF_ERROR(CheckFormat({part.weight.dtype, part.scheme}, kept));
  }
  LinearWeight weight;
  weight.dtype = kept.element();
  weight.scheme = kept.scheme;
  weight.rows = stacked.rows;
  weight.cols = stacked.cols;
  const PackedSizes sizes = SizesOf(weight.rows, weight.cols, kept);
  TANDEM_ASSIGN_OR_RETURN(weight.data, allocate(static_cast<size_t>(sizes.data)));
  TANDEM_ASSIGN_OR_RETURN(weight.scales, allocate(static_cast<size_t>(sizes.scales)));
  TANDEM_ASSIGN_OR_RETURN(weight.zeros, allocate(static_cast<size_t>(sizes.zeros)));
  TANDEM_ASSIGN_OR_RETURN(weight.input_factors, allocate(static_cast<size_t>(sizes.input_factors)));
  TANDEM_ASSIGN_OR_RETURN(weight.input_order, allocate(static_cast<size_t>(sizes.input_order)));
  if (stacked.has_bias) {
    TANDEM_ASSIGN_OR_RETURN(weight.bias,
                            allocate(static_cast<size_t>(weight.rows) * sizeof(float)));
  }
  TANDEM_RETURN_IF_ERROR(Packer(context, allocate, kept.dtype, weight).Pack(parts));
  return Result<LinearWeight>(std::move(weight));
}

}  // namespace tandem::ops::cuda
