// Metrics: what the server counts, and its Prometheus text. Gauges of the engine are read from its
// statistics when the text is asked for. Owned by whoever starts the server; safe on any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "runtime/engine.h"
#include "serve/text_request.h"

namespace tandem::serve {

class Metrics {
 public:
  // `free_memory`: of the device that serves, in bytes, on any thread; left out, there is no such
  // gauge.
  explicit Metrics(std::function<int64_t()> free_memory = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // A response left: its front end ("openai", "kserve", ...) and status.
  void CountResponse(std::string_view front_end, int status);
  // Waits that clients see: submit to first token, token to token, submit to end.
  void ObserveFirstToken(Nanos wait);
  void ObserveInterToken(Nanos wait);
  void ObserveEndToEnd(Nanos wait);
  // A choice is complete.
  void CountFinished(TextFinish finish, const Usage& usage);
  void CountFailed(Code code);

  // The exposition format, the engine's figures included.
  std::string Text(const EngineStats& engine) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
