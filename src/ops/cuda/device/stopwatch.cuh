// Stopwatch: device time of the work enqueued on a stream between two calls. Used by one thread;
// not while the stream is being captured.
#pragma once

#include "ops/cuda/device/context.cuh"

namespace tandem::ops::cuda {

class Stopwatch {
 public:
  Stopwatch() {
    CheckCuda(cudaEventCreate(&start_), "an event");
    CheckCuda(cudaEventCreate(&stop_), "an event");
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void Start(cudaStream_t stream) { CheckCuda(cudaEventRecord(start_, stream), "an event"); }
  void Stop(cudaStream_t stream) { CheckCuda(cudaEventRecord(stop_, stream), "an event"); }
  // Waits for the work before Stop.
  double Seconds() const {
    CheckCuda(cudaEventSynchronize(stop_), "a measurement");
    float milliseconds = 0.0f;
    CheckCuda(cudaEventElapsedTime(&milliseconds, start_, stop_), "an event");
    return double{milliseconds} * 1e-3;
  }

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

}  // namespace tandem::ops::cuda
