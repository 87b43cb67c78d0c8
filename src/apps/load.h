// Drives an engine with a list of requests at a fixed concurrency and records what came back: the
// closed loop behind `bench` and `eval`. Called from one thread; the engine runs on its own.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "runtime/engine.h"
#include "runtime/engine_options.h"

namespace tandem::apps {

// One request, served.
struct LoadRecord {
  std::vector<std::vector<int32_t>> choices;  // output tokens of each choice
  FinishReason finish = FinishReason::kNone;  // of the last choice to end
  Usage usage;                                // of the last choice to end
  Nanos first_token{0};                       // submit to first token
  Nanos end{0};                               // submit to last token

  int64_t OutputTokens() const;
  // Tokens a second after the first one; 0 with fewer than two tokens.
  double DecodeRate() const;
};

struct LoadReport {
  std::vector<LoadRecord> records;  // in the order of the requests
  Nanos wall{0};

  int64_t OutputTokens() const;
  double OutputRate() const;  // output tokens a second of wall time
  // What `concurrency` clients see together: their mean decode rate times their number.
  double DecodeRate(int concurrency) const;
  Nanos MeanFirstToken() const;
  int64_t DraftsProposed() const;
  int64_t DraftsAccepted() const;
  // Share of proposed drafts that were accepted; 0 when none was proposed.
  double Acceptance() const;
};

// What an engine did in a stretch of time with `concurrency` requests open all along.
struct WindowReport {
  LoadReport load;  // all requests that were sent, those behind the window cancelled
  Nanos wall{0};    // of the window
  EngineStats before;
  EngineStats after;

  double OutputRate() const;  // output tokens a second of the window
};

// Room in the queue for all that a closed loop has open: it submits them between two steps.
void QueueForAll(EngineOptions& options);

// `done` hears of every finished request. A request that the engine refuses or fails ends the run
// with its error; the rest is cancelled.
Result<LoadReport> RunClosedLoop(Engine& engine, const Clock& clock,
                                 std::span<const Request> requests, int concurrency,
                                 const std::function<void(size_t finished)>& done = {});

// The same, but only from when the first `concurrency` requests have all begun, for `window`;
// what is open then is cancelled. FAILED_PRECONDITION when the requests do not last so long.
Result<WindowReport> RunWindow(Engine& engine, const Clock& clock,
                               std::span<const Request> requests, int concurrency, Nanos window);

}  // namespace tandem::apps
