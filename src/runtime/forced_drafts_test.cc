// Tokens that a constraint forces are drafts, with and without a draft model.
#include <gtest/gtest.h>

#include <memory>

#include "runtime/testing/test_engine.h"
#include "runtime/testing/triples.h"

namespace tandem {
namespace {

struct ForcedCase {
  bool draft_model = false;
  int32_t lookup_ngram = 0;
  DraftMode mode = DraftMode::kFixed;
};

class ForcedDraftsTest : public testing::TestWithParam<ForcedCase> {};

TEST_P(ForcedDraftsTest, ChangeNoToken) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    requests.push_back(SimpleRequest(CountingPrompt(3 + i, i), 41));
    requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    requests.back().seed = static_cast<uint64_t>(i);
    if (i % 3 != 2) requests.back().constraint = std::make_shared<Triples>(48);
  }
  FakeClock clock;
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.draft_mode = DraftMode::kOff;
  const auto expected = RunRequests(*MakeTestEngine(setup, clock), requests);
  setup.options.draft_mode = GetParam().mode;
  setup.options.fixed_draft_len = 3;
  setup.options.lookup_ngram = GetParam().lookup_ngram;
  setup.options.draft_forced = true;
  setup.draft_model = GetParam().draft_model;
  const auto engine = MakeTestEngine(setup, clock);
  const auto got = RunRequests(*engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens) << i;
    const bool drafts =
        requests[i].constraint != nullptr || GetParam().draft_model || GetParam().lookup_ngram > 0;
    if (GetParam().mode != DraftMode::kFixed) continue;
    if (requests[i].constraint != nullptr) {
      // Two of three hold whatever the models think, and often the third.
      EXPECT_GE(got[i][0].usage.drafts_accepted, 20) << i;
    }
    if (!drafts) {
      EXPECT_EQ(got[i][0].usage.drafts_proposed, 0) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ForcedDraftsTest,
                         testing::Values(ForcedCase{}, ForcedCase{.draft_model = true},
                                         ForcedCase{.lookup_ngram = 2},
                                         ForcedCase{.mode = DraftMode::kAdaptive},
                                         ForcedCase{.draft_model = true,
                                                    .lookup_ngram = 1,
                                                    .mode = DraftMode::kAdaptive}));

}  // namespace
}  // namespace tandem
