// Shared by the .cc files of this folder that call rust/text: views, owned results, error codes.
// Private to the folder; each value is used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tandem_text.h"

namespace tandem::rust_bridge {

inline TandemTextView View(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

inline std::string_view Text(TandemTextView view) {
  return {reinterpret_cast<const char*>(view.data), view.len};
}

// A buffer that the library fills and this object frees.
class OwnedBuffer {
 public:
  OwnedBuffer() = default;
  ~OwnedBuffer() { tandem_text_buffer_free(buffer_); }
  OwnedBuffer(const OwnedBuffer&) = delete;
  OwnedBuffer& operator=(const OwnedBuffer&) = delete;

  TandemTextBuffer* out() { return &buffer_; }
  std::string ToString() const {
    return {reinterpret_cast<const char*>(buffer_.data), buffer_.len};
  }

 private:
  TandemTextBuffer buffer_{nullptr, 0};
};

// Ok for code 0, else the library's message under our code.
Status ToStatus(uint32_t code, const OwnedBuffer& error);

}  // namespace tandem::rust_bridge
