// Every family through the engine: a model of it as target with another as draft, in one batch,
// with shared prefixes, chunks and too few blocks, gives the tokens of plain decoding. And built
// into an engine folder it stays the same model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "checkpoint/testing/hf_folder.h"
#include "engine_folder/build.h"
#include "engine_folder/engine_folder.h"
#include "runtime/testing/family_engine.h"

namespace tandem {
namespace {

// The tiny models whose context holds the requests: all of them but those of a short one.
std::vector<std::string> Models() {
  std::vector<std::string> names = FamilyFixtures();
  std::erase_if(names, [](const std::string& name) {
    return FamilySpec(name).max_positions < FamilyOptions().max_seq_len;
  });
  return names;
}

class FamiliesEngineTest : public FolderTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
    FolderTest::SetUp();
  }
  std::unique_ptr<Engine> Make(EngineOptions options) {
    // The tokens of a prefix are computed in one step.
    if (FamilySpec(GetParam()).prefix.start_id >= 0) options.max_num_tokens = 128;
    return MakeFamilyEngine(GetParam(), options, clock_);
  }
  // Prompts that share a beginning, short and long ones, greedy and drawn.
  std::vector<Request> Requests() {
    const ModelSpec spec = FamilySpec(GetParam());
    std::vector<Request> requests;
    for (int32_t i = 0; i < 6; ++i) {
      const bool has_prefix = spec.prefix.start_id >= 0;
      const int64_t first_special =
          has_prefix ? std::min(spec.prefix.start_id, std::ranges::min(spec.prefix.mask_ids))
                     : spec.vocab_size;
      std::vector<int32_t> prompt = CountingPrompt(2 + 14 * i, i, first_special);
      if (has_prefix) {
        prompt.push_back(spec.prefix.mask_ids.front());
        prompt.push_back(spec.prefix.start_id);
      }
      Request request = SimpleRequest(std::move(prompt), 40);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  SteadyClock clock_;
};

TEST_P(FamiliesEngineTest, DraftsPrefixesChunksAndPreemptionChangeNoToken) {
  const auto alone = Make(FamilyOptions());
  std::vector<std::vector<int32_t>> expected;
  for (const Request& request : Requests()) {
    expected.push_back(RunRequests(*alone, {request})[0][0].tokens);
    EXPECT_EQ(expected.back().size(), 40u);
  }
  EngineOptions options = FamilyOptions();
  options.draft_mode = DraftMode::kFixed;
  options.fixed_draft_len = 3;
  for (const bool scarce : {false, true}) {
    SCOPED_TRACE(scarce ? "few blocks" : "enough blocks");
    if (scarce) {
      const ModelSpec spec = FamilySpec(GetParam());
      options.kv_cache_bytes =
          16 * 9 *
          (spec.KvBytesPerToken(FamilyTargetType()) + spec.KvBytesPerToken(kFamilyDraftType));
    }
    const auto engine = Make(options);
    for (int round = 0; round < 2; ++round) {
      const auto got = RunRequests(*engine, Requests());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i][0].tokens, expected[i]) << "request " << i << ", round " << round;
      }
    }
    EXPECT_GT(engine->Stats().drafts_accepted, 0);
    if (scarce) {
      EXPECT_GT(engine->Stats().preemptions, 0);
    }
  }
}

TEST_P(FamiliesEngineTest, AnEngineFolderHoldsTheSameModel) {
  const auto report =
      Build({.checkpoint_dir = FixturesFolder() / GetParam(), .output_dir = folder_ / "engine"});
  ASSERT_TRUE(report.ok()) << report.status().message();
  const auto engine = OpenEngine(folder_ / "engine");
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto source = HfReader::Open(FixturesFolder() / GetParam());
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(engine->source->spec(), (*source)->spec());
  for (const WeightId& id : StoredWeights((*source)->spec())) {
    const auto built = engine->source->Get(id), stored = (*source)->Get(id);
    ASSERT_TRUE(built.ok() && stored.ok());
    ASSERT_EQ(built->NumBytes(), stored->NumBytes());
    EXPECT_EQ(std::memcmp(built->data, stored->data, static_cast<size_t>(stored->NumBytes())), 0)
        << RowOf(id.role).hf_name << " of layer " << id.layer;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, FamiliesEngineTest, ::testing::ValuesIn(Models()),
                         [](const auto& info) { return info.param; });

// families_golden_test has that the fixtures cover every family.
TEST(FamiliesEngine, NoFamilyIsLeftOut) {
  const auto families = [](const std::vector<std::string>& names) {
    std::set<std::string> families;
    for (const std::string& name : names) families.insert(FamilySpec(name).family);
    return families;
  };
  EXPECT_EQ(families(Models()), families(FamilyFixtures()));
}

}  // namespace
}  // namespace tandem
