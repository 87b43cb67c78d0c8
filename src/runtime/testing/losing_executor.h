// An executor whose device is lost after a number of steps. Test code.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "runtime/testing/forwarding_executor.h"

namespace tandem {

// Reports a lost device after `steps` steps; round_executor_test loses the device itself.
class LosingExecutor final : public ForwardingExecutor {
 public:
  LosingExecutor(std::unique_ptr<Executor> inner, int steps)
      : ForwardingExecutor(std::move(inner)), steps_left_(steps) {}
  Status Land(StepResult& result) override {
    if (steps_left_-- == 0) return Unavailable("a kernel: the device is lost");
    EXPECT_GE(steps_left_, 0) << "a step after the failure";
    return ForwardingExecutor::Land(result);
  }

 private:
  int steps_left_;
};

}  // namespace tandem
