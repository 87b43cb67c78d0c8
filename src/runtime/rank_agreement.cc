#include "runtime/rank_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/checksum.h"

namespace tandem {
namespace {

Status SendValues(std::span<const int64_t> values, RankLink& link, RankMessage& message) {
  WireWriter(message).List(values);
  return link.Send(message);
}

Status ReceiveValues(RankLink& link, RankMessage& message, std::vector<int64_t>& values,
                     size_t count) {
  TANDEM_RETURN_IF_ERROR(link.Receive(message));
  WireReader reader(message);
  reader.List(values);
  if (reader.complete() && values.size() == count) return {};
  return FailedPrecondition(
      fmt::format("rank {} was started with another program or verb", link.peer()));
}

std::string DescribeModel(const ModelSpec& spec) {
  return fmt::format("{} {} {} {} {} {} {}", spec.family, spec.architecture, spec.vocab_size,
                     spec.hidden_size, static_cast<int>(spec.dtype), spec.max_positions,
                     spec.place.ranks);
}

}  // namespace

Status TakeLeast(std::span<int64_t> values, const RankProcesses& processes) {
  RankMessage message;
  std::vector<int64_t> others;
  if (!processes.leads()) {
    RankLink& leader = *processes.links.front();
    TANDEM_RETURN_IF_ERROR(SendValues(values, leader, message));
    TANDEM_RETURN_IF_ERROR(ReceiveValues(leader, message, others, values.size()));
    std::ranges::copy(others, values.begin());
    return {};
  }
  for (const auto& link : processes.links) {
    TANDEM_RETURN_IF_ERROR(ReceiveValues(*link, message, others, values.size()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::min(values[i], others[i]);
  }
  for (const auto& link : processes.links) {
    TANDEM_RETURN_IF_ERROR(SendValues(values, *link, message));
  }
  return {};
}

Status AgreeOnText(std::string_view text, std::string_view otherwise,
                   const RankProcesses& processes) {
  const auto hash = static_cast<int64_t>(Hash64(std::as_bytes(std::span(text)), 0) >> 1);
  // The least and, of the negative, the greatest: equal where all are.
  std::array<int64_t, 2> values = {hash, -hash};
  TANDEM_RETURN_IF_ERROR(TakeLeast(values, processes));
  return values[0] == -values[1] ? Status() : FailedPrecondition(std::string(otherwise));
}

Status AgreeOnPlan(const EnginePlan& plan, const ModelSpec& target, const ModelSpec* draft,
                   const RankProcesses& processes) {
  const EngineOptions& options = plan.options;
  const SchedulerLimits& limits = plan.limits;
  const auto kv = options.kv_cache_dtype;
  return AgreeOnText(
      fmt::format("{}|{}|{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", DescribeModel(target),
                  draft == nullptr ? "" : DescribeModel(*draft), options.max_batch_size,
                  options.max_num_tokens, options.max_seq_len, options.max_draft_len,
                  options.block_tokens, options.lookup_ngram, options.draft_forced,
                  options.ratio_acceptance, static_cast<int>(options.draft_mode),
                  static_cast<int>(options.executor), limits.max_launched, limits.max_logits_rows,
                  limits.max_sent_drafts, plan.memory.num_window_blocks, plan.memory.window_tokens,
                  kv ? static_cast<int>(*kv) : -1),
      "the processes of the model were started with other models or options: give all of them the "
      "same command line",
      processes);
}

}  // namespace tandem
