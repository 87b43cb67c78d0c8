// `tandem bench throughput`: output tokens per second with every slot taken, with in-flight
// batching.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench.h"

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

Result<Measured> MeasureWindow(Session& session, const Load& load, std::vector<Request>& requests,
                               bool use_draft) {
  for (Request& request : requests) {
    request.max_draft_len = use_draft ? Request().max_draft_len : 0;
  }
  TANDEM_ASSIGN_OR_RETURN(const WindowReport report, RunWindow(*session.engine, session.clock,
                                                               requests, load.slots, load.window));
  TANDEM_RETURN_IF_ERROR(CheckDummyTokens(session, requests, report.load));
  return Measured{.seconds = InSeconds(report.wall),
                  .output_tokens = report.after.output_tokens - report.before.output_tokens,
                  .rate = report.OutputRate(),
                  .acceptance = report.load.Acceptance(),
                  .host = report.after.decode_host.Since(report.before.decode_host)};
}

Result<Measured> MeasureAll(Session& session, const Load& load, std::vector<Request>& requests,
                            bool use_draft, Console& console) {
  const EngineStats before = session.engine->Stats();
  TANDEM_ASSIGN_OR_RETURN(
      const LoadReport report,
      RunRequests(session, requests, load.slots, use_draft, [&](size_t done) {
        console.Progress("serving", static_cast<double>(done) / static_cast<double>(load.count));
      }));
  return Measured{.seconds = InSeconds(report.wall),
                  .output_tokens = report.OutputTokens(),
                  .rate = report.OutputRate(),
                  .acceptance = report.Acceptance(),
                  .host = session.engine->Stats().decode_host.Since(before.decode_host)};
}

Result<Load> ReadLoad(const BenchOptions& options, const Session& session) {
  Load load;
  load.slots = session.engine->options().max_batch_size;
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
// after the other.
double LimitRate(const Session& session, const Load& load, const Limits& limits) {
  const double step =
      limits.StepSeconds(session, load.slots, load.input_len + load.output_len / 2) / load.slots;
  return 1.0 / (step + limits.PromptSeconds(session, load.input_len) / load.output_len);
}

}  // namespace

Status BenchThroughput(const BenchOptions& options, const OptionValues& values, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(values, console, QueueForAll));
  TANDEM_ASSIGN_OR_RETURN(const Load load, ReadLoad(options, *session));
  Limits limits;
  if (load.input_len > 0) limits.Measure(*session);
  session->engine->Start();
  TANDEM_ASSIGN_OR_RETURN(std::vector<Request> requests,
                          BenchRequests(*session, load.count, load.input_len, load.output_len));
  const bool windowed = load.window > Nanos(0);
  if (windowed) TANDEM_RETURN_IF_ERROR(MakeAges(*session, load, requests));
  const std::string machine = MachineLine(*session->backend);
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
  for (const bool use_draft : {false, true}) {
    if (use_draft && !session->engine->has_draft()) continue;
    TANDEM_ASSIGN_OR_RETURN(const Measured measured,
                            windowed ? MeasureWindow(*session, load, requests, use_draft)
                                     : MeasureAll(*session, load, requests, use_draft, console));
    const char* mode = use_draft ? "with_draft" : "plain";
    const std::string host = on_device ? fmt::format(", host time of a decode step {:.0f} us",
                                                     HostMicroseconds(measured.host))
                                       : "";
    console.Say(fmt::format("{:10}  {} at a time, {:.1f} s: {:.1f} output tok/s{}{}", mode,
                            load.slots, measured.seconds, measured.rate, beside, host));
    json[mode] = {{"output_tokens_per_s", measured.rate},
                  {"output_tokens", measured.output_tokens},
                  {"seconds", measured.seconds},
                  {"host_us_per_decode_step", HostMicroseconds(measured.host)},
                  {"host_us_p99", HostMicroseconds(measured.host, 0.99)},
                  {"acceptance", measured.acceptance}};
  }
  console.Result(json);
  return {};
}

}  // namespace tandem::apps
