// ForwardPass: the executor's interface to a model: rows in, logits out. The real one is a Decoder;
// tests bring models whose next token is a formula. Used by the executor's thread alone.
#pragma once

#include <cstdint>
#include <memory>

#include "model/decoder/decoder.h"
#include "ops/ops.h"

namespace tandem {

class ForwardPass {
 public:
  virtual ~ForwardPass() = default;
  // The logits of batch.logits_rows: [num_logits, vocab_size] fp32, valid until the next call.
  virtual Tensor Forward(const ops::BatchView& batch, const ops::KvPool& pool) = 0;
  virtual int64_t vocab_size() const = 0;
};

class DecoderPass final : public ForwardPass {
 public:
  explicit DecoderPass(std::unique_ptr<Decoder> decoder) : decoder_(std::move(decoder)) {}
  Tensor Forward(const ops::BatchView& batch, const ops::KvPool& pool) override {
    return decoder_->Forward(batch, pool);
  }
  int64_t vocab_size() const override { return decoder_->spec().vocab_size; }

 private:
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace tandem
