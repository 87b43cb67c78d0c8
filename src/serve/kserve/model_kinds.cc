#include "serve/kserve/model_kinds.h"

#include <model_config.pb.h>

#include <algorithm>

#include "base/check.h"

namespace tandem::serve::kserve {
namespace {

// A backend of scripts, which says nothing about what they do.
constexpr std::string_view kScripted = "python";

constexpr std::string_view kTokenInputs[] = {"input_ids", "request_output_len"};
constexpr std::string_view kQuery[] = {"QUERY"};
constexpr std::string_view kTokensBatch[] = {"TOKENS_BATCH"};
constexpr std::string_view kTextInput[] = {"text_input"};

constexpr KindRow kKinds[] = {
    {.kind = ModelKind::kEnsemble, .role = EngineRole::kText, .name = "ensemble"},
    {.kind = ModelKind::kTensorrtLlm,
     .role = EngineRole::kEngine,
     .name = "tensorrt_llm",
     .backend = "tensorrtllm",
     .inputs = kTokenInputs},
    {.kind = ModelKind::kPreprocessing,
     .role = EngineRole::kStage,
     .name = "preprocessing",
     .backend = kScripted,
     .inputs = kQuery},
    {.kind = ModelKind::kPostprocessing,
     .role = EngineRole::kStage,
     .name = "postprocessing",
     .backend = kScripted,
     .inputs = kTokensBatch},
    {.kind = ModelKind::kBls,
     .role = EngineRole::kText,
     .name = "tensorrt_llm_bls",
     .backend = kScripted,
     .inputs = kTextInput},
    {.kind = ModelKind::kOther},
};

bool HasInputs(const inference::ModelConfig& config, std::span<const std::string_view> names) {
  return std::ranges::all_of(names, [&config](std::string_view name) {
    return std::any_of(config.input().begin(), config.input().end(),
                       [name](const inference::ModelInput& input) { return input.name() == name; });
  });
}

}  // namespace

std::span<const KindRow> ModelKinds() { return kKinds; }

const KindRow& RowOf(ModelKind kind) {
  const auto* const row = std::ranges::find(kKinds, kind, &KindRow::kind);
  TANDEM_CHECK(row != std::end(kKinds), "a kind of models has no row");
  return *row;
}

ModelKind KindOf(const inference::ModelConfig& config) {
  if (config.platform() == "ensemble" || config.has_ensemble_scheduling()) {
    return ModelKind::kEnsemble;
  }
  // The backend of a template may not be filled in.
  const bool is_scripted = config.backend() == kScripted || config.backend().empty();
  for (const KindRow& row : kKinds) {
    const bool is_known = is_scripted ? !row.inputs.empty() && HasInputs(config, row.inputs)
                                      : config.backend() == row.backend;
    if (is_known) return row.kind;
  }
  return ModelKind::kOther;
}

}  // namespace tandem::serve::kserve
