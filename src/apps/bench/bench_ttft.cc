// `tandem bench ttft`: time to the first token by prompt length, for a prompt never seen and for
// the same prompt found in the prefix cache, compared with the time of its arithmetic at the matrix
// peak. With --kv_host_cache_bytes also for the same prompt after others have pushed it out of the
// device's cache, so that it comes back from host memory while one of those goes there.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "runtime/request/validate_request.h"

namespace tandem::apps {
namespace {

constexpr int32_t kOutputTokens = 2;  // of a request

std::vector<int32_t> UsualLengths(const EngineLimits& limits) {
  const int32_t most = std::min(limits.max_input_len, limits.max_seq_len - kOutputTokens);
  std::vector<int32_t> lengths = {512, 1024, 2048};
  for (int32_t& length : lengths) length = std::min(length, most);
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

double FirstTokenSeconds(const LoadReport& report) {
  return InSeconds(report.records.front().first_token);
}

// Runs prompts that nobody asked for before until they have filled the device's cache, so that what
// was there before lies on the host.
Status FillCache(Session& session, int32_t length, uint32_t seed) {
  const KvCacheStats cache = session.engine->Stats().kv;
  const int32_t blocks = (length + cache.block_tokens - 1) / cache.block_tokens;
  const auto count = static_cast<size_t>(cache.total_blocks / blocks) + 1;
  TANDEM_ASSIGN_OR_RETURN(std::vector<Request> others,
                          BenchRequests(session, count, length, kOutputTokens, seed));
  return RunRequests(session, others, 1, false).status();
}

// First token of a prompt that lies on the host.
Result<double> HostSeconds(Session& session, std::vector<Request>& one, uint32_t seed) {
  const auto length = static_cast<int32_t>(one.front().prompt.size());
  TANDEM_RETURN_IF_ERROR(FillCache(session, length, seed));
  const int64_t onboards = session.engine->Stats().kv.onboards;
  TANDEM_ASSIGN_OR_RETURN(const LoadReport report, RunRequests(session, one, 1, false));
  const KvCacheStats cache = session.engine->Stats().kv;
  const int64_t back = (cache.onboards - onboards) * cache.block_tokens;
  if (report.records.front().usage.cached_tokens < length - 1 || back < length - 1) {
    return FailedPrecondition(fmt::format(
        "of {} tokens {} came back from host memory: --kv_host_cache_bytes must hold the device's "
        "cache (--kv_cache_bytes) and a prompt more",
        length, back));
  }
  return FirstTokenSeconds(report);
}

}  // namespace

Status BenchTtft(const BenchOptions& options, const OptionValues& values, Console& console) {
  TANDEM_RETURN_IF_ERROR(RefuseReplicas("ttft", values));
  std::vector<int32_t> lengths = options.input_lens;
  const bool by_default = lengths == std::vector<int32_t>{0};
  if (!by_default && std::ranges::find(lengths, 0) != lengths.end()) {
    return InvalidArgument("--input_len: a prompt of 0 tokens gives no first token");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(values, console, QueueForAll));
  if (by_default) lengths = UsualLengths(session->engine->limits());
  if (session->follows()) return FollowSession(*session);
  session->engine->Start();
  console.Say(fmt::format("{}; target {}", MachineLine(*session), session->target.name));
  const bool has_host_cache = session->engine->options().kv_host_cache_bytes > 0;
  console.Say(fmt::format("prompt         cold  of matrix peak       in the cache{}",
                          has_host_cache ? "       on the host  cold / host" : ""));
  Limits limits;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const auto runs = static_cast<size_t>(options.runs);
  for (const int32_t length : lengths) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<Request> prompts,
                            BenchRequests(*session, runs, length, kOutputTokens));
    double cold = 0;
    double hit = 0;
    double host = 0;
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
      if (!has_host_cache) continue;
      // Of a seed that no prompt has.
      const auto seed = static_cast<uint32_t>(1000 * length) + static_cast<uint32_t>(i) + 2;
      TANDEM_ASSIGN_OR_RETURN(const double seconds, HostSeconds(*session, one, seed));
      keep_least(host, seconds);
    }
    const double share = limits.PromptSeconds(*session, length) / cold;
    console.Say(fmt::format(
        "{:6}  {:8.2f} ms  {:12.1f} %  {:14.2f} ms{}", length, cold * 1e3, share * 100, hit * 1e3,
        has_host_cache ? fmt::format("  {:13.2f} ms  {:9.2f} x", host * 1e3, cold / host) : ""));
    rows.push_back({{"prompt_tokens", length},
                    {"cold_s", cold},
                    {"share_of_matrix_peak", share},
                    {"cached_s", hit}});
    if (has_host_cache) rows.back()["on_host_s"] = host;
  }
  const nlohmann::ordered_json json = {{"machine", MachineLine(*session)},
                                       {"target", session->target.name},
                                       {"matrix_flops_per_s", limits.matrix_peak},
                                       {"rows", rows}};
  console.Result(json);
  return {};
}

}  // namespace tandem::apps
