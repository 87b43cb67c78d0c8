// The models that generate: the chain of tokenizer, engine and detokenizer under one name, the same
// with inputs for the draft, and the engine alone, from tokens to tokens.
#pragma once

#include <string>
#include <vector>

#include "serve/kserve/models/generation_request.h"
#include "serve/kserve/models/model_tensors.h"
#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

namespace tandem::serve::kserve {

struct GenerationModelOptions {
  ModelKind kind = ModelKind::kEnsemble;  // or kBls, kTensorrtLlm
  GenerationDefaultsOfModel defaults = {};
  std::vector<std::string> members = {};  // of whose statistics it is part
};

// `config` names the model and has the tensors of MakeConfig; `engine` is kept while the model
// lives.
InferModelPtr MakeGenerationModel(const inference::ModelConfig& config, ModelPtr engine,
                                  GenerationModelOptions options);

}  // namespace tandem::serve::kserve
