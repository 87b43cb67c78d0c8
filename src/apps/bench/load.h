// Drives an engine with a list of requests at a fixed concurrency and records the results: the
// closed loop of `bench` and `eval`. Called from one thread; the engine runs on its own.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "runtime/engine_options.h"
#include "runtime/replicas.h"

namespace tandem::apps {

// One finished request.
struct LoadRecord {
  std::vector<std::vector<int32_t>> choices;  // output tokens of each choice
  FinishReason finish = FinishReason::kNone;  // of the last choice to end
  Usage usage;                                // of the last choice to end
  Nanos first_token{0};                       // submit to first token
  Nanos end{0};                               // submit to last token

  int64_t OutputTokens() const;
  // Tokens per second after the first token; 0 with fewer than two tokens.
  double DecodeRate() const;
};

struct LoadReport {
  std::vector<LoadRecord> records;  // in the order of the requests
  Nanos wall{0};

  int64_t OutputTokens() const;
  double OutputRate() const;  // output tokens per second of wall time
  // Decode rate of `concurrency` clients together: their mean rate times their number.
  double DecodeRate(int concurrency) const;
  Nanos MeanFirstToken() const;
  int64_t DraftsProposed() const;
  int64_t DraftsAccepted() const;
  // Share of proposed drafts that were accepted; 0 when none was proposed.
  double Acceptance() const;
  double DraftsPerToken() const;  // proposed drafts by output tokens
};

// The engine's work during a window of time in which `concurrency` requests were open throughout.
struct WindowReport {
  LoadReport load;  // all requests that were sent; those still open after the window were cancelled
  Nanos wall{0};    // of the window
  EngineStats before;
  EngineStats after;

  double OutputRate() const;  // output tokens per second of the window
};

// Sets the queue size that a closed loop needs: it may submit all its open requests between two
// steps.
void QueueForAll(EngineOptions& options);

// `done` is called for every finished request. A request that the engine refuses or fails ends the
// run with its error; the rest is cancelled.
Result<LoadReport> RunClosedLoop(Replicas& engine, const Clock& clock,
                                 std::span<const Request> requests, int concurrency,
                                 const std::function<void(size_t finished)>& done = {});

// The same for a window of time that begins when the first `concurrency` requests have all begun;
// requests open at its end are cancelled. FAILED_PRECONDITION when the requests run out before its
// end.
Result<WindowReport> RunWindow(Replicas& engine, const Clock& clock,
                               std::span<const Request> requests, int concurrency, Nanos window);

}  // namespace tandem::apps
