// StepTuner: bounds of a step that follow the lengths of recent sequences, by the tables of
// TensorRT-LLM's batch manager (enable_batch_size_tuning, enable_max_num_tokens_tuning). The tables
// are pure functions; the tuner is a plain value of the engine thread and allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem {

// The most that a step takes, within StepLimits.
struct StepBounds {
  int32_t sequences = 0;  // that hold slots
  int32_t tokens = 0;     // rows of a target pass

  bool operator==(const StepBounds&) const = default;
};

// Sequences of a step when the cache holds this many of average length.
int64_t TunedBatchSize(int64_t capacity);
// Tokens of a step of `batch_size` sequences whose prompts and outputs have these average lengths:
// what a step has when prompts and decoding fully overlap.
int64_t TunedNumTokens(int64_t batch_size, double input_tokens, double output_tokens);

class StepTuner {
 public:
  static constexpr size_t kWindow = 128;  // sequences of the moving averages

  struct Options {
    bool batch_size = false;
    bool num_tokens = false;
    StepBounds most;         // never exceeded; the bounds until a sequence has ended
    int32_t num_blocks = 0;  // of the cache
    int32_t block_tokens = 1;
  };

  explicit StepTuner(const Options& options) : options_(options), bounds_(options.most) {}

  // Takes the lengths of a sequence that has ended. True when the bounds have changed.
  bool Observe(int32_t input_tokens, int32_t output_tokens);
  const StepBounds& bounds() const { return bounds_; }

 private:
  struct Lengths {
    int32_t input = 0;
    int32_t output = 0;
  };

  Options options_;
  StepBounds bounds_;
  std::array<Lengths, kWindow> recent_{};  // a ring
  size_t observed_ = 0;
  int64_t input_sum_ = 0;   // over the ring
  int64_t output_sum_ = 0;  // over the ring
};

}  // namespace tandem
