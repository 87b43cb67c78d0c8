// Our forward pass compared with the model code of each family's authors: logits of tiny models
// whose weights and prompts tests/golden/make_family_fixtures.py packed. Each prompt, followed by
// what the authors' code generated, goes through in one pass, in chunks and token by token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/family_fixtures.h"
#include "model/families/families.h"
#include "model/prompt_rules.h"
#include "model/testing/decoder_driver.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Logits = std::vector<std::vector<float>>;

// The largest difference of the last rows, over the deviation of the expected logits.
double Difference(const Logits& ours, const Tensor& expected) {
  const auto rows = static_cast<size_t>(expected.dim(0)),
             vocab = static_cast<size_t>(expected.dim(1));
  const auto* theirs = expected.As<float>();
  double largest = 0, sum = 0, squares = 0;
  for (size_t r = 0; r < rows; ++r) {
    const std::vector<float>& row = ours[ours.size() - rows + r];
    for (size_t i = 0; i < vocab; ++i) {
      const double value = theirs[r * vocab + i];
      if (!std::isfinite(row[i])) return HUGE_VAL;
      largest = std::max(largest, std::abs(row[i] - value));
      sum += value;
      squares += value * value;
    }
  }
  const auto count = static_cast<double>(rows * vocab);
  return largest / std::sqrt(squares / count - sum / count * (sum / count));
}

class FamiliesGoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = FixturesFolder() / GetParam();
    auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false});
    ASSERT_TRUE(backend.ok()) << backend.status().message();
    backend_ = std::move(*backend);
    auto cases = SafetensorsFile::Open(folder_ / "cases.safetensors");
    ASSERT_TRUE(cases.ok()) << cases.status().message();
    file_ = std::move(*cases);
  }
  std::shared_ptr<const Weights> Load(std::optional<DType> dtype, int64_t positions) {
    auto reader = HfReader::Open(folder_, dtype);
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    if (!reader.ok()) return nullptr;
    auto weights = LoadWeights(**reader, *backend_, positions);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    return weights.ok() ? *weights : nullptr;
  }
  // The tokens go through in ranges of `step`; 0: at once. Those of a prefix, which see each other,
  // are in the first range.
  Logits Run(const std::shared_ptr<const Weights>& weights, const FamilyCase& one, size_t step) {
    const std::vector<int32_t>& tokens = one.tokens;
    DecoderTestDriver driver(weights, *backend_, static_cast<int32_t>(tokens.size()));
    const auto layout =
        LayOutPrompt(PromptRulesOf(weights->spec, weights->max_positions), one.Prompt());
    EXPECT_TRUE(layout.ok()) << layout.status().message();
    driver.SetLayout(*layout);
    if (step == 0) return driver.Feed(tokens);
    Logits all;
    for (size_t at = 0; at < tokens.size();) {
      const size_t least = at == 0 ? static_cast<size_t>(layout->prefix_len) : 0;
      const size_t count = std::min(std::max(step, least), tokens.size() - at);
      const Logits part = driver.Feed(std::span(tokens).subspan(at, count));
      all.insert(all.end(), part.begin(), part.end());
      at += count;
    }
    return all;
  }

  fs::path folder_;
  std::unique_ptr<ops::Backend> backend_;
  std::shared_ptr<const SafetensorsFile> file_;
};

TEST_P(FamiliesGoldenTest, AgreesWithTheAuthorsCode) {
  const std::vector<FamilyCase> cases = CasesOf(*file_);
  ASSERT_GE(cases.size(), 3u);
  for (const FamilyCase& one : cases) {
    SCOPED_TRACE(one.name);
    const auto length = static_cast<int64_t>(one.tokens.size());
    // Served exactly as long as it is: dynamic scaling and longrope depend on it.
    const auto wide = Load(DType::kF32, length);
    ASSERT_NE(wide, nullptr);
    const Logits whole = Run(wide, one, 0);
    EXPECT_LE(Difference(whole, one.logits), 1e-3) << "in one pass";
    // The CPU's result of a row does not depend on how the rows are divided.
    EXPECT_EQ(Run(wide, one, 1), whole) << "token by token";
    EXPECT_EQ(Run(wide, one, 13), whole) << "in chunks";
  }
}

TEST_P(FamiliesGoldenTest, AgreesIn16Bits) {
  std::vector<std::unique_ptr<ops::Backend>> backends;
  backends.push_back(std::move(backend_));
  for (const bool invariant : {false, true}) {
    if (ops::NumCudaDevices() == 0) break;
    auto gpu = ops::MakeCudaBackend({.batch_invariant = invariant});
    ASSERT_TRUE(gpu.ok()) << gpu.status().message();
    backends.push_back(std::move(*gpu));
  }
  for (auto& backend : backends) {
    backend_ = std::move(backend);
    for (const FamilyCase& one : CasesOf(*file_)) {
      SCOPED_TRACE(backend_->Describe() + ", " + one.name);
      const auto length = static_cast<int64_t>(one.tokens.size());
      // bf16 has 8 times coarser steps than fp16.
      for (const auto& [dtype, most] : {std::pair{DType::kF16, 2e-2}, {DType::kBF16, 0.2}}) {
        const auto narrow = Load(dtype, length);
        ASSERT_NE(narrow, nullptr);
        const Logits whole = Run(narrow, one, 0);
        EXPECT_LE(Difference(whole, one.logits), most) << DTypeName(dtype);
        EXPECT_LE(Difference(Run(narrow, one, 1), one.logits), most)
            << DTypeName(dtype) << ", token by token";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, FamiliesGoldenTest, ::testing::ValuesIn(FamilyFixtures()),
                         [](const auto& info) { return info.param; });

TEST(FamiliesGolden, CoverEveryFamilyButLlama) {
  for (const Family& family : Families()) {
    const bool covered = std::ranges::any_of(FamilyFixtures(), [&](const std::string& name) {
      auto reader = HfReader::Open(FixturesFolder() / name);
      return reader.ok() && (*reader)->spec().family == family.name;
    });
    EXPECT_TRUE(covered || family.name == "llama") << family.name;
  }
}

}  // namespace
}  // namespace tandem
