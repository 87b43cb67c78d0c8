// CostTable: the price of a pass. A plain value, used only by the engine thread; nothing allocates
// after Set.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cache/model_index.h"
#include "runtime/speculation/row_bucket.h"

namespace tandem {

// Seconds of one forward pass by rows, per model: points measured at start, what lies between them,
// and a line beyond the last. A token is drawn of every row; tokens that the draft model computes
// to catch up need no logits, which may be most of a small model's work, and have a price of their
// own. Observations move one factor per model (for context length and other load on the machine)
// but never the shape, so that the price of a row count that was never tried does not become stale.
// Target passes that verify drafts have another factor, per power of two of their rows: the price
// of a draft is the difference of two points and as wrong as both. These factors are learnt in a
// few passes while nothing is known, then kept steady, and trusted less the longer nothing was
// verified. A plain pass that changes the first factor leaves the price of verifying as it was, as
// far as that is known: the two are learnt apart, although one is stored relative to the other.
// While nothing verifies, a factor above the start's returns to it.
class CostTable {
 public:
  struct Point {
    int32_t rows = 0;
    double seconds = 0.0;
  };

  // The price of rows between two points.
  enum class Between : uint8_t {
    kLinear,
    kNext,  // the next point's: passes are padded to it
  };

  CostTable() = default;
  // Points by rising rows: the price is constant up to the first and linear after the last. A point
  // that took longer than a larger one was disturbed: it gets the larger one's seconds. Tokens of a
  // catch-up cost as much as rows after the last point, or as the only point.
  void Set(ModelIndex model, std::span<const Point> measured, Between between = Between::kLinear);
  // After Set: each token of a catch-up takes `seconds`.
  void SetCatchUp(double seconds) { catch_up_ = seconds; }
  // After Set: a target pass of `rows` rows that verifies drafts was measured too. Several of the
  // same power of two count equally.
  void SetVerify(int32_t rows, double seconds);

  // Zero for no rows or for a model that was never measured.
  double Seconds(ModelIndex model, int32_t rows) const {
    return curve(model).Measured(rows) * curve(model).factor;
  }
  // Seconds that this many catch-up tokens add to a pass of the draft model.
  double CatchUpSeconds(int32_t tokens) const {
    return catch_up_ * tokens * curve(ModelIndex::kDraft).factor;
  }
  // Duration of a target pass of `rows` rows that verifies drafts, relative to Seconds.
  double VerifyFactor(int32_t rows) const { return verified_[RowBucket(rows)].factor; }
  // Passes without drafts, including the draft model's own; target passes that verify drafts.
  void Observe(ModelIndex model, int32_t rows, double seconds);
  void ObserveVerify(int32_t rows, double seconds);
  // Passes that took `seconds` together and whose predicted cost was `priced`.
  void ObservePriced(ModelIndex model, double priced, double seconds);

 private:
  struct Line {
    Point from;
    double slope = 0.0;
    double At(int32_t rows) const { return from.seconds + slope * (rows - from.rows); }
  };
  struct Curve {
    // What the points say of 0 rows, 1 row and so on up to the last point's: a plan asks for
    // hundreds of prices.
    std::vector<double> by_rows;
    Line beyond;
    double Measured(int32_t rows) const {
      if (rows <= 0) return 0.0;
      const auto index = static_cast<size_t>(rows);
      return index < by_rows.size() ? by_rows[index] : beyond.At(rows);
    }
    double factor = 1.0;
    double passes = 0.0;  // number of passes it was learnt from
  };
  struct Verified {
    double factor = 1.0;
    double at_start = 1.0;
    double passes = 0.0;  // number of passes it was learnt from; fades
  };
  const Curve& curve(ModelIndex model) const { return curves_[static_cast<size_t>(model)]; }

  std::array<Curve, kNumModels> curves_;
  double catch_up_ = 0.0;                          // of one token
  std::array<Verified, kNumRowBuckets> verified_;  // by RowBucket
};

}  // namespace tandem
