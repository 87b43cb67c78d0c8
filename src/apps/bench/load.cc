#include "apps/bench/load.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace tandem::apps {
namespace {

// A request in progress.
struct Open {
  size_t index = 0;
  Nanos submitted{0};
  int choices_left = 0;
};

class ClosedLoop {
 public:
  ClosedLoop(Replicas& engine, const Clock& clock, std::span<const Request> requests)
      : engine_(engine), clock_(clock), requests_(requests) {
    report_.records.resize(requests.size());
  }

  Status Run(int concurrency, const std::function<void(size_t)>& done) {
    const Nanos start = clock_.Now();
    while (finished_ < requests_.size()) {
      TANDEM_RETURN_IF_ERROR(SendUpTo(concurrency));
      TANDEM_ASSIGN_OR_RETURN(const bool ended, Receive());
      if (ended && done) done(finished_);
    }
    report_.wall = clock_.Now() - start;
    return {};
  }

  Status RunWindow(int concurrency, Nanos window, WindowReport& report) {
    while (begun_ < concurrency) TANDEM_RETURN_IF_ERROR(KeepUp(concurrency));
    // Things made at first use, such as the graphs of steps of this size, are made before the
    // window.
    TANDEM_RETURN_IF_ERROR(KeepUpFor(window / 8, concurrency).status());
    report.before = engine_.Stats();
    TANDEM_ASSIGN_OR_RETURN(report.wall, KeepUpFor(window, concurrency));
    report.after = engine_.Stats();
    CancelAll();
    while (!open_.empty()) TANDEM_RETURN_IF_ERROR(Receive().status());
    return {};
  }

  void CancelAll() {
    for (const auto& [id, open] : open_) engine_.Cancel(id);
  }

  LoadReport TakeReport() { return std::move(report_); }

 private:
  Status SendUpTo(int concurrency) {
    while (next_ < requests_.size() && open_.size() < static_cast<size_t>(concurrency)) {
      TANDEM_RETURN_IF_ERROR(Submit(next_++));
    }
    return {};
  }

  Status KeepUp(int concurrency) {
    TANDEM_RETURN_IF_ERROR(SendUpTo(concurrency));
    if (open_.size() < static_cast<size_t>(concurrency)) {
      return FailedPrecondition("the requests ended before the window: more are needed");
    }
    return Receive().status();
  }

  // Returns the window's length.
  Result<Nanos> KeepUpFor(Nanos stretch, int concurrency) {
    const Nanos start = clock_.Now();
    while (clock_.Now() - start < stretch) TANDEM_RETURN_IF_ERROR(KeepUp(concurrency));
    return clock_.Now() - start;
  }

  // Waits a while for an event; true when it ended its request.
  Result<bool> Receive() {
    if (!engine_.PopEvent(event_, std::chrono::seconds(1))) return false;
    TANDEM_ASSIGN_OR_RETURN(const bool ended, Take(event_));
    if (ended) ++finished_;
    return ended;
  }

  Status Submit(size_t index) {
    const Nanos now = clock_.Now();
    TANDEM_ASSIGN_OR_RETURN(const RequestId id, engine_.Submit(requests_[index]));
    open_[id] = {index, now, requests_[index].num_choices};
    report_.records[index].choices.resize(static_cast<size_t>(requests_[index].num_choices));
    return {};
  }

  // True when the event ended its request.
  Result<bool> Take(const Event& event) {
    const auto it = open_.find(event.request);
    if (it == open_.end()) return false;
    Open& open = it->second;
    if (event.finish == FinishReason::kFailed) return event.error;
    LoadRecord& record = report_.records[open.index];
    const Nanos age = clock_.Now() - open.submitted;
    if (!event.tokens.empty() && record.first_token == Nanos(0)) {
      record.first_token = age;
      ++begun_;
    }
    for (const SampledToken& token : event.tokens) {
      record.choices[static_cast<size_t>(event.choice)].push_back(token.token);
    }
    record.end = age;
    if (event.finish == FinishReason::kNone) return false;
    record.finish = event.finish;
    record.usage = event.usage;
    if (--open.choices_left > 0) return false;
    open_.erase(it);
    return true;
  }

  Replicas& engine_;
  const Clock& clock_;
  std::span<const Request> requests_;
  std::unordered_map<RequestId, Open> open_;
  LoadReport report_;
  Event event_;          // one for all, so that its memory is reused
  size_t next_ = 0;      // of the requests: the first that was not sent
  size_t finished_ = 0;  // requests
  int begun_ = 0;        // requests with their first token
};

}  // namespace

int64_t LoadRecord::OutputTokens() const {
  int64_t tokens = 0;
  for (const auto& choice : choices) tokens += static_cast<int64_t>(choice.size());
  return tokens;
}

double LoadRecord::DecodeRate() const {
  const int64_t tokens = OutputTokens() - 1;
  const double seconds = InSeconds(end - first_token);
  return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

int64_t LoadReport::OutputTokens() const {
  int64_t tokens = 0;
  for (const LoadRecord& record : records) tokens += record.OutputTokens();
  return tokens;
}

double LoadReport::OutputRate() const {
  return static_cast<double>(OutputTokens()) / std::max(InSeconds(wall), 1e-9);
}

double LoadReport::DecodeRate(int concurrency) const {
  // Weighted by time: tokens after the first over the time they took.
  int64_t tokens = 0;
  double seconds = 0;
  for (const LoadRecord& record : records) {
    tokens += std::max<int64_t>(record.OutputTokens() - 1, 0);
    seconds += InSeconds(record.end - record.first_token);
  }
  return seconds > 0 ? concurrency * static_cast<double>(tokens) / seconds : 0.0;
}

Nanos LoadReport::MeanFirstToken() const {
  if (records.empty()) return Nanos(0);
  const Nanos sum = std::accumulate(
      records.begin(), records.end(), Nanos(0),
      [](Nanos total, const LoadRecord& record) { return total + record.first_token; });
  return sum / static_cast<int64_t>(records.size());
}

int64_t LoadReport::DraftsProposed() const {
  int64_t drafts = 0;
  for (const LoadRecord& record : records) drafts += record.usage.drafts_proposed;
  return drafts;
}

int64_t LoadReport::DraftsAccepted() const {
  int64_t drafts = 0;
  for (const LoadRecord& record : records) drafts += record.usage.drafts_accepted;
  return drafts;
}

double LoadReport::Acceptance() const {
  const int64_t proposed = DraftsProposed();
  return proposed > 0 ? static_cast<double>(DraftsAccepted()) / static_cast<double>(proposed) : 0.0;
}

double LoadReport::DraftsPerToken() const {
  return static_cast<double>(DraftsProposed()) /
         static_cast<double>(std::max<int64_t>(OutputTokens(), 1));
}

double WindowReport::OutputRate() const {
  return static_cast<double>(after.output_tokens - before.output_tokens) /
         std::max(InSeconds(wall), 1e-9);
}

void QueueForAll(EngineOptions& options) {
  options.max_queue_size = std::max(options.max_queue_size, options.max_batch_size);
}

Result<LoadReport> RunClosedLoop(Replicas& engine, const Clock& clock,
                                 std::span<const Request> requests, int concurrency,
                                 const std::function<void(size_t finished)>& done) {
  ClosedLoop loop(engine, clock, requests);
  if (const Status status = loop.Run(concurrency, done); !status.ok()) {
    loop.CancelAll();
    return status;
  }
  return loop.TakeReport();
}

Result<WindowReport> RunWindow(Replicas& engine, const Clock& clock,
                               std::span<const Request> requests, int concurrency, Nanos window) {
  ClosedLoop loop(engine, clock, requests);
  WindowReport report;
  if (const Status status = loop.RunWindow(concurrency, window, report); !status.ok()) {
    loop.CancelAll();
    return status;
  }
  report.load = loop.TakeReport();
  return report;
}

}  // namespace tandem::apps
