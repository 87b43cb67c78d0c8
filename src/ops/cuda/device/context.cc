#include "ops/cuda/device/context.cuh"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"

namespace tandem::ops::cuda {
namespace {

struct Record {
  Mutex mutex;
  Status failure TANDEM_GUARDED_BY(mutex);
  std::atomic<bool> waits{false};   // whether `failure` has not been taken yet
  std::atomic<bool> failed{false};  // ever
};

Record& TheRecord() {
  static Record record;
  return record;
}

// Errors that only a bug in this program can cause.
bool IsDefect(cudaError_t error) {
  return error == cudaErrorInvalidValue || error == cudaErrorInvalidConfiguration ||
         error == cudaErrorInvalidDeviceFunction || error == cudaErrorInvalidResourceHandle;
}

}  // namespace

void KeepFailure(const Status& failure) {
  Record& record = TheRecord();
  const MutexLock lock(record.mutex);
  record.failed = true;
  if (!record.failure.ok()) return;
  record.failure = failure;
  record.waits = true;
}

void KeepFailure(cudaError_t error, const char* what) {
  cudaGetLastError();  // a refused call is not the next launch's error
  std::string message = fmt::format("{}: {}", what, cudaGetErrorString(error));
  TANDEM_CHECK(!IsDefect(error) || TheRecord().failed, message);
  KeepFailure(error == cudaErrorMemoryAllocation ? ResourceExhausted(std::move(message))
                                                 : Unavailable(std::move(message)));
}

Status TakeFailure() {
  Record& record = TheRecord();
  if (!record.waits.load(std::memory_order_acquire)) return {};
  const MutexLock lock(record.mutex);
  record.waits = false;
  return std::exchange(record.failure, Status());
}

void* DriverFunction(const char* name) {
  constexpr unsigned kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CheckCuda(cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found),
            name);
  if (found == cudaDriverEntryPointSuccess) return function;
  LogWarning("the driver has no {}: some products of fp8 are slower", name);
  return nullptr;
}

void* AllocateWorkspace(size_t bytes, const char* what) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaSuccess) return data;
  if (error != cudaErrorMemoryAllocation) {
    KeepFailure(error, what);
    return nullptr;
  }
  cudaGetLastError();
  KeepFailure(
      ResourceExhausted(fmt::format("{}: {} bytes of device memory were refused", what, bytes)));
  return nullptr;
}

}  // namespace tandem::ops::cuda
