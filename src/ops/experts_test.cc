// Layers of experts: which experts a row chooses, compared with a plain reading of the rule; and
// the sum of their outputs, compared with products one by one, in every weight format.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/testing/op_test.h"
#include "ops/testing/random_part.h"

namespace tandem::ops {
namespace {

using Function = RoutingRule::Function;
using GroupValue = RoutingRule::GroupValue;

struct Chosen {
  std::vector<int32_t> experts;
  std::vector<double> weights;
};

std::vector<double> Applied(Function function, std::vector<double> values) {
  if (function == Function::kSigmoid) {
    for (double& value : values) value = 1.0 / (1.0 + std::exp(-value));
    return values;
  }
  double sum = 0.0;
  for (double& value : values) sum += value = std::exp(value);
  for (double& value : values) value /= sum;
  return values;
}

// The steps of ops.h with sorts.
Chosen Choose(const RoutingRule& rule, const std::vector<double>& scores,
              const std::vector<double>& correction) {
  const auto count = static_cast<int32_t>(scores.size());
  const std::vector<double> values = rule.chosen_first ? scores : Applied(rule.function, scores);
  std::vector<double> ranked = values;
  for (size_t i = 0; i < correction.size(); ++i) ranked[i] += correction[i];
  const int32_t size = count / rule.num_groups;
  std::vector<std::pair<double, int32_t>> groups;
  for (int32_t g = 0; g < rule.num_groups; ++g) {
    std::vector<double> group(ranked.begin() + g * size, ranked.begin() + (g + 1) * size);
    std::ranges::sort(group, std::greater<>());
    const double second = size > 1 && rule.group_value == GroupValue::kTwoLargest ? group[1] : 0.0;
    groups.emplace_back(-(group[0] + second), g);
  }
  std::ranges::sort(groups);
  for (size_t i = static_cast<size_t>(rule.chosen_groups); i < groups.size(); ++i) {
    for (int32_t e = 0; e < size; ++e) {
      ranked[static_cast<size_t>(groups[i].second * size + e)] =
          rule.others_count_zero ? 0.0 : -HUGE_VAL;
    }
  }
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int32_t e) { return ranked[static_cast<size_t>(e)]; });
  Chosen chosen;
  for (int32_t k = 0; k < rule.experts_per_token; ++k) {
    chosen.experts.push_back(order[static_cast<size_t>(k)]);
    chosen.weights.push_back(values[static_cast<size_t>(chosen.experts.back())]);
  }
  if (rule.chosen_first) chosen.weights = Applied(rule.function, chosen.weights);
  const double sum = std::accumulate(chosen.weights.begin(), chosen.weights.end(), 0.0);
  for (double& weight : chosen.weights) weight *= rule.scale / (rule.renormalise ? sum : 1.0);
  return chosen;
}

class RouteTest : public OpTest {
 protected:
  void ExpectChoices(const RoutingRule& rule, int64_t num_experts, bool corrected) {
    const int64_t rows = 37;
    const OwnedTensor scores = Random({rows, num_experts}, DType::kF32, 3, 2.0f);
    const OwnedTensor correction = Random({num_experts}, DType::kF32, 4, 0.3f);
    const OwnedTensor experts = Poisoned({rows, rule.experts_per_token}, DType::kI32);
    const OwnedTensor weights = Poisoned({rows, rule.experts_per_token}, DType::kF32);
    ops().Route(scores.tensor, corrected ? correction.tensor : Tensor{}, rule,
                {experts.tensor, weights.tensor});
    const std::vector<double> all = Doubles(scores.tensor), got = Doubles(weights.tensor);
    const std::vector<std::byte> bytes = Bytes(experts.tensor);
    std::vector<int32_t> ids(got.size());
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    for (int64_t row = 0; row < rows; ++row) {
      const auto first = all.begin() + row * num_experts;
      const Chosen chosen = Choose(rule, {first, first + num_experts},
                                   corrected ? Doubles(correction.tensor) : std::vector<double>{});
      for (size_t k = 0; k < chosen.experts.size(); ++k) {
        const size_t at = static_cast<size_t>(row) * chosen.experts.size() + k;
        ASSERT_EQ(ids[at], chosen.experts[k]) << "row " << row << ", choice " << k;
        ASSERT_NEAR(got[at], chosen.weights[k], 1e-5 * rule.scale) << "row " << row;
      }
    }
  }
};

TEST_P(RouteTest, EveryRuleChoosesAsItSays) {
  ExpectChoices({.experts_per_token = 2, .renormalise = true}, 8, false);    // Mixtral
  ExpectChoices({.experts_per_token = 4}, 60, false);                        // Qwen 2
  ExpectChoices({.chosen_first = true, .experts_per_token = 4}, 32, false);  // gpt-oss
  ExpectChoices({.function = Function::kSigmoid, .chosen_first = true, .experts_per_token = 1}, 16,
                false);  // Llama 4
  ExpectChoices({.experts_per_token = 6, .num_groups = 8, .chosen_groups = 3, .scale = 16.0f}, 160,
                false);  // DeepSeek V2
  for (const bool others_count_zero : {false, true}) {
    ExpectChoices({.function = Function::kSigmoid,
                   .experts_per_token = 8,
                   .num_groups = 8,
                   .chosen_groups = 4,
                   .group_value = GroupValue::kTwoLargest,
                   .others_count_zero = others_count_zero,
                   .renormalise = true,
                   .scale = 2.5f},
                  256, true);  // DeepSeek V3
  }
}

TEST_P(RouteTest, ExpertsAreCountedFromTheFirstThatIsHere) {
  const OwnedTensor scores = FromFloats({1, 5}, DType::kF32, {1, 5, 2, 4, 3});
  const OwnedTensor experts = Poisoned({1, 3}, DType::kI32);
  const OwnedTensor weights = Poisoned({1, 3}, DType::kF32);
  ops().Route(scores.tensor, {}, {.experts_per_token = 3, .first = 3},
              {experts.tensor, weights.tensor});
  std::vector<int32_t> ids(3);
  const std::vector<std::byte> bytes = Bytes(experts.tensor);
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  EXPECT_EQ(ids, (std::vector<int32_t>{-2, 0, 1}));
}

TEST_P(RouteTest, OfEqualScoresTheFirstExpertsAreChosen) {
  const OwnedTensor scores = FromFloats({1, 5}, DType::kF32, {1, 2, 2, 2, 1});
  const OwnedTensor experts = Poisoned({1, 2}, DType::kI32);
  const OwnedTensor weights = Poisoned({1, 2}, DType::kF32);
  ops().Route(scores.tensor, {}, {.experts_per_token = 2, .renormalise = true},
              {experts.tensor, weights.tensor});
  const std::vector<std::byte> bytes = Bytes(experts.tensor);
  int32_t ids[2];
  std::memcpy(ids, bytes.data(), sizeof(ids));
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(ids[1], 2);
  EXPECT_EQ(Doubles(weights.tensor), (std::vector<double>{0.5, 0.5}));
}

// An expert is named by what is NaN, too: no index runs past the experts.
TEST_P(RouteTest, ScoresThatAreNoNumbersChooseSomeExperts) {
  const OwnedTensor scores = FromFloats({1, 3}, DType::kF32, {NAN, NAN, NAN});
  const OwnedTensor experts = Poisoned({1, 2}, DType::kI32);
  const OwnedTensor weights = Poisoned({1, 2}, DType::kF32);
  ops().Route(scores.tensor, {}, {.experts_per_token = 2}, {experts.tensor, weights.tensor});
  const std::vector<std::byte> bytes = Bytes(experts.tensor);
  int32_t ids[2];
  std::memcpy(ids, bytes.data(), sizeof(ids));
  for (const int32_t id : ids) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RouteTest, ::testing::ValuesIn(AllBackendCases()), CaseName);

class ExpertsTest : public OpTest {
 protected:
  static constexpr int64_t kExperts = 7, kChosen = 3;
  // Sizes of which kernels have remainders, and whole ones.
  struct Sizes {
    int64_t hidden;
    int64_t neurons;
  };
  static constexpr Sizes kAllSizes[] = {{96, 40}, {128, 64}};
  Sizes sizes = kAllSizes[0];

  std::vector<WeightFormat> Formats() const {
    using Scheme = QuantScheme;
    return {
        {dtype()},
        {dtype(), Fp8Scheme(Scheme::Inputs::kDynamic)},
        {dtype(), Scheme{.element = Scheme::Element::kInt8, .block_rows = 1}},
        {dtype(), Scheme{.element = Scheme::Element::kInt4, .block_rows = 1, .block_columns = 32}}};
  }
  ExpertWeights Make(const WeightFormat& kept, bool scales_inputs = false) {
    return Make(kept, kept, scales_inputs);
  }
  ExpertWeights Make(const WeightFormat& of_in, const WeightFormat& of_down, bool scales_inputs) {
    ExpertWeights weights;
    weights.scales_inputs = scales_inputs;
    for (uint32_t e = 0; e < kExperts; ++e) {
      const OwnedTensor gate = Random({sizes.neurons, sizes.hidden}, dtype(), 10 * e, 0.1f);
      const OwnedTensor up = Random({sizes.neurons, sizes.hidden}, dtype(), 10 * e + 1, 0.1f);
      const OwnedTensor bias = Random({sizes.neurons}, dtype(), 10 * e + 2);
      const OwnedTensor down = Random({sizes.hidden, sizes.neurons}, dtype(), 10 * e + 3, 0.1f);
      weights.in.push_back(
          backend().PackLinear({{{gate.tensor}, {up.tensor, bias.tensor}}}, of_in).value());
      weights.down.push_back(backend().PackLinear({{{down.tensor, {}}}}, of_down).value());
    }
    weights.table = backend().MakeExpertTable(weights).value();
    return weights;
  }
  // Experts of each row, which differ, and their weights.
  struct Choice {
    Buffer ids;
    OwnedTensor weights;
    ExpertChoice choice;
    std::vector<int32_t> host;
  };
  // Expert 5 is never chosen, and expert 0 by most rows.
  Choice Choices(int64_t rows) {
    Choice made;
    for (int64_t row = 0; row < rows; ++row) {
      const auto other = static_cast<int32_t>(row % 4);
      for (const int32_t expert : {1 + other, row % 3 == 2 ? 6 : 0, 1 + (other + 1) % 4}) {
        made.host.push_back(expert);
      }
    }
    made.ids = Ints(made.host);
    made.weights = Random({rows, kChosen}, DType::kF32, 77);
    made.choice = {made.ids.View(DType::kI32, {rows, kChosen}), made.weights.tensor};
    return made;
  }
  std::vector<std::byte> Run(const Tensor& x, const ExpertChoice& choice,
                             const ExpertWeights& weights) {
    const int64_t slots = x.dim(0) * kChosen;
    const OwnedTensor order = Poisoned({2 * slots}, DType::kI32);
    const OwnedTensor inner = Poisoned({slots, 2 * sizes.neurons}, dtype());
    const OwnedTensor activated = Poisoned({slots, sizes.neurons}, dtype());
    const OwnedTensor outputs = Poisoned({slots, sizes.hidden}, dtype());
    const OwnedTensor out = Poisoned({x.dim(0), sizes.hidden}, dtype());
    ops().Experts(x, choice, weights,
                  {order.tensor, inner.tensor, activated.tensor, outputs.tensor}, out.tensor);
    return Bytes(out.tensor);
  }
  std::vector<double> AsDoubles(std::vector<std::byte> bytes, Shape shape) {
    std::vector<float> floats(static_cast<size_t>(shape.NumElements()));
    ConvertElements({bytes.data(), dtype(), shape, {}}, {floats.data(), DType::kF32, shape, {}});
    return {floats.begin(), floats.end()};
  }
  // Compared with the experts' products one by one.
  void ExpectSum(const ExpertWeights& weights) {
    const int64_t rows = 23;
    const OwnedTensor x = Random({rows, sizes.hidden}, dtype(), 1);
    const Choice choice = Choices(rows);
    const std::vector<double> factors = Doubles(choice.weights.tensor);
    const std::vector<double> inputs = Doubles(x.tensor);
    std::vector<double> expected(static_cast<size_t>(rows * sizes.hidden));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t k = 0; k < kChosen; ++k) {
        const auto slot = static_cast<size_t>(row * kChosen + k);
        const auto expert = static_cast<size_t>(choice.host[slot]);
        const double before = weights.scales_inputs ? factors[slot] : 1.0;
        const double after = weights.scales_inputs ? 1.0 : factors[slot];
        std::vector<float> scaled;
        for (int64_t i = 0; i < sizes.hidden; ++i) {
          scaled.push_back(
              static_cast<float>(inputs[static_cast<size_t>(row * sizes.hidden + i)] * before));
        }
        const OwnedTensor in = FromFloats({1, sizes.hidden}, dtype(), scaled);
        const OwnedTensor inner = Poisoned({1, 2 * sizes.neurons}, dtype());
        const OwnedTensor activated = Poisoned({1, sizes.neurons}, dtype());
        const OwnedTensor out = Poisoned({1, sizes.hidden}, dtype());
        ops().Mlp(in.tensor, weights.in[expert], weights.activation, weights.down[expert],
                  inner.tensor, activated.tensor, out.tensor);
        const std::vector<double> part = Doubles(out.tensor);
        for (int64_t i = 0; i < sizes.hidden; ++i) {
          expected[static_cast<size_t>(row * sizes.hidden + i)] +=
              part[static_cast<size_t>(i)] * after;
        }
      }
    }
    ExpectNear(AsDoubles(Run(x.tensor, choice.choice, weights), x.tensor.shape), expected,
               Rounding(dtype()) + 4e-6, 0.1);
  }
  // Rows have the same bits with fewer others.
  void ExpectRowsAlone(const ExpertWeights& weights) {
    // More rows than a pass of the products has, of all experts and of expert 0 alone.
    const int64_t most = 900;
    const OwnedTensor x = Random({most, sizes.hidden}, dtype(), 1);
    const Choice choice = Choices(most);
    const auto row_bytes = static_cast<size_t>(sizes.hidden) * SizeOf(dtype());
    const std::vector<std::byte> all = Run(x.tensor, choice.choice, weights);
    const auto expect = [&](int64_t first, int64_t rows) {
      const ExpertChoice part = {choice.choice.experts.RowRange(first, rows),
                                 choice.choice.weights.RowRange(first, rows)};
      const std::vector<std::byte> some = Run(x.tensor.RowRange(first, rows), part, weights);
      ASSERT_EQ(std::memcmp(some.data(), all.data() + static_cast<size_t>(first) * row_bytes,
                            some.size()),
                0)
          << rows << " rows from " << first;
    };
    for (const int64_t rows : {1, 2, 3, 8, 17, 64, 300}) expect(0, rows);
    for (const int64_t row : {7, 511, 899}) expect(row, 1);
  }
};

TEST_P(ExpertsTest, SumsTheOutputsOfTheChosenExperts) {
  for (const Sizes& each : kAllSizes) {
    sizes = each;
    for (const WeightFormat& kept : Formats()) {
      for (const bool scales_inputs : {false, true}) {
        SCOPED_TRACE(DescribeFormat(kept) + (scales_inputs ? ", inputs scaled, " : ", ") +
                     std::to_string(sizes.hidden));
        ExpectSum(Make(kept, scales_inputs));
      }
    }
  }
}

TEST_P(ExpertsTest, BothProductsMayHaveWeightsOfTheirOwnType) {
  sizes = kAllSizes[1];
  for (const WeightFormat& of_in : Formats()) {
    for (const WeightFormat& of_down : Formats()) {
      SCOPED_TRACE(DescribeFormat(of_in) + ", then " + DescribeFormat(of_down));
      ExpectSum(Make(of_in, of_down, false));
    }
  }
}

TEST_P(ExpertsTest, RowDoesNotDependOnTheOthers) {
  for (const Sizes& each : kAllSizes) {
    sizes = each;
    for (const WeightFormat& kept : Formats()) {
      SCOPED_TRACE(DescribeFormat(kept) + ", " + std::to_string(sizes.hidden));
      ExpectRowsAlone(Make(kept));
    }
  }
}

// Scales and zero points of groups; and orders and factors of inputs, of each expert its own.
TEST_P(ExpertsTest, StoredGroupsAreTakenAsTheyAre) {
  using Element = QuantScheme::Element;
  sizes = kAllSizes[1];
  for (const bool arranged : {false, true}) {
    const QuantScheme scheme{.element = Element::kInt4,
                             .block_rows = 1,
                             .block_columns = 64,
                             .zero_points = true,
                             .input_factors = arranged,
                             .input_order = arranged};
    SCOPED_TRACE(DescribeScheme(scheme));
    const auto pack = [&](int64_t rows, int64_t cols, uint32_t seed) {
      const OwnedPart stored = RandomPart(scheme, rows, cols, seed);
      return backend().PackLinear({{stored.part}}, {dtype(), scheme}).value();
    };
    ExpertWeights weights;
    for (uint32_t e = 0; e < kExperts; ++e) {
      weights.in.push_back(pack(2 * sizes.neurons, sizes.hidden, 2 * e));
      weights.down.push_back(pack(sizes.hidden, sizes.neurons, 2 * e + 1));
    }
    weights.table = backend().MakeExpertTable(weights).value();
    ExpectSum(weights);
    ExpectRowsAlone(weights);
  }
}

// Of more slots than a plan on a GPU has room for.
TEST_P(ExpertsTest, ALongPromptIsComputedInPieces) {
  const int64_t rows = 22000;
  const OwnedTensor x = Random({rows, sizes.hidden}, dtype(), 1);
  const Choice choice = Choices(rows);
  const ExpertWeights weights = Make({dtype()});
  const std::vector<std::byte> all = Run(x.tensor, choice.choice, weights);
  for (const int64_t row : {int64_t{0}, int64_t{10999}, int64_t{11000}, rows - 1}) {
    const ExpertChoice one = {choice.choice.experts.RowRange(row, 1),
                              choice.choice.weights.RowRange(row, 1)};
    const std::vector<std::byte> alone = Run(x.tensor.RowRange(row, 1), one, weights);
    EXPECT_EQ(std::memcmp(alone.data(), all.data() + static_cast<size_t>(row) * alone.size(),
                          alone.size()),
              0)
        << row;
  }
}

TEST_P(ExpertsTest, GateAndUpAreClamped) {
  const int64_t rows = 9;
  const double limit = 0.75;
  const OwnedTensor x = Random({rows, sizes.hidden}, dtype(), 1);
  const Choice choice = Choices(rows);
  ExpertWeights weights = Make({dtype()});
  weights.activation = Activation::kClampedSwiglu;
  weights.limit = static_cast<float>(limit);
  const std::vector<double> factors = Doubles(choice.weights.tensor);
  std::vector<double> expected(static_cast<size_t>(rows * sizes.hidden));
  int clamped = 0;
  for (int64_t slot = 0; slot < rows * kChosen; ++slot) {
    const int64_t row = slot / kChosen;
    const auto expert = static_cast<size_t>(choice.host[static_cast<size_t>(slot)]);
    const OwnedTensor inner = Poisoned({1, 2 * sizes.neurons}, dtype());
    ops().Linear(x.tensor.RowRange(row, 1), weights.in[expert], inner.tensor);
    const std::vector<double> in = Doubles(inner.tensor);
    std::vector<float> activated;
    for (size_t i = 0; i < static_cast<size_t>(sizes.neurons); ++i) {
      clamped += in[i] > limit ? 1 : 0;
      const double gate = std::min(in[i], limit);
      const double up = std::clamp(in[i + static_cast<size_t>(sizes.neurons)], -limit, limit);
      activated.push_back(static_cast<float>(gate / (1.0 + std::exp(-1.702 * gate)) * (up + 1.0)));
    }
    const OwnedTensor between = FromFloats({1, sizes.neurons}, dtype(), activated);
    const OwnedTensor out = Poisoned({1, sizes.hidden}, dtype());
    ops().Linear(between.tensor, weights.down[expert], out.tensor);
    const std::vector<double> part = Doubles(out.tensor);
    for (size_t i = 0; i < static_cast<size_t>(sizes.hidden); ++i) {
      expected[static_cast<size_t>(row * sizes.hidden) + i] +=
          part[i] * factors[static_cast<size_t>(slot)];
    }
  }
  EXPECT_GT(clamped, 0);
  ExpectNear(AsDoubles(Run(x.tensor, choice.choice, weights), x.tensor.shape), expected,
             2 * Rounding(dtype()) + 1e-5, 0.5);
}

TEST_P(ExpertsTest, AnExpertThatNoRowChoosesIsNotRead) {
  const OwnedTensor x = Random({5, sizes.hidden}, dtype(), 1);
  const Choice choice = Choices(5);
  ExpertWeights weights = Make({dtype()});
  const std::vector<std::byte> before = Run(x.tensor, choice.choice, weights);
  weights.in[5].data = {};
  weights.down[5].data = {};
  EXPECT_EQ(Run(x.tensor, choice.choice, weights), before);
}

// As on ranks that have some of the experts each: what they add is what all experts add.
TEST_P(ExpertsTest, AChoiceOfAnExpertThatIsElsewhereAddsNothing) {
  constexpr int64_t kFirst = 3;
  for (const int64_t rows : {1, 5, 200}) {
    const OwnedTensor x = Random({rows, sizes.hidden}, dtype(), 1);
    const Choice choice = Choices(rows);
    std::vector<double> sum(static_cast<size_t>(rows * sizes.hidden)), rounded = sum;
    for (const bool is_last : {false, true}) {
      ExpertWeights some = Make({dtype()});
      const auto keep = [&](std::vector<LinearWeight>& all) {
        is_last ? all.erase(all.begin(), all.begin() + kFirst)
                : all.erase(all.begin() + kFirst, all.end());
      };
      keep(some.in);
      keep(some.down);
      some.table = backend().MakeExpertTable(some).value();
      std::vector<int32_t> ids = choice.host;
      for (int32_t& id : ids) id -= is_last ? kFirst : 0;
      const Buffer here = Ints(ids);
      const ExpertChoice chosen = {here.View(DType::kI32, {rows, kChosen}), choice.weights.tensor};
      const std::vector<double> part = AsDoubles(Run(x.tensor, chosen, some), x.tensor.shape);
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += part[i];
        rounded[i] += std::abs(part[i]);
      }
    }
    const std::vector<double> all =
        AsDoubles(Run(x.tensor, choice.choice, Make({dtype()})), x.tensor.shape);
    for (size_t i = 0; i < sum.size(); ++i) {
      const double bound = Rounding(dtype()) * (rounded[i] + std::abs(all[i])) + 1e-5;
      ASSERT_NEAR(sum[i], all[i], bound) << "row " << i / static_cast<size_t>(sizes.hidden);
    }
  }
}

TEST_P(ExpertsTest, AGateScalesWhatIsAdded) {
  const int64_t rows = 4;
  const OwnedTensor x = Random({rows, sizes.hidden}, dtype(), 1);
  const OwnedTensor gate = FromFloats({rows, 1}, DType::kF32, {-200.0f, 200.0f, 0.0f, 1.5f});
  const std::vector<double> factors = {0.0, 1.0, 0.5, 1.0 / (1.0 + std::exp(-1.5))};
  for (const bool gated : {true, false}) {
    const OwnedTensor sum = Random({rows, sizes.hidden}, dtype(), 2);
    std::vector<double> expected = Doubles(sum.tensor);
    const std::vector<double> added = Doubles(x.tensor);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += added[i] * (gated ? factors[i / static_cast<size_t>(sizes.hidden)] : 1.0);
    }
    ops().AddGated(sum.tensor, gated ? gate.tensor : Tensor{}, x.tensor);
    ExpectNear(Doubles(sum.tensor), expected, Rounding(dtype()) + 1e-6, 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ExpertsTest, ::testing::ValuesIn(AllBackendCases()), CaseName);

}  // namespace
}  // namespace tandem::ops
