// The behaviour of an engine whose device fails or refuses memory, and how a long step is
// distinguished from one that hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ops/testing/failing_backend.h"
#include "runtime/testing/losing_executor.h"
#include "runtime/testing/test_engine.h"
#include "runtime/testing/test_llama.h"

namespace tandem {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Allows every token.
class Anything final : public TokenConstraint {
 public:
  void FillMask(std::span<const int32_t>, std::span<uint32_t>) override {}
  void Commit(const int32_t*, int32_t) override {}
  std::unique_ptr<TokenConstraint> Clone() const override { return std::make_unique<Anything>(); }
};

class EngineFailureTest : public testing::TestWithParam<std::tuple<int32_t, DraftMode>> {
 protected:
  // An engine whose device is lost after `steps` steps.
  std::unique_ptr<Engine> Make(int steps) {
    TestSetup setup;
    setup.options = SmallOptions();
    setup.options.max_batch_size = 4;
    std::tie(setup.options.steps_in_flight, setup.options.draft_mode) = GetParam();
    setup.wrap_executor = [steps](std::unique_ptr<Executor> inner) {
      return std::make_unique<LosingExecutor>(std::move(inner), steps);
    };
    return MakeTestEngine(setup, clock_);
  }

  FakeClock clock_;
};

TEST_P(EngineFailureTest, EveryOpenRequestIsAnsweredAndNewOnesAreRefused) {
  for (const int steps : {0, 1, 2, 3, 10}) {
    const auto engine = Make(steps);
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < 8; ++i) {
      Request request = SimpleRequest(CountingPrompt(5 + 8 * (i / 2), i), 100);
      if (i == 1) request.num_choices = 2;
      if (i == 2) request.constraint = std::make_shared<Anything>();
      ids.push_back(*engine->Submit(request));
    }
    EXPECT_TRUE(engine->Stats().failure.ok());
    Outputs outputs;
    for (int i = 0; i < steps; ++i) engine->Step();
    engine->Cancel(ids[0]);
    RunToEnd(*engine, outputs, 9);
    EXPECT_EQ((outputs[{ids[0], 0}].finish), FinishReason::kCancelled);
    for (size_t i = 1; i < ids.size(); ++i) {
      for (int32_t choice = 0; choice < (i == 1 ? 2 : 1); ++choice) {
        const Output& output = outputs[{ids[i], choice}];
        EXPECT_EQ(output.finish, FinishReason::kFailed);
        EXPECT_EQ(output.error.code(), Code::kUnavailable);
        EXPECT_THAT(output.error.message(), HasSubstr("the device is lost"));
      }
    }
    const Result<RequestId> refused = engine->Submit(SimpleRequest({1, 2}, 5));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kUnavailable);
    EXPECT_THAT(refused.status().message(), HasSubstr("the device is lost"));
    // The failure stays, and nothing runs.
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(engine->Step());
    const EngineStats stats = engine->Stats();
    EXPECT_EQ(stats.failure.code(), Code::kUnavailable);
    EXPECT_EQ(stats.steps, steps);
    EXPECT_EQ(stats.requests_failed, 7);
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.kv.referenced_blocks, 0);
    engine->CheckIntegrity();
    EXPECT_TRUE(engine->Drain(Nanos(0)));
    engine->Stop();
  }
}

TEST_P(EngineFailureTest, ClientsOnOtherThreadsGetTheirAnswersAndTheLoopEnds) {
  const auto engine = Make(20);
  engine->Start();
  size_t accepted = 0, ended = 0;
  Event event;
  Code refused = Code::kOk;
  while (refused != Code::kUnavailable) {
    const Result<RequestId> id = engine->Submit(SimpleRequest({1, 2, 3}, 30));
    accepted += id.ok() ? 1 : 0;
    refused = id.status().code();
    while (engine->PopEvent(event, Nanos(0))) ended += event.finish != FinishReason::kNone;
  }
  while (ended < accepted) {
    ASSERT_TRUE(engine->PopEvent(event, std::chrono::seconds(30)));
    ended += event.finish != FinishReason::kNone;
  }
  EXPECT_TRUE(engine->Drain(std::chrono::seconds(30)));
  engine->Stop();
  EXPECT_FALSE(engine->Stats().failure.ok());
  EXPECT_FALSE(engine->PopEvent(event, Nanos(0)));
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineFailureTest,
                         testing::Combine(testing::Values(0, 1),
                                          testing::Values(DraftMode::kOff, DraftMode::kFixed)),
                         [](const testing::TestParamInfo<std::tuple<int32_t, DraftMode>>& info) {
                           const bool drafts = std::get<1>(info.param) != DraftMode::kOff;
                           return std::to_string(std::get<0>(info.param)) + "_in_flight" +
                                  (drafts ? "_drafts" : "");
                         });

// ---- At the start ----

class EngineStartTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Engine>> Create(ops::Backend& backend) {
    EngineOptions options = SmallOptions();
    options.draft_mode = DraftMode::kFixed;
    options.kv_cache_bytes = 1 << 20;
    return Engine::Create(options, target_, draft_, backend, clock_);
  }

  FakeClock clock_;
  const ModelSpec spec_ = TinyLlamaSpec(DType::kF32, 512);
  const EngineModel target_ = MakeTinyLlama(spec_, 5, 0.0f, TestBackend());
  const EngineModel draft_ = MakeTinyLlama(spec_, 5, 0.1f, TestBackend());
};

TEST_F(EngineStartTest, RefusedMemoryIsAStatusWithBytesAndTheOptionsThatHelp) {
  ops::FailingBackend backend(TestBackend());
  int refused = 0;
  for (bool done = false; !done; ++refused) {
    backend.RefuseAfter(refused);
    const auto engine = Create(backend);
    done = engine.ok();
    if (done) continue;
    EXPECT_EQ(engine.status().code(), Code::kResourceExhausted);
    EXPECT_THAT(engine.status().message(),
                AllOf(HasSubstr("no memory for"), HasSubstr("bytes were refused"),
                      HasSubstr("a smaller --")));
    ASSERT_LT(refused, 100);
  }
  EXPECT_GT(refused, 20) << "both models' buffers and pools at least";
}

TEST_F(EngineStartTest, ALostDeviceIsAStatus) {
  ops::FailingBackend backend(TestBackend());
  backend.LoseAfter(0);
  const auto engine = Create(backend);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), Code::kUnavailable);
  EXPECT_THAT(engine.status().message(), HasSubstr("the device is lost"));
}

// ---- Progress ----

// Calls `before_attention` once per layer.
class LayerOps final : public ops::ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void PagedAttention(const Tensor& qkv, const ops::BatchView& batch, const ops::KvGroup& kv,
                      int32_t layer, const ops::AttentionRule& rule, const Tensor& out) override {
    if (before_attention) before_attention();
    inner_.PagedAttention(qkv, batch, kv, layer, rule, out);
  }
  std::function<void()> before_attention;
};

class LayerBackend final : public ops::ForwardingBackend {
 public:
  explicit LayerBackend(ops::Backend& inner) : ForwardingBackend(inner), ops_(inner.ops()) {}
  LayerOps& ops() override { return ops_; }

 private:
  LayerOps ops_;
};

TEST_F(EngineStartTest, ALayerOfALongStepIsProgressAndOneThatHangsIsNot) {
  using std::chrono::seconds;
  LayerBackend backend(TestBackend());
  const auto engine = std::move(Create(backend)).value();
  double oldest = 0.0;
  seconds layer_time{20};
  int layers = 0;
  backend.ops().before_attention = [&] {
    ++layers;
    clock_.Advance(layer_time);
    oldest = std::max(oldest, engine->Stats().seconds_since_progress);
  };
  Request request = SimpleRequest({1, 2, 3}, 1);
  ASSERT_TRUE(engine->Submit(request).ok());
  const Nanos start = clock_.Now();
  engine->Step();
  EXPECT_GE(layers, spec_.num_layers());
  EXPECT_GE(clock_.Now() - start, spec_.num_layers() * layer_time);
  EXPECT_DOUBLE_EQ(oldest, 20.0) << "however many layers the step has";
  layer_time = seconds(3600);
  ASSERT_TRUE(engine->Submit(request).ok());
  engine->Step();
  EXPECT_GE(oldest, 3600.0);
  EXPECT_LT(engine->Stats().seconds_since_progress, 1.0) << "and it came back";
}

}  // namespace
}  // namespace tandem
