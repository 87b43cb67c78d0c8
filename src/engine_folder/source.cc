#include "engine_folder/source.h"

#include <array>
#include <utility>

#include "base/file.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/output_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "engine_folder/engine_folder.h"
#include "model/families/families.h"
#include "model/json_fields.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

Result<ModelSource::Kind> KindOf(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const auto text = ReadTextFile(path);
  if (text.status().code() == Code::kNotFound) {
    return NotFound(folder.string() +
                    ": holds no config.json; a model is a Hugging Face folder, a checkpoint or an "
                    "engine, and each has one");
  }
  if (!text.ok()) return text.status();
  const auto json = JsonFields::Parse(*text);
  if (!json.ok()) return json.status().Annotate(path.string());
  if (json->Has("build_config")) return ModelSource::Kind::kEngine;
  if (json->Has("architectures")) return ModelSource::Kind::kHuggingFace;
  if (json->Has("architecture")) return ModelSource::Kind::kCheckpoint;
  return InvalidArgument(path.string() +
                         ": has none of the keys \"architectures\" (a Hugging Face folder), "
                         "\"architecture\" (a checkpoint) and \"build_config\" (an engine)");
}

fs::path TokenizerDir(const fs::path& folder) {
  // Whatever exists there: reading it gives the error.
  return HasTokenizer(folder) ? folder : fs::path();
}

Status OpenWeights(const fs::path& path, std::optional<DType> dtype, const ConfigOptions& config,
                   ModelSource& model) {
  switch (model.kind) {
    case ModelSource::Kind::kHuggingFace: {
      TANDEM_ASSIGN_OR_RETURN(model.weights, HfReader::Open(path, dtype, config));
      return {};
    }
    case ModelSource::Kind::kCheckpoint: {
      TANDEM_ASSIGN_OR_RETURN(auto source, OpenCheckpoint(path));
      model.sharding = source->sharding();
      model.weights = std::move(source);
      return {};
    }
    case ModelSource::Kind::kEngine: {
      TANDEM_ASSIGN_OR_RETURN(auto engine, OpenEngine(path));
      model.sharding = engine.source->sharding();
      model.limits = engine.limits;
      model.weights = std::move(engine.source);
      return {};
    }
    case ModelSource::Kind::kDummy:
      break;
  }
  return Internal("a dummy has no folder");
}

Status CheckModelFolder(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return error ? FailedPrecondition(path.string() + ": " + error.message())
                 : NotFound(path.string() + ": does not exist");
  }
  if (!fs::is_directory(path, error)) {
    return InvalidArgument(path.string() +
                           ": is a file; a model is a folder (Hugging Face, checkpoint or engine)");
  }
  return {};
}

}  // namespace

std::string_view KindName(ModelSource::Kind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"Hugging Face folder", "checkpoint", "engine",
                                                      "dummy"};
  return kNames[static_cast<size_t>(kind)];
}

Status CheckHuggingFaceFolder(const fs::path& path) {
  TANDEM_RETURN_IF_ERROR(CheckModelFolder(path));
  TANDEM_ASSIGN_OR_RETURN(const ModelSource::Kind kind, KindOf(path));
  if (kind == ModelSource::Kind::kHuggingFace) return {};
  return InvalidArgument(path.string() + ": is " +
                         (kind == ModelSource::Kind::kEngine ? "an engine" : "a checkpoint") +
                         "; name the Hugging Face folder that it was made from");
}

Result<ModelSource> OpenModel(const fs::path& path, std::optional<DType> dtype,
                              const ConfigOptions& config) {
  TANDEM_RETURN_IF_ERROR(CheckModelFolder(path));
  ModelSource model;
  model.path = path;
  TANDEM_ASSIGN_OR_RETURN(model.kind, KindOf(path));
  TANDEM_RETURN_IF_ERROR(OpenWeights(path, dtype, config, model));
  model.tokenizer_dir = TokenizerDir(path);
  return model;
}

Result<ModelSource> OpenDummy(const fs::path& path, const DummyOptions& options,
                              const ConfigOptions& config) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? path / "config.json" : path;
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
  Result<ModelSpec> spec = SpecFromHfConfig(text, config, AddedTokens(file.parent_path()));
  if (!spec.ok()) return spec.status().Annotate(file.string());
  auto source = DummySource::FromSpec(*std::move(spec), options);
  if (!source.ok()) return source.status().Annotate(file.string());
  ModelSource model;
  model.kind = ModelSource::Kind::kDummy;
  model.path = file;
  model.weights = *std::move(source);
  model.tokenizer_dir = TokenizerDir(file.parent_path());
  return model;
}

}  // namespace tandem
