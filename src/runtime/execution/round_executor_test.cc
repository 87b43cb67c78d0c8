// RoundExecutor on a stream: a backend that does nothing until it is waited for, and then runs
// what was enqueued, in order. Memory that the host reads too early, or writes again too early,
// shows as wrong tokens. Recorded graphs replay exactly what was recorded. The expected tokens are
// those of the same executor on the host.
#include "runtime/execution/round_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <utility>

#include "ops/forwarding_backend.h"
#include "ops/testing/sampling_only_ops.h"
#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

using Work = std::function<void()>;

// When copies beside the stream run: as soon as they are enqueued, while earlier steps wait, or
// when the stream waits for them, all those to the host first.
enum class SideCopies : uint8_t { kEarly, kLate };

class Stream {
 public:
  void Enqueue(Work work) {
    (recording_ != nullptr ? *recording_ : queue_).push_back(std::move(work));
  }
  void Record(std::deque<Work>* recording) { recording_ = recording; }
  void Mark(int mark) {
    EXPECT_EQ(recording_, nullptr) << "a mark in a graph";
    ++recorded_[static_cast<size_t>(mark)];
    Enqueue([this, mark] {
      ++passed_[static_cast<size_t>(mark)];
      if (--marks_left_ == 0) lost_ = true;
    });
  }
  Status WaitFor(int mark) {
    const auto index = static_cast<size_t>(mark);
    while (passed_[index] < recorded_[index] && !lost_) RunOne();
    return Health();
  }
  Status Health() const { return lost_ ? Unavailable("a kernel: the device is lost") : Status(); }
  void Lose() { lost_ = true; }
  // Nothing runs any more after `count` more marks.
  void LoseAfterMarks(int count) { marks_left_ = count; }
  void Drain() {
    EXPECT_EQ(recording_, nullptr) << "a wait in a graph";
    while (!queue_.empty() && !lost_) RunOne();
  }
  size_t pending() const { return queue_.size(); }
  // Passes that were told of chunks beside what decodes.
  void CountPass(bool mixed) { mixed_passes_ += mixed ? 1 : 0; }
  int mixed_passes() const { return mixed_passes_; }

 private:
  void RunOne() {
    Work work = std::move(queue_.front());
    queue_.pop_front();
    work();
  }
  std::deque<Work> queue_;
  std::deque<Work>* recording_ = nullptr;
  std::array<int, ops::Backend::kNumMarks> recorded_{}, passed_{};
  int marks_left_ = 0;
  int mixed_passes_ = 0;
  bool lost_ = false;
};

class StreamOps final : public ops::SamplingOnlyOps {
 public:
  StreamOps(Stream& stream, ops::Ops& inner) : stream_(stream), inner_(inner) {}
  void Sample(std::span<const ops::SampleRow> rows, int64_t vocab,
              std::span<SampledToken> out) override {
    stream_.Enqueue([=, this] { inner_.Sample(rows, vocab, out); });
  }
  void VerifyAndAccept(std::span<const ops::VerifyRow> rows, int64_t vocab) override {
    stream_.Enqueue([=, this] { inner_.VerifyAndAccept(rows, vocab); });
  }
  void CopyBlock(const ops::KvPool& pool, int32_t from, int32_t to, int32_t tokens) override {
    stream_.Enqueue([=, this] { inner_.CopyBlock(pool, from, to, tokens); });
  }

 private:
  Stream& stream_;
  ops::Ops& inner_;
};

class StreamRoundOps final : public ops::RoundOps {
 public:
  StreamRoundOps(Stream& stream, ops::RoundOps& inner) : stream_(stream), inner_(inner) {}
  void StartSlot(const ops::SlotArrays& slots, const ops::SlotPatch* patch) override {
    stream_.Enqueue([=, this] { inner_.StartSlot(slots, patch); });
  }
  void EndSlot(const ops::SlotArrays& slots, int32_t slot) override {
    stream_.Enqueue([=, this] { inner_.EndSlot(slots, slot); });
  }
  void ApplyPlan(const ops::Round& round, int32_t items) override {
    stream_.Enqueue([=, this] { inner_.ApplyPlan(round, items); });
  }
  void LaySentRows(const ops::Round& round, int32_t items, int32_t rows,
                   const float* logits) override {
    stream_.Enqueue([=, this] { inner_.LaySentRows(round, items, rows, logits); });
  }
  void LookUpDrafts(const ops::Round& round, int32_t items) override {
    stream_.Enqueue([=, this] { inner_.LookUpDrafts(round, items); });
  }
  void LayDraftRows(const ops::Round& round, const ops::PassBounds& bounds) override {
    stream_.Enqueue([=, this] { inner_.LayDraftRows(round, bounds); });
  }
  void LayDraftSamples(const ops::Round& round, const ops::PassBounds& bounds, const float* logits,
                       int64_t stride) override {
    stream_.Enqueue([=, this] { inner_.LayDraftSamples(round, bounds, logits, stride); });
  }
  void KeepDrafts(const ops::Round& round, const ops::PassBounds& bounds) override {
    stream_.Enqueue([=, this] { inner_.KeepDrafts(round, bounds); });
  }
  void LayTargetRows(const ops::Round& round, const ops::PassBounds& bounds) override {
    stream_.Enqueue([=, this] { inner_.LayTargetRows(round, bounds); });
  }
  void LayTargetSamples(const ops::Round& round, const ops::PassBounds& bounds,
                        const float* logits) override {
    stream_.Enqueue([=, this] { inner_.LayTargetSamples(round, bounds, logits); });
  }
  void LayVerifyRows(const ops::Round& round, const ops::PassBounds& bounds) override {
    stream_.Enqueue([=, this] { inner_.LayVerifyRows(round, bounds); });
  }
  void LayChosenRows(const ops::Round& round, const ops::PassBounds& bounds) override {
    stream_.Enqueue([=, this] { inner_.LayChosenRows(round, bounds); });
  }
  void Accept(const ops::Round& round, const ops::PassBounds& bounds,
              const float* logits) override {
    stream_.Enqueue([=, this] { inner_.Accept(round, bounds, logits); });
  }
  void KeepLogits(const ops::Round& round, const ops::PassBounds& bounds, const float* logits,
                  float* kept) override {
    stream_.Enqueue([=, this] { inner_.KeepLogits(round, bounds, logits, kept); });
  }

 private:
  Stream& stream_;
  ops::RoundOps& inner_;
};

struct StreamGraph final : ops::Graph {
  std::deque<Work> works;
};

// On the test's CPU backend.
class StreamBackend final : public ops::ForwardingBackend {
 public:
  explicit StreamBackend(ops::Backend& inner)
      : ForwardingBackend(inner), ops_(stream_, inner.ops()), round_(stream_, inner.round()) {}
  ops::Ops& ops() override { return ops_; }
  ops::RoundOps& round() override { return round_; }
  Result<Buffer> Allocate(size_t bytes) override {
    ++allocations_;
    return inner_.Allocate(bytes);
  }
  void CopyToDevice(void* to, const void* from, size_t bytes) override {
    ++synchronizations_;
    stream_.Drain();
    inner_.CopyToDevice(to, from, bytes);
  }
  void CopyToHost(void* to, const void* from, size_t bytes) override {
    ++synchronizations_;
    stream_.Drain();
    inner_.CopyToHost(to, from, bytes);
  }
  void EnqueueCopyToDevice(void* to, const void* from, size_t bytes) override {
    stream_.Enqueue([=, this] { inner_.CopyToDevice(to, from, bytes); });
  }
  void EnqueueCopyToHost(void* to, const void* from, size_t bytes) override {
    stream_.Enqueue([=, this] { inner_.CopyToHost(to, from, bytes); });
  }
  void RunSideCopies(SideCopies when) { side_copies_ = when; }
  void EnqueueSideCopyToHost(void* to, const void* from, size_t bytes) override {
    SideCopy(to_host_, [=, this] { inner_.CopyToHost(to, from, bytes); });
  }
  void EnqueueSideCopyToDevice(void* to, const void* from, size_t bytes) override {
    SideCopy(to_device_, [=, this] { inner_.CopyToDevice(to, from, bytes); });
  }
  void JoinSideCopies() override {
    ++joins_;
    stream_.Enqueue([copies = std::exchange(to_host_, {})] {
      for (const Work& copy : copies) copy();
    });
    stream_.Enqueue([copies = std::exchange(to_device_, {})] {
      for (const Work& copy : copies) copy();
    });
  }
  int joins() const { return joins_; }
  void Mark(int mark) override { stream_.Mark(mark); }
  Status WaitFor(int mark) override { return stream_.WaitFor(mark); }
  Status Synchronize() override {
    ++synchronizations_;
    stream_.Drain();
    return stream_.Health();
  }
  std::unique_ptr<ops::Graph> Capture(const Work& enqueue) override {
    auto graph = std::make_unique<StreamGraph>();
    stream_.Record(&graph->works);
    enqueue();
    stream_.Record(nullptr);
    ++captures_;
    return graph;
  }
  void Launch(const ops::Graph& graph) override {
    ++launches_;
    for (const Work& work : static_cast<const StreamGraph&>(graph).works) stream_.Enqueue(work);
  }
  Stream& stream() { return stream_; }
  int allocations() const { return allocations_; }
  // Waits for everything, including the copies that wait.
  int synchronizations() const { return synchronizations_; }
  int captures() const { return captures_; }
  int launches() const { return launches_; }

 private:
  void SideCopy(std::vector<Work>& copies, Work copy) {
    if (side_copies_ == SideCopies::kEarly) {
      copy();
    } else {
      copies.push_back(std::move(copy));
    }
  }

  Stream stream_;
  StreamOps ops_;
  StreamRoundOps round_;
  int allocations_ = 0;
  int synchronizations_ = 0;
  int captures_ = 0;
  int launches_ = 0;
  SideCopies side_copies_ = SideCopies::kEarly;
  std::vector<Work> to_host_, to_device_;
  int joins_ = 0;
};

// What was laid is within what the host told of it; without drafts the host knows all lengths.
void ExpectBounded(const ops::BatchView& batch, bool drafts) {
  const ops::ChunkBounds& chunks = batch.chunks;
  int32_t num_long = 0, long_rows = 0;
  int64_t long_keys = 0;
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
    const int32_t rows = batch.query_start[seq + 1] - batch.query_start[seq];
    EXPECT_LE(rows, batch.max_query_len);
    if (chunks.num_seqs == 0 || rows <= chunks.max_decode_len) continue;
    EXPECT_GE(rows, chunks.min_len);
    ++num_long;
    long_rows += rows;
    long_keys += batch.context_len[seq];
  }
  EXPECT_LE(num_long, chunks.num_seqs);
  EXPECT_LE(long_rows, chunks.num_rows);
  EXPECT_LE(long_keys, chunks.num_keys);
  if (!drafts) {
    EXPECT_EQ(long_keys, chunks.num_keys);
  }
}

// A model whose pass runs when its turn comes; its logits keep their address.
class StreamPass final : public ForwardPass {
 public:
  StreamPass(Stream& stream, std::unique_ptr<ForwardPass> inner, int32_t max_logits_rows,
             bool drafts)
      : stream_(stream),
        inner_(std::move(inner)),
        drafts_(drafts),
        logits_(static_cast<size_t>(max_logits_rows) * static_cast<size_t>(inner_->vocab_size())) {}
  Tensor Forward(const ops::BatchView& batch, const ops::KvPool& pool) override {
    stream_.CountPass(batch.chunks.num_seqs > 0 && batch.chunks.num_seqs < batch.num_seqs);
    stream_.Enqueue([=, this] {
      ExpectBounded(batch, drafts_);
      const Tensor logits = inner_->Forward(batch, pool);
      std::copy_n(logits.As<float>(), logits.NumElements(), logits_.data());
    });
    return {logits_.data(), DType::kF32, {batch.num_logits, inner_->vocab_size()}, Device{}};
  }
  int64_t vocab_size() const override { return inner_->vocab_size(); }

 private:
  Stream& stream_;
  const std::unique_ptr<ForwardPass> inner_;
  const bool drafts_;
  std::vector<float> logits_;
};

// Tokens that differ from the previous one modulo 5.
class OtherFifth final : public TokenConstraint {
 public:
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    int32_t last = last_;
    for (const int32_t token : ahead) {
      EXPECT_NE(token % 5, last % 5) << "a constraint is never asked about what it forbids";
      last = token;
    }
    for (int32_t token = last % 5; token < 48; token += 5) {
      allowed[token / 32] &= ~(1u << (token % 32));
    }
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    for (int32_t i = 0; i < num_tokens; ++i) {
      EXPECT_NE(tokens[i] % 5, last_ % 5) << "a token the mask forbade";
      last_ = tokens[i];
    }
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<OtherFifth>(*this);
  }

 private:
  int32_t last_ = 0;
};

struct StreamCase {
  std::string name;
  std::function<void(TestSetup&)> change;
  bool constrained = false;
  bool sends_drafts = true;  // clients do
};

class RoundExecutorTest : public testing::TestWithParam<std::tuple<StreamCase, int32_t>> {
 protected:
  TestSetup Setup(ExecutorKind executor) {
    const auto& [stream_case, in_flight] = GetParam();
    TestSetup setup;
    setup.options = SmallOptions();
    setup.options.draft_mode = DraftMode::kFixed;
    setup.options.steps_in_flight = in_flight;
    setup.options.executor = executor;
    stream_case.change(setup);
    if (executor == ExecutorKind::kHost) {
      setup.mask_patience.reset();
      return setup;
    }
    setup.backend = &backend_;
    const bool drafts = setup.options.draft_mode != DraftMode::kOff || stream_case.sends_drafts;
    setup.wrap_pass = [this, drafts](std::unique_ptr<ForwardPass> pass) {
      return std::make_unique<StreamPass>(backend_.stream(), std::move(pass), 256, drafts);
    };
    return setup;
  }

  static ExternalDraft SomeDraft(int32_t num_tokens, bool with_logits) {
    ExternalDraft draft;
    for (int32_t i = 0; i < num_tokens; ++i) draft.tokens.push_back(7 * i % 48);
    if (!with_logits) draft.threshold = 0.001f;
    for (int32_t i = 0; i < num_tokens * 48; ++i) {
      if (with_logits) draft.logits.push_back(static_cast<float>(i % 5));
    }
    return draft;
  }
  static std::vector<Request> Requests() {
    std::vector<Request> requests;
    for (int32_t i = 0; i < 12; ++i) {
      Request request = SimpleRequest(CountingPrompt(3 + 9 * i, i % 4), 30 + 7 * (i % 3));
      request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
      request.seed = static_cast<uint64_t>(i);
      if (i % 4 == 1) request.sampling.repetition_penalty = 1.2f;
      if (i % 4 == 2) request.sampling.num_top_logprobs = 2;
      if (i % 5 == 3) request.end_ids = {3, 9};
      if (i == 7) request.banned_sequences = {{4}, {6, 7}};
      if (i == 8) request.num_choices = 3;
      request.return_context_logits = i == 4 || i == 8 || i == 11;
      request.return_generation_logits = i % 4 == 0;
      const bool sends = std::get<0>(GetParam()).sends_drafts;
      if (sends && (i == 2 || i == 10)) request.draft.tokens.assign(static_cast<size_t>(i) + 1, i);
      if (sends && (i == 3 || i == 9)) request.draft = SomeDraft(12, i == 9);
      if (std::get<0>(GetParam()).constrained && i % 3 == 1) {
        request.constraint = std::make_shared<OtherFifth>();
      }
      requests.push_back(std::move(request));
    }
    return requests;
  }

  FakeClock clock_;
  StreamBackend backend_{TestBackend()};
};

TEST_P(RoundExecutorTest, GivesTheTokensOfTheHostsExecutor) {
  const auto host = MakeTestEngine(Setup(ExecutorKind::kHost), clock_);
  const auto engine = MakeTestEngine(Setup(ExecutorKind::kDevice), clock_);
  for (int round = 0; round < 3; ++round) {
    const auto expected = RunRequests(*host, Requests());
    const auto got = RunRequests(*engine, Requests());
    for (size_t i = 0; i < got.size(); ++i) {
      for (size_t c = 0; c < got[i].size(); ++c) {
        EXPECT_EQ(got[i][c].tokens, expected[i][c].tokens) << "request " << i;
        EXPECT_EQ(got[i][c].finish, expected[i][c].finish) << "request " << i;
        EXPECT_TRUE(got[i][c].context_logits == expected[i][c].context_logits) << "request " << i;
        EXPECT_TRUE(got[i][c].generation_logits == expected[i][c].generation_logits)
            << "request " << i;
        EXPECT_EQ(got[i][c].generation_logits.size(), i % 4 == 0 ? got[i][c].tokens.size() : 0);
      }
    }
  }
  const EngineStats stats = engine->Stats();
  if (Setup(ExecutorKind::kDevice).options.draft_mode == DraftMode::kFixed) {
    EXPECT_GT(stats.drafts_proposed, 0);
  }
  EXPECT_GT(backend_.launches(), 10 * backend_.captures());
  EXPECT_EQ(backend_.synchronizations(), 0);
  EXPECT_GT(backend_.stream().mixed_passes(), 0);
}

// With few blocks, and a tier that holds some of what is evicted or all of it.
TEST_P(RoundExecutorTest, OffloadsBesideItsSteps) {
  // By the ratio rule draws depend on how many drafts a step has, and pauses change that.
  const bool is_exact = !Setup(ExecutorKind::kHost).options.ratio_acceptance;
  const auto expected =
      RunRequests(*MakeTestEngine(Setup(ExecutorKind::kHost), clock_), Requests());
  for (const SideCopies when : {SideCopies::kEarly, SideCopies::kLate}) {
    for (const int32_t num_host_blocks : {25, 300}) {
      SCOPED_TRACE(num_host_blocks);
      TestSetup setup = Setup(ExecutorKind::kDevice);
      setup.num_blocks = 40;
      setup.num_host_blocks = num_host_blocks;
      backend_.RunSideCopies(when);
      const int synchronizations = backend_.synchronizations();  // at the end of the engine before
      const auto engine = MakeTestEngine(setup, clock_);
      for (int round = 0; round < 3; ++round) {
        const auto got = RunRequests(*engine, Requests());
        for (size_t i = 0; i < got.size(); ++i) {
          for (size_t c = 0; c < got[i].size(); ++c) {
            EXPECT_TRUE(!is_exact || got[i][c].tokens == expected[i][c].tokens) << "request " << i;
          }
        }
      }
      EXPECT_GT(engine->Stats().kv.offloads, 100);
      EXPECT_GT(engine->Stats().kv.onboards, 10);
      EXPECT_EQ(backend_.synchronizations(), synchronizations);
      EXPECT_GT(backend_.joins(), 0);
    }
  }
}

TEST_P(RoundExecutorTest, ADeviceLostInMidStreamEndsEveryRequest) {
  for (const int steps : {0, 1, 2, 3, 8, 12}) {
    StreamBackend backend{TestBackend()};
    TestSetup setup = Setup(ExecutorKind::kDevice);
    setup.backend = &backend;
    setup.wrap_pass = [&backend](std::unique_ptr<ForwardPass> pass) {
      return std::make_unique<StreamPass>(backend.stream(), std::move(pass), 256, true);
    };
    const auto engine = MakeTestEngine(setup, clock_);
    if (steps == 0) {
      backend.stream().Lose();
    } else {
      backend.stream().LoseAfterMarks(steps);
    }
    size_t num_choices = 0;
    for (const Request& request : Requests()) {
      ASSERT_TRUE(engine->Submit(request).ok());
      num_choices += static_cast<size_t>(request.num_choices);
    }
    Outputs outputs;
    RunToEnd(*engine, outputs, num_choices);
    size_t failed = 0;
    for (const auto& [key, output] : outputs) {
      if (output.finish != FinishReason::kFailed) continue;
      ++failed;
      EXPECT_EQ(output.error.code(), Code::kUnavailable);
      EXPECT_THAT(output.error.message(), testing::HasSubstr("the device is lost"));
    }
    EXPECT_GT(failed, 0u);
    EXPECT_FALSE(engine->Stats().failure.ok());
    EXPECT_EQ(engine->Stats().kv.referenced_blocks, 0);
    engine->CheckIntegrity();
    EXPECT_TRUE(engine->Drain(Nanos(0)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Streams, RoundExecutorTest,
    testing::Combine(
        testing::Values(
            StreamCase{"plain", [](TestSetup& s) { s.options.draft_mode = DraftMode::kOff; }, false,
                       false},
            StreamCase{"sent_drafts", [](TestSetup& s) { s.options.draft_mode = DraftMode::kOff; }},
            StreamCase{"reserved",
                       [](TestSetup& s) {
                         s.options.draft_mode = DraftMode::kOff;
                         s.options.policy = SchedulerPolicy::kGuaranteedNoEvict;
                       },
                       false, false},
            StreamCase{"drafts", [](TestSetup&) {}},
            StreamCase{"good_drafts", [](TestSetup& s) { s.draft.share = 0.97; }},
            StreamCase{"adaptive",
                       [](TestSetup& s) { s.options.draft_mode = DraftMode::kAdaptive; }},
            StreamCase{"lookups", [](TestSetup& s) { s.options.lookup_ngram = 1; }},
            StreamCase{"small_draft_vocabulary", [](TestSetup& s) { s.draft.vocab = 40; }},
            StreamCase{"ratio", [](TestSetup& s) { s.options.ratio_acceptance = true; }},
            StreamCase{"ratio_lookups",
                       [](TestSetup& s) {
                         s.options.ratio_acceptance = true;
                         s.options.lookup_ngram = 1;
                         s.draft.vocab = 40;
                       }},
            StreamCase{"preemption", [](TestSetup& s) { s.num_blocks = 40; }},
            StreamCase{"constraints", [](TestSetup&) {}, true},
            StreamCase{"constrained_good_drafts", [](TestSetup& s) { s.draft.share = 0.97; }, true},
            StreamCase{"late_masks", [](TestSetup& s) { s.mask_patience = Nanos(0); }, true},
            StreamCase{"late_masks_without_drafts",
                       [](TestSetup& s) {
                         s.options.draft_mode = DraftMode::kOff;
                         s.mask_patience = Nanos(0);
                       },
                       true},
            StreamCase{"constrained_lookups", [](TestSetup& s) { s.options.lookup_ngram = 1; },
                       true},
            StreamCase{"constraints_without_drafts",
                       [](TestSetup& s) { s.options.draft_mode = DraftMode::kOff; }, true}),
        testing::Values(0, 1, 2, 3)),
    [](const testing::TestParamInfo<std::tuple<StreamCase, int32_t>>& info) {
      return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
    });

// Graphs are recorded before the first request, not in its steps.
TEST(RoundExecutor, AfterARehearsalStepsThatDecodeRecordNothing) {
  for (const DraftMode mode : {DraftMode::kOff, DraftMode::kFixed, DraftMode::kAdaptive}) {
    for (const bool ratio : {false, true}) {
      FakeClock clock;
      StreamBackend backend{TestBackend()};
      TestSetup setup;
      setup.options = SmallOptions();
      setup.options.executor = ExecutorKind::kDevice;
      setup.options.draft_mode = mode;
      setup.options.ratio_acceptance = ratio;
      setup.rehearse = true;
      setup.backend = &backend;
      setup.wrap_pass = [&](std::unique_ptr<ForwardPass> pass) {
        return std::make_unique<StreamPass>(backend.stream(), std::move(pass), 256, true);
      };
      const auto engine = MakeTestEngine(setup, clock);
      const int captures = backend.captures();
      EXPECT_GT(captures, 0);
      std::vector<Request> requests;
      for (int32_t i = 0; i < 12; ++i) {
        requests.push_back(SimpleRequest(CountingPrompt(3 + 5 * i, i), 20 + i));
      }
      RunRequests(*engine, requests);
      EXPECT_EQ(backend.captures(), captures) << static_cast<int>(mode) << ratio;
    }
  }
}

// The longest legal lists take the same path as short ones.
TEST(RoundExecutor, LongListsNeitherAllocateNorWait) {
  FakeClock clock;
  StreamBackend backend{TestBackend()};
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.steps_in_flight = 1;
  std::vector<Request> requests;
  for (int32_t i = 0; i < 8; ++i) {
    Request request = SimpleRequest(CountingPrompt(20, i), 20);
    for (int32_t bias = 0; bias < 1024; ++bias) {
      request.logit_bias.push_back({(bias * 5 + i) % 48, 0.01f * static_cast<float>(bias % 7)});
    }
    for (int32_t ban = 0; ban < 600; ++ban) {
      request.banned_sequences.push_back({ban % 48, (ban / 48 + i) % 48});
    }
    request.end_ids.assign(248, 47);
    requests.push_back(std::move(request));
  }
  setup.options.executor = ExecutorKind::kHost;
  const auto host = MakeTestEngine(setup, clock);
  Request longer = requests[0];
  longer.end_ids.push_back(47);
  EXPECT_THAT(host->Submit(longer).status().message(), testing::HasSubstr("at most 4096"));
  const auto expected = RunRequests(*host, requests);
  setup.options.executor = ExecutorKind::kDevice;
  setup.backend = &backend;
  setup.wrap_pass = [&](std::unique_ptr<ForwardPass> pass) {
    return std::make_unique<StreamPass>(backend.stream(), std::move(pass), 256, true);
  };
  const auto engine = MakeTestEngine(setup, clock);
  const int allocations = backend.allocations();
  const auto got = RunRequests(*engine, requests);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens);
  EXPECT_EQ(backend.allocations(), allocations);
  EXPECT_EQ(backend.synchronizations(), 0);
}

// Together longer than the pinned memory for one step's patches: starts wait for the device.
TEST(RoundExecutor, TakesLongListsAndManyLongPromptsAtOnce) {
  FakeClock clock;
  StreamBackend backend{TestBackend()};
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.max_batch_size = 64;
  setup.options.max_num_tokens = 256;
  setup.options.max_seq_len = 9000;
  setup.num_blocks = 64 * 9000 / setup.options.block_tokens;
  std::vector<Request> requests;
  for (int32_t i = 0; i < 64; ++i) {
    Request request = SimpleRequest(CountingPrompt(5000, i), 3);
    for (int32_t ban = 0; ban < (i % 2 == 0 ? 900 : 10); ++ban) {
      request.banned_sequences.push_back({ban % 40, (ban + i) % 48});
    }
    request.logit_bias = {{i % 48, 3.0f}};
    requests.push_back(std::move(request));
  }
  setup.options.executor = ExecutorKind::kHost;
  const auto expected = RunRequests(*MakeTestEngine(setup, clock), requests);
  setup.options.executor = ExecutorKind::kDevice;
  setup.backend = &backend;
  setup.wrap_pass = [&](std::unique_ptr<ForwardPass> pass) {
    return std::make_unique<StreamPass>(backend.stream(), std::move(pass), 256, true);
  };
  const auto engine = MakeTestEngine(setup, clock);
  // In the second run every prompt is found in the prefix tree: all start in one step.
  for (int round = 0; round < 2; ++round) {
    const auto got = RunRequests(*engine, requests);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens);
  }
  EXPECT_GT(backend.synchronizations(), 0);
}

}  // namespace
}  // namespace tandem
