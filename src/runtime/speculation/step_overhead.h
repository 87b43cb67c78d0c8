// StepOverhead: the part of a step that no pass takes: planning, and where it delays passes the
// delivery of tokens. A plain value, used only by the engine thread.
#pragma once

namespace tandem {

class StepOverhead {
 public:
  // A step of which the passes took `passes` seconds and everything else `rest`. A step that was
  // interrupted for long counts hardly more than another.
  void Observe(double rest, double passes);
  // Seconds of a step, however many rows it has.
  double Estimate() const { return seconds_; }

 private:
  double seconds_ = 0.0;
};

}  // namespace tandem
