#include "runtime/speculation/cost_table.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tandem {
namespace {

// A pass moves the factor by at most this share, up or down, and by less if its price was wrong by
// less than kFullError. So a pass that the machine interrupted (40 times as long, for a small
// draft) weighs no more than any other, and the factor comes to rest where prices are right. The
// first passes move it further, by one in kFirstPasses and then less and less, because the
// measurement at start knows neither contexts nor batches.
constexpr double kObservationStep = 1.0 / 64;
constexpr double kFullError = 0.25;
constexpr double kFirstPasses = 8.0;
// Share of the way to the target's factor, per pass, for a draft that is unused and therefore not
// observed.
constexpr double kUnobservedStep = 1.0 / 512;
// In place of kObservationStep for a pass that verifies, once its cost is known: where every row
// costs, drafting gains a few percent or nothing, so its price is kept steadier.
constexpr double kVerifyStep = 1.0 / 512;
// Knowledge of such passes fades with passes that verify nothing.
constexpr double kForgottenStep = 1.0 / 4096;
// And while nothing is verified, a factor above the start's returns to it: it may have been learnt
// on a busy machine, and as long as verifying looks too expensive nothing corrects it.
constexpr double kReturnStep = 1.0 / 8192;
// What a measurement at start counts for: it is the best of several passes.
constexpr double kPassesAtStart = 8.0;
// The memory is limited to this many passes, or old knowledge would be trusted for days.
constexpr double kMostPasses = 512.0;

// How far the next pass moves a factor learnt from `passes` passes, which it joins.
double StepAfter(double& passes, double least) {
  const double step = std::max(least, 1.0 / (kFirstPasses + passes));
  passes = std::min(passes + 1.0, kMostPasses);
  return step;
}

// What to multiply a factor by after passes that took `seconds` and were priced at `priced`.
double Correction(double step, double priced, double seconds) {
  return 1.0 + step * std::clamp((seconds / priced - 1.0) / kFullError, -1.0, 1.0);
}

}  // namespace

void CostTable::Set(ModelIndex model, std::span<const Point> measured, Between between) {
  std::vector<Point> points(measured.begin(), measured.end());
  for (size_t i = points.size(); i-- > 1;) {
    TANDEM_CHECK(points[i - 1].rows < points[i].rows, "points must rise by rows");
    points[i - 1].seconds = std::min(points[i - 1].seconds, points[i].seconds);
  }
  Curve& curve = curves_[static_cast<size_t>(model)];
  curve = {};
  curve.by_rows.push_back(0.0);
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& to = points[i];
    const Point& from = points[i == 0 ? 0 : i - 1];  // constant up to the first
    curve.beyond = {from, i == 0 ? 0.0 : (to.seconds - from.seconds) / (to.rows - from.rows)};
    for (auto rows = static_cast<int32_t>(curve.by_rows.size()); rows <= to.rows; ++rows) {
      curve.by_rows.push_back(between == Between::kNext ? to.seconds : curve.beyond.At(rows));
    }
  }
  if (model == ModelIndex::kDraft && !points.empty()) {
    catch_up_ = points.size() > 1 ? curve.beyond.slope : points.front().seconds;
  }
}

void CostTable::SetVerify(int32_t rows, double seconds) {
  const double plain = Seconds(ModelIndex::kTarget, rows);
  if (plain <= 0.0 || seconds <= 0.0) return;
  Verified& verified = verified_[RowBucket(rows)];
  verified.passes += kPassesAtStart;
  verified.factor += (seconds / plain - verified.factor) * kPassesAtStart / verified.passes;
  verified.at_start = verified.factor;
}

void CostTable::Observe(ModelIndex model, int32_t rows, double seconds) {
  ObservePriced(model, Seconds(model, rows), seconds);
}

void CostTable::ObservePriced(ModelIndex model, double priced, double seconds) {
  Curve& curve = curves_[static_cast<size_t>(model)];
  if (priced <= 0.0 || seconds <= 0.0) return;
  const double step = StepAfter(curve.passes, kObservationStep);
  const double before = curve.factor;
  curve.factor = std::clamp(before * Correction(step, priced, seconds), 0.25, 16.0);
  if (model != ModelIndex::kTarget) return;
  // Load that slows the target slows the draft; a price that was once too high must not keep it
  // idle.
  double& draft_factor = curves_[static_cast<size_t>(ModelIndex::kDraft)].factor;
  draft_factor += kUnobservedStep * (curve.factor - draft_factor);
  for (Verified& verified : verified_) {
    // What passes that verify were found to take is no different for it, as far as it is known.
    const double known = verified.passes / (verified.passes + kFirstPasses);
    verified.factor *= std::pow(before / curve.factor, known);
    verified.passes -= kForgottenStep * verified.passes;
    verified.factor -= kReturnStep * std::max(verified.factor - verified.at_start, 0.0);
  }
}

void CostTable::ObserveVerify(int32_t rows, double seconds) {
  Verified& verified = verified_[RowBucket(rows)];
  const double expected = Seconds(ModelIndex::kTarget, rows) * verified.factor;
  if (expected <= 0.0 || seconds <= 0.0) return;
  const double step = StepAfter(verified.passes, kVerifyStep);
  verified.factor = std::clamp(verified.factor * Correction(step, expected, seconds), 0.25, 4.0);
}

}  // namespace tandem
