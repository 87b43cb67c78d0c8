// Prefetch: asks for an object's cache lines some time before they are read or written. What the
// engine's thread knows of hundreds of sequences has left its caches by the time a step lands.
#pragma once

#include <cstddef>

namespace tandem {

template <typename T>
inline void Prefetch(const T& object) {
  constexpr size_t kLine = 64;
  const auto* const first = reinterpret_cast<const char*>(&object);
  for (size_t at = 0; at < sizeof(T); at += kLine) __builtin_prefetch(first + at);
}

// Element i + kAhead of a list of pointers to objects that a loop visits in turn, where there is
// one.
template <size_t kAhead = 4, typename List>
inline void PrefetchAhead(const List& pointers, size_t i) {
  if (i + kAhead < pointers.size()) Prefetch(*pointers[i + kAhead]);
}

}  // namespace tandem
