#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tandem {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector
constexpr size_t kHugePage = size_t{2} << 20;

size_t RoundUp(size_t value, size_t step) { return (value + step - 1) / step * step; }

void FreeSmall(void* data, size_t /*bytes*/) { std::free(data); }

void FreeMapped(void* data, size_t bytes) { ::munmap(data, RoundUp(bytes, kHugePage)); }

// Whole huge pages, so that the kernel can use them from the first byte to the last.
void* MapHuge(size_t bytes) {
  const size_t rounded = RoundUp(bytes, kHugePage);
  const size_t reserved = rounded + kHugePage;  // room to align the start
  void* mapped =
      ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t head = RoundUp(address, kHugePage) - address;
  std::byte* const aligned = begin + head;
  if (head > 0) ::munmap(begin, head);
  if (kHugePage - head > 0) ::munmap(aligned + rounded, kHugePage - head);
  ::madvise(aligned, rounded, MADV_HUGEPAGE);  // a hint: without it the pages are small
  return aligned;
}

}  // namespace

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Free();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  device_ = other.device_;
  deleter_ = std::exchange(other.deleter_, nullptr);
  return *this;
}

void Buffer::Free() {
  if (data_ != nullptr && deleter_ != nullptr) deleter_(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

Buffer Buffer::OnHost(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return {};
  if (bytes >= kHugePage) {
    void* data = MapHuge(bytes);
    return data == nullptr ? Buffer() : Buffer(data, bytes, Device{}, FreeMapped);
  }
  void* data = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
  if (data == nullptr) return {};
  std::memset(data, 0, bytes);
  return {data, bytes, Device{}, FreeSmall};
}

Tensor Buffer::View(DType dtype, Shape shape, size_t offset_bytes) const {
  const Tensor view{As<std::byte>() + offset_bytes, dtype, shape, device_};
  TANDEM_CHECK(
      offset_bytes <= bytes_ && static_cast<size_t>(view.NumBytes()) <= bytes_ - offset_bytes,
      "a view larger than its buffer");
  return view;
}

}  // namespace tandem
