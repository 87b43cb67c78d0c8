// The time source of engine and server, passed in so that a test can stop the clock.
// Implementations are safe on any thread. Monotonic: jumps of the wall clock have no effect.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tandem {

using Nanos = std::chrono::nanoseconds;

inline double InSeconds(Nanos time) { return std::chrono::duration<double>(time).count(); }

class Clock {
 public:
  virtual ~Clock() = default;
  // Time since an arbitrary fixed point.
  virtual Nanos Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  Nanos Now() const override {
    return std::chrono::duration_cast<Nanos>(std::chrono::steady_clock::now().time_since_epoch());
  }
};

class FakeClock final : public Clock {
 public:
  Nanos Now() const override { return Nanos(now_ns_.load()); }
  void Advance(Nanos by) { now_ns_ += by.count(); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

}  // namespace tandem
