// The samples of calibration in batches, as a decoder takes them: how they are cut, where a batch's
// arrays lie in the backend's memory, and the embedding of a batch's tokens alone. Used by one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/weight_source.h"
#include "ops/backend.h"
#include "ops/round.h"

namespace tandem {

// The samples: lengths in tokens, of rows that follow each other, and how each is laid out.
struct CalibrationRows {
  std::vector<int32_t> lengths;
  std::vector<ops::PromptLayout> layouts;
  int64_t total = 0;
  int32_t longest = 0;
  int64_t batch_samples = 0;  // that are run together, at most; 0: as many as fit
};

// Of the hidden states of a row, in memory and in files.
inline int64_t HiddenRowBytes(const ModelSpec& spec) {
  return spec.hidden_size * static_cast<int64_t>(SizeOf(spec.dtype));
}

// Samples that are run together: the first, their number, their rows and the first row. As many as
// fit in a batch, at least one, at most `batch_samples`.
struct SampleBatch {
  size_t first = 0;
  size_t count = 0;
  int64_t first_row = 0;
  int32_t rows = 0;
};
std::vector<SampleBatch> BatchesOf(const CalibrationRows& rows);
// Of the largest batch.
int32_t MaxBatchRows(const CalibrationRows& rows);

// A batch in the backend's memory: samples from their first to their last token. The view is valid
// as long as the batch.
class DeviceBatch {
 public:
  static constexpr int32_t kBlockTokens = 64;  // of a block of the cache

  static Result<DeviceBatch> Make(const ModelSpec& spec, const CalibrationRows& rows,
                                  const SampleBatch& samples, ops::Backend& backend);
  const ops::BatchView& view() const { return view_; }

 private:
  ops::BatchView view_;
  std::vector<Buffer> arrays_;
};

// Blocks of the cache that the samples of a batch take.
int64_t BlocksOf(const CalibrationRows& rows, const SampleBatch& batch);

// A model whose vocabulary is the tokens of a batch, one after the other. `source` and `tokens`
// outlive it.
class BatchEmbedding final : public WeightSource {
 public:
  BatchEmbedding(WeightSource& source, std::span<const int32_t> tokens);
  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override { source_.Release(); }

 private:
  WeightSource& source_;
  std::span<const int32_t> tokens_;
  ModelSpec spec_;
  std::vector<std::byte> rows_;
};

}  // namespace tandem
