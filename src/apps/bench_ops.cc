// `tandem bench ops`: every linear layer of a model alone, by rows, as bandwidth and arithmetic
// beside the machine's measured limits. The shapes come from a config.json; the weights are random.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/bench.h"
#include "base/file.h"
#include "model/families.h"

namespace tandem::apps {
namespace {

struct LayerShape {
  const char* name;
  int64_t rows;
  int64_t cols;
};

std::array<LayerShape, 5> Layers(const ModelSpec& spec) {
  return {{{"qkv", spec.qkv_rows(), spec.hidden_size},
           {"out", spec.hidden_size, spec.num_heads * spec.head_dim},
           {"gate_up", 2 * spec.intermediate_size, spec.hidden_size},
           {"down", spec.hidden_size, spec.intermediate_size},
           {"head", spec.vocab_size, spec.hidden_size}}};
}

// Small random numbers in the bit pattern of any 16- or 32-bit float.
Buffer RandomValues(int64_t count, DType dtype, std::mt19937& random) {
  Buffer buffer = Buffer::OnHost(static_cast<size_t>(count) * SizeOf(dtype));
  std::uniform_real_distribution<float> value(-1.0f, 1.0f);
  for (int64_t i = 0; i < count; ++i) {
    const float v = value(random);
    if (dtype == DType::kF32) {
      buffer.As<float>()[i] = v;
    } else if (dtype == DType::kBF16) {
      buffer.As<BFloat16>()[i] = ToBFloat16(v);
    } else {
      buffer.As<Float16>()[i] = ToFloat16(v);
    }
  }
  return buffer;
}

// Median seconds of one product, over enough copies of the weights that no cache holds them.
class LinearTimer {
 public:
  LinearTimer(ops::Backend& backend, const LayerShape& shape, DType dtype)
      : backend_(backend), shape_(shape), dtype_(dtype) {}

  Status Pack(std::mt19937& random) {
    constexpr int64_t kBeyondCaches = int64_t{256} << 20;
    const Buffer values = RandomValues(shape_.rows * shape_.cols, dtype_, random);
    const std::array parts = {ops::LinearPart{values.View(dtype_, {shape_.rows, shape_.cols})}};
    const int64_t copies =
        std::max<int64_t>(2, kBeyondCaches / static_cast<int64_t>(values.bytes()));
    for (int64_t i = 0; i < copies; ++i) {
      TANDEM_ASSIGN_OR_RETURN(weights_.emplace_back(), backend_.PackLinear(parts, dtype_));
    }
    return {};
  }

  double MedianSeconds(int64_t num_rows, std::mt19937& random) {
    const Buffer x = RandomValues(num_rows * shape_.cols, dtype_, random);
    const Buffer y = Buffer::OnHost(static_cast<size_t>(num_rows * shape_.rows) * SizeOf(dtype_));
    const Tensor in = x.View(dtype_, {num_rows, shape_.cols});
    const Tensor out = y.View(dtype_, {num_rows, shape_.rows});
    std::vector<double> seconds;
    double total = 0;
    for (size_t i = 0; seconds.size() < 5 || (total < 0.3 && seconds.size() < 200); ++i) {
      const auto start = std::chrono::steady_clock::now();
      backend_.ops().Linear(in, weights_[i % weights_.size()], out);
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      total += seconds.back();
    }
    std::ranges::nth_element(seconds, seconds.begin() + static_cast<int64_t>(seconds.size() / 2));
    return seconds[seconds.size() / 2];
  }

 private:
  ops::Backend& backend_;
  const LayerShape shape_;
  const DType dtype_;
  std::vector<ops::LinearWeight> weights_;
};

Result<ModelSpec> ShapesToMeasure(const OptionValues& options) {
  std::filesystem::path config = options.Text("dummy");
  if (config.empty() && options.IsSet("model")) {
    config = std::filesystem::path(options.Text("model")) / "config.json";
  }
  if (config.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path pair, EmbeddedPairFolder());
    config = pair / "target" / "config.json";
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(config));
  return SpecFromHfConfig(text);
}

}  // namespace

Status BenchOps(const OptionValues& options, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const ModelSpec spec, ShapesToMeasure(options));
  TANDEM_ASSIGN_OR_RETURN(const auto backend, MakeBackend(options));
  const double bandwidth = backend->MeasureReadBandwidth();
  const double peak = backend->MeasureMatrixPeak(spec.dtype);
  console.Say(fmt::format("{}; limits: {:.1f} GB/s read, {:.2f} TFLOP/s", MachineLine(*backend),
                          bandwidth / 1e9, peak / 1e12));
  console.Say("layer              rows x cols   batch rows      time       weights    arithmetic");
  nlohmann::ordered_json json = {{"machine", MachineLine(*backend)},
                                 {"read_bytes_per_s", bandwidth},
                                 {"matrix_flops_per_s", peak},
                                 {"layers", nlohmann::ordered_json::array()}};
  std::mt19937 random(1);
  for (const LayerShape& shape : Layers(spec)) {
    LinearTimer timer(*backend, shape, spec.dtype);
    TANDEM_RETURN_IF_ERROR(timer.Pack(random));
    for (const int64_t num_rows : {1, 2, 5, 9, 32, 128, 512}) {
      const double seconds = timer.MedianSeconds(num_rows, random);
      const auto elements = static_cast<double>(shape.rows * shape.cols);
      const double bytes_rate = elements * static_cast<double>(SizeOf(spec.dtype)) / seconds;
      const double flops_rate = 2 * elements * static_cast<double>(num_rows) / seconds;
      console.Say(
          fmt::format("{:8} {:>11} x {:<8} {:8}  {:9.3f} ms  {:5.1f} % DRAM  {:5.1f} % peak",
                      shape.name, shape.rows, shape.cols, num_rows, seconds * 1e3,
                      100 * bytes_rate / bandwidth, 100 * flops_rate / peak));
      json["layers"].push_back({{"layer", shape.name},
                                {"batch_rows", num_rows},
                                {"seconds", seconds},
                                {"weight_bytes_per_s", bytes_rate},
                                {"flops_per_s", flops_rate}});
    }
  }
  console.Result(json.dump());
  return {};
}

}  // namespace tandem::apps
