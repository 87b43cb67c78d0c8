// The kinds of `tandem bench`, one file each; bench.cc chooses among them. Main thread.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "apps/bench/load.h"
#include "apps/cli/command.h"
#include "apps/models/session.h"

namespace tandem::apps {

struct BenchOptions;

// `values` make the session.
Status BenchLatency(const BenchOptions& options, const OptionValues& values, Console& console);
Status BenchThroughput(const BenchOptions& options, const OptionValues& values, Console& console);
Status BenchSpeculative(const BenchOptions& options, const OptionValues& values, Console& console);
Status BenchTtft(const BenchOptions& options, const OptionValues& values, Console& console);
Status BenchServe(const BenchOptions& options, const OptionValues& values, Console& console);
Status BenchOps(const BenchOptions& options, const OptionValues& values, Console& console);

enum class BenchEndpoint : uint8_t { kGenerate, kCompletions, kChat };

// The load; which kind of benchmark reads what is in the table (bench.cc).
struct BenchOptions {
  Status (*run)(const BenchOptions& options, const OptionValues& values,
                Console& console) = BenchLatency;
  bool quick = false;
  std::vector<int32_t> batches = {1, 4, 16, 32};
  std::vector<int32_t> input_lens = {0};
  int32_t output_len = 64;
  std::vector<double> acceptances = {0.85};
  std::vector<int32_t> draft_lens = {0};
  size_t num_requests = 0;
  int32_t runs = 3;
  Nanos window{0};
  bool cached_prompts = false;
  bool grammar = false;
  std::string url = "http://127.0.0.1:8000";
  BenchEndpoint endpoint = BenchEndpoint::kGenerate;
  int concurrency = 8;
  double request_rate = 0;
  std::string prompt = "What does \"tandem\" mean?";
  std::string api_key;
};

// Bytes of weights that a decode step of `rows` rows reads, on average: rows choose their experts
// independently of each other, and each expert is read once.
double StepBytes(const Weights& weights, int32_t rows);

// The machine's limits: the best of all measurements so far.
struct Limits {
  double read_bandwidth = 0;  // bytes per second
  double matrix_peak = 0;     // operations per second

  void Measure(const Session& session);
  // Lower bound of a decode step's time in seconds: `batch` sequences of `context` tokens.
  double StepSeconds(const Session& session, int32_t batch, int64_t context) const;
  // Lower bound of a prompt's time in seconds.
  double PromptSeconds(const Session& session, int64_t tokens) const;
};

// `count` requests: dictionary questions when the session runs the embedded pair and no input
// length is asked for (they end by themselves), else `input_len` random tokens each with exactly
// `output_len` tokens of output. Another seed gives other requests.
Result<std::vector<Request>> BenchRequests(const Session& session, size_t count, int32_t input_len,
                                           int32_t output_len, uint32_t seed = 1);

// Runs the requests, `concurrency` at a time; `use_draft` says whether they may draft. Checks a
// dummy's tokens.
Result<LoadReport> RunRequests(Session& session, std::vector<Request>& requests, int concurrency,
                               bool use_draft,
                               const std::function<void(size_t finished)>& done = {});

// Checks that a dummy model gave the expected tokens: INTERNAL names the first wrong one. With real
// weights there is nothing to check.
Status CheckDummyTokens(const Session& session, std::span<const Request> requests,
                        const LoadReport& report);

// A grammar for each request of a dummy model: it admits the expected tokens, and branches.
// INVALID_ARGUMENT without a dummy, or with a tokenizer whose tokens are not printable ASCII;
// UNIMPLEMENTED in a build without grammars.
Result<std::vector<std::shared_ptr<const TokenConstraint>>> DummyGrammars(
    const Session& session, std::span<const Request> requests);

// `count` questions of the embedded pair's key; UNIMPLEMENTED in a build without tokenizers.
Result<std::vector<Request>> DictionaryQuestions(const Session& session, size_t count);

// INVALID_ARGUMENT from a benchmark that measures one engine, when there would be replicas of it.
Status RefuseReplicas(std::string_view kind, const OptionValues& values);

// "AMD EPYC, cpu avx2, 2 threads": printed with every figure.
std::string MachineLine(const ops::Backend& backend);
// The same of a session, with its numbers of ranks and replicas.
std::string MachineLine(const Session& session);

// The host time in microseconds that `share` of the steps did not exceed. With a GPU this excludes
// the device's work; on a CPU it includes the model's work.
inline double HostMicroseconds(const HostTimes& times, double share = 0.5) {
  return 1e6 * times.Percentile(share);
}

}  // namespace tandem::apps
