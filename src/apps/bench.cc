// `tandem bench KIND`: measured figures compared with the machine's limits.
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
                "speculative: plain beside speculative by batch, acceptance and draft length; "
                "ttft: prompts, cold and found in the cache; serve: load on a running server; "
                "ops: each op alone",
     .group = "Arguments",
     .choices = "latency|throughput|speculative|ttft|serve|ops"},
};

constexpr OptionSpec kOptions[] = {
    {.name = "quick",
     .type = OptionType::kFlag,
     .meaning = "A few seconds: one batch size, few requests",
     .group = kLoad},
    {.name = "batch",
     .default_value = "1,4,16,32",
     .meaning = "Concurrent requests, a comma-separated list (latency, speculative)",
     .group = kLoad},
    {.name = "input_len",
     .default_value = "0",
     .meaning = "Prompt tokens, for latency and ttft a comma-separated list; 0: dictionary "
                "questions with the embedded pair, else 512",
     .group = kLoad},
    {.name = "output_len",
     .type = OptionType::kInt,
     .default_value = "64",
     .meaning = "Output tokens of a request",
     .group = kLoad,
     .min = 2,
     .max = 1 << 20},
    {.name = "acceptances",
     .default_value = "0.85",
     .meaning = "Shares of tokens on which the dummy draft agrees, a comma-separated list "
                "(speculative)",
     .group = kLoad},
    {.name = "draft_lens",
     .default_value = "0",
     .meaning = "Draft lengths, a comma-separated list; 0: chosen by what pays (speculative)",
     .group = kLoad},
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
     .meaning = "Repetitions, with and without the draft in turn; told are the best of each and "
                "the median speed-up of a turn, from six on with its 95 % interval (latency)",
     .group = kLoad,
     .min = 1,
     .max = 1000},
    {.name = "window",
     .type = OptionType::kFloat,
     .default_value = "0",
     .meaning =
         "Seconds to measure once every slot is taken and an eighth as long has passed, by "
         "requests of all ages, the rest left out; 0: all requests to their end (throughput)",
     .group = kLoad,
     .min = 0,
     .max = 3600},
    {.name = "cached_prompts",
     .type = OptionType::kFlag,
     .meaning = "Measure decoding with the prompts found in the prefix cache, so that no prompt is "
                "computed beside it (latency)",
     .group = kLoad},
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
  if (kind == "speculative") return BenchSpeculative(options, console);
  if (kind == "ttft") return BenchTtft(options, console);
  if (kind == "serve") return BenchServe(options, console);
  if (kind == "ops") return BenchOps(options, console);
  return BenchLatency(options, console);
}

}  // namespace

namespace {

template <typename Number>
Result<std::vector<Number>> ParseList(std::string_view text, std::string_view where, Number least) {
  std::vector<Number> numbers;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    Number number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc{} || end != word.data() + word.size() || !(number >= least)) {
      return InvalidArgument(
          fmt::format("{}: '{}' is not a number of at least {}", where, word, least));
    }
    numbers.push_back(number);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  if (numbers.empty()) return InvalidArgument(fmt::format("{}: names no number", where));
  return numbers;
}

}  // namespace

Result<std::vector<int32_t>> ParseNumberList(std::string_view text, std::string_view where,
                                             int32_t least) {
  return ParseList<int32_t>(text, where, least);
}

Result<std::vector<double>> ParseShareList(std::string_view text, std::string_view where) {
  return ParseList<double>(text, where, 0.0);
}

Result<std::vector<Request>> BenchRequests(const Session& session, size_t count, int32_t input_len,
                                           int32_t output_len, uint32_t seed) {
  if (session.embedded && input_len == 0) {
    return DictionaryQuestions(session, count);
  }
  if (input_len == 0) input_len = 512;
  std::mt19937 random(seed);
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

void Limits::Measure(const Session& session) {
  read_bandwidth = std::max(read_bandwidth, session.backend->MeasureReadBandwidth());
  const DType dtype = session.target_weights.weights->layers.front().mlp.down.dtype;
  matrix_peak = std::max(matrix_peak, session.backend->MeasureMatrixPeak(dtype));
}

double Limits::StepSeconds(const Session& session, int32_t batch, int64_t context) const {
  const ModelSpec& spec = session.target.spec;
  const DType kv = session.engine_options.kv_cache_dtype.value_or(spec.dtype);
  const int64_t cache = batch * context * spec.KvBytesPerToken(kv);
  const double bytes =
      static_cast<double>(session.target_weights.weights->step_bytes + cache) / read_bandwidth;
  const double operations = 2.0 * static_cast<double>(NumParameters(spec)) * batch / matrix_peak;
  return std::max(bytes, operations);
}

// Two operations per weight and row, and the attention products; the head serves one row.
double Limits::PromptSeconds(const Session& session, int64_t tokens) const {
  const ModelSpec& spec = session.target.spec;
  const auto n = static_cast<double>(tokens);
  const double head = static_cast<double>(spec.vocab_size * spec.hidden_size);
  const double embedding = spec.tied_head ? 0.0 : head;
  const double layers = static_cast<double>(NumParameters(spec)) - head - embedding;
  const double attention =
      2.0 * n * n *
      static_cast<double>(spec.num_layers() * spec.layers.front().attention.query_rows());
  return (2.0 * (layers * n + head) + attention) / matrix_peak;
}

Result<LoadReport> RunRequests(Session& session, std::vector<Request>& requests, int concurrency,
                               bool use_draft, const std::function<void(size_t)>& done) {
  for (Request& request : requests) request.use_draft = use_draft;
  TANDEM_ASSIGN_OR_RETURN(LoadReport report, RunClosedLoop(*session.engine, session.clock, requests,
                                                           concurrency, done));
  TANDEM_RETURN_IF_ERROR(CheckDummyTokens(session, requests, report));
  return report;
}

Status CheckDummyTokens(const Session& session, std::span<const Request> requests,
                        const LoadReport& report) {
  if (!session.target.map) return {};
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
  return {};
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
