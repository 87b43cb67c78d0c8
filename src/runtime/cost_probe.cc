#include "runtime/cost_probe.h"

#include <algorithm>
#include <numeric>

#include "runtime/batch_builder.h"

namespace tandem {
namespace {

// Small batches decide most often and are always measured; larger ones while time is left.
constexpr int32_t kAlwaysRows = 16;
constexpr std::chrono::duration<double> kTimeLimit{0.5};
constexpr int kRepeats = 3;

// One sequence's rows from position 0 on, as a verification has them.
class Probe {
 public:
  Probe(ForwardPass& pass, const ops::KvPool& pool, ops::Ops& ops, int32_t max_rows,
        int32_t max_logits_rows)
      : pass_(pass),
        pool_(pool),
        ops_(ops),
        max_logits_rows_(max_logits_rows),
        tokens_(static_cast<size_t>(max_rows)),
        blocks_(static_cast<size_t>((max_rows + pool.block_tokens - 1) / pool.block_tokens)),
        builder_(max_rows, 1, max_logits_rows, static_cast<int32_t>(blocks_.size()),
                 pass.vocab_size()),
        drawn_(static_cast<size_t>(max_logits_rows)) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    slot_.params.temperature = 0.0f;
  }

  void Run(int32_t rows) {
    builder_.Clear();
    const int32_t num_logits = std::min(rows, max_logits_rows_);
    builder_.Add(0, std::span(tokens_).first(static_cast<size_t>(rows)), {}, blocks_, num_logits);
    const Tensor logits = pass_.Forward(builder_.View(), pool_);
    rows_.clear();
    for (int32_t i = 0; i < num_logits; ++i) {
      ops::SampleRow row;
      row.logits = logits.As<float>() + i * pass_.vocab_size();
      row.slot = &slot_;
      row.history = {tokens_.data(), 1, 1, nullptr};
      rows_.push_back(row);
    }
    ops_.Sample(rows_, pass_.vocab_size(), std::span(drawn_).first(rows_.size()));
  }

 private:
  ForwardPass& pass_;
  const ops::KvPool& pool_;
  ops::Ops& ops_;
  const int32_t max_logits_rows_;
  std::vector<int32_t> tokens_;  // all of them token 0
  std::vector<BlockId> blocks_;
  BatchBuilder builder_;
  ops::SlotSampling slot_;
  std::vector<ops::SampleRow> rows_;
  std::vector<ops::SampledToken> drawn_;
};

}  // namespace

std::vector<CostTable::Point> MeasureCosts(ForwardPass& pass, const ops::KvPool& pool,
                                           ops::Ops& ops, int32_t max_rows, int32_t max_logits_rows,
                                           const Clock& clock) {
  max_rows = static_cast<int32_t>(std::min<int64_t>(max_rows, pool.num_blocks * pool.block_tokens));
  Probe probe(pass, pool, ops, max_rows, max_logits_rows);
  std::vector<CostTable::Point> points;
  const Nanos begin = clock.Now();
  for (int32_t rows = 1; rows <= max_rows; rows *= 2) {
    if (rows > kAlwaysRows && clock.Now() - begin > kTimeLimit) break;
    probe.Run(rows);  // warms caches and pages
    Nanos best = Nanos::max();
    // The least of a few: what disturbs a measurement only ever adds to it.
    for (int i = 0; i < kRepeats; ++i) {
      const Nanos start = clock.Now();
      probe.Run(rows);
      best = std::min(best, clock.Now() - start);
      if (best > kTimeLimit / kRepeats) break;
    }
    points.push_back({rows, std::chrono::duration<double>(best).count()});
  }
  return points;
}

}  // namespace tandem
