#include "runtime/speculation/acceptance.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr int32_t kMinProbeInterval = 16;
constexpr int32_t kMaxProbeInterval = 512;

}  // namespace

void Acceptance::Observe(int32_t proposed, int32_t accepted) {
  if (proposed <= 0) return;
  held_ = held_ * decay_ + accepted;
  tested_ = tested_ * decay_ + accepted + (accepted < proposed ? 1 : 0);
  prior_drafts_ *= decay_;
}

double Acceptance::Estimate(double prior) const {
  return (held_ + prior * prior_drafts_) / (tested_ + prior_drafts_);
}

void ProbeState::AfterRound(int32_t proposed, int32_t accepted) {
  if (proposed == 0) {
    ++rounds_idle;
    return;
  }
  interval = accepted > 0 ? kMinProbeInterval : std::min(interval * 2, kMaxProbeInterval);
  rounds_idle = 0;
}

}  // namespace tandem
