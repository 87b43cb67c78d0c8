// TransferReport: tells how far a download is, in the log at most every five seconds, and to
// whoever shows progress more often. Add may be called from any thread, the rest from one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace tandem {

class TransferReport {
 public:
  using Progress = std::function<void(std::string_view what, double done)>;
  // `what` is for people; `progress` may be null.
  TransferReport(std::string_view what, const Progress& progress);

  // `done` of the `bytes` are there already.
  void Begin(int64_t bytes, int64_t done);
  void Add(int64_t bytes) { done_ += bytes; }
  void Tell();
  void End();

 private:
  const std::string what_;
  const Progress& progress_;
  const SteadyClock clock_;
  std::atomic<int64_t> done_{0};
  int64_t bytes_ = 0;
  int64_t at_begin_ = 0;
  Nanos begun_{0};
  Nanos told_{0};
};

// "1.2 GiB of 13.5 GiB (9 %), 85.2 MiB/s, 2 min 25 s left"; `fetched` of the `done` bytes in
// `time`.
std::string DescribeTransfer(int64_t done, int64_t bytes, int64_t fetched, Nanos time);

}  // namespace tandem
