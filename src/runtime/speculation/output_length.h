// OutputLength: how many tokens sequences have. A plain value, used only by the engine thread.
#pragma once

#include <cstdint>

namespace tandem {

// The expected number of tokens of a sequence, learnt from those that have ended.
class OutputLength {
 public:
  void Observe(int32_t tokens);
  // For a sequence that may emit at most this many. Whatever it has emitted so far, the mean of
  // ended sequences is the best estimate.
  double Expect(int32_t at_most) const;

 private:
  double mean_ = 64.0;
};

}  // namespace tandem
