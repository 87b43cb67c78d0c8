#include "serve/generate_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "serve/active_request.h"
#include "serve/testing/byte_codec.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

struct Fixture {
  explicit Fixture(FakeEngineOptions engine_options = {}, ServiceOptions options = {})
      : engine(std::move(engine_options)),
        service(engine, codec, GenerationDefaults(), clock, options, &metrics) {}

  FakeEngine engine;
  ByteCodec codec;
  SteadyClock clock;
  Metrics metrics;
  GenerateService service;

  std::string MetricsText() const {
    const EngineStats stats = engine.Stats();
    return metrics.Text(std::span(&stats, 1));
  }
};

TextRequest Ask(std::string prompt, std::optional<int64_t> max_tokens = {}) {
  TextRequest request;
  request.text = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

TEST(GenerateServiceTest, AnswersWithTextReasonAndFigures) {
  Fixture f;
  const Result<TextResult> result = f.service.Generate(Ask("What is tandem?"));
  ASSERT_TRUE(result.ok()) << result.status().message();
  const TextChoice& choice = result->choices.at(0);
  EXPECT_EQ(choice.text, "One behind the other.");
  EXPECT_EQ(choice.finish, TextFinish::kStop);
  ASSERT_TRUE(choice.end.has_value());
  EXPECT_EQ(choice.end->token, ByteCodec::kEnd);
  EXPECT_EQ(choice.pieces.size(), 21u);
  EXPECT_EQ(choice.usage.prompt_tokens, 16);
  EXPECT_EQ(choice.usage.output_tokens, 21);
  EXPECT_EQ(choice.usage.drafts_accepted, 10);
}

// Its Submit takes long, as while a large grammar is copied for each choice: that of "slow" until
// Release, that of "early" until an event of the request has been taken.
class SlowEngine final : public EngineClient {
 public:
  Result<RequestId> Submit(Request request) override {
    const std::string prompt = ByteCodec::TextOf(request.prompt);
    if (prompt == "slow") Await([this]() TANDEM_REQUIRES(mutex_) { return released_; });
    const Result<RequestId> id = engine.Submit(std::move(request));
    if (prompt == "early") Await([&]() TANDEM_REQUIRES(mutex_) { return last_event_ == *id; });
    return id;
  }
  void Cancel(RequestId request, int32_t choice) override { engine.Cancel(request, choice); }
  bool PopEvent(Event& event, Nanos timeout) override {
    if (!engine.PopEvent(event, timeout)) return false;
    const MutexLock lock(mutex_);
    last_event_ = event.request;
    changed_.NotifyAll();
    return true;
  }
  EngineStats Stats() const override { return engine.Stats(); }
  Result<KvEventBatch> TakeKvEvents(size_t most) override { return engine.TakeKvEvents(most); }
  EngineLimits limits() const override { return engine.limits(); }

  void Release() {
    const MutexLock lock(mutex_);
    released_ = true;
    changed_.NotifyAll();
  }

  FakeEngine engine;
  std::atomic<bool> is_waiting{false};
  std::atomic<bool> has_given_up{false};

 private:
  template <typename Ready>
  void Await(Ready ready) {
    MutexLock lock(mutex_);
    is_waiting = true;
    if (!changed_.WaitFor(lock, std::chrono::seconds(20), ready)) has_given_up = true;
  }

  Mutex mutex_;
  Condition changed_;
  bool released_ TANDEM_GUARDED_BY(mutex_) = false;
  RequestId last_event_ TANDEM_GUARDED_BY(mutex_) = 0;
};

struct SlowFixture {
  static ServiceOptions Queued() {
    ServiceOptions options;
    options.inline_prompt_bytes = 0;  // Start does not wait for Submit
    return options;
  }

  SlowEngine engine;
  ByteCodec codec;
  SteadyClock clock;
  GenerateService service{engine, codec, GenerationDefaults(), clock, Queued(), nullptr};
};

TEST(GenerateServiceTest, ARequestThatIsBeingSubmittedDelaysNoOther) {
  SlowFixture f;
  const auto slow = f.service.Start(Ask("slow"));
  ASSERT_TRUE(Eventually([&] { return f.engine.is_waiting.load(); }));
  TextRequest quick = Ask("tandem");
  quick.grammar = std::make_shared<const OutputGrammar>();  // begun on another thread
  const Result<TextResult> result = f.service.Generate(std::move(quick));
  EXPECT_EQ(result->choices.at(0).text, "One behind the other.");
  EXPECT_FALSE(f.engine.has_given_up);
  f.engine.Release();
  TextEvent event;
  EXPECT_TRUE(slow->Next(event));
  EXPECT_TRUE(event.error.ok());
}

TEST(GenerateServiceTest, AnEventMayComeBeforeSubmitReturns) {
  SlowFixture f;
  const Result<TextResult> result = f.service.Generate(Ask("early"));
  EXPECT_FALSE(f.engine.has_given_up);
  EXPECT_EQ(result->choices.at(0).text,
            "\nMachine learning is a subset of artificial intelligence.");
}

TEST(GenerateServiceTest, AClientThatLeavesWhileItsRequestIsSubmittedIsCancelled) {
  SlowFixture f;
  auto slow = f.service.Start(Ask("slow"));
  ASSERT_TRUE(Eventually([&] { return f.engine.is_waiting.load(); }));
  slow.reset();
  f.engine.Release();
  EXPECT_TRUE(Eventually([&] { return f.engine.engine.num_cancelled() > 0; }));
}

TEST(GenerateServiceTest, AServiceThatClosesRefusesWhatIsBeingSubmitted) {
  SlowFixture f;
  const auto slow = f.service.Start(Ask("slow"));
  ASSERT_TRUE(Eventually([&] { return f.engine.is_waiting.load(); }));
  f.service.Close();
  f.engine.Release();
  TextEvent event;
  EXPECT_TRUE(slow->Next(event));
  EXPECT_EQ(event.error.code(), Code::kUnavailable);
}

TEST(GenerateServiceTest, EndsAtMaxTokens) {
  Fixture f;
  const Result<TextResult> result = f.service.Generate(Ask("tandem", 3));
  EXPECT_EQ(result->choices.at(0).text, "One");
  EXPECT_EQ(result->choices.at(0).finish, TextFinish::kLength);
}

TEST(GenerateServiceTest, CancelsTheEngineAtAStopString) {
  FakeEngineOptions options;
  options.step = std::chrono::milliseconds(1);
  Fixture f(options);
  TextRequest request = Ask("endless");
  request.stop = {"gh ab"};
  const Result<TextResult> result = f.service.Generate(std::move(request));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->choices.at(0).text, "abcdef");
  EXPECT_EQ(result->choices.at(0).finish, TextFinish::kStop);
  EXPECT_EQ(result->choices.at(0).usage.output_tokens, 11);
  EXPECT_TRUE(Eventually([&] { return f.engine.open_sequences() == 0; }));
  EXPECT_EQ(f.engine.num_cancelled(), 1);
}

TEST(GenerateServiceTest, CancelsTheChoiceThatEndedAtAStopStringAlone) {
  FakeEngineOptions options;
  options.step = std::chrono::milliseconds(1);
  options.script = [](const std::string&) {
    return Script{.answer = "abSTOP" + std::string(100'000, 'x'),
                  .fail_after = {},
                  .later_answer = "cdefghijklmnopqrstuvwxyz"};
  };
  options.limits.max_seq_len = options.limits.max_input_len = 200'000;
  Fixture f(options);
  TextRequest request = Ask("prompt");
  request.num_choices = 2;
  request.stop = {"STOP"};
  const Result<TextResult> result = f.service.Generate(std::move(request));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->choices.at(0).text, "ab");
  EXPECT_EQ(result->choices.at(1).text, "cdefghijklmnopqrstuvwxyz");
  EXPECT_TRUE(Eventually([&] { return f.engine.open_sequences() == 0; }));
  EXPECT_EQ(f.engine.num_cancelled(), 1);
}

TEST(GenerateServiceTest, AFailedChoiceTakesTheOthersAlongAndCountsOnce) {
  FakeEngineOptions options;
  options.step = std::chrono::milliseconds(1);
  options.script = [](const std::string& prompt) {
    if (prompt != "prompt") return DefaultScript(prompt);
    return Script{.answer = "abc", .fail_after = 2, .later_answer = std::string(100'000, 'x')};
  };
  options.limits.max_seq_len = options.limits.max_input_len = 200'000;
  Fixture f(options);
  TextRequest request = Ask("prompt");
  request.num_choices = 2;
  EXPECT_EQ(f.service.Generate(std::move(request)).status().message(), "the device is lost");
  EXPECT_TRUE(Eventually([&] { return f.engine.open_sequences() == 0; }));
  // After this answer the service has seen all events of the previous request.
  EXPECT_TRUE(f.service.Generate(Ask("tandem")).ok());
  EXPECT_NE(f.MetricsText().find(R"(tandem_requests_failed_total{code="INTERNAL"} 1)"),
            std::string::npos);
  EXPECT_EQ(f.MetricsText().find(R"(code="UNAVAILABLE")"), std::string::npos);
}

// The first token begins the stop string, so it is held back; the stop string may also be all.
TEST(GenerateServiceTest, ContextLogitsComeWhateverAStopStringHoldsBack) {
  Fixture f;
  for (const std::string stop : {"", "Once", "One", "One behind the other.!"}) {
    for (const bool is_stream : {false, true}) {
      TextRequest request = Ask("tandem");
      if (!stop.empty()) request.stop = {stop};
      request.return_context_logits = true;
      request.stream = is_stream;
      const Result<TextResult> result = f.service.Generate(std::move(request));
      ASSERT_TRUE(result.ok()) << result.status().message();
      const std::vector<LogitsRow>& rows = result->choices.at(0).context_logits;
      ASSERT_EQ(rows.size(), 7u) << "stop string \"" << stop << "\"";
      EXPECT_EQ(rows.back(), LogitsRow{6.0f});
    }
  }
}

TEST(GenerateServiceTest, AnswersEveryChoice) {
  Fixture f;
  TextRequest request = Ask("emoji");
  request.num_choices = 3;
  const Result<TextResult> result = f.service.Generate(std::move(request));
  ASSERT_EQ(result->choices.size(), 3u);
  for (const TextChoice& choice : result->choices)
    EXPECT_EQ(choice.text, "h\xC3\xA9llo \xF0\x9F\x99\x82!");
}

TEST(GenerateServiceTest, TellsFailuresAndGoesOn) {
  Fixture f;
  EXPECT_EQ(f.service.Generate(Ask("fail now")).status().code(), Code::kInternal);
  EXPECT_EQ(f.service.Generate(Ask("fail later")).status().message(), "the device is lost");
  EXPECT_EQ(f.service.Generate(Ask("")).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(f.service.Generate(Ask("tandem")).ok());
}

TEST(GenerateServiceTest, LongPromptsGoThroughTheWorker) {
  Fixture f;
  EXPECT_TRUE(f.service.Generate(Ask(std::string(1000, 'x') + " tandem", 5)).ok());
  ServiceOptions options;
  options.inline_prompt_bytes = 0;
  Fixture every(FakeEngineOptions(), options);
  EXPECT_EQ(every.service.Generate(Ask("tandem", 3))->choices.at(0).text, "One");
}

// Tokenizes nothing until it is opened.
class GatedCodec final : public ByteCodec {
 public:
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special) const override {
    ++num_encoded;
    is_open.wait(false);
    return ByteCodec::Encode(text, add_special);
  }
  void Open() {
    is_open = true;
    is_open.notify_all();
  }
  std::atomic<bool> is_open{false};
  mutable std::atomic<int> num_encoded{0};
};

// Compiles no grammar until it is opened; has compiled "known" before.
class SlowGrammarCodec final : public ByteCodec {
 public:
  Result<std::shared_ptr<const TokenConstraint>> FollowGrammar(
      const OutputGrammar& grammar, const std::vector<int32_t>& end_ids) const override {
    ++num_begun;
    is_open.wait(false);
    return ByteCodec::FollowGrammar(grammar, end_ids);
  }
  Result<std::shared_ptr<const TokenConstraint>> FollowKnownGrammar(
      const OutputGrammar& grammar, const std::vector<int32_t>& end_ids) const override {
    if (grammar.text != "known") return ByteCodec::FollowKnownGrammar(grammar, end_ids);
    return ByteCodec::FollowGrammar(grammar, end_ids);
  }
  void Open() {
    is_open = true;
    is_open.notify_all();
  }
  std::atomic<bool> is_open{false};
  mutable std::atomic<int> num_begun{0};
};

TextRequest AskFor(std::string grammar) {
  TextRequest request = Ask("tandem", 3);
  request.grammar = std::make_shared<const OutputGrammar>(
      OutputGrammar{.text = std::move(grammar), .field = "grammar"});
  return request;
}

// A service all of whose threads for grammars are compiling, and more grammars wait for them.
struct BusyCompilers {
  explicit BusyCompilers(const OutputGrammar& grammar = {.text = "slow", .field = "grammar"}) {
    for (int i = 0; i < kWaiting; ++i) {
      TextRequest request = Ask("tandem", 3);
      request.grammar = std::make_shared<const OutputGrammar>(grammar);
      streams.push_back(service.Start(std::move(request)));
    }
    EXPECT_TRUE(Eventually([&] { return codec.num_begun == kThreads; }));
  }
  static constexpr int kThreads = 2;
  static constexpr int kWaiting = 10;
  FakeEngine engine{FakeEngineOptions()};
  SlowGrammarCodec codec;
  SteadyClock clock;
  GenerateService service{
      engine, codec, GenerationDefaults(), clock, {.limits = {}, .inline_prompt_bytes = 8}};
  std::vector<std::unique_ptr<TextStream>> streams;
};

TEST(GenerateServiceTest, GrammarsThatAreBeingCompiledDelayNoOtherRequest) {
  BusyCompilers busy;
  EXPECT_EQ(busy.service.Generate(Ask("on a tandem", 3))->choices.at(0).text, "One");
  EXPECT_EQ(busy.service.Generate(Ask("tandem", 3))->choices.at(0).text, "One");
  for (int i = 0; i < 3; ++i) {
    const Result<TextResult> known = busy.service.Generate(AskFor("known"));
    ASSERT_TRUE(known.ok()) << known.status().message();
    EXPECT_NE(busy.engine.last_request().constraint, nullptr);
  }
  TextRequest without = Ask("tandem", 3);
  without.grammar_after = [](ReasoningStart) { return std::shared_ptr<const OutputGrammar>(); };
  EXPECT_TRUE(busy.service.Generate(std::move(without)).ok());
  EXPECT_EQ(busy.engine.last_request().constraint, nullptr);
  EXPECT_EQ(busy.codec.num_begun, BusyCompilers::kThreads);
  busy.codec.Open();
  for (const auto& stream : busy.streams) {
    TextEvent event;
    ASSERT_TRUE(stream->Next(event));
    EXPECT_TRUE(event.error.ok()) << event.error.message();
  }
  EXPECT_NE(busy.engine.last_request().constraint, nullptr);
}

// Neither those that wait for a thread nor the parts of one that is refused.
TEST(GenerateServiceTest, AServiceThatClosesCompilesNoFurtherGrammar) {
  const std::vector<OutputGrammar> parts(20, OutputGrammar{.text = "refused", .field = "part"});
  BusyCompilers busy({.text = "refused", .field = "grammar", .parts = parts});
  busy.service.Close();
  busy.codec.Open();
  for (const auto& stream : busy.streams) {
    TextEvent event;
    ASSERT_TRUE(stream->Next(event));
    EXPECT_EQ(event.error.code(), Code::kUnavailable) << event.error.message();
  }
  EXPECT_EQ(busy.codec.num_begun, BusyCompilers::kThreads);
}

TEST(GenerateServiceTest, WhoLeavesBeforeItsGrammarIsCompiledCostsNothing) {
  BusyCompilers busy;
  busy.streams.clear();
  busy.codec.Open();
  EXPECT_TRUE(busy.service.Generate(AskFor("new")).ok());
  EXPECT_EQ(busy.codec.num_begun, BusyCompilers::kThreads + 1);
}

TEST(GenerateServiceTest, ATimeoutBeginsWhenTheRequestArrives) {
  FakeEngine engine;
  GatedCodec codec;
  FakeClock clock;
  ServiceOptions options;
  options.inline_prompt_bytes = 0;
  GenerateService service(engine, codec, GenerationDefaults(), clock, options);
  clock.Advance(std::chrono::seconds(10));
  const auto ask = [&](std::chrono::seconds timeout) {
    TextRequest request = Ask("tandem");
    request.timeout = timeout;
    return service.Start(std::move(request));
  };
  const auto in_time = ask(std::chrono::seconds(3));
  const auto too_late = ask(std::chrono::seconds(1));
  clock.Advance(std::chrono::seconds(2));  // in the tokenizer's queue
  codec.Open();
  TextEvent event;
  ASSERT_TRUE(too_late->Next(event));
  EXPECT_EQ(event.error.code(), Code::kDeadlineExceeded);
  ASSERT_TRUE(in_time->Next(event));
  EXPECT_EQ(engine.last_request().deadline, Nanos(std::chrono::seconds(13)));
}

// A service whose tokenizer works on the first prompt until the codec opens.
struct BusyTokenizer {
  explicit BusyTokenizer(const FakeEngineOptions& options = {}) : engine(options) {
    EXPECT_TRUE(Eventually([&] { return codec.num_encoded == 1; })) << "the worker has it";
  }
  FakeEngine engine;
  GatedCodec codec;
  SteadyClock clock;
  GenerateService service{
      engine, codec, GenerationDefaults(), clock, {.limits = {}, .inline_prompt_bytes = 0}};
  std::unique_ptr<TextStream> first = service.Start(Ask("tandem", 1));
};

// A long prompt costs the one worker seconds, which the other clients wait for.
TEST(GenerateServiceTest, WhatLeftTheTokenizersQueueIsNotTokenized) {
  BusyTokenizer busy;
  busy.service.Start(Ask("tandem", 1)).reset();
  const auto last = busy.service.Start(Ask("tandem", 1));
  busy.codec.Open();
  TextEvent event;
  ASSERT_TRUE(last->Next(event));
  EXPECT_TRUE(event.error.ok()) << event.error.message();
  EXPECT_EQ(busy.codec.num_encoded, 2);
}

TEST(GenerateServiceTest, WhatWaitsForTheTokenizerIsRefusedWhenTheServiceCloses) {
  BusyTokenizer busy;
  const auto waiting = busy.service.Start(Ask("tandem", 1));
  busy.service.Close();
  busy.codec.Open();
  for (TextStream* stream : {busy.first.get(), waiting.get()}) {
    TextEvent event;
    ASSERT_TRUE(stream->Next(event));
    EXPECT_EQ(event.error.code(), Code::kUnavailable);
  }
  EXPECT_EQ(busy.codec.num_encoded, 1);
}

// One size for both queues: none refuses what the other would take.
TEST(GenerateServiceTest, TheTokenizersQueueTakesAsManyAsTheEngines) {
  for (const int32_t queue : {256, 512}) {
    FakeEngineOptions options;
    options.limits.max_queue_size = queue;
    FakeEngine engine(options);
    GatedCodec codec;
    const SteadyClock clock;
    GenerateService service(engine, codec, GenerationDefaults(), clock);
    std::vector<std::unique_ptr<TextStream>> streams;
    for (int32_t i = 0; i < queue; ++i) {
      TextRequest request = Ask("tandem", 1);
      request.bad_words = {"x"};
      streams.push_back(service.Start(std::move(request)));
    }
    codec.Open();
    for (int32_t i = 0; i < queue; ++i) {
      TextEvent event;
      ASSERT_TRUE(streams[static_cast<size_t>(i)]->Next(event));
      ASSERT_TRUE(event.error.ok()) << "request " << i << ": " << event.error.message();
    }
  }
}

TEST(GenerateServiceTest, TheTokenizersQueueIsBounded) {
  FakeEngineOptions options;
  options.limits.max_queue_size = 2;
  BusyTokenizer busy(options);
  const auto second = busy.service.Start(Ask("tandem", 1));
  const auto third = busy.service.Start(Ask("tandem", 1));
  const auto refused = busy.service.Start(Ask("tandem", 1));
  TextEvent event;
  ASSERT_TRUE(refused->Next(event));
  EXPECT_EQ(event.error.code(), Code::kResourceExhausted);
  busy.codec.Open();
}

TEST(GenerateServiceTest, AStreamThatIsDroppedFreesItsSequence) {
  FakeEngineOptions options;
  options.step = std::chrono::milliseconds(1);
  Fixture f(options);
  std::unique_ptr<TextStream> stream = f.service.Start(Ask("endless"));
  TextEvent event;
  ASSERT_TRUE(stream->Next(event));
  EXPECT_EQ(f.engine.open_sequences(), 1);
  stream.reset();
  EXPECT_TRUE(Eventually([&] { return f.engine.open_sequences() == 0; }));
  EXPECT_NE(f.MetricsText().find("tandem_requests_cancelled_total 1\n"), std::string::npos);
}

TEST(GenerateServiceTest, WhatEndedByItselfIsNotCancelled) {
  Fixture f;
  EXPECT_TRUE(f.service.Generate(Ask("tandem")).ok());
  EXPECT_FALSE(f.service.Generate(Ask("fail now")).ok());
  TextRequest stopped = Ask("endless");
  stopped.stop = {"gh"};
  EXPECT_TRUE(f.service.Generate(std::move(stopped)).ok());
  EXPECT_NE(f.MetricsText().find("tandem_requests_cancelled_total 0\n"), std::string::npos);
}

TEST(GenerateServiceTest, AReaderThatFallsBehindIsCutWithAnError) {
  ServiceOptions options;
  options.stream_bytes = 200;
  Fixture f(FakeEngineOptions(), options);
  TextRequest request = Ask("endless");
  request.stream = true;
  std::unique_ptr<TextStream> stream = f.service.Start(std::move(request));
  EXPECT_TRUE(Eventually([&] { return f.engine.num_cancelled() == 1; }));
  TextEvent event;
  Status last;
  while (stream->Next(event)) last = event.error;
  EXPECT_EQ(last.code(), Code::kResourceExhausted);
  EXPECT_NE(f.MetricsText().find(R"(tandem_requests_failed_total{code="RESOURCE_EXHAUSTED"} 1)"),
            std::string::npos);
}

// The mailbox is never empty: each time that one choice is read, the other has news.
TEST(GenerateServiceTest, AReaderThatKeepsUpIsNotCutOff) {
  ActiveRequest request;
  request.num_choices = 2;
  request.max_bytes = 200;
  const auto deliver = [&](int32_t choice) {
    TextEvent event;
    event.choice = choice;
    event.pieces.emplace_back().text.assign(34, 'x');
    return request.Deliver(std::move(event));
  };
  EXPECT_TRUE(deliver(0));
  for (int32_t i = 1; i < 100; ++i) {
    ASSERT_TRUE(deliver(i % 2)) << "with one event unread, after " << i;
    const MutexLock lock(request.mutex);
    TextEvent taken;
    ASSERT_TRUE(request.TakeLocked(taken));
  }
}

TEST(GenerateServiceTest, CloseEndsOpenRequestsAndRefusesNewOnes) {
  FakeEngineOptions options;
  options.step = std::chrono::milliseconds(1);
  Fixture f(options);
  std::unique_ptr<TextStream> stream = f.service.Start(Ask("endless"));
  TextEvent event;
  ASSERT_TRUE(stream->Next(event));
  f.service.Close();
  Status last;
  while (stream->Next(event)) last = event.error;
  EXPECT_EQ(last.code(), Code::kUnavailable);
  EXPECT_EQ(f.service.Generate(Ask("tandem")).status().code(), Code::kUnavailable);
}

TEST(GenerateServiceTest, ManyThreadsGetTheirOwnAnswers) {
  Fixture f;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&f, i] {
      for (int round = 0; round < 10; ++round) {
        const bool emoji = (i + round) % 2 == 0;
        const Result<TextResult> result = f.service.Generate(Ask(emoji ? "emoji" : "tandem"));
        EXPECT_EQ(result->choices.at(0).text,
                  emoji ? "h\xC3\xA9llo \xF0\x9F\x99\x82!" : "One behind the other.");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(f.engine.open_sequences(), 0);
}

}  // namespace
}  // namespace tandem::serve
