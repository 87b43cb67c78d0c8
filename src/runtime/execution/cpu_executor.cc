#include "runtime/execution/cpu_executor.h"

#include <utility>

#include "base/check.h"

namespace tandem {

CpuExecutor::CpuExecutor(const ExecutorConfig& config, ops::Ops& ops, ExecutorModels models,
                         const CostMeter& meter)
    : ops_(ops),
      models_(std::move(models)),
      slots_({.max_slots = config.max_batch_size,
              .max_seq_len = config.max_seq_len,
              .max_blocks = config.MaxBlocks(),
              .max_draft_len = config.max_draft_len,
              .vocab_size = models_.target->vocab_size()}),
      proposer_(config, ops, models_.draft.get(), models_.draft_pool, models_.target->vocab_size(),
                slots_, meter),
      verifier_(config, ops, *models_.target, models_.target_pool, slots_, proposer_, meter) {}

void CpuExecutor::AddSequence(int32_t slot, const SlotInit& init) { slots_.Add(slot, init); }

void CpuExecutor::RemoveSequence(int32_t slot) { slots_.Remove(slot); }

void CpuExecutor::Propose(const BatchPlan& plan) {
  ApplyBlocks(plan);
  proposer_.Propose(plan);
}

void CpuExecutor::Run(const BatchPlan& plan) { verifier_.Run(plan); }

void CpuExecutor::Sample(const BatchPlan& plan) {
  TANDEM_CHECK(sampled_ - landed_ < kMaxLaunched, "too many steps in flight");
  verifier_.Sample(plan, results_[sampled_++ % kMaxLaunched]);
}

Status CpuExecutor::Land(StepResult& result) {
  TANDEM_CHECK(landed_ < sampled_, "no step in flight");
  std::swap(result, results_[landed_++ % kMaxLaunched]);
  return {};
}

// The models share block ids, so one table and one copy serve both.
void CpuExecutor::ApplyBlocks(const BatchPlan& plan) {
  for (const SequencePlan& item : plan.sequences) slots_.AddBlocks(item.slot, plan.NewBlocks(item));
  for (const BlockCopy& copy : plan.copies) {
    ops_.CopyBlock(models_.target_pool, copy.from, copy.to, copy.tokens);
    if (models_.draft) ops_.CopyBlock(models_.draft_pool, copy.from, copy.to, copy.tokens);
  }
}

}  // namespace tandem
