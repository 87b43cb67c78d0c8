// SageMaker Neo's interface to a program that prepares models: variables of the environment, and a
// file for the error. Functions of the environment; main thread.
#pragma once

#include <filesystem>

#include "base/status.h"

namespace tandem::apps {

struct NeoJob {
  std::filesystem::path input;       // SM_NEO_INPUT_MODEL_DIR: model and serving.properties
  std::filesystem::path output;      // SM_NEO_COMPILED_MODEL_DIR
  std::filesystem::path error_file;  // SM_NEO_COMPILATION_ERROR_FILE
  std::filesystem::path cache;       // SM_NEO_CACHE_DIR: of files that go when the job is done
};

// All empty where the environment has none of these variables. INVALID_ARGUMENT for a
// SM_NEO_EXECUTION_CONTEXT or COMPILER_OPTIONS that asks for what is not done, and names what to
// write instead; a variable without effect is named in the log.
Result<NeoJob> NeoJobFromEnvironment();

// Writes the error to the file that SM_NEO_COMPILATION_ERROR_FILE names, if it names one, as Neo
// reads it: {"error": "..."}.
void TellNeo(const Status& error);

}  // namespace tandem::apps
