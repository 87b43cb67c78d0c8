// Values as they lie in memory, one after the other: what the ranks of a model send each other, who
// are programs of one build on machines of one kind. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace tandem {

template <typename T>
concept Plain = std::is_trivially_copyable_v<T>;

using RankMessage = std::vector<std::byte>;

// Replaces `out`, whose memory is used again. The caller keeps it.
class WireWriter {
 public:
  explicit WireWriter(RankMessage& out) : out_(out) { out_.clear(); }

  template <Plain T>
  void Value(const T& value) {
    Bytes(&value, sizeof value);
  }
  template <Plain T>
  void List(std::span<const T> values) {
    Value(static_cast<uint64_t>(values.size()));
    Bytes(values.data(), values.size_bytes());
  }

 private:
  void Bytes(const void* data, size_t bytes) {
    if (bytes == 0) return;
    const size_t begin = out_.size();
    out_.resize(begin + bytes);
    std::memcpy(out_.data() + begin, data, bytes);
  }

  RankMessage& out_;
};

// Reads nothing beyond the end of a message; what it cannot read stays as it was.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> message) : left_(message) {}

  // Whether the message had exactly what was read.
  bool complete() const { return ok_ && left_.empty(); }

  template <Plain T>
  void Value(T& value) {
    Bytes(&value, sizeof value);
  }
  // Anything that holds values in a row: vectors, strings.
  template <typename Values>
  void List(Values& values) {
    using T = typename Values::value_type;
    static_assert(Plain<T>);
    uint64_t count = 0;
    Value(count);
    ok_ = ok_ && count <= left_.size() / sizeof(T);
    if (!ok_) return;
    values.resize(count);
    Bytes(values.data(), count * sizeof(T));
  }

 private:
  void Bytes(void* data, size_t bytes) {
    ok_ = ok_ && bytes <= left_.size();
    if (!ok_ || bytes == 0) return;
    std::memcpy(data, left_.data(), bytes);
    left_ = left_.subspan(bytes);
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace tandem
