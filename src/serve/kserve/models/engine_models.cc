#include "serve/kserve/models/engine_models.h"

#include <model_config.pb.h>

#include "serve/kserve/models/generation_models.h"
#include "serve/kserve/models/model_tensors.h"
#include "serve/kserve/models/stage_models.h"

namespace tandem::serve::kserve {
namespace {

constexpr const char* kEnsemble = "ensemble";
constexpr const char* kBls = "tensorrt_llm_bls";
constexpr const char* kTokens = "tensorrt_llm";
constexpr const char* kPreprocessing = "preprocessing";
constexpr const char* kPostprocessing = "postprocessing";

InferModelPtr MakeText(ModelKind kind, const ModelPtr& engine, const std::string& name,
                       int max_batch_size) {
  return MakeGenerationModel(MakeConfig(kind, name, max_batch_size, /*is_decoupled=*/true), engine,
                             {.kind = kind, .members = {kPreprocessing, kTokens, kPostprocessing}});
}

}  // namespace

std::vector<std::string> TextModelNames() { return {kEnsemble, kBls}; }

InferModelPtr MakeTextModel(const ModelPtr& engine, const std::string& name, int max_batch_size) {
  return MakeText(ModelKind::kBls, engine, name, max_batch_size);
}

void AddEngineModels(Repository& models, const ModelPtr& engine, int max_batch_size) {
  models.Add(MakeText(ModelKind::kBls, engine, engine->name, max_batch_size));
  models.Add(MakeText(ModelKind::kBls, engine, kBls, max_batch_size));
  models.Add(MakeText(ModelKind::kEnsemble, engine, kEnsemble, max_batch_size));
  // As its clients expect: they find the answer after the prompt.
  models.Add(MakeGenerationModel(
      MakeConfig(ModelKind::kTensorrtLlm, kTokens, max_batch_size, /*is_decoupled=*/true), engine,
      {.kind = ModelKind::kTensorrtLlm, .defaults = {.exclude_input = false}}));
  models.Add(MakePreprocessingModel(
      MakeConfig(ModelKind::kPreprocessing, kPreprocessing, max_batch_size, false), engine,
      /*add_special_tokens=*/true));
  models.Add(MakePostprocessingModel(
      MakeConfig(ModelKind::kPostprocessing, kPostprocessing, max_batch_size, false), engine,
      /*skip_special_tokens=*/true));
}

}  // namespace tandem::serve::kserve
