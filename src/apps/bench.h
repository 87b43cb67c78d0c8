// The kinds of `tandem bench`, one file each; bench.cc chooses among them. Main thread.
#pragma once

#include <span>
#include <vector>

#include "apps/command.h"
#include "apps/load.h"
#include "apps/session.h"

namespace tandem::apps {

Status BenchLatency(const OptionValues& options, Console& console);
Status BenchThroughput(const OptionValues& options, Console& console);
Status BenchSpeculative(const OptionValues& options, Console& console);
Status BenchTtft(const OptionValues& options, Console& console);
Status BenchServe(const OptionValues& options, Console& console);
Status BenchOps(const OptionValues& options, Console& console);

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

// `count` questions of the embedded pair's key; UNIMPLEMENTED in a build without tokenizers.
Result<std::vector<Request>> DictionaryQuestions(const Session& session, size_t count);

// The numbers of a comma-separated option, none less than `least`: "1,8,32".
Result<std::vector<int32_t>> ParseNumberList(std::string_view text, std::string_view where,
                                             int32_t least = 1);
// "0.6,0.85"
Result<std::vector<double>> ParseShareList(std::string_view text, std::string_view where);

// "AMD EPYC, cpu avx2, 2 threads": named beside every figure.
std::string MachineLine(const ops::Backend& backend);

// Microseconds that `share` of the steps kept the host busy at most: beside a GPU's work alone,
// on a CPU the work is in it.
inline double HostMicroseconds(const HostTimes& times, double share = 0.5) {
  return 1e6 * times.Percentile(share);
}

}  // namespace tandem::apps
