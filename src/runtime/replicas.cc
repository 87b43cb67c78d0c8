#include "runtime/replicas.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/check.h"
#include "runtime/engine_factory.h"
#include "runtime/event_queue.h"
#include "runtime/request/validate_request.h"
#include "runtime/routing/prefix_router.h"

namespace tandem {
namespace {

// What a replica's cache holds on the device and on the host.
int64_t CacheBlocks(const Engine& engine) {
  const KvCacheStats cache = engine.Stats().kv;
  return engine.options().enable_prefix_reuse
             ? int64_t{cache.total_blocks} + cache.total_host_blocks
             : 0;
}

// Another replica may take a request that this one has refused.
bool IsOfReplica(Code refusal) {
  return refusal == Code::kResourceExhausted || refusal == Code::kUnavailable;
}

bool SharesWeights(const EngineRank& one, const EngineRank& other) {
  return one.target.weights == other.target.weights;
}

// Bytes of the weights that a replica shares with the first.
int64_t SharedBytes(const ReplicaPlace& place, const ReplicaPlace& first) {
  int64_t bytes = 0;
  for (size_t rank = 0; rank < place.ranks.size(); ++rank) {
    const EngineRank& own = place.ranks[rank];
    if (!SharesWeights(own, first.ranks[rank])) continue;
    bytes += own.target.weights->bytes;
    if (own.draft.weights != nullptr) bytes += own.draft.weights->bytes;
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Replicas>> Replicas::Create(const EngineOptions& asked,
                                                   const std::vector<ReplicaPlace>& places,
                                                   const Clock& clock,
                                                   const RankProcesses* processes) {
  TANDEM_CHECK(processes == nullptr || places.size() == 1, "replicas that lead processes");
  const RankProcesses others = processes == nullptr ? RankProcesses() : *processes;
  std::vector<EngineRank> ranks;
  for (const ReplicaPlace& place : places)
    std::ranges::copy(place.ranks, std::back_inserter(ranks));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<EnginePlan> plans,
                          PlanEngineRanks(asked, ranks, others));
  const bool shares_weights =
      SharesWeights(places.back().ranks.front(), places.front().ranks.front());
  auto events = std::make_shared<EventQueue>(0);
  std::vector<std::unique_ptr<Engine>> engines;
  std::span<const EnginePlan> left = plans;
  for (const ReplicaPlace& place : places) {
    TANDEM_ASSIGN_OR_RETURN(
        EngineParts parts,
        MakeEngineParts(left.first(place.ranks.size()), place.ranks, clock, place.turns, others));
    left = left.subspan(place.ranks.size());
    NoteReplicas(std::ssize(places), shares_weights, parts.memory_plan);
    if (!engines.empty()) parts.memory.cpu -= SharedBytes(place, places.front());
    parts.events = events;
    engines.push_back(Engine::FromParts(std::move(parts), clock));
  }
  EnterDevice(ranks.front());
  return std::make_unique<Replicas>(std::move(engines), std::move(events));
}

Replicas::Replicas(std::vector<std::unique_ptr<Engine>> engines, std::shared_ptr<EventQueue> events)
    : engines_(std::move(engines)), events_(std::move(events)) {
  TANDEM_CHECK(!engines_.empty(), "at least one replica");
  if (engines_.size() == 1) return;
  const Engine& first = *engines_.front();
  router_ = std::make_unique<PrefixRouter>(engines_.size(), first.options().block_tokens,
                                           CacheBlocks(first));
}

Replicas::~Replicas() = default;

Result<RequestId> Replicas::Submit(Request request) {
  return router_ == nullptr ? engines_.front()->TrySubmit(request) : SubmitRouted(request);
}

Result<RequestId> Replicas::SubmitRouted(Request& request) {
  const RequestId id = ++last_id_;
  const PrefixHashes hashes = router_->HashesOf(request);
  std::vector<bool> refused(engines_.size());
  Status why;  // of the replica that was chosen first
  while (const auto replica = router_->Route(id, request, hashes, refused)) {
    const Result<RequestId> taken = engines_[*replica]->TrySubmit(request, id);
    if (taken.ok()) {
      router_->Accept(*replica, hashes);
      return id;
    }
    router_->Refuse(id);
    refused[*replica] = true;
    if (why.ok()) why = taken.status();
    if (!IsOfReplica(taken.status().code())) return taken.status();
  }
  return why;
}

void Replicas::Cancel(RequestId request, int32_t choice) {
  if (router_ == nullptr) return engines_.front()->Cancel(request, choice);
  if (const auto replica = router_->ReplicaOf(request)) engines_[*replica]->Cancel(request, choice);
}

bool Replicas::PopEvent(Event& event, Nanos timeout) {
  if (router_ == nullptr) return engines_.front()->PopEvent(event, timeout);
  if (!events_->Pop(event, timeout)) return false;
  router_->Note(event);
  return true;
}

void Replicas::Start() {
  for (const auto& engine : engines_) engine->Start();
}

EngineStats Replicas::Stats() const {
  if (router_ == nullptr) return engines_.front()->Stats();
  std::vector<EngineStats> stats;
  for (const auto& engine : engines_) stats.push_back(engine->Stats());
  return TotalOf(stats);
}

Result<KvEventBatch> Replicas::TakeKvEvents(size_t most) {
  if (router_ == nullptr) return engines_.front()->TakeKvEvents(most);
  KvEventBatch all;
  // Another one is asked first each time, so that a busy one never hides the others.
  const size_t first = first_asked_++;
  for (size_t i = 0; i < engines_.size(); ++i) {
    const size_t replica = (first + i) % engines_.size();
    TANDEM_ASSIGN_OR_RETURN(KvEventBatch own,
                            engines_[replica]->TakeKvEvents(most - all.events.size()));
    for (KvEvent& event : own.events) event.replica = static_cast<int32_t>(replica);
    std::ranges::move(own.events, std::back_inserter(all.events));
    all.lost += own.lost;
  }
  return all;
}

const std::vector<MemoryLine>& Replicas::memory_plan() const {
  return engines_.front()->memory_plan();
}

const EngineOptions& Replicas::options() const { return engines_.front()->options(); }

EngineLimits Replicas::limits() const {
  EngineLimits limits = engines_.front()->limits();
  limits.max_queue_size *= size();
  return limits;
}

bool Replicas::has_draft() const { return engines_.front()->has_draft(); }

}  // namespace tandem
