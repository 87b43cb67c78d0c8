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

// Whose negative is a value too.
int64_t HashOf(std::string_view text) {
  return static_cast<int64_t>(Hash64(std::as_bytes(std::span(text)), 0) >> 1);
}

std::string DescribeModel(const ModelSpec& spec) {
  const RankPlace& place = spec.place;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {}", spec.family, spec.architecture,
                     spec.vocab_size, spec.hidden_size, static_cast<int>(spec.dtype),
                     spec.max_positions, place.ranks, place.stages, place.apart, place.first,
                     place.whole_experts);
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
  const int64_t hash = HashOf(text);
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
  struct Field {
    std::string_view name;  // for people
    int64_t value;
  };
  const std::array fields = {
      Field{"the target", HashOf(DescribeModel(target))},
      Field{"the draft", draft == nullptr ? 0 : HashOf(DescribeModel(*draft))},
      Field{"--max_batch_size", options.max_batch_size},
      Field{"--max_num_tokens", options.max_num_tokens},
      Field{"--max_seq_len", options.max_seq_len},
      Field{"--max_draft_len", options.max_draft_len},
      Field{"--tokens_per_block", options.block_tokens},
      Field{"--kv_cache_dtype", kv ? static_cast<int>(*kv) : -1},
      Field{"--lookup_ngram", options.lookup_ngram},
      Field{"--draft_forced", options.draft_forced ? 1 : 0},
      Field{"--use_draft_logits", options.ratio_acceptance ? 1 : 0},
      Field{"how drafts are made", static_cast<int>(options.draft_mode)},
      Field{"the executor", static_cast<int>(options.executor)},
      Field{"--steps_in_flight", limits.max_launched},
      Field{"the rows of logits of a step", limits.max_logits_rows},
      Field{"the drafts of clients in a step", limits.max_sent_drafts},
      Field{"the blocks of attention windows", plan.memory.num_window_blocks},
      Field{"the length of attention windows", plan.memory.window_tokens},
  };
  // The least and, of the negative, the greatest: equal where all are.
  std::vector<int64_t> values;
  for (const Field& field : fields) values.insert(values.end(), {field.value, -field.value});
  TANDEM_RETURN_IF_ERROR(TakeLeast(values, processes));
  for (size_t i = 0; i < fields.size(); ++i) {
    if (values[2 * i] == -values[2 * i + 1]) continue;
    return FailedPrecondition(
        fmt::format("{} is not the same in all processes of the model: give all of them the same "
                    "command line",
                    fields[i].name));
  }
  return {};
}

}  // namespace tandem
