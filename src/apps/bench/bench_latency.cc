// `tandem bench latency`: time to first token and decode rate at small batches, plain and
// speculative in turn, each compared with the limit that the same command measures in between.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "apps/bench/bench.h"
#include "apps/bench/percentiles.h"

namespace tandem::apps {
namespace {

// One run of the requests each way; rates in tokens per second of all sequences together.
struct Pair {
  double plain = 0;
  double speculative = 0;       // 0 without a draft
  double drafts_per_token = 0;  // proposed
};

// A measurement of the machine's limits takes a second: in runs after these there is none.
constexpr int32_t kLimitsMeasured = 3;

// The best figures of one batch size and prompt length.
struct Figures {
  int32_t batch = 0;
  int64_t prompt_tokens = 0;
  int64_t mean_context = 0;  // of the decode steps
  double plain = 0;          // rates as in Pair
  double speculative = 0;
  double speedup = 0;  // of the median run, each compared with the plain one next to it
  std::optional<Interval> speedup_interval;
  double acceptance = 0;
  double first_token = 0;  // seconds
  std::vector<Pair> pairs;
};

class LatencyBench {
 public:
  LatencyBench(Session& session, Console& console) : session_(session), console_(console) {}

  Result<Figures> Measure(int32_t batch, int32_t input_len, int32_t runs,
                          const BenchOptions& options) {
    const size_t asked = options.num_requests;
    const bool cached = options.cached_prompts;
    // With cached prompts one wave, so that all of it decodes side by side.
    const auto slots = static_cast<size_t>(batch);
    const size_t usual = cached ? slots : std::max<size_t>(slots * 2, 8);
    const size_t count = asked > 0 ? asked : usual;
    const int32_t output_len = options.output_len;
    TANDEM_ASSIGN_OR_RETURN(
        std::vector<Request> requests,
        BenchRequests(session_, count, input_len, output_len, static_cast<uint32_t>(batch)));
    Figures figures;
    figures.batch = batch;
    figures.prompt_tokens = static_cast<int64_t>(requests.front().prompt.size());
    figures.mean_context = figures.prompt_tokens + output_len / 2;
    for (int32_t run = 0; run < runs; ++run) {
      if (run < kLimitsMeasured) limits_.Measure(session_);
      if (cached && run == 0) {
        TANDEM_ASSIGN_OR_RETURN(const LoadReport cold,
                                RunRequests(session_, requests, batch, false));
        NoteFirstToken(cold, figures);
      }
      // They go first alternately, so that a machine that slows down favours neither.
      Pair pair;
      for (const bool with_draft : {run % 2 != 0, run % 2 == 0}) {
        if (with_draft && !session_.engine->has_draft()) continue;
        TANDEM_ASSIGN_OR_RETURN(const LoadReport report,
                                RunRequests(session_, requests, batch, with_draft));
        (with_draft ? pair.speculative : pair.plain) = report.DecodeRate(batch);
        if (with_draft) {
          figures.acceptance = report.Acceptance();
          pair.drafts_per_token = report.DraftsPerToken();
        }
        if (!with_draft && !cached) NoteFirstToken(report, figures);
      }
      figures.plain = std::max(figures.plain, pair.plain);
      figures.speculative = std::max(figures.speculative, pair.speculative);
      figures.pairs.push_back(pair);
      console_.Progress("measuring", static_cast<double>(run + 1) / runs);
    }
    limits_.Measure(session_);
    std::vector<double> speedups;
    for (const Pair& pair : figures.pairs) {
      if (pair.speculative > 0.0) speedups.push_back(pair.speculative / pair.plain);
    }
    figures.speedup_interval = MedianInterval(speedups);
    figures.speedup = PercentilesOf(std::move(speedups)).p50;
    return figures;
  }

  const Limits& limits() const { return limits_; }

 private:
  // With one request at a time the first token comes after exactly one prompt.
  static void NoteFirstToken(const LoadReport& report, Figures& figures) {
    const double first =
        InSeconds(figures.batch == 1 ? FastestFirstToken(report) : report.MeanFirstToken());
    if (figures.first_token == 0 || first < figures.first_token) figures.first_token = first;
  }

  static Nanos FastestFirstToken(const LoadReport& report) {
    Nanos fastest = report.records.front().first_token;
    for (const LoadRecord& record : report.records) {
      fastest = std::min(fastest, record.first_token);
    }
    return fastest;
  }

  Session& session_;
  Console& console_;
  Limits limits_;
};

struct Row {
  Figures figures;
  double decode_share = 0;   // of the fastest possible step
  double prefill_share = 0;  // of the fastest possible prompt, at batch 1
};

Row MakeRow(const Figures& figures, const Session& session, const Limits& limits) {
  Row row;
  row.figures = figures;
  const double steps = figures.plain / figures.batch;  // every sequence gains one token per step
  // Of a replica.
  const int32_t replicas = session.engine->size();
  const int32_t sequences = (figures.batch + replicas - 1) / replicas;
  row.decode_share = steps * limits.StepSeconds(session, sequences, figures.mean_context);
  row.prefill_share =
      limits.PromptSeconds(session, figures.prompt_tokens) / std::max(figures.first_token, 1e-9);
  return row;
}

void Say(const Console& console, const Row& row, bool has_draft) {
  const Figures& f = row.figures;
  std::string line =
      fmt::format("{:5} {:8}  {:10.1f} ms  {:9.1f} tok/s  {:5.1f} %", f.batch, f.prompt_tokens,
                  f.first_token * 1e3, f.plain, row.decode_share * 100);
  if (has_draft) {
    line += fmt::format("  {:9.1f} tok/s  {:5.2f}x  {:5.1f} %", f.speculative, f.speedup,
                        f.acceptance * 100);
    if (f.speedup_interval) {
      line += fmt::format("  speedup {:.2f} to {:.2f}x", f.speedup_interval->low,
                          f.speedup_interval->high);
    }
  }
  console.Say(line);
}

nlohmann::ordered_json ToJson(const Row& row) {
  const Figures& f = row.figures;
  nlohmann::ordered_json interval;  // null if there are too few runs
  if (f.speedup_interval) interval = {f.speedup_interval->low, f.speedup_interval->high};
  nlohmann::ordered_json pairs = nlohmann::ordered_json::array();
  for (const Pair& pair : f.pairs) {
    pairs.push_back({{"plain_tokens_per_s", pair.plain},
                     {"draft_tokens_per_s", pair.speculative},
                     {"drafts_per_token", pair.drafts_per_token}});
  }
  return {{"batch", f.batch},
          {"prompt_tokens", f.prompt_tokens},
          {"first_token_s", f.first_token},
          {"plain_tokens_per_s", f.plain},
          {"share_of_step_limit", row.decode_share},
          {"share_of_matrix_peak", row.prefill_share},
          {"draft_tokens_per_s", f.speculative},
          {"speedup", f.speedup},
          {"speedup_interval", interval},
          {"acceptance", f.acceptance},
          {"runs", pairs}};
}

}  // namespace

Status BenchLatency(const BenchOptions& options, const OptionValues& values, Console& console) {
  const std::vector<int32_t> batches = options.quick ? std::vector<int32_t>{1} : options.batches;
  const int32_t runs = options.quick ? 2 : options.runs;
  TANDEM_ASSIGN_OR_RETURN(
      const auto session,
      OpenSession(values, console,
                  // Prompts repeat between runs: a prefix found in the cache would hide their cost.
                  [&](EngineOptions& engine) {
                    QueueForAll(engine);
                    engine.enable_prefix_reuse = options.cached_prompts;
                  }));
  if (session->follows()) return FollowSession(*session);
  session->engine->Start();
  const bool has_draft = session->engine->has_draft();
  console.Say(MachineLine(*session));
  console.Say(fmt::format("target {}{}", session->target.name,
                          has_draft ? ", draft " + session->draft->name : ", no draft"));
  console.Say(fmt::format("batch   prompt  {:>13}  {:>15}  of limit{}", "first token", "plain",
                          has_draft ? "     with draft  speedup  accepted" : ""));
  LatencyBench bench(*session, console);
  std::vector<Row> rows;
  for (const int32_t length : options.input_lens) {
    for (const int32_t batch : batches) {
      TANDEM_ASSIGN_OR_RETURN(const Figures figures, bench.Measure(batch, length, runs, options));
      rows.push_back(MakeRow(figures, *session, bench.limits()));
      Say(console, rows.back(), has_draft);
    }
  }
  const Row& first = rows.front();
  console.Say(
      fmt::format("limits: {:.1f} GB/s read, {:.2f} TFLOP/s; a prompt of {} tokens reaches {:.0f} "
                  "% of the latter",
                  bench.limits().read_bandwidth / 1e9, bench.limits().matrix_peak / 1e12,
                  first.figures.prompt_tokens, first.prefill_share * 100));
  constexpr double kBeyondNoise = 1.1;  // the limit is measured too
  if (std::ranges::any_of(rows, [](const Row& row) { return row.decode_share > kBeyondNoise; })) {
    console.Say("more than 100 % of the limit: the weights came out of caches, not out of memory");
  }
  if (has_draft) {
    console.Say(fmt::format(
        "{:.1f} tokens per second without the draft, {:.1f} with it; acceptance rate {:.0f} %",
        first.figures.plain, first.figures.speculative, first.figures.acceptance * 100));
    console.Say(
        "a rate is that of the fastest run; the speedup is the median over pairs of runs, so it is "
        "not the quotient of the two");
  }
  const double host_us = HostMicroseconds(session->engine->Stats().decode_host);
  if (session->backend->device().kind != Device::Kind::kCpu) {
    console.Say(fmt::format("host time of a decode step: {:.0f} us", host_us));
  }
  nlohmann::ordered_json json = {{"machine", MachineLine(*session)},
                                 {"target", session->target.name},
                                 {"read_bytes_per_s", bench.limits().read_bandwidth},
                                 {"matrix_flops_per_s", bench.limits().matrix_peak},
                                 {"host_us_per_decode_step", host_us},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) json["rows"].push_back(ToJson(row));
  console.Result(json);
  return {};
}

}  // namespace tandem::apps
