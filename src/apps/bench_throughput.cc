// `tandem bench throughput`: output tokens a second with every slot taken, over in-flight batching.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench.h"

namespace tandem::apps {

Status BenchThroughput(const OptionValues& options, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(options, console, QueueForAll));
  session->engine->Start();
  const int32_t slots = session->engine->options().max_batch_size;
  const auto asked = static_cast<size_t>(options.Int("num_requests"));
  const size_t quick_count = static_cast<size_t>(slots);
  const size_t count = asked > 0 ? asked : quick_count * (options.Flag("quick") ? 1 : 4);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> lengths,
                          ParseNumberList(options.Text("input_len"), "--input_len", 0));
  TANDEM_ASSIGN_OR_RETURN(std::vector<Request> requests,
                          BenchRequests(*session, count, lengths.front(),
                                        static_cast<int32_t>(options.Int("output_len"))));
  console.Say(MachineLine(*session->backend));
  nlohmann::ordered_json json = {
      {"machine", MachineLine(*session->backend)}, {"requests", count}, {"concurrency", slots}};
  for (const bool use_draft : {false, true}) {
    if (use_draft && !session->engine->has_draft()) continue;
    const EngineStats before = session->engine->Stats();
    TANDEM_ASSIGN_OR_RETURN(
        const LoadReport report,
        RunRequests(*session, requests, slots, use_draft, [&](size_t done) {
          console.Progress("serving", static_cast<double>(done) / static_cast<double>(count));
        }));
    const EngineStats after = session->engine->Stats();
    const double host_us = 1e6 * (after.host_seconds - before.host_seconds) /
                           std::max<double>(1, static_cast<double>(after.steps - before.steps));
    const char* mode = use_draft ? "with_draft" : "plain";
    console.Say(
        fmt::format("{:10}  {} requests, {} at a time: {:.1f} output tok/s, host time of "
                    "a step {:.0f} us",
                    mode, count, slots, report.OutputRate(), host_us));
    json[mode] = {{"output_tokens_per_s", report.OutputRate()},
                  {"output_tokens", report.OutputTokens()},
                  {"seconds", std::chrono::duration<double>(report.wall).count()},
                  {"host_us_per_step", host_us},
                  {"acceptance", report.Acceptance()}};
  }
  console.Result(json.dump());
  return {};
}

}  // namespace tandem::apps
