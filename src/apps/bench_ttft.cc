// `tandem bench ttft`: time to the first token by prompt length, for a prompt never seen and for
// the same prompt found in the prefix cache, compared with the time of its arithmetic at the matrix
// peak.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench.h"

namespace tandem::apps {
namespace {

double FirstTokenSeconds(const LoadReport& report) {
  return InSeconds(report.records.front().first_token);
}

}  // namespace

Status BenchTtft(const BenchOptions& options, const OptionValues& values, Console& console) {
  std::vector<int32_t> lengths = options.input_lens;
  if (lengths == std::vector<int32_t>{0}) lengths = {512, 1024, 2048};
  if (std::ranges::find(lengths, 0) != lengths.end()) {
    return InvalidArgument("--input_len: a prompt of 0 tokens gives no first token");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(values, console, QueueForAll));
  session->engine->Start();
  console.Say(fmt::format("{}; target {}", MachineLine(*session->backend), session->target.name));
  console.Say("prompt         cold  of matrix peak       in the cache");
  Limits limits;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const auto runs = static_cast<size_t>(options.runs);
  for (const int32_t length : lengths) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<Request> prompts,
                            BenchRequests(*session, runs, length, /*output_len=*/2));
    double cold = 0;
    double hit = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      limits.Measure(*session);
      std::vector<Request> one = {prompts[i]};
      // A first block that no earlier prompt had.
      one.front().prompt.front() = static_cast<int32_t>(length + static_cast<int32_t>(i) * 7 + 3) %
                                   static_cast<int32_t>(session->target.spec.vocab_size);
      TANDEM_ASSIGN_OR_RETURN(const LoadReport first, RunRequests(*session, one, 1, false));
      TANDEM_ASSIGN_OR_RETURN(const LoadReport second, RunRequests(*session, one, 1, false));
      const auto keep_least = [&](double& best, double seconds) {
        best = i == 0 ? seconds : std::min(best, seconds);
      };
      keep_least(cold, FirstTokenSeconds(first));
      keep_least(hit, FirstTokenSeconds(second));
    }
    const double share = limits.PromptSeconds(*session, length) / cold;
    console.Say(fmt::format("{:6}  {:8.2f} ms  {:12.1f} %  {:14.2f} ms", length, cold * 1e3,
                            share * 100, hit * 1e3));
    rows.push_back({{"prompt_tokens", length},
                    {"cold_s", cold},
                    {"share_of_matrix_peak", share},
                    {"cached_s", hit}});
  }
  const nlohmann::ordered_json json = {{"machine", MachineLine(*session->backend)},
                                       {"target", session->target.name},
                                       {"matrix_flops_per_s", limits.matrix_peak},
                                       {"rows", rows}};
  console.Result(json);
  return {};
}

}  // namespace tandem::apps
