// The kinds of models that make up a text generator, in one table. Constant data.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace inference {
class ModelConfig;  // <model_config.pb.h>
}

namespace tandem::serve::kserve {

enum class ModelKind : uint8_t {
  kEnsemble,
  kPreprocessing,
  kTensorrtLlm,  // token ids in and out; a draft model is one too
  kPostprocessing,
  kBls,    // "tensorrt_llm_bls": text in and out
  kOther,  // a built-in model, or one that is not known
};

// What a model has to do with engines.
enum class EngineRole : uint8_t {
  kNone,    // works without
  kEngine,  // is one
  kText,    // one more name of an engine, from text to text
  kStage,   // uses the tokenizer of one
};

struct KindRow {
  ModelKind kind = ModelKind::kOther;
  EngineRole role = EngineRole::kNone;
  std::string_view name = {};     // by which clients know the model
  std::string_view backend = {};  // that clients expect to see; an ensemble has none
  std::span<const std::string_view> inputs = {};  // by which a scripted model is recognized
};

// Every kind once.
std::span<const KindRow> ModelKinds();
const KindRow& RowOf(ModelKind kind);

// By the backend and the tensors of the model, whatever its name.
ModelKind KindOf(const inference::ModelConfig& config);

}  // namespace tandem::serve::kserve
