#include "quantize/sample_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "model/prompt_rules.h"
#include "ops/round_rules.h"

namespace tandem {
namespace {

// Rows of a batch, unless one sample has more.
constexpr int32_t kBatchRows = 2048;

}  // namespace

int32_t MaxBatchRows(const CalibrationRows& rows) {
  int64_t most = std::min<int64_t>(rows.total, std::max(kBatchRows, rows.longest));
  if (rows.batch_samples > 0) most = std::min(most, rows.batch_samples * rows.longest);
  return static_cast<int32_t>(most);
}

std::vector<SampleBatch> BatchesOf(const CalibrationRows& rows) {
  const int32_t most = MaxBatchRows(rows);
  std::vector<SampleBatch> batches;
  int64_t row = 0;
  for (size_t i = 0; i < rows.lengths.size(); ++i) {
    const bool is_full =
        batches.empty() || batches.back().rows + rows.lengths[i] > most ||
        (rows.batch_samples > 0 && batches.back().count == static_cast<size_t>(rows.batch_samples));
    if (is_full) {
      batches.push_back({.first = i, .first_row = row});
    }
    ++batches.back().count;
    batches.back().rows += rows.lengths[i];
    row += rows.lengths[i];
  }
  return batches;
}

int64_t BlocksOf(const CalibrationRows& rows, const SampleBatch& batch) {
  int64_t blocks = 0;
  for (size_t i = batch.first; i < batch.first + batch.count; ++i) {
    blocks += (rows.lengths[i] + DeviceBatch::kBlockTokens - 1) / DeviceBatch::kBlockTokens;
  }
  return blocks;
}

Result<DeviceBatch> DeviceBatch::Make(const ModelSpec& spec, const CalibrationRows& rows,
                                      const SampleBatch& samples, ops::Backend& backend) {
  std::vector<int32_t> positions, row_seq, query_start = {0}, context_len, tables;
  std::vector<int32_t> turns, second_positions, prefix_len;
  int32_t max_blocks = 0, block = 0;
  for (size_t i = 0; i < samples.count; ++i) {
    max_blocks =
        std::max(max_blocks, (rows.lengths[samples.first + i] + kBlockTokens - 1) / kBlockTokens);
  }
  for (size_t i = 0; i < samples.count; ++i) {
    const int32_t length = rows.lengths[samples.first + i];
    const ops::PromptLayout& layout = rows.layouts[samples.first + i];
    prefix_len.push_back(layout.prefix_len);
    for (int32_t position = 0; position < length; ++position) {
      turns.push_back(ops::rules::TurnOf(layout, position));
      second_positions.push_back(ops::rules::SecondPositionOf(layout, position));
      positions.push_back(position);
      row_seq.push_back(static_cast<int32_t>(i));
    }
    query_start.push_back(query_start.back() + length);
    context_len.push_back(length);
    for (int32_t slot = 0; slot < max_blocks; ++slot) {
      tables.push_back(slot * kBlockTokens < length ? block++ : 0);
    }
  }
  // The table of Embed holds the rows of the batch in their order.
  std::vector<int32_t> tokens(positions.size());
  std::iota(tokens.begin(), tokens.end(), 0);

  DeviceBatch made;
  ops::BatchView& view = made.view_;
  view.num_rows = samples.rows;
  view.num_seqs = static_cast<int32_t>(samples.count);
  view.max_query_len = rows.longest;
  view.max_blocks = max_blocks;
  const RowForm form = RowFormOf(spec);
  if (!form.second_positions) second_positions.clear();
  if (!form.prefixes) prefix_len.clear();
  if (!form.turns) turns.clear();
  for (const auto& [values, out] : {std::pair(&tokens, &view.tokens),
                                    {&positions, &view.positions},
                                    {&row_seq, &view.row_seq},
                                    {&query_start, &view.query_start},
                                    {&context_len, &view.context_len},
                                    {&turns, &view.turns},
                                    {&second_positions, &view.second_positions},
                                    {&prefix_len, &view.prefix_len},
                                    {&tables, &view.block_table}}) {
    if (values->empty()) continue;
    const size_t bytes = values->size() * sizeof(int32_t);
    TANDEM_ASSIGN_OR_RETURN(Buffer buffer, backend.Allocate(bytes));
    backend.CopyToDevice(buffer.data(), values->data(), bytes);
    *out = buffer.As<int32_t>();
    made.arrays_.push_back(std::move(buffer));
  }
  return made;
}

BatchEmbedding::BatchEmbedding(WeightSource& source, std::span<const int32_t> tokens)
    : source_(source), tokens_(tokens), spec_(source.spec()) {
  spec_.vocab_size = std::ssize(tokens);
}

Result<Tensor> BatchEmbedding::Get(const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(Tensor stored, source_.Get(id));
  if (id.role != WeightRole::kEmbedding) return stored;
  const auto row_bytes = static_cast<size_t>(stored.NumBytes() / stored.dim(0));
  rows_.resize(tokens_.size() * row_bytes);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    std::memcpy(&rows_[i * row_bytes], stored.RowRange(tokens_[i], 1).data, row_bytes);
  }
  stored.data = rows_.data();
  stored.shape = {spec_.vocab_size, spec_.hidden_size};
  return stored;
}

}  // namespace tandem
