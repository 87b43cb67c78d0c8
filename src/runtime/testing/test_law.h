// Shared by the tests of laws: pairs of models over a few tokens, the requests whose outputs are
// counted, and the distance of these from the target's exact law, a joint distribution of tokens.
// Owned by the test, used by its thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ops/forwarding_backend.h"
#include "ops/noise.h"
#include "runtime/testing/test_engine.h"

namespace tandem {

// The source of the logits: formulas, which the host computes, or a tiny pair of Llamas on the
// test's backend.
enum class LawModels : uint8_t { kFormulas, kLlamas };
std::string Name(LawModels models);
// "CASE_MODELS", of a test over both.
template <typename Case>
std::string LawTestName(const testing::TestParamInfo<std::tuple<LawModels, Case>>& info) {
  const auto& [models, law_case] = info.param;
  return law_case.name + "_" + Name(models);
}
// The cases that can run on the test's backend and executor.
std::vector<LawModels> LawModelsHere();
// The number of outputs needed to confirm a law: fewer where a CPU computes Llamas.
int32_t DrawsOf(LawModels models);
// A sanitizer looks for other faults, and takes forty times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int32_t kFewerDraws = 5;
#else
constexpr int32_t kFewerDraws = 1;
#endif
constexpr int32_t kControlDraws = 20000 / kFewerDraws;  // enough to detect a wrong law

// An engine of these models that drafts two tokens in every round.
TestSetup LawSetup(LawModels models);
// For two more tokens than an engine of LawSetup drafts, at temperature 1.
Request LawRequest();
// Whether the engine drafts for the request: a device does not draft for a constraint under the
// ratio rule.
bool Drafts(const TestSetup& setup, const Request& request);

// Allows every token except the previous one.
class NoTwins final : public TokenConstraint {
 public:
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override;
  void Commit(const int32_t* tokens, int32_t num_tokens) override;
  std::unique_ptr<TokenConstraint> Clone() const override;

 private:
  int32_t last_ = 2;  // of LawRequest's prompt
};

// The outputs of a request under the seeds 0 .. draws - 1.
struct Drawn {
  int32_t draws = 0;
  std::map<std::vector<int32_t>, int64_t> outputs;  // how often each occurred
  EngineStats stats;
};
// At least `draws` of them. `prepare`: changes each request once its seed is set.
Drawn Draw(const TestSetup& setup, const Request& request, int32_t draws,
           const std::function<void(Request&)>& prepare = {});

// A client's draft: tokens that `model` draws after the prompt with the request's own parameters
// and seed, and the logits they were drawn from.
// `stream`: the noise that the client draws with.
ExternalDraft DraftAlone(const Request& request, const FormulaModel& model, int32_t num_tokens,
                         ops::NoiseStream stream = ops::NoiseStream::kToken);

// Distance of the outputs from the target's law, as ChiSquareZ; recorded as a test property.
double Measure(const TestSetup& setup, const Request& request, const Drawn& drawn);
constexpr double kHolds = 5.0;  // three in ten million if the law is right

// An acceptance that is given a uniform draft distribution instead of the true one.
class AllAlikeRound : public ops::ForwardingRoundOps {
 public:
  AllAlikeRound(ops::Backend& backend, const EngineOptions& options);
  void LayVerifyRows(const ops::Round& round, const ops::PassBounds& bounds) override;

 private:
  Buffer alike_;  // [max_batch_size * (max_draft_len + 1), vocab] fp32
};

// Draws and accepts as the test defines: with these RoundOps, which outlive it.
class RuleBackend final : public ops::ForwardingBackend {
 public:
  RuleBackend(ops::Backend& inner, ops::RoundOps& round)
      : ForwardingBackend(inner), round_(round) {}
  ops::RoundOps& round() override { return round_; }

 private:
  ops::RoundOps& round_;
};

}  // namespace tandem
