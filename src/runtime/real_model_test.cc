// The engine around real decoders: tiny random Llama models, through Engine::Create.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/engine_plan.h"
#include "runtime/request/validate_request.h"
#include "runtime/testing/test_engine.h"
#include "runtime/testing/test_llama.h"

namespace tandem {
namespace {

constexpr int64_t kPositions = 512;

EngineOptions PlainOptions() {
  EngineOptions options;
  options.max_batch_size = 8;
  options.max_num_tokens = 48;
  options.max_seq_len = 160;
  options.block_tokens = 16;
  options.kv_cache_bytes = 1 << 20;
  options.draft_mode = DraftMode::kOff;
  options.executor = TestExecutor();
  return options;
}

// The types of activations, and of keys and values if it is another.
struct Types {
  DType dtype;
  std::optional<DType> cache = {};
};

ModelSpec SpecOf(const Types& types) {
  ModelSpec spec = TinyLlamaSpec(types.dtype, kPositions);
  if (types.cache == DType::kI8) spec.cache_scales = types.cache;
  return spec;
}

class RealModelTest : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
    const auto& [dtype, cache] = GetParam();
    if (TestBackend().device().kind != Device::Kind::kCpu && dtype == DType::kF32) {
      GTEST_SKIP() << "the GPU computes in 16 bits";
    }
    if (cache && !TestBackend().CheckKvType(*cache).ok()) GTEST_SKIP() << "no such cache here";
  }
  static EngineOptions Options() {
    EngineOptions options = PlainOptions();
    options.kv_cache_dtype = GetParam().cache;
    return options;
  }
  std::unique_ptr<Engine> Make(const EngineOptions& options, float draft_noise = 0.05f) {
    const ModelSpec spec = SpecOf(GetParam());
    EngineModel target = MakeTinyLlama(spec, 5, 0.0f, TestBackend());
    EngineModel draft;
    if (options.draft_mode != DraftMode::kOff) {
      draft = MakeTinyLlama(spec, 5, draft_noise, TestBackend());
    }
    auto engine = Engine::Create(options, target, draft, TestBackend(), clock_);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    return std::move(engine).value();
  }

  static std::vector<Request> Requests() {
    std::vector<Request> requests;
    for (int32_t i = 0; i < 8; ++i) {
      Request request = SimpleRequest(CountingPrompt(3 + 11 * i, i % 3, 96), 48);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
      if (i % 4 == 1) request.sampling.repetition_penalty = 1.2f;
      if (i % 4 == 3) request.sampling.top_p = 0.9f;
      if (i == 5) request.num_choices = 2;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  // What was planned, and the pieces of host memory that steps copy from and to.
  static void ExpectMemoryOf(const MemoryPlan& plan, const MemoryUse& memory) {
    int64_t planned = 0;
    for (const MemoryLine& line : plan.lines) planned += line.bytes;
    EXPECT_GT(planned, 0);
    if (TestOnCuda()) {
      EXPECT_EQ(memory.cpu, 0);
      EXPECT_EQ(memory.gpu, planned);
      EXPECT_GT(memory.pinned, 0);
    } else {
      EXPECT_GT(memory.cpu, planned);
      EXPECT_EQ(memory.gpu, 0);
      EXPECT_EQ(memory.pinned, 0);
    }
  }

  static void ExpectTheSame(const MemoryPlan& plan, const Engine& engine) {
    EXPECT_EQ(plan.num_blocks, engine.Stats().kv.total_blocks);
    ASSERT_EQ(plan.lines.size(), engine.memory_plan().size());
    for (size_t i = 0; i < plan.lines.size(); ++i) {
      EXPECT_EQ(plan.lines[i].what, engine.memory_plan()[i].what);
      EXPECT_EQ(plan.lines[i].bytes, engine.memory_plan()[i].bytes) << plan.lines[i].what;
    }
    ExpectMemoryOf(plan, engine.Stats().memory);
  }

  void ExpectTokensOfPlainDecoding(const EngineOptions& options, bool drafts = true) {
    const auto alone = Make(Options());
    const auto engine = Make(options);
    const std::vector<Request> requests = Requests();
    for (int round = 0; round < 2; ++round) {
      const auto got = RunRequests(*engine, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        const auto expected = RunRequests(*alone, {requests[i]});
        for (size_t c = 0; c < got[i].size(); ++c) {
          EXPECT_EQ(got[i][c].tokens, expected[0][c].tokens) << "request " << i;
        }
      }
    }
    if (drafts) {
      EXPECT_GT(engine->Stats().drafts_proposed, 0);
      EXPECT_GT(engine->Stats().drafts_accepted, 0);
    }
  }

  SteadyClock clock_;
};

TEST_P(RealModelTest, ThePlanWithoutWeightsMatchesTheEngine) {
  for (const DraftMode mode : {DraftMode::kOff, DraftMode::kFixed}) {
    EngineOptions options = Options();
    options.draft_mode = mode;
    const auto engine = Make(options);
    const ModelSpec spec = SpecOf(GetParam());
    ops::Backend& backend = TestBackend();
    ASSERT_TRUE(CheckLoadable(spec, backend).ok());
    const ModelMemory model = {.spec = &spec,
                               .weight_bytes = WeightBytes(spec, backend, kPositions),
                               .max_positions = kPositions};
    const auto plan = PlanEngine(options, model, model, backend, backend.FreeBytes());
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(plan->options.max_seq_len, engine->limits().max_seq_len);
    ExpectTheSame(plan->memory, *engine);
  }
}

TEST_P(RealModelTest, BatchesChunksAndReuseChangeNoToken) {
  for (const int32_t in_flight : {0, 1}) {
    EngineOptions options = Options();
    options.steps_in_flight = in_flight;
    ExpectTokensOfPlainDecoding(options, false);
  }
}

TEST_P(RealModelTest, AFixedDraftChangesNoToken) {
  for (const int32_t in_flight : {0, 1}) {
    EngineOptions options = Options();
    options.steps_in_flight = in_flight;
    options.draft_mode = DraftMode::kFixed;
    ExpectTokensOfPlainDecoding(options);
  }
}

// The given number of slots, drafts of four tokens together with sequences without drafts, prompts
// in pieces, prompts found in the cache, and every fifth request cancelled while it runs.
TEST_P(RealModelTest, MixedDraftsAndCancellationsChangeNoToken) {
  const auto alone = Make(Options());
  std::vector<Request> requests = Requests();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 == 2) requests[i].max_draft_len = 0;
    requests[i].num_choices = 1;  // as many as fit one slot
  }
  std::vector<std::vector<int32_t>> expected;
  for (const Request& request : requests) {
    expected.push_back(RunRequests(*alone, {request})[0][0].tokens);
  }
  for (const int32_t slots : {1, 8, 64}) {
    EngineOptions options = Options();
    options.max_batch_size = slots;
    options.max_num_tokens = slots + 40;
    options.max_queue_size = 64;
    options.draft_mode = DraftMode::kFixed;
    const auto engine = Make(options);
    std::vector<RequestId> ids;
    for (size_t i = 0; i < 60; ++i) {
      ids.push_back(engine->Submit(requests[i % requests.size()]).value());
    }
    Outputs outputs;
    for (size_t i = 4; i < ids.size(); i += 5) {
      for (int step = 0; step < 6; ++step) engine->Step();
      engine->Cancel(ids[i]);
      ReadEvents(*engine, outputs);
    }
    RunToEnd(*engine, outputs, ids.size());
    int cancelled = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Output& got = outputs.at({ids[i], 0});
      cancelled += got.finish == FinishReason::kCancelled;
      if (got.finish == FinishReason::kCancelled) continue;
      EXPECT_EQ(got.tokens, expected[i % requests.size()]) << slots << " slots, request " << i;
    }
    EXPECT_GT(cancelled, 0);
    EXPECT_GT(engine->Stats().drafts_accepted, 0);
    EXPECT_GT(engine->Stats().kv.hit_tokens, 0);
    EXPECT_EQ(engine->Stats().kv.referenced_blocks, 0);
  }
}

TEST_P(RealModelTest, TheChooserAndLookupsChangeNoToken) {
  EngineOptions options = Options();
  options.draft_mode = DraftMode::kAdaptive;
  options.lookup_ngram = 2;
  // Two equal tiny models: whether drafting pays is a matter of nanoseconds, so it is not tested.
  ExpectTokensOfPlainDecoding(options, false);
}

TEST_P(RealModelTest, PreemptionChangesNoToken) {
  EngineOptions options = Options();
  options.draft_mode = DraftMode::kFixed;
  // Blocks of both models; room for about three of the longest sequences.
  const ModelSpec spec = SpecOf(GetParam());
  options.kv_cache_bytes =
      2 * spec.KvBytesPerToken(GetParam().cache.value_or(spec.dtype)) * 16 * 26;
  const auto alone = Make(Options());
  const auto engine = Make(options);
  const std::vector<Request> requests = Requests();
  const auto got = RunRequests(*engine, requests);
  EXPECT_GT(engine->Stats().preemptions, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(got[i][0].tokens, RunRequests(*alone, {requests[i]})[0][0].tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RealModelTest,
                         testing::Values(Types{DType::kBF16}, Types{DType::kF32},
                                         Types{DType::kBF16, DType::kF8E4M3},
                                         Types{DType::kBF16, DType::kI8},
                                         Types{DType::kF32, DType::kF8E4M3},
                                         Types{DType::kF32, DType::kI8}),
                         [](const testing::TestParamInfo<Types>& info) {
                           const std::optional<DType> cache = info.param.cache;
                           return std::string(DTypeName(info.param.dtype)) +
                                  (cache ? "_cache_" + std::string(DTypeName(*cache)) : "");
                         });

TEST(EngineCreate, RefusesACacheInInt8WithoutScalesByName) {
  if (!HasTestBackend() || TestOnCuda()) GTEST_SKIP() << "a GPU keeps none";
  SteadyClock clock;
  EngineOptions options = PlainOptions();
  options.kv_cache_dtype = DType::kI8;
  const auto create = [&](const ModelSpec& target, const ModelSpec& draft) {
    return Engine::Create(options, MakeTinyLlama(target, 5, 0.0f, TestBackend()),
                          MakeTinyLlama(draft, 5, 0.0f, TestBackend()), TestBackend(), clock);
  };
  const ModelSpec plain = TinyLlamaSpec(DType::kBF16, kPositions);
  ModelSpec scaled = plain;
  for (const std::optional<DType> scales : {std::optional<DType>(), {DType::kF8E4M3}}) {
    scaled.cache_scales = scales;
    const auto refused = create(scaled, plain);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
    EXPECT_THAT(refused.status().message(), testing::HasSubstr("kv_cache_dtype int8"));
    EXPECT_THAT(refused.status().message(), testing::HasSubstr("tandem quantize"));
  }
  // A draft without scales keeps its own type; its line says so.
  scaled.cache_scales = DType::kI8;
  options.draft_mode = DraftMode::kFixed;
  const auto engine = create(scaled, plain);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const MemoryLine& target = (*engine)->memory_plan()[(*engine)->memory_plan().size() - 2];
  const MemoryLine& draft = (*engine)->memory_plan().back();
  EXPECT_EQ(target.what, "target keys and values");
  EXPECT_EQ(draft.bytes, 2 * target.bytes);
  EXPECT_EQ(draft.note, "in bfloat16: the draft has no scales for int8");
}

TEST(EngineCreate, SaysWhatDoesNotFitAndWhichOptionHelps) {
  if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  SteadyClock clock;
  const ModelSpec spec = TinyLlamaSpec(DType::kBF16, kPositions);
  const EngineModel target = MakeTinyLlama(spec, 5, 0.0f, TestBackend());
  const auto refusal = [&](const EngineOptions& options) {
    const auto engine = Engine::Create(options, target, {}, TestBackend(), clock);
    return engine.ok() ? std::string("made") : engine.status().message();
  };
  EngineOptions options = PlainOptions();
  options.kv_cache_bytes = 1000;
  EXPECT_THAT(refusal(options), testing::HasSubstr("raise kv_cache_bytes"));
  options.kv_cache_bytes = int64_t{1} << 50;
  EXPECT_THAT(refusal(options), testing::HasSubstr("lower kv_cache_bytes"));
  options = PlainOptions();
  options.max_seq_len = 5000;
  EXPECT_THAT(refusal(options), testing::HasSubstr("max_seq_len is 5000; the model has 512"));
  options = PlainOptions();
  options.max_batch_size = 0;
  EXPECT_THAT(refusal(options),
              testing::HasSubstr("max_batch_size must be a number from 1 to 4096"));
}

// Costs are measured at start up to the longest step, which may have more rows than a model has
// positions.
TEST(EngineCreate, MeasuresNoPositionThatTheModelsLack) {
  if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  SteadyClock clock;
  const ModelSpec spec = TinyLlamaSpec(DType::kBF16, 64);
  EngineOptions options = PlainOptions();
  options.max_num_tokens = 1024;
  options.max_seq_len = 0;
  options.draft_mode = DraftMode::kAdaptive;
  const EngineModel model = MakeTinyLlama(spec, 5, 0.0f, TestBackend());
  EXPECT_TRUE(Engine::Create(options, model, model, TestBackend(), clock).ok());
}

}  // namespace
}  // namespace tandem
