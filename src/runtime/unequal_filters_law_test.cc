// Ratio mode follows the target's law even if drafts are drawn with other filters than the
// target's, so that some drafts are impossible for the target and some of its tokens are never
// drafted. An acceptance that is given a wrong distribution of the drafts is detected.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>

#include "ops/forwarding_backend.h"
#include "runtime/testing/test_engine.h"
#include "runtime/testing/test_law.h"

namespace tandem {
namespace {

// How drafts are drawn, instead of the request's own parameters.
struct DraftFilter {
  SamplingParams params;
  int32_t forbidden = -1;  // a token

  ops::SlotSampling Of(const ops::SlotSampling& request, const int32_t* id,
                       const float* bias) const {
    ops::SlotSampling slot = request;
    slot.params = params;
    slot.params.num_top_logprobs = -1;
    slot.params.seed = request.params.seed;
    slot.bias_ids = id;
    slot.bias_values = bias;
    slot.num_bias = forbidden < 0 ? 0 : 1;
    return slot;
  }
};
constexpr float kNever = -1e4f;  // a bias

// Draws drafts through separate filters, so that a draft may be one that the target would never
// draw, and the reverse: changes the slots' records for the draws of drafts.
class DraftFilterRound final : public AllAlikeRound {
 public:
  DraftFilterRound(ops::Backend& backend, const EngineOptions& options, const DraftFilter& filter,
                   bool tells_the_truth)
      : AllAlikeRound(backend, options),
        backend_(backend),
        filter_(filter),
        tells_the_truth_(tells_the_truth),
        forbidden_(backend.Allocate(sizeof(int32_t)).value()),
        never_(backend.Allocate(sizeof(float)).value()) {
    backend.CopyToDevice(forbidden_.data(), &filter.forbidden, sizeof(int32_t));
    backend.CopyToDevice(never_.data(), &kNever, sizeof(float));
  }
  void StartSlot(const ops::SlotArrays& slots, const ops::SlotPatch* patch) override {
    inner_.StartSlot(slots, patch);
    ops::SlotPatch started;
    backend_.CopyToHost(&started, patch, sizeof(started));
    const ops::SlotSampling draft =
        filter_.Of(started.sampling, forbidden_.As<int32_t>(), never_.As<float>());
    backend_.CopyToDevice(slots.draft_sampling + started.slot, &draft, sizeof(draft));
  }
  void LayVerifyRows(const ops::Round& round, const ops::PassBounds& bounds) override {
    if (tells_the_truth_) {
      inner_.LayVerifyRows(round, bounds);
    } else {
      AllAlikeRound::LayVerifyRows(round, bounds);
    }
  }

 private:
  ops::Backend& backend_;
  const DraftFilter filter_;
  const bool tells_the_truth_;
  Buffer forbidden_, never_;
};

struct TwoFilters {
  std::string name;
  std::function<void(Request&)> target;
  std::function<void(DraftFilter&)> draft;
};

class UnequalFiltersTest : public testing::TestWithParam<std::tuple<LawModels, TwoFilters>> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  // Deviation of the drawn outputs from the target's law.
  static double DeviationWith(bool tells_the_truth) {
    const auto& [models, filters] = GetParam();
    DraftFilter filter;
    filters.draft(filter);
    TestSetup setup = LawSetup(models);
    setup.options.ratio_acceptance = true;
    DraftFilterRound round(TestBackend(), setup.options, filter, tells_the_truth);
    RuleBackend backend(TestBackend(), round);
    setup.backend = &backend;
    Request request = LawRequest();
    request.sampling.num_top_logprobs = 0;
    filters.target(request);
    if (!Drafts(setup, request)) request.constraint = nullptr;
    const Drawn drawn = Draw(setup, request, tells_the_truth ? DrawsOf(models) : kControlDraws);
    EXPECT_GT(drawn.stats.drafts_accepted, 0);
    EXPECT_LT(drawn.stats.drafts_accepted, drawn.stats.drafts_proposed);
    return Measure(setup, request, drawn);
  }
};

TEST_P(UnequalFiltersTest, TheTargetsLawHolds) { EXPECT_LT(DeviationWith(true), kHolds); }

TEST_P(UnequalFiltersTest, AWrongDraftDistributionIsDetected) {
  EXPECT_GT(DeviationWith(false), kHolds);
}

const TwoFilters kTwoFilters[] = {{"narrow_target",
                                   [](Request& r) {
                                     r.sampling.temperature = 0.8f;
                                     r.sampling.top_k = 4;
                                     r.sampling.top_p = 0.9f;
                                     r.sampling.repetition_penalty = 1.3f;
                                     r.constraint = std::make_shared<NoTwins>();
                                   },
                                   [](DraftFilter& d) {
                                     d.params.temperature = 1.5f;
                                     d.params.presence_penalty = 0.7f;
                                   }},
                                  {"narrow_draft",
                                   [](Request& r) {
                                     r.sampling.temperature = 1.4f;
                                     r.sampling.frequency_penalty = 0.4f;
                                   },
                                   [](DraftFilter& d) {
                                     d.params.temperature = 0.6f;
                                     d.params.top_k = 3;
                                     d.params.top_p = 0.8f;
                                     d.params.repetition_penalty = 1.5f;
                                     d.forbidden = 2;
                                   }}};

INSTANTIATE_TEST_SUITE_P(Options, UnequalFiltersTest,
                         testing::Combine(testing::ValuesIn(LawModelsHere()),
                                          testing::ValuesIn(kTwoFilters)),
                         LawTestName<TwoFilters>);

}  // namespace
}  // namespace tandem
