#include "runtime/speculation/round_gain.h"

#include <algorithm>

namespace tandem {
namespace {

// Rounds that are judged together, by the number of sequences in them, and the minimum number of
// rounds: the output of a few says little. But rounds that lose must not go on for long: where they
// are slow, fewer rounds suffice.
constexpr double kRoundsSeen = 32.0;
constexpr double kFewestRounds = 12.0;
constexpr double kFewestSequences = 256.0;
constexpr double kLongEnough = 0.75;  // seconds

}  // namespace

void RoundGain::Observe(int32_t sequences, int32_t tokens, double seconds, double plain_seconds) {
  if (sequences <= 0 || seconds <= 0.0) return;
  Rounds& rounds = rounds_[RowBucket(sequences)];
  const double keep = 1.0 - 1.0 / std::max(kRoundsSeen, 2 * kFewestSequences / sequences);
  rounds.count = rounds.count * keep + 1.0;
  rounds.gained = rounds.gained * keep + plain_seconds * tokens / sequences;
  rounds.seconds = rounds.seconds * keep + seconds;
}

double RoundGain::Estimate(int32_t sequences) const {
  const Rounds& rounds = rounds_[RowBucket(sequences)];
  const bool enough =
      rounds.count >= kFewestRounds &&
      (rounds.count * sequences >= kFewestSequences || rounds.seconds >= kLongEnough);
  return enough ? rounds.gained / rounds.seconds : 1.0;
}

}  // namespace tandem
