// FailingBackend: wraps another backend; its device refuses memory or is lost when a test asks for
// it. Once lost it stays lost. The wrapped backend outlives it.
#pragma once

#include <fmt/format.h>

#include "ops/forwarding_backend.h"

namespace tandem::ops {

class FailingBackend final : public ForwardingBackend {
 public:
  explicit FailingBackend(Backend& inner) : ForwardingBackend(inner) {}

  // Refuses one allocation, after `count` further ones have succeeded.
  void RefuseAfter(int count) { allocations_left_ = count; }
  // Loses the device after `count` further waits have succeeded.
  void LoseAfter(int count) { waits_left_ = count; }

  Result<Buffer> Allocate(size_t bytes) override {
    if (Refuses()) return ResourceExhausted(fmt::format("{} bytes were refused", bytes));
    return inner_.Allocate(bytes);
  }
  Result<Buffer> AllocatePinned(size_t bytes) override {
    if (Refuses()) return ResourceExhausted(fmt::format("{} pinned bytes were refused", bytes));
    return inner_.AllocatePinned(bytes);
  }
  Status WaitFor(int mark) override {
    TANDEM_RETURN_IF_ERROR(Wait());
    return inner_.WaitFor(mark);
  }
  Status Synchronize() override {
    TANDEM_RETURN_IF_ERROR(Wait());
    return inner_.Synchronize();
  }

 private:
  static constexpr int kNever = -1;

  bool Refuses() {
    if (allocations_left_ == kNever) return false;
    return allocations_left_-- == 0;
  }
  Status Wait() {
    if (waits_left_ == 0) return Unavailable("a kernel: the device is lost");
    if (waits_left_ > 0) --waits_left_;
    return {};
  }

  int allocations_left_ = kNever;
  int waits_left_ = kNever;
};

}  // namespace tandem::ops
