// `tandem bench throughput`: output tokens per second with every slot taken, with in-flight
// batching.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/bench/percentiles.h"

namespace tandem::apps {
namespace {

// The load of `slots` clients: their requests, and the length of the measurement.
struct Load {
  int32_t slots = 0;
  int32_t input_len = 0;
  int32_t output_len = 0;
  size_t count = 0;
  Nanos window{0};  // 0: until all requests have ended
};

struct Measured {
  double seconds = 0;
  int64_t output_tokens = 0;
  double rate = 0;  // output tokens per second
  double acceptance = 0;
  HostTimes host;  // of the steps that only decode
};

// The first wave is of all ages, as if the load had lasted long: a request of age a has a more
// tokens in its prompt and a fewer tokens of output.
Status MakeAges(const Session& session, const Load& load, std::vector<Request>& requests) {
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<Request> given,
      BenchRequests(session, static_cast<size_t>(load.slots), load.output_len, load.output_len));
  for (size_t i = 0; i < given.size(); ++i) {
    const auto age = static_cast<int32_t>(i * static_cast<size_t>(load.output_len) / given.size());
    const std::vector<int32_t>& tokens = given[i].prompt;
    requests[i].prompt.insert(requests[i].prompt.end(), tokens.begin(), tokens.begin() + age);
    requests[i].max_tokens = load.output_len - age;
  }
  return {};
}

// How the requests run.
struct Mode {
  const char* name = "";
  bool use_draft = false;
  bool constrained = false;
};
constexpr std::array kModes = {
    Mode{.name = "plain"}, Mode{.name = "plain_grammar", .constrained = true},
    Mode{.name = "with_draft", .use_draft = true},
    Mode{.name = "with_draft_grammar", .use_draft = true, .constrained = true}};

// The load, run once in each mode or several times in turn.
class Bench {
 public:
  Bench(Session& session, const Load& load, Console& console)
      : session_(session), load_(load), console_(console) {}

  Status Prepare(bool with_grammar) {
    TANDEM_ASSIGN_OR_RETURN(
        requests_, BenchRequests(session_, load_.count, load_.input_len, load_.output_len));
    if (load_.window > Nanos(0)) TANDEM_RETURN_IF_ERROR(MakeAges(session_, load_, requests_));
    if (!with_grammar) return {};
    TANDEM_ASSIGN_OR_RETURN(grammars_, DummyGrammars(session_, requests_));
    return {};
  }

  bool Runs(const Mode& mode) const {
    if (mode.constrained && grammars_.empty()) return false;
    return !mode.use_draft || session_.engine->has_draft();
  }

  Result<Measured> Measure(const Mode& mode) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      requests_[i].constraint = mode.constrained ? grammars_[i] : nullptr;
      requests_[i].max_draft_len = mode.use_draft ? Request().max_draft_len : 0;
    }
    return load_.window > Nanos(0) ? MeasureWindow() : MeasureAll(mode.use_draft);
  }

 private:
  Result<Measured> MeasureWindow() {
    TANDEM_ASSIGN_OR_RETURN(
        const WindowReport report,
        RunWindow(*session_.engine, session_.clock, requests_, load_.slots, load_.window));
    TANDEM_RETURN_IF_ERROR(CheckDummyTokens(session_, requests_, report.load));
    return Measured{.seconds = InSeconds(report.wall),
                    .output_tokens = report.after.output_tokens - report.before.output_tokens,
                    .rate = report.OutputRate(),
                    .acceptance = report.load.Acceptance(),
                    .host = report.after.decode_host.Since(report.before.decode_host)};
  }

  Result<Measured> MeasureAll(bool use_draft) {
    const EngineStats before = session_.engine->Stats();
    const auto count = static_cast<double>(load_.count);
    TANDEM_ASSIGN_OR_RETURN(
        const LoadReport report,
        RunRequests(session_, requests_, load_.slots, use_draft, [&](size_t done) {
          console_.Progress("serving", static_cast<double>(done) / count);
        }));
    return Measured{.seconds = InSeconds(report.wall),
                    .output_tokens = report.OutputTokens(),
                    .rate = report.OutputRate(),
                    .acceptance = report.Acceptance(),
                    .host = session_.engine->Stats().decode_host.Since(before.decode_host)};
  }

  Session& session_;
  const Load& load_;
  Console& console_;
  std::vector<Request> requests_;
  std::vector<std::shared_ptr<const TokenConstraint>> grammars_;  // of each request, or none
};

Result<Load> ReadLoad(const BenchOptions& options, const Session& session) {
  Load load;
  load.slots = session.engine->options().max_batch_size * session.engine->size();
  load.output_len = options.output_len;
  load.window = options.window;
  const size_t asked = options.num_requests;
  const auto slots = static_cast<size_t>(load.slots);
  load.count = asked > 0 ? asked : slots * (options.quick ? 1 : 4);
  load.input_len = options.input_lens.front();
  if (load.window > Nanos(0) && load.input_len == 0) {
    return InvalidArgument("--window: needs --input_len and --output_len");
  }
  if (load.window > Nanos(0) && load.count <= slots) {
    return InvalidArgument("--num_requests: a window needs more requests than slots");
  }
  return load;
}

// Tokens per second if decoding read memory, and prompts multiplied, at the machine's limit, one
// after the other; on all replicas, whose machines are alike.
double LimitRate(const Session& session, const Load& load, const Limits& limits) {
  const int32_t replicas = session.engine->size();
  const int32_t slots = load.slots / replicas;
  const double step =
      limits.StepSeconds(session, slots, load.input_len + load.output_len / 2) / slots;
  return replicas / (step + limits.PromptSeconds(session, load.input_len) / load.output_len);
}

double Median(const std::vector<double>& values) { return PercentilesOf(values).p50; }

// The rates under grammars beside those without, and what the draft gains.
void CompareGrammar(const std::array<std::vector<double>, kModes.size()>& rates,
                    nlohmann::ordered_json& json, Console& console) {
  const auto ratio = [&](size_t of, size_t to) { return Median(rates[of]) / Median(rates[to]); };
  json["grammar_ratio"] = ratio(1, 0);
  console.Say(fmt::format("under a grammar {:.3f} of the rate without, in medians of {} runs",
                          ratio(1, 0), rates[0].size()));
  if (rates[2].empty()) return;
  json["grammar_ratio_with_draft"] = ratio(3, 2);
  json["speedup"] = ratio(2, 0);
  json["speedup_grammar"] = ratio(3, 1);
  console.Say(
      fmt::format("with the draft {:.3f} of it; the draft's speed-up is {:.2f} without and {:.2f} "
                  "under a grammar",
                  ratio(3, 2), ratio(2, 0), ratio(3, 1)));
}

}  // namespace

Status BenchThroughput(const BenchOptions& options, const OptionValues& values, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(values, console, QueueForAll));
  if (session->follows()) return FollowSession(*session);
  TANDEM_ASSIGN_OR_RETURN(const Load load, ReadLoad(options, *session));
  Limits limits;
  if (load.input_len > 0) limits.Measure(*session);
  session->engine->Start();
  Bench bench(*session, load, console);
  TANDEM_RETURN_IF_ERROR(bench.Prepare(options.grammar));
  const std::string machine = MachineLine(*session);
  console.Say(machine);
  nlohmann::ordered_json json = {
      {"machine", machine}, {"requests", load.count}, {"concurrency", load.slots}};
  std::string beside;
  if (load.input_len > 0) {
    const double limit = LimitRate(*session, load, limits);
    json["limit_tokens_per_s"] = limit;
    beside = fmt::format(" (limit {:.0f})", limit);
  }
  const bool on_device = session->backend->device().kind != Device::Kind::kCpu;
  std::array<std::vector<double>, kModes.size()> rates;
  // What is compared takes turns, so that a busy machine slows all of it.
  for (int32_t run = 0; run < (options.grammar ? options.runs : 1); ++run) {
    for (size_t i = 0; i < kModes.size(); ++i) {
      const Mode& mode = kModes[i];
      if (!bench.Runs(mode)) continue;
      TANDEM_ASSIGN_OR_RETURN(const Measured measured, bench.Measure(mode));
      rates[i].push_back(measured.rate);
      const std::string host = on_device ? fmt::format(", host time of a decode step {:.0f} us",
                                                       HostMicroseconds(measured.host))
                                         : "";
      console.Say(fmt::format("{:18}  {} at a time, {:.1f} s: {:.1f} output tok/s{}{}", mode.name,
                              load.slots, measured.seconds, measured.rate, beside, host));
      json[mode.name] = {{"output_tokens_per_s", Median(rates[i])},
                         {"output_tokens", measured.output_tokens},
                         {"seconds", measured.seconds},
                         {"host_us_per_decode_step", HostMicroseconds(measured.host)},
                         {"host_us_p99", HostMicroseconds(measured.host, 0.99)},
                         {"acceptance", measured.acceptance}};
    }
  }
  if (options.grammar) CompareGrammar(rates, json, console);
  console.Result(json);
  return {};
}

}  // namespace tandem::apps
