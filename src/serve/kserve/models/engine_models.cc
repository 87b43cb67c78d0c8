#include "serve/kserve/models/engine_models.h"

#include <fmt/format.h>
#include <model_config.pb.h>

#include <utility>

#include "base/check.h"
#include "serve/kserve/models/builtin_models.h"
#include "serve/kserve/models/generation_models.h"
#include "serve/kserve/models/model_tensors.h"
#include "serve/kserve/models/stage_models.h"

namespace tandem::serve::kserve {
namespace {

// `config` has the tensors of MakeConfig.
InferModelPtr MakeEngineModel(const inference::ModelConfig& config, ModelPtr engine,
                              GenerationModelOptions options) {
  switch (options.kind) {
    case ModelKind::kPreprocessing:
      return MakePreprocessingModel(config, std::move(engine), options.defaults.add_special_tokens);
    case ModelKind::kPostprocessing:
      return MakePostprocessingModel(config, std::move(engine),
                                     options.defaults.skip_special_tokens);
    case ModelKind::kEnsemble:
    case ModelKind::kBls:
    case ModelKind::kTensorrtLlm:
      return MakeGenerationModel(config, std::move(engine), std::move(options));
    case ModelKind::kOther:
      break;
  }
  TANDEM_CHECK(false, "a model of this kind presents no engine");
  return nullptr;
}

// The stages and the engine of a text model, under their usual names.
std::vector<std::string> UsualMembers() {
  std::vector<std::string> members;
  for (const ModelKind kind :
       {ModelKind::kPreprocessing, ModelKind::kTensorrtLlm, ModelKind::kPostprocessing}) {
    members.emplace_back(RowOf(kind).name);
  }
  return members;
}

InferModelPtr MakeUsual(ModelKind kind, const ModelPtr& engine, const std::string& name,
                        int max_batch_size) {
  const EngineRole role = RowOf(kind).role;
  const bool is_text = role == EngineRole::kText;
  GenerationModelOptions options;
  options.kind = kind;
  // As the clients of token ids expect: they find the answer after the prompt.
  options.defaults.exclude_input = is_text;
  if (is_text) options.members = UsualMembers();
  const bool is_decoupled = role != EngineRole::kStage;
  return MakeEngineModel(MakeConfig(kind, name, max_batch_size, is_decoupled), engine,
                         std::move(options));
}

}  // namespace

Result<InferModelPtr> MakeModel(const FolderModel& model, const ModelLinks& links,
                                ModelPtr engine) {
  const ModelKind kind = model.parameters.kind;
  if (RowOf(kind).role == EngineRole::kNone) return MakeBuiltinModel(*model.config);
  if (engine == nullptr) {
    return Unimplemented(fmt::format(
        "{}: none of the models that it works with is an engine (backend \"tensorrtllm\")",
        model.name));
  }
  inference::ModelConfig config = *model.config;
  const inference::ModelConfig tensors =
      MakeConfig(kind, model.name, config.max_batch_size(), links.is_decoupled);
  *config.mutable_input() = tensors.input();
  *config.mutable_output() = tensors.output();
  *config.mutable_model_transaction_policy() = tensors.model_transaction_policy();
  return MakeEngineModel(config, std::move(engine),
                         {.kind = kind, .defaults = links.defaults, .members = model.steps});
}

std::vector<std::string> TextModelNames() {
  std::vector<std::string> names;
  for (const KindRow& row : ModelKinds()) {
    if (row.role == EngineRole::kText) names.emplace_back(row.name);
  }
  return names;
}

InferModelPtr MakeTextModel(const ModelPtr& engine, const std::string& name, int max_batch_size) {
  return MakeUsual(ModelKind::kBls, engine, name, max_batch_size);
}

void AddEngineModels(Repository& models, const ModelPtr& engine, int max_batch_size) {
  models.Add(MakeTextModel(engine, engine->name, max_batch_size));
  for (const KindRow& row : ModelKinds()) {
    if (row.role == EngineRole::kNone) continue;
    models.Add(MakeUsual(row.kind, engine, std::string(row.name), max_batch_size));
  }
}

}  // namespace tandem::serve::kserve
