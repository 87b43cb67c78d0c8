// Buffer: the only owner of tensor memory, host or device. Move-only; frees on destruction through
// the backend that made it. Host buffers are 64-byte aligned and zeroed.
#pragma once

#include <cstddef>
#include <utility>

#include "tensor/tensor.h"

namespace tandem {

class Buffer {
 public:
  using Deleter = void (*)(void* data, size_t bytes);

  Buffer() = default;
  Buffer(void* data, size_t bytes, Device device, Deleter deleter)
      : data_(data), bytes_(bytes), device_(device), deleter_(deleter) {}
  ~Buffer() { Free(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // When there is no memory left (or for zero bytes) the buffer is empty; the caller reports the
  // size it asked for. Large buffers ask the kernel for huge pages: without them streaming the
  // weights is limited by address look-ups.
  static Buffer OnHost(size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  template <typename T>
  T* As() const {
    return static_cast<T*>(data_);
  }
  // A view of the memory from `offset_bytes` on; it must fit.
  Tensor View(DType dtype, Shape shape, size_t offset_bytes = 0) const;

 private:
  void Free();
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_;
  Deleter deleter_ = nullptr;
};

}  // namespace tandem
