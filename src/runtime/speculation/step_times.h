// StepTimes: what an executor measured of a step, for Speculation to learn from. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cache/model_index.h"

namespace tandem {

// Passes of one model that were timed together: one of `rows` and `catch_up` rows, then `more` of
// `more_rows` each.
struct PassTime {
  ModelIndex model = ModelIndex::kTarget;
  int32_t rows = 0;      // rows that a token is drawn from
  int32_t catch_up = 0;  // further rows of the first pass, without a draw
  int32_t more = 0;
  int32_t more_rows = 0;
  bool verifies = false;  // a target pass that verifies drafts
  double seconds = 0.0;   // with the draws; 0: not measured
};

struct StepTimes {
  // In the order in which they ran. A pass is missing if its rows are not known, if nothing is
  // drawn after it, or if it is the target's and the head skips rows of a prompt: it says nothing
  // about other rows then. On a device all passes of a step with a prompt are missing.
  std::vector<PassTime> passes;
  bool complete = false;  // no pass is missing
  // From the first pass to the last draw, if the step drafts and computes no prompt; else 0.
  double round_seconds = 0.0;

  void Clear() {
    passes.clear();
    complete = false;
    round_seconds = 0.0;
  }
};

}  // namespace tandem
