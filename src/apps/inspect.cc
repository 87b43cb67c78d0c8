// `tandem inspect PATH`: the contents of a model folder or a file of tensors.
#include "apps/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/verbs.h"
#include "base/printable.h"
#include "checkpoint/check_weights.h"
#include "engine_folder/source.h"
#include "model/weight_roles.h"
#include "tensor/convert.h"
#include "tensor/tensor_file.h"

namespace tandem::apps {
namespace {

struct InspectOptions {
  std::filesystem::path path;
  bool tensors = false;
  bool check = false;
};

const BoundOptions<InspectOptions>& Rows() {
  constexpr std::string_view kArguments = "Arguments";
  static const BoundOptions<InspectOptions> rows({
      BindOption<InspectOptions, &InspectOptions::path>(
          {.name = "path",
           .meaning = "A Hugging Face folder, a checkpoint, an engine, or a file of tensors: "
                      ".safetensors, or .bin, .pt or .pth from torch.save",
           .group = kArguments,
           .position = Position::kRequired}),
      BindOption<InspectOptions, &InspectOptions::tensors>(
          {.name = "tensors",
           .meaning = "List every tensor of the folder's files",
           .group = kArguments}),
      BindOption<InspectOptions, &InspectOptions::check>(
          {.name = "check",
           .meaning =
               "Read every weight: fail where a file is damaged, or a weight is NaN or infinite",
           .group = kArguments}),
  });
  return rows;
}

Status InspectFile(const std::filesystem::path& path, Console& console,
                   nlohmann::ordered_json& json) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, OpenTensorFile(path));
  console.Say(Printable(path.string()));
  for (const auto& [name, tensor] : file->tensors()) {
    console.Say(fmt::format("  {:60} {:5} {}", Printable(name), SafetensorsName(tensor.dtype),
                            tensor.shape.ToString()));
    json[path.filename().string()][name] = {{"dtype", SafetensorsName(tensor.dtype)},
                                            {"shape", tensor.shape.ToString()}};
  }
  return {};
}

// Weights that are stored unlike most: "mlp.down_proj: not quantized", " (layers 0, 5)".
std::map<std::string, std::string> ExceptionsOf(const ModelSpec& spec) {
  std::map<std::string, std::string> layers;
  for (const SchemeException& weight : spec.exceptions) {
    const WeightRow& row = RowOf(weight.role);
    std::string& list = layers[fmt::format("{}: {}", row.hf_name, DescribeScheme(weight.scheme))];
    if (!row.per_layer) continue;
    list += (list.empty() ? "" : ", ") + std::to_string(weight.layer);
  }
  for (auto& [what, list] : layers) {
    if (!list.empty()) list = " (layers " + list + ")";
  }
  return layers;
}

Status InspectFolder(const std::filesystem::path& path, Console& console,
                     nlohmann::ordered_json& json) {
  TANDEM_ASSIGN_OR_RETURN(const ModelSource source, OpenModel(path));
  const ModelSpec& spec = source.spec();
  console.Say(fmt::format("{}: {}", Printable(path.string()), KindName(source.kind)));
  console.Say(fmt::format(
      "architecture  {}, {}{}", spec.architecture, DTypeName(spec.dtype),
      spec.quantization.is_plain() ? "" : ", layers in " + DescribeScheme(spec.quantization)));
  for (const auto& [what, layers] : ExceptionsOf(spec)) {
    console.Say(fmt::format("exceptions    {}{}", what, layers));
  }
  console.Say(fmt::format("parameters    {:.1f} M in {} layers", NumParameters(spec) / 1e6,
                          spec.num_layers()));
  const AttentionSpec& attention = spec.layers.front().attention;
  const MlpSpec& mlp = spec.layers.front().mlp;
  if (const LatentSpec& latent = attention.latent; attention.has_latents()) {
    console.Say(fmt::format("attention     {} heads of {}, over latents of {} with {} that turn",
                            attention.num_heads, attention.query_dim(), latent.rank,
                            attention.rope.dim));
  } else {
    console.Say(fmt::format("attention     {} heads of {}, {} for keys and values",
                            attention.num_heads, attention.head_dim, attention.num_kv_heads));
  }
  console.Say(fmt::format("sizes         hidden {}, MLP {}, vocabulary {}, {} positions",
                          spec.hidden_size, mlp.intermediate_size, spec.vocab_size,
                          spec.max_positions));
  if (const LayerSpec& last = spec.layers.back(); last.moe.num_experts > 0) {
    console.Say(fmt::format("experts       {} of {} for each token, MLPs of {}",
                            last.moe.routing.experts_per_token, last.moe.num_experts,
                            last.moe.expert.intermediate_size));
  }
  console.Say(fmt::format("a token       reads {} of weights, keeps {} of keys and values",
                          FormatBytes(StepWeightBytes(spec)),
                          FormatBytes(spec.KvBytesPerToken(spec.dtype))));
  if (spec.cache_scales) {
    console.Say(fmt::format("cache scales  for keys and values in {}, of which a token keeps {}",
                            DTypeName(*spec.cache_scales),
                            FormatBytes(spec.KvBytesPerToken(*spec.cache_scales))));
  }
  std::string tokenizer = "none in the folder";
  if (!source.tokenizer_dir.empty()) {
    const Result<std::string> description = DescribeTokenizer(source.tokenizer_dir);
    tokenizer = description.ok() ? *description : description.status().message();
  }
  console.Say("tokenizer     " + Printable(tokenizer));
  json = {{"path", path.string()},
          {"kind", KindName(source.kind)},
          {"tokenizer", tokenizer},
          {"spec", nlohmann::ordered_json::parse(SpecToJson(spec))},
          {"parameters", NumParameters(spec)},
          {"weight_bytes_per_token", StepWeightBytes(spec)},
          {"kv_bytes_per_token", spec.KvBytesPerToken(spec.dtype)}};
  if (const std::optional<BuildLimits>& limits = source.limits) {
    console.Say(
        fmt::format("limits        {} sequences and {} tokens a step; {} tokens a sequence, "
                    "{} of a prompt, {} of a draft",
                    limits->max_batch_size, limits->max_num_tokens, limits->max_seq_len,
                    limits->max_input_len, limits->max_draft_len));
    json["limits"] = {{"max_batch_size", limits->max_batch_size},
                      {"max_num_tokens", limits->max_num_tokens},
                      {"max_seq_len", limits->max_seq_len},
                      {"max_input_len", limits->max_input_len},
                      {"max_draft_len", limits->max_draft_len}};
  }
  return {};
}

// The weights of a folder, sorted by name: its safetensors files, or without any those that torch
// saved. Trainers leave other .bin files beside these.
Result<std::vector<std::filesystem::path>> TensorFilesIn(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> safetensors;
  std::vector<std::filesystem::path> torch;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (path.extension() == ".safetensors") {
      safetensors.push_back(path);
    } else if (path.extension() == ".bin" && path.stem().string().starts_with("pytorch_model")) {
      torch.push_back(path);
    }
  }
  if (error) return FailedPrecondition(folder.string() + ": cannot list: " + error.message());
  std::vector<std::filesystem::path>& paths = safetensors.empty() ? torch : safetensors;
  std::ranges::sort(paths);
  return paths;
}

// A folder may have any name.
bool IsFileOfTensors(const std::filesystem::path& path) {
  std::error_code error;
  return IsTensorFileName(path) && !std::filesystem::is_directory(path, error);
}

struct WeightCheck {
  std::vector<BadWeight> bad;
  bool by_checksums = true;  // every file has them
};

// Sorted by the names that the file gives its tensors.
Status CheckFile(const std::filesystem::path& path, WeightCheck& check) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, OpenTensorFile(path));
  check.by_checksums = check.by_checksums && file->has_checksums();
  for (const auto& [name, tensor] : file->tensors()) {
    TANDEM_RETURN_IF_ERROR(file->Verify(name));
    if (const int64_t count = CountNonFinite(tensor); count > 0) check.bad.push_back({name, count});
  }
  return {};
}

Result<WeightCheck> ReadWeights(const std::filesystem::path& path) {
  WeightCheck check;
  if (IsFileOfTensors(path)) {
    TANDEM_RETURN_IF_ERROR(CheckFile(path, check));
    return check;
  }
  TANDEM_ASSIGN_OR_RETURN(const ModelSource source, OpenModel(path));
  if (source.kind == ModelSource::Kind::kEngine) {
    TANDEM_ASSIGN_OR_RETURN(check.bad, FindNonFinite(*source.weights));
    TANDEM_RETURN_IF_ERROR(source.weights->Finish());
    return check;
  }
  TANDEM_ASSIGN_OR_RETURN(const auto files, TensorFilesIn(path));
  for (const std::filesystem::path& file : files) TANDEM_RETURN_IF_ERROR(CheckFile(file, check));
  return check;
}

Status CheckWeights(const std::filesystem::path& path, const Console& console) {
  constexpr size_t kNamed = 8;
  TANDEM_ASSIGN_OR_RETURN(const WeightCheck check, ReadWeights(path));
  const std::vector<BadWeight>& bad = check.bad;
  if (bad.empty()) {
    console.Say(fmt::format("weights       read and checked: each is a finite number{}",
                            check.by_checksums ? ", and all are as they were written"
                                               : "; the files have no checksums"));
    return {};
  }
  std::string names;
  for (size_t i = 0; i < std::min(kNamed, bad.size()); ++i) {
    names += fmt::format("{}{} ({})", i > 0 ? ", " : "", bad[i].name, bad[i].count);
  }
  return DataLoss(fmt::format("{}: NaN or infinity in {}{}", path.string(), names,
                              bad.size() > kNamed ? " and more" : ""));
}

Status Run(const OptionValues& values, Console& console) {
  const InspectOptions options = Rows().Read(values);
  const std::filesystem::path& path = options.path;
  nlohmann::ordered_json json;
  if (IsFileOfTensors(path)) {
    TANDEM_RETURN_IF_ERROR(InspectFile(path, console, json));
  } else {
    TANDEM_RETURN_IF_ERROR(InspectFolder(path, console, json));
    if (options.tensors) {
      TANDEM_ASSIGN_OR_RETURN(const auto files, TensorFilesIn(path));
      for (const std::filesystem::path& file : files) {
        TANDEM_RETURN_IF_ERROR(InspectFile(file, console, json["tensors"]));
      }
    }
  }
  if (options.check) TANDEM_RETURN_IF_ERROR(CheckWeights(path, console));
  console.Result(json);
  return {};
}

}  // namespace

Command InspectCommand() {
  return {.name = "inspect",
          .summary = "Show the contents of a model folder or a file of tensors",
          .examples =
              "  tandem inspect MODEL --tensors\n"
              "  tandem inspect MODEL --check\n",
          .options = Join({Rows().specs()}),
          .run = Run};
}

}  // namespace tandem::apps
