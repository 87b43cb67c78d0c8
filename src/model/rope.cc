#include "model/rope.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "tensor/dtype.h"

namespace tandem {
namespace {

// theta * ((s n / M) - (s - 1))^(d / (d - 2)) for n > M: at n = M exactly theta.
double DynamicTheta(const RopeSpec& rope, int64_t max_positions) {
  const RopeScaling& scaling = rope.scaling;
  const auto trained = static_cast<double>(scaling.original_max_positions);
  const auto served = static_cast<double>(max_positions);
  // A head of two dimensions has the single frequency 1, whatever the base.
  if (served <= trained || rope.dim <= 2) return rope.theta;
  const auto dim = static_cast<double>(rope.dim);
  const double stretch = scaling.factor * served / trained - (scaling.factor - 1.0);
  return rope.theta * std::pow(stretch, dim / (dim - 2.0));
}

// theta * alpha^(d / (d - 2)), where alpha is 1, 3, 7, ... for the steps 0, 1, 2, ....
double NtkStepsTheta(const RopeSpec& rope, int64_t step) {
  if (rope.dim <= 2) return rope.theta;
  const auto dim = static_cast<double>(rope.dim);
  const double alpha = std::exp2(static_cast<double>(step + 1)) - 1.0;
  return rope.theta * std::pow(alpha, dim / (dim - 2.0));
}

double ThetaOf(const RopeSpec& rope, int64_t max_positions, int64_t step) {
  switch (rope.scaling.kind) {
    case RopeScaling::Kind::kDynamic:
      return DynamicTheta(rope, max_positions);
    case RopeScaling::Kind::kNtkSteps:
      return NtkStepsTheta(rope, step);
    default:
      return rope.theta;
  }
}

// Short wavelengths stay, those longer than the trained context are stretched, those between are
// blended.
double Llama3Frequency(const RopeScaling& scaling, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto trained = static_cast<double>(scaling.original_max_positions);
  if (wavelength < trained / scaling.high_freq_factor) return frequency;
  if (wavelength >= trained / scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend = (trained / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

// The pair that makes `turns` turns in the trained context.
double YarnPair(const RopeSpec& rope, double turns) {
  const auto trained = static_cast<double>(rope.scaling.original_max_positions);
  return static_cast<double>(rope.dim) * std::log(trained / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

// Pairs that turn often stay, those that turn seldom are stretched, those between are blended
// (arXiv 2309.00071).
double YarnFrequency(const RopeSpec& rope, int64_t pair, double frequency) {
  const RopeScaling& scaling = rope.scaling;
  double low = YarnPair(rope, scaling.beta_fast);
  double high = YarnPair(rope, scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.dim - 1));
  if (low == high) high += 0.001;
  const double stretched = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency / scaling.factor * stretched + frequency * (1.0 - stretched);
}

}  // namespace

int64_t NtkStep(int64_t trained, int64_t length) {
  int64_t step = 0;
  while (trained << step < length) ++step;
  return step;
}

int64_t NumRopeSteps(const RopeSpec& rope, int64_t max_positions) {
  if (rope.scaling.kind != RopeScaling::Kind::kNtkSteps) return 1;
  return NtkStep(rope.scaling.original_max_positions, max_positions) + 1;
}

std::vector<double> RopeFrequencies(const RopeSpec& rope, int64_t max_positions, int64_t step) {
  const RopeScaling& scaling = rope.scaling;
  const double theta = ThetaOf(rope, max_positions, step);
  const std::vector<double>& divisors =
      max_positions > scaling.original_max_positions ? scaling.long_factors : scaling.short_factors;
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < rope.dim / 2; ++pair) {
    double frequency =
        std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rope.dim));
    if (scaling.kind == RopeScaling::Kind::kYarn) frequency = YarnFrequency(rope, pair, frequency);
    if (scaling.kind == RopeScaling::Kind::kLongRope) {
      frequency /= divisors[static_cast<size_t>(pair)];
    }
    if (scaling.kind == RopeScaling::Kind::kLinear) frequency /= scaling.factor;
    if (scaling.kind == RopeScaling::Kind::kLlama3) frequency = Llama3Frequency(scaling, frequency);
    if (rope.fp16_frequencies) frequency = ToFloat(ToFloat16(static_cast<float>(frequency)));
    frequencies.push_back(frequency);
  }
  return frequencies;
}

std::vector<float> QueryFactors(const QueryGrowth& growth, int64_t max_positions) {
  std::vector<float> factors;
  if (growth.kind == QueryGrowth::Kind::kNone) return factors;
  const auto length = static_cast<double>(growth.length);
  for (int64_t position = 0; position < max_positions; ++position) {
    const auto count = static_cast<double>(position + 1);
    const double factor = growth.kind == QueryGrowth::Kind::kLogN
                              ? std::max(1.0, std::log(count) / std::log(length))
                              : 1.0 + growth.factor * std::log1p(std::floor(count / length));
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

std::vector<float> AlibiSlopes(int64_t num_heads, double scale) {
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  std::vector<float> slopes;
  const auto add = [&](int64_t index, int64_t heads) {
    const double exponent = -8.0 * static_cast<double>(index) / static_cast<double>(heads);
    slopes.push_back(static_cast<float>(scale * std::exp2(exponent)));
  };
  for (int64_t i = 1; i <= power; ++i) add(i, power);
  for (int64_t i = 1; static_cast<int64_t>(slopes.size()) < num_heads; i += 2) add(i, 2 * power);
  return slopes;
}

void FillRopeTables(const RopeSpec& rope, int64_t max_positions, const Tensor& cos,
                    const Tensor& sin) {
  const int64_t steps = NumRopeSteps(rope, max_positions);
  const double factor = rope.scaling.attention_factor;
  const Shape shape{steps * max_positions, rope.dim / 2};
  TANDEM_CHECK(cos.shape == shape && sin.shape == shape, shape.ToString());
  auto* cos_out = cos.As<float>();
  auto* sin_out = sin.As<float>();
  for (int64_t step = 0; step < steps; ++step) {
    const std::vector<double> frequencies = RopeFrequencies(rope, max_positions, step);
    for (int64_t position = 0; position < max_positions; ++position) {
      for (const double frequency : frequencies) {
        const double angle = static_cast<double>(position) * frequency;
        *cos_out++ = static_cast<float>(std::cos(angle) * factor);
        *sin_out++ = static_cast<float>(std::sin(angle) * factor);
      }
    }
  }
}

}  // namespace tandem
