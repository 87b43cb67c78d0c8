// The CPU as a backend.
#include <fmt/format.h>

#include <cstring>

#include "base/free_memory.h"
#include "ops/backend.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/cpu_round.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/measure.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/pack_groups.h"
#include "tensor/convert.h"

namespace tandem::ops {
namespace {

using cpu::CpuKernels;

// Larger than any cache of current CPUs.
constexpr int64_t kBandwidthBytes = int64_t{1} << 30;
constexpr int kBandwidthPasses = 12;

std::string JoinIsas() {
  std::string names;
  for (const std::string& name : SupportedCpuIsas()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

// A row of quantized weights in another type.
class WidenedRow {
 public:
  WidenedRow(int64_t cols, DType dtype)
      : floats_(static_cast<size_t>(cols)),
        bytes_(static_cast<size_t>(cols) * SizeOf(dtype)),
        dtype_(dtype) {}

  // What WidenRow makes of it, rounded; valid until the next call.
  const void* Widen(const LinearPart& part, int64_t row) {
    WidenRow(part, row, floats_.data());
    const Shape shape{static_cast<int64_t>(floats_.size())};
    ConvertElements({floats_.data(), DType::kF32, shape, {}}, {bytes_.data(), dtype_, shape, {}});
    return bytes_.data();
  }

 private:
  std::vector<float> floats_;
  std::vector<std::byte> bytes_;
  DType dtype_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const CpuKernels& kernels, const CpuOptions& options)
      : kernels_(kernels),
        pool_(options.num_threads, options.pin_threads, options.first_core),
        ops_(kernels, pool_) {}

  std::string Describe() const override {
    return fmt::format("cpu {}, {} thread{}", kernels_.name, pool_.num_threads(),
                       pool_.num_threads() == 1 ? "" : "s");
  }
  Device device() const override { return {}; }
  void BindThread() const override { pool_.BindCaller(); }
  Ops& ops() override { return ops_; }
  RoundOps& round() override { return round_; }

  Result<Buffer> Allocate(size_t bytes) override {
    Buffer buffer = Buffer::OnHost(bytes);
    if (bytes > 0 && buffer.data() == nullptr) {
      return ResourceExhausted(fmt::format("{} bytes of memory were asked for and refused", bytes));
    }
    return buffer;
  }
  void CopyToDevice(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void CopyToHost(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void FillRandom(const Tensor& out, const RandomWords& words) override;
  int64_t FreeBytes() const override { return FreeHostBytes(); }

  Result<LinearWeight> PackLinear(std::span<const LinearPart> parts,
                                  const WeightFormat& kept) override;
  Status CheckFormat(const WeightFormat& stored, const WeightFormat& kept) const override;
  QuantScheme KeptScheme(const QuantScheme& stored) const override {
    return cpu::CanPack(stored) ? stored : QuantScheme{};
  }
  int64_t PackedBytes(int64_t rows, int64_t cols, const WeightFormat& kept) const override;
  double MeasureReadBandwidth() override {
    return cpu::MeasureReadBandwidth(kernels_, pool_, kBandwidthBytes, kBandwidthPasses);
  }
  double MeasureMatrixPeak(DType dtype) override {
    return cpu::MeasureMatrixPeak(kernels_, pool_, cpu::ElementOf(dtype));
  }

 private:
  // The buffers of a weight of this size.
  Status AllocateWeight(const WeightFormat& kept, LinearWeight& weight);
  Result<Buffer> PackBias(std::span<const LinearPart> parts, int64_t rows);
  void PackRows(const LinearPart& part, int64_t first_row, const LinearWeight& weight);
  void PackQuantizedRows(const LinearPart& part, int64_t first_row, const LinearWeight& weight);

  const CpuKernels& kernels_;
  ThreadPool pool_;
  cpu::CpuOps ops_;
  cpu::CpuRoundOps round_;
};

void CpuBackend::FillRandom(const Tensor& out, const RandomWords& words) {
  constexpr int64_t kGrainBytes = int64_t{256} << 10;  // some tens of microseconds
  auto* bytes = static_cast<std::byte*>(out.data);
  pool_.ParallelFor(out.NumBytes(), kGrainBytes, [&](int64_t begin, int64_t end) {
    FillBytes(bytes + begin, words, static_cast<uint64_t>(begin / 8), end - begin);
  });
}

Status CpuBackend::CheckFormat(const WeightFormat& stored, const WeightFormat& kept) const {
  const bool widens = kept.scheme.is_plain() && IsFloat(kept.dtype) &&
                      (!stored.scheme.is_plain() || stored.dtype == kept.dtype);
  const bool as_stored = cpu::CanPack(kept.scheme) && stored.scheme == kept.scheme;
  const bool rounds =
      cpu::CanRound(kept.scheme) && (!stored.scheme.is_plain() || IsFloat(stored.dtype));
  if (widens || as_stored || rounds) return {};
  return Unimplemented(fmt::format("the CPU does not keep weights of type {} as {}",
                                   DescribeFormat(stored), DescribeFormat(kept)));
}

int64_t CpuBackend::PackedBytes(int64_t rows, int64_t cols, const WeightFormat& kept) const {
  const cpu::QuantLayout layout = cpu::LayoutOf(kept.scheme, cols, kernels_);
  const bool row_scales = !kept.scheme.is_plain() && layout.scales_at == 0;
  return cpu::NumPanels(rows) * cpu::PanelBytes(cols, kept.element(), layout) +
         (row_scales ? rows * int64_t{sizeof(float)} : 0) +
         (kept.scheme.input_factors ? cols * int64_t{sizeof(float)} : 0) +
         (kept.scheme.input_order ? cols * int64_t{sizeof(int32_t)} : 0);
}

Status CpuBackend::AllocateWeight(const WeightFormat& kept, LinearWeight& weight) {
  const cpu::QuantLayout layout = cpu::LayoutOf(kept.scheme, weight.cols, kernels_);
  const int64_t data =
      cpu::NumPanels(weight.rows) * cpu::PanelBytes(weight.cols, kept.element(), layout);
  TANDEM_ASSIGN_OR_RETURN(weight.data, Allocate(static_cast<size_t>(data)));
  if (kept.scheme.is_plain()) return {};
  if (layout.scales_at == 0) {
    TANDEM_ASSIGN_OR_RETURN(weight.scales,
                            Allocate(static_cast<size_t>(weight.rows) * sizeof(float)));
  }
  return {};
}

Result<LinearWeight> CpuBackend::PackLinear(std::span<const LinearPart> parts,
                                            const WeightFormat& kept) {
  const StackedParts stacked = Stack(parts, kept);
  for (const LinearPart& part : parts) {
    TANDEM_RETURN_IF_ERROR(CheckFormat({part.weight.dtype, part.scheme}, kept));
  }
  LinearWeight weight;
  weight.dtype = kept.element();
  weight.scheme = kept.scheme;
  weight.rows = stacked.rows;
  weight.cols = stacked.cols;
  TANDEM_RETURN_IF_ERROR(AllocateWeight(kept, weight));
  int64_t row = 0;
  for (const LinearPart& part : parts) {
    if (kept.scheme.is_plain()) {
      PackRows(part, row, weight);
    } else {
      PackQuantizedRows(part, row, weight);
    }
    row += part.weight.dim(0);
  }
  const auto copy = [&](const Tensor& from, bool wanted, Buffer& to) -> Status {
    if (!wanted) return {};
    TANDEM_ASSIGN_OR_RETURN(to, Allocate(static_cast<size_t>(from.NumBytes())));
    std::memcpy(to.data(), from.data, to.bytes());
    return {};
  };
  TANDEM_RETURN_IF_ERROR(
      copy(parts.front().input_factors, kept.scheme.input_factors, weight.input_factors));
  TANDEM_RETURN_IF_ERROR(
      copy(parts.front().input_order, kept.scheme.input_order, weight.input_order));
  if (stacked.has_bias) {
    TANDEM_ASSIGN_OR_RETURN(weight.bias, PackBias(parts, weight.rows));
  }
  ops_.ReserveLinear(weight);
  return weight;
}

void CpuBackend::PackQuantizedRows(const LinearPart& part, int64_t first_row,
                                   const LinearWeight& weight) {
  const cpu::QuantLayout layout = cpu::LayoutOf(weight.scheme, weight.cols, kernels_);
  const bool as_stored = part.scheme == weight.scheme;
  pool_.ParallelFor(part.weight.dim(0), cpu::kPanelOutputs, [&](int64_t begin, int64_t end) {
    cpu::QuantizedRow values;
    for (int64_t row = begin; row < end; ++row) {
      if (as_stored) {
        cpu::ReadRow(part, row, values);
      } else {
        cpu::ReadRounded(part, row, weight.scheme, values);
      }
      cpu::PackGroups(values, weight.scheme, layout, first_row + row, weight.cols,
                      weight.data.data(), weight.scales.As<float>());
    }
  });
}

void CpuBackend::PackRows(const LinearPart& part, int64_t first_row, const LinearWeight& weight) {
  const cpu::Element element = cpu::ElementOf(weight.dtype);
  const bool widened = !part.scheme.is_plain();
  // Each thread packs whole panels: rows of one panel share cache lines.
  pool_.ParallelFor(part.weight.dim(0), cpu::kPanelOutputs, [&](int64_t begin, int64_t end) {
    WidenedRow wide(widened ? weight.cols : 0, weight.dtype);
    for (int64_t row = begin; row < end; ++row) {
      cpu::PackWeightRow(element,
                         widened ? wide.Widen(part, row) : part.weight.RowRange(row, 1).data,
                         first_row + row, weight.cols, weight.data.data());
    }
  });
}

Result<Buffer> CpuBackend::PackBias(std::span<const LinearPart> parts, int64_t rows) {
  TANDEM_ASSIGN_OR_RETURN(Buffer packed, Allocate(static_cast<size_t>(rows) * sizeof(float)));
  int64_t row = 0;
  for (const LinearPart& part : parts) {
    const int64_t part_rows = part.weight.dim(0);
    if (!part.bias.empty()) {
      TANDEM_CHECK(part.bias.NumElements() == part_rows, "a bias as long as its part has rows");
      ConvertElements(part.bias, packed.View(DType::kF32, {part_rows},
                                             static_cast<size_t>(row) * sizeof(float)));
    }
    row += part_rows;
  }
  return packed;
}

}  // namespace

std::vector<std::string> SupportedCpuIsas() {
  std::vector<std::string> names;
  for (const CpuKernels* kernels : cpu::SupportedKernels()) names.emplace_back(kernels->name);
  return names;
}

Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options) {
  const CpuKernels* kernels =
      options.isa == "auto" ? &cpu::FastestKernels() : cpu::FindKernels(options.isa);
  if (kernels == nullptr) {
    return InvalidArgument(fmt::format(
        "this CPU has no instruction set \"{}\"; it has {} (or auto)", options.isa, JoinIsas()));
  }
  if (options.num_threads < 0) {
    return InvalidArgument(
        fmt::format("{} threads; it must be 0 (one per core) or more", options.num_threads));
  }
  return std::unique_ptr<Backend>(new CpuBackend(*kernels, options));
}

}  // namespace tandem::ops
