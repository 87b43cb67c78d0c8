// The responses of the models that generate: answers and figures as tensors. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serve/kserve/inference.h"
#include "serve/kserve/models/generation_request.h"
#include "serve/text_request.h"

namespace tandem::serve::kserve {

// Some tokens of an answer, as a response shows them.
struct Shown {
  std::string text = {};
  std::vector<int32_t> tokens = {};
  std::vector<float> log_probs = {};  // of the tokens
  std::vector<float> logits = {};     // of the tokens, [tokens, vocab], if asked for
  float cum_log_prob = 0.0f;          // of the answer so far

  // One more token, without its text.
  void Append(const TokenPiece& piece, float log_prob);
};

// Makes the responses to one request. Views: the arguments of the constructor outlive it.
class ResponseFormatter {
 public:
  // `arrived_ns`: since 1970.
  ResponseFormatter(ModelKind kind, const InferRequest& request, const GenerationRequest& asked,
                    int64_t arrived_ns);

  // `indices`: of the answers in `shown`, all of them or one.
  InferResponse Make(std::span<const Shown> shown, std::span<const size_t> indices) const;
  // [prompts, longest, vocab]; of prompts whose logits came with this response.
  void AddContextLogits(std::span<const std::vector<LogitsRow>* const> prompts,
                        InferResponse& response) const;
  // What is known when answers are complete.
  void AddFigures(std::span<const Usage> usages, InferResponse& response) const;

 private:
  bool is_text() const;
  bool FillsIn() const;

  const ModelKind kind_;
  const InferRequest& request_;
  const GenerationRequest& asked_;
  const int64_t num_choices_;
  const int64_t arrived_ns_;
};

}  // namespace tandem::serve::kserve
