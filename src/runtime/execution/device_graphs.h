// DeviceGraphs: the parts of a round that are enqueued as one graph, one for each kind and bucket
// of rows. A part runs kernel by kernel the first time (first use may allocate) and is recorded the
// second time, both in a rehearsal; on a backend that does not record it runs that way each time.
// Owned and used by the executor.
//
// With several ranks the first use of a kernel may wait in the driver until its GPU is idle (with
// CUDA_MODULE_LOADING=EAGER, until every GPU of the process is; decision 0042), and that GPU may be
// waiting for another rank. So all ranks wait until nothing runs anywhere (`quiet`) before a first
// use or a recording, and again before the recorded graph is launched. Work that runs once is
// recorded too, so that its kernels are loaded before any of them runs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/backend.h"
#include "runtime/cache/model_index.h"

namespace tandem {

// Numbers of rows that graphs are made for: 1, 2, 4, 8, ... 256, then every 128, up to max_rows.
std::vector<int32_t> GraphSizes(int32_t max_rows);

enum class GraphKind : uint8_t {
  kDraftFirst,  // a draft pass over the one or two tokens that a sequence lags
  kDraftNext,   // a draft pass of one row per sequence
  kRun,         // the target's pass; by the longest range of a sequence
  kSample,      // draws and acceptance; with 1 by the ratio rule
};
constexpr size_t kNumGraphKinds = 4;
// Distinguishes graphs of one kind further: a number below this.
constexpr int32_t kNumVariants = 8;

class DeviceGraphs {
 public:
  // `quiet`: returns when no rank's device has work left; empty where there is one rank.
  DeviceGraphs(ops::Backend& backend, int32_t max_rows, std::function<void()> quiet);

  // The smallest bucket with room for `rows`.
  int32_t Bucket(int32_t rows) const { return buckets_[IndexOf(rows)]; }
  // Enqueues the work of `enqueue`, which must be the same for equal kind, variant and bucket.
  template <typename Enqueue>
  void Run(GraphKind kind, int32_t variant, int32_t bucket, const Enqueue& enqueue) {
    Part& part = parts_[static_cast<size_t>(kind)][static_cast<size_t>(variant)][IndexOf(bucket)];
    // Whether a backend records is its own, but all ranks count the uses alike.
    if (quiet_ && part.uses < 2) quiet_();
    if (records_ && part.uses > 0 && part.graph == nullptr) {
      part.graph = backend_.Capture(enqueue);
      records_ = part.graph != nullptr;
    }
    if (quiet_ && part.uses == 1) quiet_();
    if (part.graph != nullptr) {
      backend_.Launch(*part.graph);
    } else {
      enqueue();
    }
    if (part.uses < 2) ++part.uses;
  }
  // Enqueues a model's work over `rows` rows that is not the same each time.
  template <typename Enqueue>
  void RunOnce(ModelIndex model, int32_t rows, const Enqueue& enqueue) {
    char& ran = ran_once_[static_cast<size_t>(model)][IndexOf(rows)];
    if (!quiet_ || ran != 0) return enqueue();
    ran = 1;
    quiet_();
    once_ = backend_.Capture(enqueue);
    quiet_();
    if (once_ == nullptr) return enqueue();
    backend_.Launch(*once_);
  }

 private:
  struct Part {
    int uses = 0;  // up to 2
    std::unique_ptr<ops::Graph> graph;
  };
  size_t IndexOf(int32_t rows) const;

  ops::Backend& backend_;
  const std::vector<int32_t> buckets_;
  const std::function<void()> quiet_;
  std::array<std::vector<char>, kNumModels> ran_once_;  // by bucket
  std::unique_ptr<ops::Graph> once_;                    // may still run
  bool records_ = true;                                 // until the backend fails to record
  std::array<std::array<std::vector<Part>, kNumVariants>, kNumGraphKinds> parts_;
};

}  // namespace tandem
