// RoundGain: how much faster than plain decoding the last rounds with drafts were, as the clock
// shows it and not as prices promise. A plain value, used only by the engine thread.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/speculation/row_bucket.h"

namespace tandem {

class RoundGain {
 public:
  // A round of `sequences` decoding sequences, some of which drafted: the tokens they emitted
  // together, the duration of all its passes, and that of one plain pass of these sequences.
  void Observe(int32_t sequences, int32_t tokens, double seconds, double plain_seconds);
  void Forget(int32_t sequences) { rounds_[RowBucket(sequences)] = {}; }
  // Tokens per second of such rounds, relative to plain decoding; 1 until there have been enough
  // rounds, or until they have taken most of a second.
  double Estimate(int32_t sequences) const;

 private:
  // Of the last few dozen rounds.
  struct Rounds {
    double count = 0.0;
    double gained = 0.0;   // seconds that plain decoding would have taken for their tokens
    double seconds = 0.0;  // duration of these rounds
  };
  std::array<Rounds, kNumRowBuckets> rounds_;  // by RowBucket of the sequences
};

}  // namespace tandem
