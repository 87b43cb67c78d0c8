#include "serve/kserve/models/generation_response.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace tandem::serve::kserve {
namespace {

// One value a row: [values, 1].
template <typename T>
Tensor Column(std::string name, const std::vector<T>& values) {
  const std::vector<int64_t> shape = {static_cast<int64_t>(values.size()), 1};
  if constexpr (std::is_floating_point_v<T>) {
    return FloatTensor(std::move(name), shape, values);
  } else if constexpr (sizeof(T) == sizeof(int64_t)) {
    return Int64Tensor(std::move(name), shape, values);
  } else {
    return Int32Tensor(std::move(name), shape, values);
  }
}

// Rows of different lengths as a matrix [rows, longest].
template <typename T>
std::vector<T> Padded(const std::vector<std::vector<T>>& rows, T padding, int64_t& longest) {
  const size_t most = LongestOf(rows);
  std::vector<T> matrix;
  matrix.reserve(rows.size() * most);
  for (const std::vector<T>& row : rows) AppendPadded(row, most, padding, matrix);
  longest = static_cast<int64_t>(most);
  return matrix;
}

void Append(const LogitsRow& row, std::vector<float>& logits) {
  logits.insert(logits.end(), row.begin(), row.end());
}

// Of the logits that the answers carry; 0 if they carry none.
size_t VocabOf(std::span<const Shown> shown) {
  for (const Shown& one : shown) {
    if (!one.logits.empty()) return one.logits.size() / one.log_probs.size();
  }
  return 0;
}

// [rows, choices, longest, vocab]
Tensor GenerationLogits(std::span<const Shown> shown, int64_t rows, int64_t choices, size_t vocab) {
  std::vector<std::vector<float>> logits;
  for (const Shown& one : shown) logits.push_back(one.logits);
  int64_t longest = 0;
  const std::vector<float> matrix = Padded<float>(logits, 0.0f, longest);
  const auto width = static_cast<int64_t>(vocab);
  return FloatTensor("generation_logits", {rows, choices, longest / width, width}, matrix);
}

}  // namespace

void Shown::Append(const TokenPiece& piece, float log_prob) {
  tokens.push_back(piece.token);
  log_probs.push_back(log_prob);
  kserve::Append(piece.logits, logits);
}

ResponseFormatter::ResponseFormatter(ModelKind kind, const InferRequest& request,
                                     const GenerationRequest& asked, int64_t arrived_ns)
    : kind_(kind),
      request_(request),
      asked_(asked),
      num_choices_(asked.prompts.front().num_choices),
      arrived_ns_(arrived_ns) {}

bool ResponseFormatter::is_text() const { return RowOf(kind_).role == EngineRole::kText; }

// Clients written for Triton's release 24.04 read log-probabilities and logits from a raw model
// without asking for them: they get zeros.
bool ResponseFormatter::FillsIn() const {
  return !is_text() && !asked_.is_streamed && request_.outputs.empty();
}

InferResponse ResponseFormatter::Make(std::span<const Shown> shown,
                                      std::span<const size_t> indices) const {
  InferResponse response;
  const auto add = [&](Tensor tensor) {
    if (request_.Wants(tensor.name)) response.outputs.push_back(std::move(tensor));
  };
  // Answers of one prompt are a row.
  const auto choices =
      shown.size() == 1 ? int64_t{1} : std::min(num_choices_, static_cast<int64_t>(shown.size()));
  const int64_t rows = static_cast<int64_t>(shown.size()) / choices;
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<int32_t> lengths;
  std::vector<float> sums;
  std::vector<std::vector<float>> log_probs;
  for (const Shown& one : shown) {
    texts.push_back(one.text);
    lengths.push_back(static_cast<int32_t>(one.tokens.size()));
    tokens.push_back(one.tokens);
    sums.push_back(one.cum_log_prob);
    log_probs.push_back(one.log_probs);
  }
  int64_t longest = 0;
  if (is_text()) {
    add(StringTensor("text_output", {static_cast<int64_t>(texts.size())}, texts));
  } else {
    const std::vector<int32_t> matrix = Padded<int32_t>(tokens, -1, longest);
    add(Int32Tensor("output_ids", {rows, choices, longest}, matrix));
    add(Int32Tensor("sequence_length", {rows, choices}, lengths));
  }
  // The text models of older servers always give them, in streams too.
  if (is_text() || asked_.return_log_probs || FillsIn()) {
    add(FloatTensor("cum_log_probs", {rows, choices}, sums));
    const std::vector<float> matrix = Padded<float>(log_probs, 0.0f, longest);
    add(FloatTensor("output_log_probs", {rows, choices, longest}, matrix));
  }
  if (const size_t vocab = VocabOf(shown); vocab > 0 && request_.Wants("generation_logits")) {
    response.outputs.push_back(GenerationLogits(shown, rows, choices, vocab));
  } else if (FillsIn()) {
    const std::vector<float> zeros(static_cast<size_t>(rows * choices));
    add(FloatTensor("generation_logits", {rows, choices, 1, 1}, zeros));
  }
  if (indices.size() == 1) {
    const auto [entry, choice] =
        std::div(static_cast<int>(indices[0]), static_cast<int>(num_choices_));
    if (asked_.prompts.size() > 1 || request_.Names("batch_index")) {
      add(Column<int32_t>("batch_index", {entry}));
    }
    if (num_choices_ > 1 || request_.Names("sequence_index")) {
      add(Column<int32_t>("sequence_index", {choice}));
    }
  }
  if (kind_ == ModelKind::kEnsemble) {
    response.parameters = {
        {"sequence_id", int64_t{0}}, {"sequence_start", false}, {"sequence_end", false}};
  }
  return response;
}

void ResponseFormatter::AddContextLogits(std::span<const std::vector<LogitsRow>* const> prompts,
                                         InferResponse& response) const {
  std::vector<std::vector<float>> rows;
  size_t vocab = 0;
  for (const std::vector<LogitsRow>* prompt : prompts) {
    std::vector<float>& row = rows.emplace_back();
    for (const LogitsRow& logits : *prompt) Append(logits, row);
    if (!prompt->empty()) vocab = prompt->front().size();
  }
  if (vocab == 0 && FillsIn()) {
    response.outputs.push_back(FloatTensor("context_logits",
                                           {static_cast<int64_t>(rows.size()), 1, 1},
                                           std::vector<float>(rows.size())));
  }
  if (vocab == 0 || !request_.Wants("context_logits")) return;
  int64_t longest = 0;
  const std::vector<float> matrix = Padded<float>(rows, 0.0f, longest);
  const auto width = static_cast<int64_t>(vocab);
  response.outputs.push_back(FloatTensor(
      "context_logits", {static_cast<int64_t>(rows.size()), longest / width, width}, matrix));
}

void ResponseFormatter::AddFigures(std::span<const Usage> usages, InferResponse& response) const {
  if (usages.empty()) return;
  response.queued = usages.front().queued;
  // A column of one value for each answer.
  const auto add = [&](bool is_asked, const char* name, auto value_of) {
    if (!is_asked && !request_.Names(name)) return;
    std::vector<decltype(value_of(usages.front()))> values;
    for (const Usage& usage : usages) values.push_back(value_of(usage));
    response.outputs.push_back(Column(name, values));
  };
  const auto at = [this](Nanos since_arrival) { return arrived_ns_ + since_arrival.count(); };
  add(asked_.return_num_input_tokens, "num_input_tokens",
      [](const Usage& usage) { return usage.prompt_tokens; });
  add(asked_.return_num_output_tokens, "num_output_tokens",
      [](const Usage& usage) { return usage.output_tokens; });
  const bool metrics = asked_.return_perf_metrics;
  const bool cache = asked_.return_cache_stats || metrics;
  add(cache, "kv_cache_alloc_new_blocks", [](const Usage& usage) { return usage.kv_blocks_new; });
  add(cache, "kv_cache_reused_blocks", [](const Usage& usage) { return usage.kv_blocks_reused; });
  add(cache, "kv_cache_alloc_total_blocks",
      [](const Usage& usage) { return usage.kv_blocks_total(); });
  add(metrics, "arrival_time_ns", [&](const Usage&) { return at(Nanos(0)); });
  add(metrics, "first_scheduled_time_ns", [&](const Usage& usage) { return at(usage.queued); });
  add(metrics, "first_token_time_ns", [&](const Usage& usage) { return at(usage.first_token); });
  add(metrics, "last_token_time_ns", [&](const Usage& usage) { return at(usage.last_token); });
  add(metrics, "acceptance_rate", [](const Usage& usage) {
    return usage.drafts_proposed == 0 ? 0.0f
                                      : static_cast<float>(usage.drafts_accepted) /
                                            static_cast<float>(usage.drafts_proposed);
  });
  add(metrics, "total_accepted_draft_tokens",
      [](const Usage& usage) { return usage.drafts_accepted; });
  add(metrics, "total_draft_tokens", [](const Usage& usage) { return usage.drafts_proposed; });
}

}  // namespace tandem::serve::kserve
