// The models of the inference protocol that present engines, as Triton's users know them: those of
// a repository's folders, and those of an engine that was named alone.
#pragma once

#include <string>
#include <vector>

#include "serve/kserve/models/repository_links.h"
#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

namespace tandem::serve::kserve {

// The model under the configuration of its folder, with the tensors that models of its kind have
// here; a built-in model (builtin_models.h) keeps those of the configuration. `engine`: the one
// that `links` name, kept while the model lives. UNIMPLEMENTED for a kind that is not known, and
// without an engine for a kind that needs one.
Result<InferModelPtr> MakeModel(const FolderModel& model, const ModelLinks& links, ModelPtr engine);

// Names by which clients of text-level models may call the engine; OpenAI's clients may too.
std::vector<std::string> TextModelNames();

// The engine under one name, from text to text; it takes up to `max_batch_size` prompts in a
// request and streams on request (it is decoupled).
InferModelPtr MakeTextModel(const ModelPtr& engine, const std::string& name, int max_batch_size);

// Adds the engine's own name, from text to text, and a model of each kind under its usual name:
// `ensemble`, `tensorrt_llm_bls`, `preprocessing`, `tensorrt_llm` and `postprocessing`.
void AddEngineModels(Repository& models, const ModelPtr& engine, int max_batch_size);

}  // namespace tandem::serve::kserve
