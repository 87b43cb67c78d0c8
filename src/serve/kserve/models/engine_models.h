// The models of the inference protocol that present one engine, as Triton's users know them.
#pragma once

#include <string>
#include <vector>

#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

namespace tandem::serve::kserve {

// Names by which clients of text-level models may call the engine; OpenAI's clients may too.
std::vector<std::string> TextModelNames();

// The engine under one name, from text to text; it takes up to `max_batch_size` prompts in a
// request and streams on request (it is decoupled).
InferModelPtr MakeTextModel(const ModelPtr& engine, const std::string& name, int max_batch_size);

// Adds the engine's own name, `ensemble`, `tensorrt_llm_bls`, `preprocessing`, `tensorrt_llm` and
// `postprocessing`.
void AddEngineModels(Repository& models, const ModelPtr& engine, int max_batch_size);

}  // namespace tandem::serve::kserve
