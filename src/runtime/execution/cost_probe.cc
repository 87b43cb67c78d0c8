#include "runtime/execution/cost_probe.h"

#include <algorithm>
#include <bit>
#include <memory>

namespace tandem {
namespace {

// Up to this number of rows powers of two are always measured, however long it takes: small batches
// are the most frequent.
constexpr int32_t kAlwaysRows = 16;
// Larger powers of two are measured until a model has used the first time limit, the numbers
// between them and further rounds until the second.
constexpr std::chrono::duration<double> kTimeForPowers{0.25};
constexpr std::chrono::duration<double> kTimeLimit{0.5};
constexpr int kRounds = 5;
constexpr int kRepeats = 3;

// One sequence's rows from position 0 on, as in a verification, in backend memory.
class Probe {
 public:
  Probe(ForwardPass& pass, const ops::KvPool& pool, ops::Backend& backend, int32_t max_rows,
        int32_t max_logits_rows)
      : pass_(pass),
        pool_(pool),
        backend_(backend),
        max_rows_(max_rows),
        max_logits_rows_(max_logits_rows),
        rows_(static_cast<size_t>(max_logits_rows)) {}

  Status Allocate() {
    const size_t logits = rows_.size();
    ints_of_view_.reserve(3 * static_cast<size_t>(max_rows_) + static_cast<size_t>(NumBlocks()) +
                          logits + kMaxSmallInts);
    TANDEM_ASSIGN_OR_RETURN(ints_, backend_.Allocate(ints_of_view_.capacity() * sizeof(int32_t)));
    TANDEM_ASSIGN_OR_RETURN(slot_, backend_.Allocate(sizeof(ops::SlotSampling)));
    TANDEM_ASSIGN_OR_RETURN(device_rows_, backend_.Allocate(logits * sizeof(ops::SampleRow)));
    TANDEM_ASSIGN_OR_RETURN(drawn_, backend_.Allocate(logits * sizeof(SampledToken)));
    ops::SlotSampling greedy;
    greedy.params.temperature = 0.0f;
    backend_.CopyToDevice(slot_.data(), &greedy, sizeof(greedy));
    backend_.ops().ReserveSampling(max_logits_rows_, pass_.vocab_size());
    return {};
  }

  // Lays out `rows` rows and runs them once: warms caches and pages, and shows where the logits
  // are.
  void Prepare(int32_t rows) {
    num_logits_ = std::min(rows, max_logits_rows_);
    SendView(rows);
    graph_.reset();
    const Tensor logits = pass_.Forward(view_, pool_);
    for (int32_t i = 0; i < num_logits_; ++i) {
      ops::SampleRow& row = rows_[static_cast<size_t>(i)];
      row.logits = logits.As<float>() + i * pass_.vocab_size();
      row.slot = slot_.As<ops::SlotSampling>();
      row.history = {view_.tokens, 1, 1, nullptr};
    }
    backend_.CopyToDevice(device_rows_.data(), rows_.data(),
                          static_cast<size_t>(num_logits_) * sizeof(ops::SampleRow));
    Draw();
    Wait();
    graph_ = backend_.Capture([this] { Enqueue(); });
  }

  void Run() {
    if (graph_ != nullptr) {
      backend_.Launch(*graph_);
    } else {
      Enqueue();
    }
    Wait();
  }

 private:
  // query_start and context_len of one sequence.
  static constexpr size_t kMaxSmallInts = 3;

  int32_t NumBlocks() const {
    return (max_rows_ + pool_.block_tokens() - 1) / pool_.block_tokens();
  }

  // All tokens are token 0.
  void SendView(int32_t rows) {
    ints_of_view_.clear();
    const auto add = [&](int32_t count, int32_t first, int32_t step) {
      const int32_t* place = ints_.As<int32_t>() + ints_of_view_.size();
      for (int32_t i = 0; i < count; ++i) ints_of_view_.push_back(first + i * step);
      return place;
    };
    view_ = {.num_rows = rows, .num_seqs = 1, .num_logits = num_logits_, .max_query_len = rows};
    view_.tokens = add(rows, 0, 0);
    view_.positions = add(rows, 0, 1);
    view_.row_seq = add(rows, 0, 0);
    view_.query_start = add(2, 0, rows);
    view_.context_len = add(1, rows, 0);
    view_.max_blocks = NumBlocks();
    view_.block_table = add(view_.max_blocks, 0, 1);
    view_.logits_rows = add(num_logits_, rows - num_logits_, 1);
    backend_.CopyToDevice(ints_.data(), ints_of_view_.data(),
                          ints_of_view_.size() * sizeof(int32_t));
  }

  void Enqueue() {
    pass_.Forward(view_, pool_);
    Draw();
  }

  void Draw() {
    backend_.ops().Sample(std::span<const ops::SampleRow>(device_rows_.As<ops::SampleRow>(),
                                                          static_cast<size_t>(num_logits_)),
                          pass_.vocab_size(),
                          std::span(drawn_.As<SampledToken>(), static_cast<size_t>(num_logits_)));
  }

  // The backend keeps a failure: MeasureCosts checks for it at its end.
  void Wait() { static_cast<void>(backend_.Synchronize()); }

  ForwardPass& pass_;
  const ops::KvPool& pool_;
  ops::Backend& backend_;
  const int32_t max_rows_;
  const int32_t max_logits_rows_;
  std::vector<int32_t> ints_of_view_;
  std::vector<ops::SampleRow> rows_;
  // Backend memory.
  Buffer ints_;         // ints_of_view_: the arrays of view_
  Buffer slot_;         // one greedy sampling record
  Buffer device_rows_;  // rows_
  Buffer drawn_;
  ops::BatchView view_;
  int32_t num_logits_ = 0;
  std::unique_ptr<ops::Graph> graph_;
};

// Best of a few runs: a disturbance can only add time.
double Fastest(Probe& probe, const Clock& clock) {
  Nanos best = Nanos::max();
  for (int i = 0; i < kRepeats; ++i) {
    const Nanos start = clock.Now();
    probe.Run();
    best = std::min(best, clock.Now() - start);
    if (best > kTimeLimit / kRepeats) break;
  }
  return std::chrono::duration<double>(best).count();
}

bool IsPowerOfTwo(int32_t rows) { return std::has_single_bit(static_cast<uint32_t>(rows)); }

// Powers of two first: they give the curve its range; the numbers between them show the steps that
// the kernels' row tiles make.
std::vector<CostTable::Point> RowsToMeasure(int32_t max_rows) {
  std::vector<CostTable::Point> points;
  for (int32_t rows = 1; rows <= max_rows; rows *= 2) points.push_back({rows});
  for (const int32_t rows : {3, 5, 6, 7, 10, 12, 14, 20, 24, 28, 48}) {
    if (rows < max_rows) points.push_back({rows});
  }
  return points;
}

// The points of one model so far.
class Measurement {
 public:
  Measurement(const CostSubject& subject, ops::Backend& backend)
      : points_(RowsToMeasure(MaxRows(subject))),
        probe_(*subject.pass, *subject.pool, backend, MaxRows(subject), subject.max_logits_rows) {}

  Status Allocate() { return probe_.Allocate(); }

  void Round(int round, const Clock& clock) {
    const Nanos begin = clock.Now() - taken_;
    for (CostTable::Point& point : points_) {
      const bool power = round == 0 && IsPowerOfTwo(point.rows);
      const bool always = power && point.rows <= kAlwaysRows;
      if (!always && clock.Now() - begin > (power ? kTimeForPowers : kTimeLimit)) continue;
      if (round > 0 && point.seconds <= 0.0) continue;
      probe_.Prepare(point.rows);
      const double seconds = Fastest(probe_, clock);
      point.seconds = point.seconds > 0.0 ? std::min(point.seconds, seconds) : seconds;
    }
    taken_ = clock.Now() - begin;
  }

  // The points that were measured in time, by rising number of rows.
  std::vector<CostTable::Point> Points() const {
    std::vector<CostTable::Point> points = points_;
    std::erase_if(points, [](const CostTable::Point& point) { return point.seconds <= 0.0; });
    std::ranges::sort(points, {}, &CostTable::Point::rows);
    return points;
  }

 private:
  static int32_t MaxRows(const CostSubject& subject) {
    const int64_t room = subject.pool->num_blocks() * subject.pool->block_tokens();
    return static_cast<int32_t>(std::min<int64_t>(subject.max_rows, room));
  }

  std::vector<CostTable::Point> points_;
  Probe probe_;
  Nanos taken_{0};
};

}  // namespace

Status MeasureCosts(std::span<const CostSubject> subjects, ops::Backend& backend,
                    const Clock& clock, CostTable& costs) {
  std::vector<Measurement> measurements;
  measurements.reserve(subjects.size());
  for (const CostSubject& subject : subjects) {
    TANDEM_RETURN_IF_ERROR(measurements.emplace_back(subject, backend).Allocate());
  }
  // Rounds rather than repeats: a neighbour on the machine that is busy for a while disturbs every
  // point a little, instead of one point entirely, and the decision depends on the curve's shape.
  for (int round = 0; round < kRounds; ++round) {
    for (Measurement& measurement : measurements) measurement.Round(round, clock);
  }
  TANDEM_RETURN_IF_ERROR(backend.Synchronize());
  for (size_t i = 0; i < subjects.size(); ++i) {
    costs.Set(subjects[i].model, measurements[i].Points());
  }
  return {};
}

}  // namespace tandem
