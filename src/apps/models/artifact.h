// Artifacts: the folders that LMI's ahead-of-time compilation makes of a model. ROOT/NAME/1 is an
// engine folder; beside it, in ROOT/NAME, are a config.pbtxt and the Hugging Face files of the
// model. ROOT may hold a serving.properties. The functions read and write files; one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace tandem::apps {

// The model's folder in the artifacts that `tandem partition` writes.
inline constexpr const char* kArtifactModel = "tensorrt_llm";

// The engine of an artifact, by its root or by the folder below that; `folder` itself where it is
// no artifact, or one whose engine this program did not write. INVALID_ARGUMENT names the models of
// a root with several.
Result<std::filesystem::path> EngineOfArtifact(const std::filesystem::path& folder);

// What goes beside the engine: the tokenizer's files from `tokenizer`, all else from `model`. Last
// of all comes config.pbtxt, without which a folder is no artifact.
Status WriteArtifactFiles(const std::filesystem::path& model,
                          const std::filesystem::path& tokenizer, int64_t max_batch_size,
                          const std::filesystem::path& folder);

// FAILED_PRECONDITION if the folder exists and holds anything that no artifact's folder does.
Status CheckArtifactFolder(const std::filesystem::path& folder);

}  // namespace tandem::apps
