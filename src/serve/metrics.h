// Metrics: the server's counters and their Prometheus text. Figures of the engines and of the
// process are read when the text is requested. Names of counters, and only those, end in _total.
// Owned by whoever starts the server; safe on any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "runtime/engine_stats.h"
#include "serve/text_request.h"

namespace tandem::serve {

struct MetricsOptions {
  std::string version = "unknown";  // of the program: the labels of tandem_build_info
  std::string commit = "unknown";
  // Free bytes of the device in use, called on any thread; without a value the gauge is absent.
  std::function<std::optional<int64_t>()> free_memory;
  // Most ranks that a model is split over, likewise; 0: the gauge is absent.
  std::function<int32_t()> ranks = {};
};

class Metrics {
 public:
  explicit Metrics(MetricsOptions options = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // A response was sent: its front end ("openai", "kserve", ...) and status.
  void CountResponse(std::string_view front_end, int status);
  // Latencies that clients see: submit to first token, token to token, submit to end.
  void ObserveFirstToken(Nanos wait);
  void ObserveInterToken(Nanos wait);
  void ObserveEndToEnd(Nanos wait);
  // A choice is complete.
  void CountFinished(TextFinish finish, const Usage& usage);
  // A request ended with an error, or because its client disconnected.
  void CountFailed(Code code);
  void CountCancelled();

  // The exposition format. The engines' figures are summed.
  std::string Text(std::span<const EngineStats> engines) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
