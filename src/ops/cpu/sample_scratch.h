// The working memory of one sampling thread, made once for the largest vocabulary. Owned by
// CpuSampler; used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

namespace tandem::ops {

// A token that may still be drawn.
struct Candidate {
  float score;   // (logit - largest logit) / temperature, at most 0
  float weight;  // exp(score): its probability, not normalised
  int32_t token;
};

struct SampleScratch {
  explicit SampleScratch(int64_t vocab)
      : logits(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(vocab))),
        candidates(std::make_unique_for_overwrite<Candidate[]>(static_cast<size_t>(vocab))) {}

  std::unique_ptr<float[]> logits;          // [vocab] after penalties, bans and mask
  std::unique_ptr<Candidate[]> candidates;  // [vocab]
};

}  // namespace tandem::ops
