// Engine: the one loop. Requests and cancellations come in from any thread; events go out through
// one bounded queue, in which the tokens of a sequence coalesce when the reader is slow, so that
// the loop never blocks. A request can fail alone; nothing a client sends ends the loop. When the
// device fails, every open request ends with kFailed and UNAVAILABLE, and new ones are refused.
//
//   Admit -> Plan -> Propose -> Run -> Sample -> Commit -> Emit
//
// Step() is public so that a test can drive the loop without a thread; Start() runs it on its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "runtime/cache/kv_events.h"
#include "runtime/engine_stats.h"
#include "runtime/request/request.h"

namespace tandem {

namespace ops {
class Backend;
}
class Communicator;  // comm/communicator.h
class Turns;         // base/turns.h
struct Weights;
struct EngineLimits;   // request/validate_request.h
struct EngineOptions;  // engine_options.h
struct MemoryLine;     // memory_planner.h
struct RankProcesses;  // rank_agreement.h

struct EngineModel {
  std::shared_ptr<const Weights> weights;
  std::string name;
};

// One rank of an engine: where it computes, and its part of the models. A draft may be split over
// the ranks of each stage, or be whole on each rank: all that have the same of it draft the same.
struct EngineRank {
  ops::Backend* backend = nullptr;
  std::shared_ptr<Communicator> ranks;  // null: the engine has no other rank
  EngineModel target;
  EngineModel draft;  // may hold no weights
};

struct EngineParts;  // engine_parts.h

class Engine {
 public:
  // Backends, each its rank's own, and the clock outlive the engine. FAILED_PRECONDITION when the
  // models do not fit in memory, with bytes needed and free and the option that helps;
  // RESOURCE_EXHAUSTED, with the same content, when they should fit but the allocation fails;
  // UNAVAILABLE when the device has failed. Engines that share a device take `turns`, a step each;
  // so does this function, and the caller holds none, nor while it destroys an engine. Null: the
  // device is the engine's. Limits of memory in `asked` are those of each rank. `ranks` are those
  // of this process, which leads those of other `processes` (null: there are none): each of them
  // calls FollowEngine.
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& asked,
                                                const std::vector<EngineRank>& ranks,
                                                const Clock& clock,
                                                const std::shared_ptr<Turns>& turns = nullptr,
                                                const RankProcesses* processes = nullptr);
  // As above with one rank. `draft` may hold no weights.
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& asked,
                                                const EngineModel& target, const EngineModel& draft,
                                                ops::Backend& backend, const Clock& clock,
                                                const std::shared_ptr<Turns>& turns = nullptr);
  // As Create, from parts made by the caller (tests, tools).
  static std::unique_ptr<Engine> FromParts(EngineParts parts, const Clock& clock);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread. INVALID_ARGUMENT names the field; RESOURCE_EXHAUSTED when the queue is full
  // ("Maximum queue size of N has been reached, please try again later"); UNAVAILABLE when
  // draining, and when the engine has failed.
  Result<RequestId> Submit(Request request);
  // The same; a request that is refused is left as it was. `id`: the caller's, which no other
  // request has whose events go to the same queue; without it the engine counts.
  Result<RequestId> TrySubmit(Request& request, std::optional<RequestId> id = {});
  // Any thread; ends one choice of a request or all of them. Unknown or finished ones are ignored.
  // The last event of each follows within two steps.
  void Cancel(RequestId request, int32_t choice = kAllChoices);

  // The next event, waiting up to `timeout`; false when there is none. One reader thread.
  bool PopEvent(Event& event, Nanos timeout);

  void Start();  // runs the loop on a thread
  // Refuses new requests. True if every request ended within `timeout`; requests still open then
  // are cancelled.
  bool Drain(Nanos timeout);
  void Stop();  // ends the loop; open requests get kCancelled

  // One turn of the loop; false when there was nothing to do. Not while Start()ed.
  bool Step();

  EngineStats Stats() const;  // any thread
  // Takes at most `most` of the oldest events of the cache that nobody took. Any thread.
  // FAILED_PRECONDITION names the option that keeps events.
  Result<KvEventBatch> TakeKvEvents(size_t most);
  const std::vector<MemoryLine>& memory_plan() const;
  // The effective options, including the planned values.
  const EngineOptions& options() const;
  const EngineLimits& limits() const;
  bool has_draft() const;
  // Aborts when the KV cache's counts are inconsistent. Not while Start()ed.
  void CheckIntegrity() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The part of a process whose ranks follow: makes their executors, of the same options, and runs
// what the process that leads sends, until that ends the engine. Errors are those of Create,
// FAILED_PRECONDITION when the processes were started with other models or options, and UNAVAILABLE
// when the process that leads has left.
Status FollowEngine(const EngineOptions& asked, const std::vector<EngineRank>& ranks,
                    const Clock& clock, const RankProcesses& processes);

}  // namespace tandem
