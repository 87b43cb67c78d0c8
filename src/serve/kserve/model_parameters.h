// The parameters of the models that make up a text generator in a model repository: one table that
// says what each of them does here, and its values for one model. Pure functions; constant data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "serve/kserve/model_kinds.h"

namespace tandem::serve::kserve {

enum class ParameterType : uint8_t {
  kText,
  kWord,        // one of a few
  kBool,        // true, True, TRUE, 1 and their opposites
  kPythonBool,  // also t, y, yes and their opposites, in any case
  kInt,
  kFloat,
  kInts,  // between commas
};

enum class ParameterEffect : uint8_t { kHonoured, kIgnored, kRefused };

struct ModelParameters;

struct ParameterRow {
  std::string_view name = {};
  ModelKind kind = ModelKind::kTensorrtLlm;  // of the models that have it
  ParameterType type = ParameterType::kText;
  ParameterEffect effect = ParameterEffect::kIgnored;
  std::string_view default_value = {};  // when the value is empty; of an engine option: its own
  std::string_view option = {};         // of the engine, if the parameter sets one
  std::string_view harmless = {};  // "1|1.0": values that change nothing, ignored without a word
  bool is_wanted = false;  // a template whose variable for it is not filled in is worth a warning
  std::string_view meaning = {};  // or why it is ignored or refused
  // Takes a value that is not empty. Null: as effect, type and option say.
  Status (*set)(const ParameterRow& row, const std::string& value,
                ModelParameters& parameters) = nullptr;
};

std::span<const ParameterRow> ParameterRows();
// The row of a parameter that models of the kind have; null when there is none.
const ParameterRow* FindParameter(ModelKind kind, std::string_view name);

// What a model's configuration asks for.
struct ModelParameters {
  ModelKind kind = ModelKind::kOther;
  std::filesystem::path engine_dir;      // of kTensorrtLlm
  std::string target_model;              // of kBls, by name; empty: of another kind
  std::string draft_model;               // of kBls, by name; empty: none
  std::string tokenizer_dir;             // a folder or a hub's id; empty: the engine's own
  bool add_special_tokens = true;        // to prompts
  bool skip_special_tokens = true;       // from the text of answers
  bool exclude_input_in_output = false;  // unless a request says otherwise
  bool decoupled = false;                // a request may have any number of responses
  int32_t max_batch_size = 0;            // of one request; 0: no batch dimension
  int64_t max_queue_size = 0;            // 0: the server's own bound
  std::vector<int32_t> gpu_device_ids;   // of the first instance, one for each rank; empty: any
  std::vector<int32_t> participant_ids;
  // Options of the engine by name, with their values as on the command line. The option table
  // checks their ranges.
  std::vector<std::pair<std::string, std::string>> engine_options;
  std::vector<std::string> ignored;   // "kv_cache_onboard_blocks: there is no offload ..."
  std::vector<std::string> warnings;  // values that could not be used
};

// `folder` is the model's in the repository. INVALID_ARGUMENT with the parameter as field for a
// value of the wrong type, UNIMPLEMENTED for one that is refused.
Result<ModelParameters> ReadModelParameters(const inference::ModelConfig& config,
                                            const std::filesystem::path& folder);

}  // namespace tandem::serve::kserve
