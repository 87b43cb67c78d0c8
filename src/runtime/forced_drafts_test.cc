// Tokens that a constraint forces are drafts, with and without a draft model.
#include <gtest/gtest.h>

#include <memory>

#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

// At every place a multiple of 4 any tokens, then the three after it in the vocabulary; it tells of
// them, but of the last one it gives another spelling, which is not drawn.
class Triples final : public TokenConstraint {
 public:
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    Triples after = *this;
    for (const int32_t token : ahead) after.Commit(&token, 1);
    if (after.place_ % 4 == 0) return;
    for (uint32_t& word : allowed) word = 0;
    Allow((after.last_ + 1) % 48, allowed);
    if (after.place_ % 4 == 3) Allow((after.last_ + 2) % 48, allowed);
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    place_ += num_tokens;
    last_ = tokens[num_tokens - 1];
  }
  std::vector<int32_t> Forced() override {
    std::vector<int32_t> tokens;
    for (int32_t i = place_ % 4; i % 4 != 0; ++i) {
      tokens.push_back((tokens.empty() ? last_ : tokens.back()) + 1);
      tokens.back() %= 48;
    }
    return tokens;
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<Triples>(*this);
  }

 private:
  static void Allow(int32_t token, std::span<uint32_t> allowed) {
    allowed[static_cast<size_t>(token / 32)] |= 1u << (token % 32);
  }
  int32_t place_ = 0;
  int32_t last_ = 0;
};

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
    if (i % 3 != 2) requests.back().constraint = std::make_shared<Triples>();
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
