// Our forward pass compared with the model code of each family's authors: logits of tiny models
// whose weights and prompts tests/golden/make_family_fixtures.py packed. Each prompt, followed by
// what the authors' code generated, goes through in one pass, in chunks and token by token.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/family_cases.h"
#include "model/families/families.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

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
  // As FeedCase, in a cache of its own.
  Logits Run(const std::shared_ptr<const Weights>& weights, const FamilyCase& one, size_t step) {
    DecoderTestDriver driver(weights, *backend_, static_cast<int32_t>(one.tokens.size()));
    return FeedCase(driver, *weights, one, step);
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
