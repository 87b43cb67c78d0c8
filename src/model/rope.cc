#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace tandem {
namespace {

// theta * ((s n / M) - (s - 1))^(d / (d - 2)) for n > M: at n = M exactly theta.
double DynamicTheta(const RopeSpec& rope, int64_t head_dim, int64_t max_positions) {
  const RopeScaling& scaling = rope.scaling;
  const auto trained = static_cast<double>(scaling.original_max_positions);
  const auto served = static_cast<double>(max_positions);
  // A head of two dimensions has the single frequency 1, whatever the base.
  if (served <= trained || head_dim <= 2) return rope.theta;
  const auto dim = static_cast<double>(head_dim);
  const double stretch = scaling.factor * served / trained - (scaling.factor - 1.0);
  return rope.theta * std::pow(stretch, dim / (dim - 2.0));
}

// Short wavelengths stay, those longer than the trained context are stretched, those between are
// blended.
double Llama3Frequency(const RopeScaling& scaling, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto trained = static_cast<double>(scaling.original_max_positions);
  if (wavelength < trained / scaling.high_freq_factor) return frequency;
  if (wavelength > trained / scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend = (trained / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeSpec& rope, int64_t head_dim, int64_t max_positions) {
  const RopeScaling& scaling = rope.scaling;
  const double theta = scaling.kind == RopeScaling::Kind::kDynamic
                           ? DynamicTheta(rope, head_dim, max_positions)
                           : rope.theta;
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim; i += 2) {
    double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling.kind == RopeScaling::Kind::kLinear) frequency /= scaling.factor;
    if (scaling.kind == RopeScaling::Kind::kLlama3) frequency = Llama3Frequency(scaling, frequency);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

void FillRopeTables(const RopeSpec& rope, int64_t head_dim, int64_t max_positions,
                    const Tensor& cos, const Tensor& sin) {
  const std::vector<double> frequencies = RopeFrequencies(rope, head_dim, max_positions);
  const Shape shape{max_positions, static_cast<int64_t>(frequencies.size())};
  TANDEM_CHECK(cos.shape == shape && sin.shape == shape, shape.ToString());
  auto* cos_out = cos.As<float>();
  auto* sin_out = sin.As<float>();
  for (int64_t position = 0; position < max_positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      *cos_out++ = static_cast<float>(std::cos(angle));
      *sin_out++ = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace tandem
