// What is known of a sequence's drafts: how likely they are accepted (Acceptance), and when to try
// again although they were not (ProbeState). Plain values, used only by the engine thread.
#pragma once

#include <cstdint>

namespace tandem {

// The probability that a draft is accepted, given that those before it were: an exponential average
// over rounds that starts from a prior worth some drafts, which fades with the rounds. The prior
// weighs as much as a dozen rounds: among many sequences some always look better than they are, and
// drafts are given to those that look best.
class Acceptance {
 public:
  // A round counts `decay` times as much as the next one; the prior as many drafts as given.
  explicit Acceptance(double decay = 0.95, double prior_drafts = 32.0)
      : decay_(decay), prior_drafts_(prior_drafts) {}

  // Of `proposed` drafts `accepted` were accepted; the one after them, if any, was rejected, the
  // rest not tested.
  void Observe(int32_t proposed, int32_t accepted);
  double Estimate(double prior) const;

 private:
  double decay_;
  double prior_drafts_;
  double held_ = 0.0;
  double tested_ = 0.0;
};

// Rounds since a sequence last drafted, and the number to wait before probing again although its
// estimate is low, so that a sequence that becomes predictable is noticed. Every failed probe
// doubles the wait.
struct ProbeState {
  int32_t rounds_idle = 0;
  int32_t interval = 16;

  void AfterRound(int32_t proposed, int32_t accepted);
};

}  // namespace tandem
