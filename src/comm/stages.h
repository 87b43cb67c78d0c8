// Stages: how the ranks of an engine are divided into groups that have some of a model's layers
// each. A plain value.
#pragma once

namespace tandem {

struct Stages {
  int count = 1;  // of equally many ranks
  int apart = 0;  // one more, of the last ranks: those of a model of their own; 0: there is none

  bool IsOne() const { return count == 1 && apart == 0; }
  bool Divide(int size) const {
    return count >= 1 && apart >= 0 && size > apart && (size - apart) % count == 0;
  }

  // The ranks of one stage.
  struct Range {
    int first = 0;
    int size = 1;
  };
  // The stage of a rank, of `size` in all.
  Range Of(int rank, int size) const {
    if (rank >= size - apart) return {.first = size - apart, .size = apart};
    const int equal = (size - apart) / count;
    return {.first = rank / equal * equal, .size = equal};
  }
};

}  // namespace tandem
