// OpenModel: opens any form of model that a user may name (Hugging Face folder, checkpoint, engine)
// as a WeightSource with its spec, limits and tokenizer folder. The caller owns it; used by one
// thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "engine_folder/engine_config.h"
#include "model/config_options.h"
#include "model/dummy_weights.h"
#include "model/sharding.h"
#include "model/weight_source.h"

namespace tandem {

struct ModelSource {
  enum class Kind { kHuggingFace, kCheckpoint, kEngine, kDummy };

  Kind kind = Kind::kHuggingFace;
  std::filesystem::path path;
  std::unique_ptr<WeightSource> weights;
  Sharding sharding;                    // as stored; any source can be loaded unsharded
  std::optional<BuildLimits> limits;    // of an engine
  std::filesystem::path tokenizer_dir;  // empty when the folder holds no tokenizer

  const ModelSpec& spec() const { return weights->spec(); }
};

// "Hugging Face folder", "checkpoint", "engine", "dummy"
std::string_view KindName(ModelSource::Kind kind);

// An error unless a Hugging Face folder is there; it says what to do with a name on the Hugging
// Face Hub, a checkpoint or an engine.
Status CheckHuggingFaceFolder(const std::filesystem::path& path);
// The error lists the forms that were looked for when the path is none of them. `dtype` makes a
// Hugging Face folder compute in another type than its own, and `config` goes over the keys of its
// config.json; checkpoints and engines have been told before.
Result<ModelSource> OpenModel(const std::filesystem::path& path,
                              std::optional<DType> dtype = std::nullopt,
                              const ConfigOptions& config = {});

// A model made from a config.json only (or the folder that holds one); see model/dummy_weights.h.
Result<ModelSource> OpenDummy(const std::filesystem::path& path, const DummyOptions& options = {},
                              const ConfigOptions& config = {});

}  // namespace tandem
