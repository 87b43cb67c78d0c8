// Replicas: engines of the same models behind one door, or one engine alone. To its callers it is
// an Engine (runtime/engine.h), with the same promises and threads: requests have one series of
// ids, events come out of one queue, figures are those of all. The replicas never wait for one
// another.
//
// A request goes to one replica, as routing/prefix_router.h chooses. One that the replica refuses
// because it is full or has failed goes to the next; only when all refuse is it refused. When a
// replica fails its open requests end with an error, and Stats().failure says so, while the others
// go on: whoever supervises the process restarts it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/engine.h"

namespace tandem {

class EventQueue;    // event_queue.h
class PrefixRouter;  // routing/prefix_router.h

// Where a replica computes: its ranks, and the turns that its engine takes there (as
// Engine::Create).
struct ReplicaPlace {
  std::vector<EngineRank> ranks;
  std::shared_ptr<Turns> turns;
};

class Replicas {
 public:
  // As Engine::Create, a replica at each of the places, one after the other. All have the same
  // plan: options and limits are those of each replica. One that is alone may lead `processes`.
  static Result<std::unique_ptr<Replicas>> Create(const EngineOptions& asked,
                                                  const std::vector<ReplicaPlace>& places,
                                                  const Clock& clock,
                                                  const RankProcesses* processes = nullptr);
  // Of engines that the caller made alike, at least one; several put their events into `events`.
  Replicas(std::vector<std::unique_ptr<Engine>> engines, std::shared_ptr<EventQueue> events);
  ~Replicas();

  // As Engine's.
  Result<RequestId> Submit(Request request);
  void Cancel(RequestId request, int32_t choice = kAllChoices);
  bool PopEvent(Event& event, Nanos timeout);
  void Start();
  EngineStats Stats() const;
  // Of all replicas in turn; each event names its replica, whose numbers count by themselves.
  Result<KvEventBatch> TakeKvEvents(size_t most);
  const std::vector<MemoryLine>& memory_plan() const;  // of each replica
  const EngineOptions& options() const;                // of each replica
  EngineLimits limits() const;                         // of a request, but max_queue_size of all
  bool has_draft() const;

  int32_t size() const { return static_cast<int32_t>(engines_.size()); }

 private:
  Result<RequestId> SubmitRouted(Request& request);

  const std::vector<std::unique_ptr<Engine>> engines_;
  const std::shared_ptr<EventQueue> events_;  // of several engines
  std::unique_ptr<PrefixRouter> router_;      // null: one engine alone
  std::atomic<RequestId> last_id_{0};
  std::atomic<size_t> first_asked_{0};  // for events of the cache
};

}  // namespace tandem
