#include "serve/kserve/model_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <model_config.pb.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>

#include "base/options.h"
#include "base/printable.h"

namespace tandem::serve::kserve {
namespace {

constexpr std::string_view kVersionFolder = "1";

std::string Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

bool IsOneOf(std::string_view value, std::string_view list) {
  while (!list.empty()) {
    const size_t end = std::min(list.find('|'), list.size());
    if (list.substr(0, end) == value) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::optional<bool> BoolOf(ParameterType type, std::string_view word) {
  if (IsOneOf(word, "true|True|TRUE|1")) return true;
  if (IsOneOf(word, "false|False|FALSE|0")) return false;
  if (type != ParameterType::kPythonBool) return std::nullopt;
  const std::string lower = LowerCase(word);
  if (IsOneOf(lower, "true|t|yes|y")) return true;
  if (IsOneOf(lower, "false|f|no|n")) return false;
  return std::nullopt;
}

Status ValueError(const ParameterRow& row, std::string_view value, std::string_view allowed) {
  return InvalidArgument(
             fmt::format("parameter {} is {}; it is \"{}\"", row.name, allowed, Printable(value)))
      .WithField(row.name);
}

void Ignore(const ParameterRow& row, ModelParameters& parameters) {
  parameters.ignored.push_back(fmt::format("{}: {}", row.name, row.meaning));
}

void UseDefault(const ParameterRow& row, std::string_view value, std::string_view allowed,
                ModelParameters& parameters) {
  parameters.warnings.push_back(fmt::format("parameter {} is {}, not \"{}\": the default is used",
                                            row.name, allowed, Printable(value)));
}

// The later one wins.
void SetOption(std::string_view option, std::string value, ModelParameters& parameters) {
  for (auto& [name, text] : parameters.engine_options) {
    if (name == option) {
      text = std::move(value);
      return;
    }
  }
  parameters.engine_options.emplace_back(option, std::move(value));
}

template <typename T>
bool IsNumber(const std::string& text) {
  T number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size();
}

Status SetEngineOption(const ParameterRow& row, const std::string& value,
                       ModelParameters& parameters) {
  std::string text = value;
  if (row.type == ParameterType::kBool) {
    const std::optional<bool> truth = BoolOf(row.type, value);
    if (!truth) {
      UseDefault(row, value, "true or false", parameters);
      return {};
    }
    text = *truth ? "true" : "false";
  }
  // The option table knows the range.
  if ((row.type == ParameterType::kInt && !IsNumber<int64_t>(text)) ||
      (row.type == ParameterType::kFloat && !IsNumber<double>(text))) {
    return ValueError(row, value, "a number");
  }
  SetOption(row.option, std::move(text), parameters);
  return {};
}

template <bool ModelParameters::* kMember>
Status SetBool(const ParameterRow& row, const std::string& value, ModelParameters& parameters) {
  if (const std::optional<bool> truth = BoolOf(row.type, value)) {
    parameters.*kMember = *truth;
  } else {
    UseDefault(row, value, "true or false", parameters);
  }
  return {};
}

template <std::string ModelParameters::* kMember>
Status SetText(const ParameterRow&, const std::string& value, ModelParameters& parameters) {
  parameters.*kMember = value;
  return {};
}

Status SetEngineDir(const ParameterRow&, const std::string& value, ModelParameters& parameters) {
  parameters.engine_dir = value;
  return {};
}

Status SetSchedulerPolicy(const ParameterRow& row, const std::string& value,
                          ModelParameters& parameters) {
  constexpr std::string_view kPolicies = "max_utilization|guaranteed_no_evict|static_batch";
  if (IsOneOf(value, kPolicies)) {
    SetOption(row.option, value, parameters);
  } else {
    // Triton's default, and nearest to the word of its older releases, guaranteed_completion.
    SetOption(row.option, "guaranteed_no_evict", parameters);
    parameters.warnings.push_back(
        fmt::format("parameter {} is max_utilization, guaranteed_no_evict or static_batch, not "
                    "\"{}\": guaranteed_no_evict is used",
                    row.name, Printable(value)));
  }
  return {};
}

// After the scheduler's policy, which static batching replaces.
Status SetModelType(const ParameterRow& row, const std::string& value,
                    ModelParameters& parameters) {
  if (IsOneOf(value, "V1|v1")) {
    SetOption(row.option, "static_batch", parameters);
  } else if (!IsOneOf(value, "inflight_batching|inflight_fused_batching")) {
    return InvalidArgument(fmt::format("Invalid gpt_model_type \"{}\": it is "
                                       "inflight_fused_batching, inflight_batching or V1",
                                       Printable(value)))
        .WithField(row.name);
  }
  return {};
}

Status CheckTokenizerType(const ParameterRow& row, const std::string& value, ModelParameters&) {
  if (IsOneOf(value, row.harmless)) return {};
  return InvalidArgument(fmt::format("Unexpected tokenizer type: {}; it is auto, llama or t5, and "
                                     "the files of tokenizer_dir decide",
                                     Printable(value)))
      .WithField(row.name);
}

// Integers between commas; nothing when it is no such list.
std::optional<std::vector<int32_t>> IntsOf(std::string_view text) {
  std::vector<int32_t> numbers;
  while (true) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string piece = Trimmed(text.substr(0, end));
    int32_t number = 0;
    const auto [stop, error] = std::from_chars(piece.data(), piece.data() + piece.size(), number);
    if (error != std::errc() || stop != piece.data() + piece.size() || number < 0) {
      return std::nullopt;
    }
    numbers.push_back(number);
    if (end == text.size()) return numbers;
    text.remove_prefix(end + 1);
  }
}

// One instance runs, the first; a warning names the GPUs of the others.
Status SetDevices(const ParameterRow& row, const std::string& value, ModelParameters& parameters) {
  std::string_view rest = value;
  std::vector<std::string> left_out;
  std::vector<int32_t>& used = parameters.gpu_device_ids;
  while (true) {
    const size_t end = std::min(rest.find(';'), rest.size());
    const auto devices = IntsOf(rest.substr(0, end));
    if (!devices) {
      return ValueError(row, value,
                        "numbers of GPUs between commas, one list for each instance "
                        "between semicolons, such as 0,1;2,3");
    }
    if (used.empty()) {
      used = *devices;
    } else {
      left_out.push_back(fmt::format("an instance on GPU {}", fmt::join(*devices, ",")));
    }
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  if (!left_out.empty()) {
    parameters.warnings.push_back(
        fmt::format("parameter {}: the model runs once, on GPU {}; left out: {}", row.name,
                    fmt::join(used, ","), fmt::join(left_out, ", ")));
  }
  return {};
}

Status SetParticipants(const ParameterRow& row, const std::string& value,
                       ModelParameters& parameters) {
  const auto participants = IntsOf(value);
  if (!participants) return ValueError(row, value, "numbers between commas, such as 1,2");
  parameters.participant_ids = *participants;
  return {};
}

using Kind = ModelKind;
using Type = ParameterType;
constexpr ParameterEffect kHonoured = ParameterEffect::kHonoured;

constexpr ParameterRow Option(std::string_view name, Type type, std::string_view option,
                              std::string_view meaning) {
  return {.name = name, .type = type, .effect = kHonoured, .option = option, .meaning = meaning};
}
constexpr ParameterRow Ignored(std::string_view name, Type type, std::string_view why,
                               std::string_view harmless = {}) {
  return {.name = name, .type = type, .harmless = harmless, .meaning = why};
}
constexpr ParameterRow Refused(std::string_view name, Type type, std::string_view why,
                               std::string_view harmless = {}) {
  return {.name = name,
          .type = type,
          .effect = ParameterEffect::kRefused,
          .harmless = harmless,
          .meaning = why};
}
constexpr ParameterRow OfStage(Kind kind, ParameterRow row) {
  row.kind = kind;
  return row;
}

// The engine's option for the number of sequences that run at a time, and its default.
constexpr std::string_view kSequences = "max_batch_size";
constexpr int32_t kUsualSequences = 64;

constexpr std::string_view kNoLora = "there are no LoRA adapters";
constexpr std::string_view kNoTrees = "drafts come from a draft model or from the text itself";
constexpr std::string_view kNoEncoder = "encoder-decoder models are not served";
constexpr std::string_view kNoImages = "models with images are not served";
constexpr std::string_view kOwnKernels = "the engine chooses its kernels itself";
constexpr std::string_view kNoPolling = "cancellations and statistics need no polling";
constexpr std::string_view kNoGuide = "guided decoding is not served";
constexpr std::string_view kOneProcess = "everything runs in this process";

constexpr ParameterRow kRows[] = {
    {.name = "gpt_model_path",
     .effect = kHonoured,
     .default_value = "the folder 1 of the model",
     .is_wanted = true,
     .meaning = "Folder of the engine, of a checkpoint or of a Hugging Face model",
     .set = SetEngineDir},
    Option("max_tokens_in_paged_kv_cache", Type::kInt, "max_tokens_in_paged_kv_cache",
           "Most tokens in the cache of keys and values"),
    Option("kv_cache_free_gpu_mem_fraction", Type::kFloat, "kv_cache_free_gpu_mem_fraction",
           "Share of the free memory that the cache of keys and values takes"),
    Option("kv_cache_host_memory_bytes", Type::kInt, "kv_host_cache_bytes",
           "Host memory for keys and values evicted from the cache"),
    Option("kv_cache_onboard_blocks", Type::kBool, "kv_onboard_blocks",
           "Bring keys and values back from host memory; false: nothing is kept there"),
    Option("enable_kv_cache_reuse", Type::kBool, "enable_kv_cache_reuse",
           "Keep the cache of finished prompts and reuse shared prefixes"),
    Option("enable_chunked_context", Type::kBool, "enable_chunked_context",
           "Split long prompts over several steps"),
    Option("max_num_sequences", Type::kInt, kSequences, "Sequences that run in one step"),
    {.name = "batch_scheduler_policy",
     .type = Type::kWord,
     .effect = kHonoured,
     .option = "batch_scheduler_policy",
     .meaning = "max_utilization, guaranteed_no_evict or static_batch; another word means "
                "guaranteed_no_evict",
     .set = SetSchedulerPolicy},
    {.name = "gpt_model_type",
     .type = Type::kWord,
     .effect = kHonoured,
     .default_value = "inflight_fused_batching",
     .option = "batch_scheduler_policy",
     .meaning = "inflight_fused_batching or inflight_batching: sequences join running batches; V1: "
                "one batch at a time",
     .set = SetModelType},
    {.name = "exclude_input_in_output",
     .type = Type::kBool,
     .effect = kHonoured,
     .default_value = "false",
     .meaning = "Answers without the prompt, unless a request says otherwise",
     .set = SetBool<&ModelParameters::exclude_input_in_output>},
    {.name = "gpu_device_ids",
     .type = Type::kInts,
     .effect = kHonoured,
     .default_value = "the server's device",
     .meaning =
         "GPUs of the model, which is split over them, a rank on each; a semicolon separates "
         "instances, of which the first runs. On a CPU: how many ranks, within the cores",
     .set = SetDevices},
    {.name = "participant_ids",
     .type = Type::kInts,
     .effect = kHonoured,
     .meaning = "Ranks of the model in a launch over several processes. There is one here, so they "
                "are only compared with gpu_device_ids and --world_size",
     .set = SetParticipants},
    Ignored("speculative_decoding_fast_logits", Type::kBool,
            "logits are passed on whole, not by a handle", "false|False|FALSE|0"),
    {.name = "tokenizer_dir",
     .effect = kHonoured,
     .default_value = "the engine's own tokenizer",
     .meaning = "Folder of the tokenizer",
     .set = SetText<&ModelParameters::tokenizer_dir>},
    Refused("encoder_model_path", Type::kText, kNoEncoder),
    Ignored("cross_kv_cache_fraction", Type::kFloat, kNoEncoder),
    Refused("decoding_mode", Type::kWord, kNoTrees, "top_k|top_p|top_k_top_p|lookahead|auto"),
    Ignored("medusa_choices", Type::kText, kNoTrees),
    Ignored("eagle_choices", Type::kText, kNoTrees),
    Ignored("lookahead_window_size", Type::kInt, kNoTrees),
    Ignored("lookahead_ngram_size", Type::kInt, kNoTrees),
    Ignored("lookahead_verification_set_size", Type::kInt, kNoTrees),
    Ignored("max_beam_width", Type::kInt,
            "there is no beam search; requests that ask for it are refused", "1"),
    Ignored("normalize_log_probs", Type::kBool, "there is no beam search"),
    Refused("num_nodes", Type::kInt, kOneProcess, "1"),
    Ignored("max_attention_window_size", Type::kInts, "the model's own attention windows are used"),
    Ignored("sink_token_length", Type::kInt, "the cache keeps all tokens of a window", "0"),
    Ignored("lora_cache_optimal_adapter_size", Type::kInt, kNoLora),
    Ignored("lora_cache_max_adapter_size", Type::kInt, kNoLora),
    Ignored("lora_cache_gpu_memory_fraction", Type::kFloat, kNoLora),
    Ignored("lora_cache_host_memory_bytes", Type::kInt, kNoLora),
    Ignored("gpu_weights_percent", Type::kFloat, "all weights are kept on the device", "1|1.0"),
    Ignored("enable_context_fmha_fp32_acc", Type::kBool, kOwnKernels),
    Ignored("multi_block_mode", Type::kBool, kOwnKernels),
    Ignored("cuda_graph_mode", Type::kBool, kOwnKernels),
    Ignored("cuda_graph_cache_size", Type::kInt, kOwnKernels),
    Ignored("cancellation_check_period_ms", Type::kInt, kNoPolling),
    Ignored("stats_check_period_ms", Type::kInt, kNoPolling),
    Ignored("recv_poll_period_ms", Type::kInt, kNoPolling),
    Ignored("iter_stats_max_iterations", Type::kInt, kNoPolling),
    Ignored("request_stats_max_iterations", Type::kInt, kNoPolling),
    Ignored("guided_decoding_backend", Type::kWord, kNoGuide),
    Ignored("xgrammar_tokenizer_info_path", Type::kText, kNoGuide),
    Ignored("executor_worker_path", Type::kText, kOneProcess),
    Ignored("FORCE_CPU_ONLY_INPUT_TENSORS", Type::kWord, "inputs always come in the host's memory",
            "no|yes"),
    Ignored("enable_trt_overlap", Type::kBool, "steps overlap wherever that helps"),

    {.name = "tokenizer_dir",
     .kind = Kind::kPreprocessing,
     .effect = kHonoured,
     .default_value = "the engine's own tokenizer",
     .is_wanted = true,
     .meaning = "Folder of the tokenizer",
     .set = SetText<&ModelParameters::tokenizer_dir>},
    {.name = "tokenizer_type",
     .kind = Kind::kPreprocessing,
     .type = Type::kWord,
     .effect = kHonoured,
     .default_value = "auto",
     .harmless = "auto|llama|t5",
     .meaning = "Checked; the files of tokenizer_dir decide",
     .set = CheckTokenizerType},
    {.name = "add_special_tokens",
     .kind = Kind::kPreprocessing,
     .type = Type::kPythonBool,
     .effect = kHonoured,
     .default_value = "true",
     .meaning = "Put the beginning-of-text token before prompts",
     .set = SetBool<&ModelParameters::add_special_tokens>},
    OfStage(Kind::kPreprocessing,
            Ignored("gpt_model_path", Type::kText, "the path in the model tensorrt_llm is used")),
    OfStage(Kind::kPreprocessing, Refused("visual_model_path", Type::kText, kNoImages)),
    OfStage(Kind::kPreprocessing, Ignored("max_num_images", Type::kInt, kNoImages)),

    {.name = "tokenizer_dir",
     .kind = Kind::kPostprocessing,
     .effect = kHonoured,
     .default_value = "the tokenizer that preprocessing names",
     .meaning = "Folder of the tokenizer, when the generator and preprocessing name none",
     .set = SetText<&ModelParameters::tokenizer_dir>},
    {.name = "tokenizer_type",
     .kind = Kind::kPostprocessing,
     .type = Type::kWord,
     .effect = kHonoured,
     .default_value = "auto",
     .harmless = "auto|llama|t5",
     .meaning = "Checked; the files of tokenizer_dir decide",
     .set = CheckTokenizerType},
    {.name = "skip_special_tokens",
     .kind = Kind::kPostprocessing,
     .type = Type::kPythonBool,
     .effect = kHonoured,
     .default_value = "true",
     .meaning = "Special tokens add no text to answers; else their names",
     .set = SetBool<&ModelParameters::skip_special_tokens>},

    OfStage(Kind::kBls,
            Ignored("accumulate_tokens", Type::kPythonBool,
                    "a stream always holds what each token adds to the whole text",
                    "true|True|TRUE|1|t|T|y|Y|yes|Yes|false|False|FALSE|0|f|F|n|N|no|No")),
    {.name = "tensorrt_llm_model_name",
     .kind = Kind::kBls,
     .effect = kHonoured,
     .default_value = "tensorrt_llm",
     .meaning = "The model that answers",
     .set = SetText<&ModelParameters::target_model>},
    {.name = "tensorrt_llm_draft_model_name",
     .kind = Kind::kBls,
     .effect = kHonoured,
     .default_value = "none",
     .meaning = "The model that drafts for it",
     .set = SetText<&ModelParameters::draft_model>},
    OfStage(Kind::kBls, Refused("multimodal_encoders_name", Type::kText, kNoImages)),
};

Status Take(const ParameterRow& row, const std::string& value, ModelParameters& parameters) {
  if (row.set != nullptr) return row.set(row, value, parameters);
  if (row.effect == ParameterEffect::kHonoured) return SetEngineOption(row, value, parameters);
  if (IsOneOf(value, row.harmless)) return {};
  if (row.effect == ParameterEffect::kIgnored) {
    Ignore(row, parameters);
    return {};
  }
  return Unimplemented(fmt::format("parameter {} = \"{}\": {}; leave the value empty", row.name,
                                   Printable(value), row.meaning))
      .WithField(row.name);
}

void WarnOfUnknown(ModelKind kind, const std::string& name, ModelParameters& parameters) {
  std::vector<std::string_view> names;
  for (const ParameterRow& row : kRows) {
    if (row.kind == kind) names.push_back(row.name);
  }
  const std::string_view closest = ClosestName(name, names);
  parameters.warnings.push_back(
      fmt::format("there is no parameter {}{}; it is ignored", Printable(name),
                  closest.empty() ? "" : fmt::format(" (did you mean {}?)", closest)));
}

}  // namespace

std::span<const ParameterRow> ParameterRows() { return kRows; }

const ParameterRow* FindParameter(ModelKind kind, std::string_view name) {
  for (const ParameterRow& row : kRows) {
    if (row.kind == kind && row.name == name) return &row;
  }
  return nullptr;
}

Result<ModelParameters> ReadModelParameters(const inference::ModelConfig& config,
                                            const std::filesystem::path& folder) {
  ModelParameters parameters;
  parameters.kind = KindOf(config);
  parameters.decoupled = config.model_transaction_policy().decoupled();
  parameters.max_batch_size = config.max_batch_size();
  parameters.max_queue_size = config.dynamic_batching().default_queue_policy().max_queue_size();
  if (parameters.max_batch_size < 0) {
    return FieldError("max_batch_size", "must be at least 0");
  }
  if (parameters.kind == ModelKind::kTensorrtLlm) {
    parameters.engine_dir = folder / kVersionFolder;
    // Whoever allows larger batches expects as many sequences to run; a parameter may say
    // otherwise.
    if (parameters.max_batch_size > kUsualSequences) {
      SetOption(kSequences, std::to_string(parameters.max_batch_size), parameters);
    }
    if (parameters.max_queue_size > 0) {
      SetOption("max_queue_size", std::to_string(parameters.max_queue_size), parameters);
    }
  }
  if (parameters.kind == ModelKind::kEnsemble || parameters.kind == ModelKind::kOther) {
    return parameters;
  }
  if (parameters.kind == ModelKind::kBls) {
    parameters.target_model = RowOf(ModelKind::kTensorrtLlm).name;
  }
  for (const auto& [name, parameter] : std::map<std::string, inference::ModelParameter>(
           config.parameters().begin(), config.parameters().end())) {
    if (FindParameter(parameters.kind, name) == nullptr) {
      WarnOfUnknown(parameters.kind, name, parameters);
    }
  }
  for (const ParameterRow& row : kRows) {
    if (row.kind != parameters.kind) continue;
    const auto found = config.parameters().find(std::string(row.name));
    if (found == config.parameters().end()) continue;
    const std::string value = Trimmed(found->second.string_value());
    if (value.empty() || value.starts_with("${")) continue;
    TANDEM_RETURN_IF_ERROR(Take(row, value, parameters));
  }
  return parameters;
}

}  // namespace tandem::serve::kserve
