// Shared by the sampling tests: the backends they run on, and a piece of a backend's memory that
// rows are put into. For tests only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/backend.h"
#include "ops/sampling.h"
#include "ops/testing/backend_makers.h"

namespace tandem::ops {

struct SamplingBackend {
  std::string name;
  BackendMaker make;
};

inline void PrintTo(const SamplingBackend& backend, std::ostream* out) { *out << backend.name; }

// Every backend of this machine.
inline std::vector<SamplingBackend> SamplingBackends() {
  std::vector<SamplingBackend> backends;
  backends.push_back(
      {"cpu", MakerOf(CpuOptions{.num_threads = 3, .pin_threads = false, .isa = "scalar"})});
  if (NumCudaDevices() > 0) {
    backends.push_back({"cuda", MakerOf(CudaOptions{})});
    backends.push_back({"cuda_as_sm80", MakerOf(CudaOptions{.max_compute_capability = 80})});
  }
  return backends;
}

// A stack of values in a backend's memory. A value is there once an op is run through Draw or
// Verify; Rewind frees room for the values put next.
class SamplingMemory {
 public:
  explicit SamplingMemory(Backend& backend, size_t bytes = size_t{32} << 20)
      : backend_(backend), memory_(backend.Allocate(bytes).value()), staged_(bytes) {}

  Backend& backend() const { return backend_; }

  // Null for nothing.
  template <typename T>
  T* Put(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values.empty()) return nullptr;
    T* place = Room<T>(values.size());
    std::memcpy(staged_.data() + Offset(place), values.data(), values.size_bytes());
    return place;
  }
  template <typename T>
  T* Put(const std::vector<T>& values) {
    return Put(std::span<const T>(values));
  }
  // Filled with NaN bits.
  template <typename T>
  T* Room(size_t count) {
    size_ = (size_ + alignof(T) - 1) / alignof(T) * alignof(T);
    TANDEM_CHECK(size_ + count * sizeof(T) <= staged_.size(), "a larger memory is needed");
    T* place = reinterpret_cast<T*>(memory_.As<std::byte>() + size_);
    std::memset(staged_.data() + size_, 0xff, count * sizeof(T));
    size_ += count * sizeof(T);
    return place;
  }
  template <typename T>
  std::vector<T> Get(const T* place, size_t count) const {
    std::vector<T> values(count);
    backend_.CopyToHost(values.data(), place, count * sizeof(T));
    return values;
  }

  size_t size() const { return size_; }
  void Rewind(size_t size) {
    size_ = size;
    uploaded_ = std::min(uploaded_, size);
  }

  // Runs Sample; the rows point into this memory or into another SamplingMemory that was uploaded.
  std::vector<SampledToken> Draw(const std::vector<SampleRow>& rows, int64_t vocab) {
    const size_t before = size_;
    const SampleRow* placed = Put(rows);
    SampledToken* out = Room<SampledToken>(rows.size());
    Upload();
    backend_.ops().Sample({placed, rows.size()}, vocab, {out, rows.size()});
    std::vector<SampledToken> drawn = Get(out, rows.size());
    Rewind(before);
    return drawn;
  }

  struct Verified {
    int32_t accepted;
    int32_t next;
  };
  // Runs VerifyAndAccept; sets the rows' accepted and next.
  std::vector<Verified> Verify(std::vector<VerifyRow> rows, int64_t vocab) {
    const size_t before = size_;
    Verified* out = Room<Verified>(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].accepted = &out[i].accepted;
      rows[i].next = &out[i].next;
    }
    const VerifyRow* placed = Put(rows);
    Upload();
    backend_.ops().VerifyAndAccept({placed, rows.size()}, vocab);
    std::vector<Verified> verified = Get(out, rows.size());
    Rewind(before);
    return verified;
  }

  void Upload() {
    if (uploaded_ == size_) return;
    backend_.CopyToDevice(memory_.As<std::byte>() + uploaded_, staged_.data() + uploaded_,
                          size_ - uploaded_);
    uploaded_ = size_;
  }

 private:
  size_t Offset(const void* place) const {
    return static_cast<size_t>(static_cast<const std::byte*>(place) - memory_.As<std::byte>());
  }

  Backend& backend_;
  Buffer memory_;
  std::vector<std::byte> staged_;
  size_t size_ = 0;
  size_t uploaded_ = 0;
};

}  // namespace tandem::ops
