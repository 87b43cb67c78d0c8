// An engine in its steady state: four long sequences with drafts, penalties, log-probabilities and
// look-ups, whose steps are all alike. Test code.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "comm/cuda/cuda_ranks.h"
#include "runtime/testing/test_engine.h"
#include "runtime/testing/test_llama.h"

namespace tandem {

constexpr int32_t kSteadyTokens = 8000;  // of each sequence

// `options`: what the test chooses; the rest is filled in. `backends`: one, or a GPU for each rank.
inline std::unique_ptr<Engine> MakeSteadyEngine(EngineOptions options,
                                                const std::vector<ops::Backend*>& backends,
                                                const Clock& clock) {
  const ModelSpec spec = TinyLlamaSpec(DType::kBF16, 8192);
  options.max_batch_size = 4;
  options.max_num_tokens = 64;
  options.max_seq_len = 8192;
  options.kv_cache_bytes = int64_t{1} << 28;
  options.draft_mode = DraftMode::kFixed;
  options.lookup_ngram = 2;
  std::vector<std::unique_ptr<Communicator>> communicators(1);
  if (backends.size() > 1) communicators = MakeCudaRanks(backends).value();
  std::vector<EngineRank> ranks;
  for (ops::Backend* const backend : backends) {
    backend->BindThread();
    const RankPlace place{.rank = static_cast<int>(ranks.size()),
                          .ranks = static_cast<int>(backends.size())};
    ranks.push_back({.backend = backend,
                     .ranks = std::move(communicators[ranks.size()]),
                     .target = MakeTinyLlama(spec, 5, 0.0f, *backend, place),
                     .draft = MakeTinyLlama(spec, 5, 0.05f, *backend, place)});
  }
  auto engine = Engine::Create(options, ranks, clock).value();
  for (int32_t i = 0; i < 4; ++i) {
    Request request = SimpleRequest(CountingPrompt(20, i, 96), kSteadyTokens);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    if (i == 1) request.sampling.repetition_penalty = 1.1f;
    if (i == 2) request.sampling.num_top_logprobs = 2;
    if (i == 3) request.sampling.top_p = 0.9f;
    EXPECT_TRUE(engine->Submit(request).ok());
  }
  return engine;
}

// One step and its events; `event` is the caller's, so that its memory is reused.
inline void StepAndRead(Engine& engine, Event& event) {
  engine.Step();
  while (engine.PopEvent(event, Nanos(0))) {
  }
}

}  // namespace tandem
