// The tensors of the five models that Triton's users know, in one table: the union of what their
// generations have, with one type for each. Constants.
#pragma once

#include <cstdint>
#include <string>

namespace inference {
class ModelConfig;  // proto/model_config.proto
}

namespace tandem::serve::kserve {

enum class ModelKind : uint8_t {
  kEnsemble,        // text to text: tokenizer, engine and detokenizer in one
  kBls,             // the same over a target and its draft, with inputs for the draft
  kTokens,          // tokens to tokens: "tensorrt_llm"
  kPreprocessing,   // text to tokens
  kPostprocessing,  // tokens to text
};

// The config of a model of this kind: its tensors, and the backend that clients expect to see.
inference::ModelConfig MakeConfig(ModelKind kind, const std::string& name, int max_batch_size,
                                  bool is_decoupled);

}  // namespace tandem::serve::kserve
