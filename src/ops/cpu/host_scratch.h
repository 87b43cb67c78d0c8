// Memory for intermediate results that an object or function of this folder needs. A pure function;
// any thread.
#pragma once

#include <cstddef>
#include <new>

#include "tensor/buffer.h"

namespace tandem::ops::cpu {

// Buffer::OnHost for callers that cannot return a Status: as with the standard containers, memory
// that the system refuses is std::bad_alloc, which the program reports as one sentence.
inline Buffer HostScratch(size_t bytes) {
  Buffer buffer = Buffer::OnHost(bytes);
  if (bytes > 0 && buffer.data() == nullptr) throw std::bad_alloc();
  return buffer;
}

}  // namespace tandem::ops::cpu
