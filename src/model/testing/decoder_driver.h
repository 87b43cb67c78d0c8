// Runs one sequence through a Decoder as a scheduler would, for tests: a paged cache with blocks in
// arbitrary order, ranges of any length, all logits read back. Owned by the test, used by its
// thread.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/decoder/decoder.h"
#include "model/kv_pool.h"
#include "model/prompt_rules.h"
#include "ops/round_rules.h"

namespace tandem {

class DecoderTestDriver {
 public:
  // `cache`: storage type of keys and values; the model's own type by default. `ranks`: of the
  // weights of a rank; all ranks are fed the same tokens, each on a thread of its own.
  DecoderTestDriver(std::shared_ptr<const Weights> weights, ops::Backend& backend,
                    int32_t max_tokens, std::optional<DType> cache = {},
                    Communicator* ranks = nullptr)
      : backend_(backend), spec_(weights->spec), max_blocks_(max_tokens / kBlockTokens + 1) {
    auto owned = MakeKvPool(spec_, cache.value_or(spec_.dtype), max_blocks_ + 1, kBlockTokens,
                            backend, weights->kv_scales);
    auto decoder =
        Decoder::Create(std::move(weights), backend, max_tokens, max_tokens, nullptr, ranks);
    EXPECT_TRUE(decoder.ok()) << decoder.status().message();
    decoder_ = std::move(*decoder);
    EXPECT_TRUE(owned.ok()) << owned.status().message();
    cache_ = std::move(*owned);
    for (int32_t i = 0; i < max_blocks_; ++i) block_table_.push_back(max_blocks_ - i);
  }

  // How the prompt is laid out: before the first Feed.
  void SetLayout(const ops::PromptLayout& layout) { layout_ = layout; }

  // Computes the next tokens of the sequence: the logits after each of them, [tokens][vocab].
  std::vector<std::vector<float>> Feed(std::span<const int32_t> tokens) {
    const auto rows = static_cast<int32_t>(tokens.size());
    std::vector<int32_t> positions;
    std::vector<int32_t> all_rows, turns, second_positions;
    for (int32_t i = 0; i < rows; ++i) {
      positions.push_back(length_ + i);
      turns.push_back(ops::rules::TurnOf(layout_, length_ + i));
      second_positions.push_back(ops::rules::SecondPositionOf(layout_, length_ + i));
      all_rows.push_back(i);
    }
    length_ += rows;
    ops::BatchView batch;
    batch.num_rows = rows;
    batch.num_seqs = 1;
    batch.num_logits = rows;
    batch.max_blocks = max_blocks_;
    buffers_.clear();
    batch.tokens = ToDevice({tokens.begin(), tokens.end()});
    batch.positions = ToDevice(positions);
    batch.row_seq = ToDevice(std::vector<int32_t>(tokens.size(), 0));
    batch.query_start = ToDevice({0, rows});
    batch.context_len = ToDevice({length_});
    batch.block_table = ToDevice(block_table_);
    batch.logits_rows = ToDevice(all_rows);
    const RowForm form = RowFormOf(spec_);
    if (form.turns) batch.turns = ToDevice(turns);
    if (form.second_positions) batch.second_positions = ToDevice(second_positions);
    if (form.prefixes) batch.prefix_len = ToDevice({layout_.prefix_len});
    const Tensor logits = decoder_->Forward(batch, cache_.pool);
    std::vector<std::vector<float>> out(tokens.size());
    const auto vocab = static_cast<size_t>(spec_.vocab_size);
    for (size_t i = 0; i < tokens.size(); ++i) {
      out[i].resize(vocab);
      backend_.CopyToHost(out[i].data(), logits.As<float>() + i * vocab, vocab * sizeof(float));
    }
    return out;
  }

 private:
  static constexpr int32_t kBlockTokens = 32;

  Buffer Allocate(size_t bytes) {
    auto buffer = backend_.Allocate(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    return std::move(*buffer);
  }
  const int32_t* ToDevice(const std::vector<int32_t>& values) {
    const size_t bytes = values.size() * sizeof(int32_t);
    buffers_.push_back(Allocate(bytes));
    backend_.CopyToDevice(buffers_.back().data(), values.data(), bytes);
    return buffers_.back().As<int32_t>();
  }

  ops::Backend& backend_;
  ModelSpec spec_;
  int32_t max_blocks_;
  std::unique_ptr<Decoder> decoder_;
  OwnedKvPool cache_;
  std::vector<int32_t> block_table_;
  std::vector<Buffer> buffers_;  // of the current batch
  int32_t length_ = 0;
  ops::PromptLayout layout_;
};

inline int32_t ArgMax(const std::vector<float>& logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

}  // namespace tandem
