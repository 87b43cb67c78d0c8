// RandomWords: an endless sequence of 64-bit words that any thread can start anywhere: word i is a
// function of the key and i. Dummy weights are made from it, on every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tandem::ops {

// A bijective scrambler of 64 bits (splitmix64's finalizer): counter in, random word out.
constexpr uint64_t ScrambleBits(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Distance between the counters of one sequence: odd, its bits well spread (2^64 / golden ratio).
constexpr uint64_t kCounterStep = 0x9e3779b97f4a7c15u;

struct RandomWords {
  uint64_t key = 0;
  // How random bits become numbers of a type: the bits in `keep` stay random, those in `set` are
  // fixed.
  uint64_t keep = ~uint64_t{0};
  uint64_t set = 0;

  constexpr uint64_t At(uint64_t index) const {
    return (ScrambleBits(key + index * kCounterStep) & keep) | set;
  }
};

// `bytes` bytes of the words from word `first` on, in host memory.
inline void FillBytes(std::byte* out, const RandomWords& words, uint64_t first, int64_t bytes) {
  int64_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint64_t word = words.At(first++);
    std::memcpy(out + at, &word, 8);
  }
  const uint64_t word = words.At(first);
  std::memcpy(out + at, &word, static_cast<size_t>(bytes - at));
}

}  // namespace tandem::ops
