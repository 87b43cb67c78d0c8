// FakeEngine: an EngineClient that plays a script: the answer to a prompt is a function of the
// prompt. Each step gives every open sequence one token, as a batch does; the first has the context
// logits, if they were asked for: a row of one value for each token of the prompt, its index; and
// the prompt's log-probabilities: -0.5 each. For tests; every method on any thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "serve/engine_client.h"

namespace tandem::serve {

// The engine's reaction to a request.
struct Script {
  std::string answer;                // its bytes, then the end token; max_tokens may cut it
  std::optional<size_t> fail_after;  // tokens, then kFailed with `failure`
  Status failure = Internal("the device is lost");
  // Answers of the choices after the first, if they should differ from it; these do not fail.
  std::optional<std::string> later_answer = {};
  // Replaces the answer's bytes, for a codec other than ByteCodec.
  std::vector<int32_t> tokens = {};
};

struct FakeEngineOptions {
  // Its queue counts all open sequences, also those that have begun.
  EngineLimits limits{
      .max_seq_len = 2048, .max_input_len = 2048, .max_choices = 64, .max_queue_size = 256};
  Nanos step{0};                                            // time between tokens of a sequence
  bool last_sequence_first = false;                         // the order of a step's events
  std::function<Script(const std::string& prompt)> script;  // by default: DefaultScript
};

// "tandem" → "One behind the other.", "emoji" → "h\xC3\xA9llo \xF0\x9F\x99\x82!", "endless",
// "empty", "fail now", "fail later", "wait too long", "call a tool" (text and a call), "think
// first" (reasoning and text); anything else: "\nMachine learning is a subset of artificial
// intelligence."
Script DefaultScript(const std::string& prompt);

class FakeEngine final : public EngineClient {
 public:
  explicit FakeEngine(FakeEngineOptions options = {});
  ~FakeEngine() override;

  Result<RequestId> Submit(Request request) override;
  void Cancel(RequestId request, int32_t choice) override;
  bool PopEvent(Event& event, Nanos timeout) override;
  EngineStats Stats() const override;
  // None are kept unless a test adds some.
  Result<KvEventBatch> TakeKvEvents(size_t most) override;
  void AddKvEvent(KvEvent event);
  EngineLimits limits() const override { return options_.limits; }

  int open_sequences() const;
  int num_cancelled() const { return num_cancelled_; }
  // The last request submitted.
  Request last_request() const;
  // The health that Stats() reports.
  void SetHealth(double seconds_since_progress, const Status& failure);
  // Pauses all sequences until Resume().
  void Pause();
  void Resume();

 private:
  struct Sequence {
    RequestId request;
    int32_t choice;
    Script script;  // with `tokens`
    size_t position = 0;
    int32_t max_tokens;
    std::vector<int32_t> prompt;
    int32_t num_top_logprobs;
    uint64_t seed;
    bool wants_context_logits;
    int32_t num_prompt_logprobs;
    bool cancelled = false;
  };

  void Run();
  void StepLocked() TANDEM_REQUIRES(mutex_);
  // The next event of a sequence.
  Event Advance(Sequence& sequence) const;

  const FakeEngineOptions options_;
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<Sequence> sequences_ TANDEM_GUARDED_BY(mutex_);
  std::deque<Event> events_ TANDEM_GUARDED_BY(mutex_);
  Request last_request_ TANDEM_GUARDED_BY(mutex_);
  RequestId next_id_ TANDEM_GUARDED_BY(mutex_) = 1;
  bool paused_ TANDEM_GUARDED_BY(mutex_) = false;
  bool stop_ TANDEM_GUARDED_BY(mutex_) = false;
  EngineStats totals_ TANDEM_GUARDED_BY(mutex_);
  std::vector<KvEvent> kv_events_ TANDEM_GUARDED_BY(mutex_);
  std::atomic<int> num_cancelled_{0};
  std::thread thread_;
};

}  // namespace tandem::serve
