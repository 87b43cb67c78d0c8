// The stages before and after the engine as models of their own, for clients that chain them: text
// to tokens and tokens to text.
#pragma once

#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

namespace tandem::serve::kserve {

// `config` names the model and has the tensors of MakeConfig; of `engine` the text codec is used,
// and kept while the model lives.
InferModelPtr MakePreprocessingModel(const inference::ModelConfig& config, ModelPtr engine,
                                     bool add_special_tokens);
InferModelPtr MakePostprocessingModel(const inference::ModelConfig& config, ModelPtr engine,
                                      bool skip_special_tokens);

}  // namespace tandem::serve::kserve
