// HostTimes: how long the engine's thread was busy in each step, counted in buckets of a sixteenth
// of an octave. It reports percentiles, because a mean would be dominated by the few steps that
// create something at first use (a graph takes ten milliseconds). A plain value.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tandem {

class HostTimes {
 public:
  void Add(double seconds) { ++counts_[BucketOf(seconds)]; }
  HostTimes& operator+=(const HostTimes& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    return *this;
  }
  int64_t count() const {
    int64_t sum = 0;
    for (const int64_t count : counts_) sum += count;
    return sum;
  }
  // The steps counted since `before` was copied from this.
  HostTimes Since(const HostTimes& before) const {
    HostTimes since = *this;
    for (size_t i = 0; i < counts_.size(); ++i) since.counts_[i] -= before.counts_[i];
    return since;
  }
  // Time in seconds that `share` of the steps did not exceed, to a sixteenth of an octave; 0
  // without steps.
  double Percentile(double share) const {
    const double wanted = share * static_cast<double>(count());
    int64_t sum = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      sum += counts_[i];
      if (sum > 0 && static_cast<double>(sum) >= wanted) {
        return kShortest * std::exp2(static_cast<double>(i + 1) / kPerOctave);
      }
    }
    return 0.0;
  }

 private:
  static constexpr double kShortest = 1e-6;
  static constexpr int kPerOctave = 16;
  static constexpr size_t kBuckets = size_t{20} * kPerOctave;  // up to a second

  static size_t BucketOf(double seconds) {
    const double octaves = std::log2(std::max(seconds, kShortest) / kShortest);
    return std::min(static_cast<size_t>(octaves * kPerOctave), kBuckets - 1);
  }

  std::array<int64_t, kBuckets> counts_{};
};

}  // namespace tandem
