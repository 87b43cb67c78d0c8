// An executor that passes every call on to another: the base of those that watch or disturb one.
#pragma once

#include <memory>
#include <utility>

#include "runtime/execution/executor.h"

namespace tandem {

class ForwardingExecutor : public Executor {
 public:
  explicit ForwardingExecutor(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {}

  void BindThread() override { inner_->BindThread(); }
  void WarmUp(const std::function<void()>& steps) override { inner_->WarmUp(steps); }
  void AddSequence(int32_t slot, const SlotInit& init,
                   std::shared_ptr<TokenConstraint> constraint) override {
    inner_->AddSequence(slot, init, std::move(constraint));
  }
  void RemoveSequence(int32_t slot) override { inner_->RemoveSequence(slot); }
  void Propose(const BatchPlan& plan) override { inner_->Propose(plan); }
  void Run(const BatchPlan& plan) override { inner_->Run(plan); }
  void Sample(const BatchPlan& plan) override { inner_->Sample(plan); }
  Status Land(StepResult& result) override { return inner_->Land(result); }

 private:
  const std::unique_ptr<Executor> inner_;
};

}  // namespace tandem
