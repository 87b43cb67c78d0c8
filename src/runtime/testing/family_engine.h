// The tiny model of a family (tests/data/families) as target and draft of an engine on the backend
// under test. Test code, any thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/family_fixtures.h"
#include "runtime/testing/test_engine.h"

namespace tandem {

// The types of a target's activations and of a draft's: the same weights in another type agree
// often, but not always. A GPU computes in 16 bits.
inline DType FamilyTargetType() { return TestOnCuda() ? DType::kF16 : DType::kF32; }
constexpr DType kFamilyDraftType = DType::kBF16;

// Few rows and places, so that requests are computed in chunks and wait for each other; no drafts.
inline EngineOptions FamilyOptions() {
  EngineOptions options;
  options.max_batch_size = 4;
  options.max_num_tokens = 32;
  options.max_seq_len = 120;
  options.block_tokens = 16;
  options.kv_cache_bytes = 8 << 20;
  options.draft_mode = DraftMode::kOff;
  return options;
}

// As its config stores it.
inline ModelSpec FamilySpec(const std::string& name) {
  const auto reader = HfReader::Open(FixturesFolder() / name);
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  return (*reader)->spec();
}

inline EngineModel LoadFamily(const std::string& name, DType dtype, int64_t max_seq_len) {
  const auto reader = HfReader::Open(FixturesFolder() / name, dtype);
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  auto weights = LoadWeights(**reader, TestBackend(), max_seq_len);
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  return {*weights, name};
}

// A draft is only loaded for options that draft.
inline std::unique_ptr<Engine> MakeFamilyEngine(const std::string& name,
                                                const EngineOptions& options, const Clock& clock) {
  const EngineModel target = LoadFamily(name, FamilyTargetType(), options.max_seq_len);
  const bool drafts = options.draft_mode != DraftMode::kOff;
  const EngineModel draft =
      drafts ? LoadFamily(name, kFamilyDraftType, options.max_seq_len) : EngineModel{};
  auto engine = Engine::Create(options, target, draft, TestBackend(), clock);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

}  // namespace tandem
