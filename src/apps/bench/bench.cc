// `tandem bench KIND`: measured figures compared with the machine's limits.
#include "apps/bench/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "apps/cli/verbs.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kLoad = "Load";

const BoundOptions<BenchOptions>& Rows() {
  static const BoundOptions<BenchOptions> rows({
      BindChoice<BenchOptions, &BenchOptions::run>(
          {.name = "kind",
           .meaning = "A few requests beside their limits, full batches, plain beside speculative "
                      "decoding, prompts cold and found in the cache (with --kv_host_cache_bytes "
                      "also in host memory), load on a running server, or each op alone",
           .group = "Arguments",
           .position = Position::kOptional},
          {{"latency", BenchLatency},
           {"throughput", BenchThroughput},
           {"speculative", BenchSpeculative},
           {"ttft", BenchTtft},
           {"serve", BenchServe},
           {"ops", BenchOps}}),
      BindOption<BenchOptions, &BenchOptions::quick>(
          {.name = "quick",
           .meaning = "A few seconds: one batch size, few requests",
           .group = kLoad}),
      BindOption<BenchOptions, &BenchOptions::batches>(
          {.name = "batch",
           .meaning = "Concurrent requests (latency, speculative)",
           .group = kLoad,
           .min = 1,
           .max = 4096}),
      BindOption<BenchOptions, &BenchOptions::input_lens>(
          {.name = "input_len",
           .meaning = "Prompt tokens, several for latency and ttft; 0: dictionary questions with "
                      "the embedded pair, else 512 (ttft: those of 512,1024,2048 that "
                      "fit)",
           .group = kLoad,
           .min = 0,
           .max = 1 << 24}),
      BindOption<BenchOptions, &BenchOptions::output_len>({.name = "output_len",
                                                           .meaning = "Output tokens of a request",
                                                           .group = kLoad,
                                                           .min = 2,
                                                           .max = 1 << 20}),
      BindOption<BenchOptions, &BenchOptions::acceptances>(
          {.name = "acceptances",
           .meaning = "Shares of tokens on which the dummy draft agrees (speculative)",
           .group = kLoad,
           .min = 0,
           .max = 1}),
      BindOption<BenchOptions, &BenchOptions::draft_lens>(
          {.name = "draft_lens",
           .meaning = "Draft lengths; 0: chosen by what pays (speculative)",
           .group = kLoad,
           .min = 0,
           .max = 64}),
      BindOption<BenchOptions, &BenchOptions::num_requests>(
          {.name = "num_requests",
           .meaning = "Requests of a measurement; 0: chosen by the batch",
           .group = kLoad,
           .min = 0,
           .max = 1 << 20}),
      BindOption<BenchOptions, &BenchOptions::runs>(
          {.name = "runs",
           .meaning = "Repetitions, each without and with the draft. Reported are the best rate of "
                      "each and the median speed-up, with its 95 % interval from 6 runs on "
                      "(latency); or each without and with a grammar, reported in medians "
                      "(throughput --grammar)",
           .group = kLoad,
           .min = 1,
           .max = 1000}),
      BindOption<BenchOptions, &BenchOptions::window>(
          {.name = "window",
           .meaning = "Seconds to measure with every slot taken by requests of all ages, after a "
                      "warm-up of an eighth of that; 0: all requests to their end (throughput)",
           .group = kLoad,
           .min = 0,
           .max = 3600}),
      BindOption<BenchOptions, &BenchOptions::cached_prompts>(
          {.name = "cached_prompts",
           .meaning = "Measure decoding alone: the prompts are found in the prefix cache (latency)",
           .group = kLoad}),
      BindOption<BenchOptions, &BenchOptions::grammar>(
          {.name = "grammar",
           .meaning = "Measure in turn without and with each request under a grammar: at every "
                      "other token three may follow, else any characters. Needs --dummy, and "
                      "--tokenizer_dir with a tokenizer that bench/tokenizer.py wrote (throughput)",
           .group = kLoad}),
      BindOption<BenchOptions, &BenchOptions::url>(
          {.name = "url", .meaning = "The server to load (serve)", .group = kLoad}),
      BindChoice<BenchOptions, &BenchOptions::endpoint>(
          {.name = "endpoint", .meaning = "Which API to load (serve)", .group = kLoad},
          {{"generate", BenchEndpoint::kGenerate},
           {"completions", BenchEndpoint::kCompletions},
           {"chat", BenchEndpoint::kChat}}),
      BindOption<BenchOptions, &BenchOptions::concurrency>(
          {.name = "concurrency",
           .meaning = "Requests open at a time, a closed loop (serve)",
           .group = kLoad,
           .min = 1,
           .max = 4096}),
      BindOption<BenchOptions, &BenchOptions::request_rate>(
          {.name = "request_rate",
           .meaning = "Requests sent per second whether or not earlier ones have ended, an open "
                      "loop; 0: a closed loop (serve)",
           .group = kLoad,
           .min = 0,
           .max = 1e6}),
      BindOption<BenchOptions, &BenchOptions::prompt>(
          {.name = "prompt", .meaning = "The prompt to send (serve)", .group = kLoad}),
      BindOption<BenchOptions, &BenchOptions::api_key>(
          {.name = "api_key", .meaning = "Bearer key of the server (serve)", .group = kLoad}),
  });
  return rows;
}

Status Run(const OptionValues& values, Console& console) {
  const BenchOptions options = Rows().Read(values);
  return options.run(options, values, console);
}

// A model with a prefix mask takes prompts that end with a mask and the token after it.
void EndWithMask(const PrefixSpec& prefix, std::vector<int32_t>& prompt) {
  if (prefix.start_id < 0) return;
  std::ranges::replace(prompt, prefix.start_id, 0);
  prompt.resize(std::max<size_t>(prompt.size(), 2));
  prompt[prompt.size() - 2] = prefix.mask_ids.front();
  prompt.back() = prefix.start_id;
}

}  // namespace

Result<std::vector<Request>> BenchRequests(const Session& session, size_t count, int32_t input_len,
                                           int32_t output_len, uint32_t seed) {
  if (session.embedded && input_len == 0) {
    return DictionaryQuestions(session, count);
  }
  if (input_len == 0) input_len = 512;
  std::mt19937 random(seed);
  // The first tokens are special where there are others.
  const auto last = static_cast<int32_t>(session.target.spec.vocab_size) - 1;
  std::uniform_int_distribution<int32_t> token(std::min(3, last), last);
  std::vector<Request> requests(count);
  for (Request& request : requests) {
    request.prompt.resize(static_cast<size_t>(input_len));
    for (int32_t& id : request.prompt) id = token(random);
    EndWithMask(session.target.spec.prefix, request.prompt);
    request.max_tokens = output_len;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
  }
  return requests;
}

void Limits::Measure(const Session& session) {
  read_bandwidth = std::max(read_bandwidth, session.backend->MeasureReadBandwidth());
  // Weights of integers are compared with products in the type of the activations.
  const bool fp8 =
      session.replicas.front().target_weights.weights->layers.front().attention.qkv.dtype ==
      DType::kF8E4M3;
  const DType dtype = fp8 ? DType::kF8E4M3 : session.target.spec.dtype;
  matrix_peak = std::max(matrix_peak, session.backend->MeasureMatrixPeak(dtype));
}

double StepBytes(const Weights& weights, int32_t rows) {
  auto bytes = static_cast<double>(weights.step_bytes);
  for (int64_t i = 0; i < weights.spec.num_layers(); ++i) {
    const MoeSpec& moe = weights.spec.layer(i).moe;
    if (moe.num_experts == 0) continue;
    const auto& experts = weights.layers[static_cast<size_t>(i)].moe.experts;
    int64_t one = 0;
    for (const ops::LinearWeight* weight : {&experts.in.front(), &experts.down.front()}) {
      one += weight->weight_bytes() + weight->factor_bytes();
    }
    const double all = moe.num_experts, chosen = moe.routing.experts_per_token;
    const double distinct = all * (1.0 - std::pow(1.0 - chosen / all, rows));
    bytes += (distinct - chosen) * static_cast<double>(one);
  }
  return bytes;
}

double Limits::StepSeconds(const Session& session, int32_t batch, int64_t context) const {
  const ModelSpec& spec = session.target.spec;
  const DType kv = session.options.engine.kv_cache_dtype.value_or(spec.dtype);
  const auto cache = static_cast<double>(batch * context * spec.KvBytesPerToken(kv));
  const SessionReplica& replica = session.replicas.front();
  double bytes = StepBytes(*replica.target_weights.weights, batch) + cache;
  // The stages compute one after the other, each with its first rank beside the others.
  const RankOptions& ranks = session.options.ranks;
  for (int32_t rank = ranks.target; rank < ranks.num_here(); rank += ranks.target) {
    bytes += StepBytes(*replica.other_ranks[static_cast<size_t>(rank - 1)].target.weights, batch);
  }
  const double operations = 2.0 * static_cast<double>(NumActiveParameters(spec)) * batch;
  return std::max(bytes / read_bandwidth, operations / matrix_peak);
}

// Two operations per weight and row, and the attention products; the head serves one row.
double Limits::PromptSeconds(const Session& session, int64_t tokens) const {
  const ModelSpec& spec = session.target.spec;
  const auto n = static_cast<double>(tokens);
  const double head = static_cast<double>(spec.vocab_size * spec.hidden_size);
  const double embedding = spec.tied_head ? 0.0 : head;
  const double layers = static_cast<double>(NumActiveParameters(spec)) - head - embedding;
  const double attention =
      2.0 * n * n *
      static_cast<double>(spec.num_layers() * spec.layers.front().attention.attended_columns());
  return (2.0 * (layers * n + head) + attention) / matrix_peak;
}

Result<LoadReport> RunRequests(Session& session, std::vector<Request>& requests, int concurrency,
                               bool use_draft, const std::function<void(size_t)>& done) {
  for (Request& request : requests) {
    request.max_draft_len = use_draft ? Request().max_draft_len : 0;
  }
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
          return Internal(fmt::format("request {}: {} came after token {}; the dummy's is {}", i,
                                      token, last, expected));
        }
        last = token;
      }
    }
  }
  return {};
}

Status RefuseReplicas(std::string_view kind, const OptionValues& values) {
  if (ReplicaOptionRows().Read(values).count == 1) return {};
  return InvalidArgument(fmt::format(
      "--data_parallel_size: bench {} measures one engine; leave the option out", kind));
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

std::string MachineLine(const Session& session) {
  std::string line = MachineLine(*session.backend);
  const size_t ranks = session.replicas.front().backends.size();
  const int32_t stages = session.options.ranks.stages;
  if (ranks > 1) line += fmt::format(", {} ranks", ranks);
  if (stages > 1) line += fmt::format(" in {} stages", stages);
  if (session.replicas.size() > 1) line += fmt::format(", {} replicas", session.replicas.size());
  return line;
}

Command BenchCommand() {
  return {.name = "bench",
          .summary = "Measure speed and compare it with the limits of the machine",
          .examples =
              "  tandem bench latency                       # the embedded pair\n"
              "  tandem bench latency --dummy bench/configs/llama-3.2-1b.json --batch 1\n"
              "  tandem bench throughput MODEL --input_len 128 --output_len 128\n"
              "  tandem bench serve --url http://127.0.0.1:8000 --concurrency 16\n",
          .options = Join({Rows().specs(), SessionOptionRows()}),
          .run = Run};
}

}  // namespace tandem::apps
