#include "apps/lmi/neo.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "apps/cli/json_text.h"
#include "base/file.h"
#include "base/log.h"

namespace tandem::apps {
namespace {

constexpr const char* kErrorFile = "SM_NEO_COMPILATION_ERROR_FILE";

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// Neo always gives an object; flags of the old compiler are optional in it.
Status CheckCompilerOptions(const std::string& text) {
  if (text.empty()) return {};
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("COMPILER_OPTIONS: is no JSON object");
  const auto flags = json.find("compiler_flags");
  if (flags == json.end() || flags->is_null()) return {};
  return InvalidArgument(
      "COMPILER_OPTIONS: compiler_flags are those of TensorRT-LLM's programs and are not read; say "
      "the same in the model's serving.properties: option.quantize, option.dtype, "
      "option.max_input_len, option.max_output_len, option.max_rolling_batch_size");
}

}  // namespace

Result<NeoJob> NeoJobFromEnvironment() {
  const NeoJob job{.input = Variable("SM_NEO_INPUT_MODEL_DIR"),
                   .output = Variable("SM_NEO_COMPILED_MODEL_DIR"),
                   .error_file = Variable(kErrorFile),
                   .cache = Variable("SM_NEO_CACHE_DIR")};
  const std::string context = Variable("SM_NEO_EXECUTION_CONTEXT");
  if (!context.empty() && (job.input.empty() || job.output.empty() || job.error_file.empty())) {
    return InvalidArgument(
        "SM_NEO_EXECUTION_CONTEXT: a job of SageMaker Neo needs SM_NEO_INPUT_MODEL_DIR, "
        "SM_NEO_COMPILED_MODEL_DIR and SM_NEO_COMPILATION_ERROR_FILE too");
  }
  if (!job.input.empty())
    TANDEM_RETURN_IF_ERROR(CheckCompilerOptions(Variable("COMPILER_OPTIONS")));
  if (!Variable("SM_NEO_HF_CACHE_DIR").empty()) {
    LogWarning("SM_NEO_HF_CACHE_DIR: no effect: no data set is fetched to calibrate with");
  }
  return job;
}

void TellNeo(const Status& error) {
  const std::string path = Variable(kErrorFile);
  if (path.empty()) return;
  const std::string text = JsonText(nlohmann::json{{"error", error.message()}});
  if (const Status written = WriteFileAtomically(path, text); !written.ok()) {
    LogError("{}: {}", kErrorFile, written.message());
  }
}

}  // namespace tandem::apps
