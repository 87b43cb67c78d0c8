// Tensor: a non-owning view {data, dtype, shape, device} of dense row-major memory; valid as long
// as the Buffer it views. A plain value, free to copy between threads; the memory's own rules
// apply.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace tandem {

struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

// Up to four dimensions, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    TANDEM_CHECK(dims.size() <= kMaxRank, "a tensor has at most four dimensions");
    for (const int64_t dim : dims) dims_[rank_++] = dim;
  }

  // As the constructor, for a rank known only at run time; at most kMaxRank.
  static Shape Of(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t NumElements() const {
    int64_t count = 1;
    for (int i = 0; i < rank_; ++i) count *= dims_[i];
    return count;
  }
  bool operator==(const Shape&) const = default;
  // "[512, 384]"
  std::string ToString() const;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Device device;

  bool empty() const { return data == nullptr; }
  int64_t dim(int i) const { return shape[i]; }
  int64_t NumElements() const { return shape.NumElements(); }
  int64_t NumBytes() const { return NumElements() * static_cast<int64_t>(SizeOf(dtype)); }
  template <typename T>
  T* As() const {
    TANDEM_CHECK(sizeof(T) == SizeOf(dtype), "the element sizes differ");
    return static_cast<T*>(data);
  }
  // The first `rows` rows of a tensor, as a view.
  Tensor Rows(int64_t rows) const;
  // Rows begin .. begin + rows, as a view.
  Tensor RowRange(int64_t begin, int64_t rows) const;
};

}  // namespace tandem
