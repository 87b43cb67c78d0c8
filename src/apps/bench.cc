// `tandem bench KIND`: measured figures beside the limit of the machine.
#include "apps/bench.h"

#include <fmt/core.h>

#include <charconv>
#include <fstream>
#include <random>

#include "apps/verbs.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kLoad = "Load";

constexpr OptionSpec kKind[] = {
    {.name = "kind",
     .default_value = "latency",
     .meaning = "latency: a few requests, each figure beside its limit; throughput: full batches; "
                "serve: load on a running server; ops: each layer shape alone",
     .group = "Arguments",
     .choices = "latency|throughput|serve|ops"},
};

constexpr OptionSpec kOptions[] = {
    {.name = "quick",
     .type = OptionType::kFlag,
     .meaning = "A few seconds: one batch size, few requests",
     .group = kLoad},
    {.name = "batch",
     .default_value = "1,4,16,32",
     .meaning = "Concurrent requests, a comma-separated list (latency)",
     .group = kLoad},
    {.name = "input_len",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Prompt tokens; 0: dictionary questions with the embedded pair, else 512",
     .group = kLoad,
     .min = 0,
     .max = 1 << 20},
    {.name = "output_len",
     .type = OptionType::kInt,
     .default_value = "64",
     .meaning = "Output tokens of a request",
     .group = kLoad,
     .min = 2,
     .max = 1 << 20},
    {.name = "num_requests",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Requests of a measurement; 0: chosen by the batch",
     .group = kLoad,
     .min = 0,
     .max = 1 << 20},
    {.name = "runs",
     .type = OptionType::kInt,
     .default_value = "3",
     .meaning = "Repetitions, with and without the draft in turn; the best of each is told",
     .group = kLoad,
     .min = 1,
     .max = 100},
    {.name = "url",
     .default_value = "http://127.0.0.1:8000",
     .meaning = "The server to load (serve)",
     .group = kLoad},
    {.name = "endpoint",
     .default_value = "generate",
     .meaning = "Which API to load (serve)",
     .group = kLoad,
     .choices = "generate|completions|chat"},
    {.name = "concurrency",
     .type = OptionType::kInt,
     .default_value = "8",
     .meaning = "Requests open at a time, a closed loop (serve)",
     .group = kLoad,
     .min = 1,
     .max = 4096},
    {.name = "request_rate",
     .type = OptionType::kFloat,
     .default_value = "0",
     .meaning =
         "Requests a second whether or not earlier ones ended, an open loop; 0: closed (serve)",
     .group = kLoad,
     .min = 0,
     .max = 1e6},
    {.name = "prompt",
     .default_value = "What does \"tandem\" mean?",
     .meaning = "The prompt to send (serve)",
     .group = kLoad},
    {.name = "api_key", .meaning = "Bearer key of the server (serve)", .group = kLoad},
};

Status Run(const OptionValues& options, Console& console) {
  const std::string& kind = options.Text("kind");
  if (kind == "throughput") return BenchThroughput(options, console);
  if (kind == "serve") return BenchServe(options, console);
  if (kind == "ops") return BenchOps(options, console);
  return BenchLatency(options, console);
}

}  // namespace

Result<std::vector<int32_t>> ParseNumberList(std::string_view text, std::string_view where) {
  std::vector<int32_t> numbers;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    int32_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc{} || end != word.data() + word.size() || number < 1) {
      return InvalidArgument(fmt::format("{}: '{}' is not a positive number", where, word));
    }
    numbers.push_back(number);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  if (numbers.empty()) return InvalidArgument(fmt::format("{}: names no number", where));
  return numbers;
}

Result<std::vector<Request>> BenchRequests(const Session& session, size_t count, int32_t input_len,
                                           int32_t output_len) {
  if (session.embedded && input_len == 0) {
    return DictionaryQuestions(session, count);
  }
  if (input_len == 0) input_len = 512;
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> token(
      3, static_cast<int32_t>(session.target.spec.vocab_size) - 1);
  std::vector<Request> requests(count);
  for (Request& request : requests) {
    request.prompt.resize(static_cast<size_t>(input_len));
    for (int32_t& id : request.prompt) id = token(random);
    request.max_tokens = output_len;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
  }
  return requests;
}

Result<LoadReport> RunRequests(Session& session, std::vector<Request>& requests, int concurrency,
                               bool use_draft, const std::function<void(size_t)>& done) {
  for (Request& request : requests) request.use_draft = use_draft;
  TANDEM_ASSIGN_OR_RETURN(LoadReport report, RunClosedLoop(*session.engine, session.clock, requests,
                                                           concurrency, done));
  if (!session.target.map) return report;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const std::vector<int32_t>& output : report.records[i].choices) {
      int32_t last = requests[i].prompt.back();
      for (const int32_t token : output) {
        const int32_t expected = session.target.map->Expected(last);
        if (token != expected) {
          return Internal(fmt::format("request {}: behind token {} came {}; the dummy's is {}", i,
                                      last, token, expected));
        }
        last = token;
      }
    }
  }
  return report;
}

std::string MachineLine(const ops::Backend& backend) {
  std::ifstream info("/proc/cpuinfo");
  std::string name = "unknown CPU";
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      name = line.substr(line.find(':') + 2);
      break;
    }
  }
  return fmt::format("{}, {}", name, backend.Describe());
}

Command BenchCommand() {
  std::vector<Positional> positionals = {{.name = "kind"}};
  for (const Positional& model : SessionPositionals()) positionals.push_back(model);
  return {.name = "bench",
          .summary = "Measure speed beside the limit of the machine",
          .examples =
              "  tandem bench latency                       # the embedded pair\n"
              "  tandem bench latency --dummy bench/configs/llama-3.2-1b.json --batch 1\n"
              "  tandem bench throughput MODEL --input_len 128 --output_len 128\n"
              "  tandem bench serve --url http://127.0.0.1:8000 --concurrency 16\n",
          .positionals = positionals,
          .options = Join({kKind, SessionOptionRows(), kOptions}),
          .run = Run};
}

}  // namespace tandem::apps
