#include "runtime/engine_stats.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem {
namespace {

template <auto... kMembers, typename Figures>
void AddMembers(const Figures& from, Figures& to) {
  ((to.*kMembers += from.*kMembers), ...);
}

// block_tokens is no figure: it is the same everywhere.
void Add(const KvCacheStats& from, KvCacheStats& to) {
  using Kv = KvCacheStats;
  AddMembers<&Kv::total_blocks, &Kv::free_blocks, &Kv::cached_blocks, &Kv::referenced_blocks,
             &Kv::lookup_tokens, &Kv::hit_tokens, &Kv::evictions, &Kv::total_window_blocks,
             &Kv::referenced_window_blocks, &Kv::total_host_blocks, &Kv::used_host_blocks,
             &Kv::offloads, &Kv::onboards, &Kv::used_host_bytes, &Kv::offloaded_bytes,
             &Kv::onboarded_bytes>(from, to);
}

void Add(const EngineStats& from, EngineStats& to) {
  using Stats = EngineStats;
  AddMembers<&Stats::max_running, &Stats::running, &Stats::waiting, &Stats::paused, &Stats::memory,
             &Stats::steps, &Stats::decode_host, &Stats::requests_finished, &Stats::requests_failed,
             &Stats::preemptions, &Stats::prompt_tokens, &Stats::output_tokens,
             &Stats::draft_rounds, &Stats::drafts_proposed, &Stats::drafts_accepted>(from, to);
  AddMembers<&StepBounds::sequences, &StepBounds::tokens>(from.bounds, to.bounds);
  AddMembers<&StepWork::context_requests, &StepWork::context_tokens,
             &StepWork::generation_requests>(from.step, to.step);
  Add(from.kv, to.kv);
  to.seconds_since_progress = std::max(to.seconds_since_progress, from.seconds_since_progress);
}

}  // namespace

EngineStats TotalOf(std::span<const EngineStats> replicas) {
  EngineStats total = replicas.front();
  for (const EngineStats& other : replicas.subspan(1)) Add(other, total);
  total.failure = {};
  for (size_t i = replicas.size(); i-- > 0;) {
    const Status& failure = replicas[i].failure;
    if (!failure.ok()) total.failure = failure.Annotate(fmt::format("replica {}", i));
  }
  for (const EngineStats& one : replicas) total.replicas.push_back({one.running, one.waiting});
  return total;
}

}  // namespace tandem
