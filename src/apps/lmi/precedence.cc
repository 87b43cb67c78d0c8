// Which of the places that may hold a key counts: the functions of lmi_config.h that make
// LmiGivenKeys.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "apps/lmi/config.h"
#include "apps/lmi/key_rows.h"
#include "base/file.h"

namespace tandem::apps {
namespace {

constexpr size_t kMaxFileBytes = 1u << 20;

using Variables = std::map<std::string, LmiGiven, std::less<>>;

// Capitals, digits and underlines alone are a name in the environment's spelling.
std::string KeyOf(std::string_view name) {
  std::string key(name);
  const auto is_spelled_so = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (std::ranges::all_of(key, is_spelled_so)) {
    for (char& c : key) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
  }
  return key == "entrypoint" ? "entryPoint" : key;
}

// "max_workers" is one that has another spelling in files.
std::string ServerKeyOf(std::string_view name) {
  const std::string key = KeyOf(name);
  if (key == "min_workers") return "minWorkers";
  if (key == "max_workers") return "maxWorkers";
  return key;
}

struct Alias {
  std::string_view name;
  std::string_view target;
};
constexpr Alias kAliases[] = {
    {"HF_MODEL_QUANTIZE", "OPTION_QUANTIZE"},
    {"SM_NUM_GPUS", "TENSOR_PARALLEL_DEGREE"},
    {"MAX_CONCURRENT_REQUESTS", "SERVING_JOB_QUEUE_SIZE"},
    {"MAX_BATCH_PREFILL_TOKENS", "OPTION_MAX_ROLLING_BATCH_PREFILL_TOKENS"},
    {"MAX_BATCH_SIZE", "OPTION_MAX_ROLLING_BATCH_SIZE"},
    {"CUDA_MEMORY_FRACTION", "OPTION_KV_CACHE_FREE_GPU_MEM_FRACTION"},
};

// Variables that set a key unless something else does.
constexpr Alias kFallbacks[] = {
    {"TENSOR_PARALLEL_DEGREE", "option.tensor_parallel_degree"},
    {"PIPELINE_PARALLEL_DEGREE", "option.pipeline_parallel_degree"},
    {"HF_MODEL_TRUST_REMOTE_CODE", "option.trust_remote_code"},
    {"HF_TRUST_REMOTE_CODE", "option.trust_remote_code"},
    {"MODEL_LOADING_TIMEOUT", "option.model_loading_timeout"},
    {"PREDICT_TIMEOUT", "option.predict_timeout"},
};

// SageMaker's, which go over the file.
constexpr Alias kOverrides[] = {
    {"SAGEMAKER_STARTUP_TIMEOUT", "option.model_loading_timeout"},
    {"SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "option.predict_timeout"},
    {"SAGEMAKER_NUM_MODEL_WORKERS", "minWorkers"},
    {"SAGEMAKER_NUM_MODEL_WORKERS", "maxWorkers"},
};

// Of the server, for models whose file lacks them.
constexpr std::string_view kOfBoth[] = {
    "job_queue_size",  "batch_size",         "max_batch_delay",    "max_idle_time",
    "load_on_devices", "reserved_memory_mb", "required_memory_mb", "minWorkers",
    "maxWorkers",      "retry_threshold",    "log_request_metric", "metrics_aggregation"};

void AddFile(const LmiFile& file, LmiGivenKeys& keys) {
  for (const Property& property : file.properties) {
    if (property.key.empty()) continue;
    keys[property.key] = {property.value, fmt::format("{}: line {}: {}", file.path.string(),
                                                      property.line, property.key)};
  }
}

const LmiGiven* Find(const Variables& variables, std::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() || found->second.value.empty() ? nullptr : &found->second;
}

}  // namespace

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string_view VariableOf(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string_view() : std::string_view(found->second);
}

bool IsOn(std::string_view value) {
  const Result<bool> parsed = lmi_rows::ParseBool(std::string(value));
  return parsed.ok() && *parsed;
}

Result<LmiFile> ReadLmiFile(const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxFileBytes));
  LmiFile file{.path = path, .properties = {}};
  Result<std::vector<Property>> properties = ParseProperties(text);
  if (!properties.ok()) return properties.status().Annotate(path.string());
  file.properties = *std::move(properties);
  return file;
}

Variables WithLmiAliases(const Environment& environment) {
  Variables variables;
  for (const auto& [name, value] : environment) variables[name] = {value, name};
  for (const Alias& alias : kAliases) {
    const LmiGiven* given = Find(variables, alias.name);
    if (given == nullptr || Find(variables, alias.target) != nullptr) continue;
    variables[std::string(alias.target)] = *given;
  }
  constexpr std::string_view kEager = "OPTION_ENFORCE_EAGER";
  if (const LmiGiven* graphs = Find(variables, "ENABLE_CUDA_GRAPHS");
      graphs != nullptr && Find(variables, kEager) == nullptr) {
    variables[std::string(kEager)] = {IsOn(graphs->value) ? "false" : "true", graphs->where};
  }
  return variables;
}

LmiGivenKeys LmiServerKeys(const Environment& environment, const LmiFile& config) {
  LmiGivenKeys keys;
  AddFile(config, keys);
  const Variables variables = WithLmiAliases(environment);
  constexpr std::string_view kPrefix = "SERVING_";
  for (const auto& [name, given] : variables) {
    if (!name.starts_with(kPrefix) || name.size() == kPrefix.size() || given.value.empty()) {
      continue;
    }
    keys[ServerKeyOf(std::string_view(name).substr(kPrefix.size()))] = given;
  }
  // In bytes, and else in MB.
  if (const LmiGiven* bytes = Find(variables, "SAGEMAKER_MAX_REQUEST_SIZE")) {
    keys["max_request_size"] = *bytes;
  } else if (const LmiGiven* megabytes = Find(variables, "SAGEMAKER_MAX_PAYLOAD_IN_MB")) {
    const Result<int64_t> count = lmi_rows::ParseInteger(megabytes->value, 1, 1 << 20);
    // One that is no number is refused with its name.
    keys["max_request_size"] = {count.ok() ? std::to_string(*count << 20) : megabytes->value,
                                megabytes->where};
  }
  for (const Alias& alias : kOverrides) {
    const LmiGiven* given = Find(variables, alias.name);
    if (given != nullptr && !alias.target.starts_with("option.")) {
      keys[std::string(alias.target)] = *given;
    }
  }
  return keys;
}

LmiGivenKeys LmiModelKeys(const Environment& environment, const LmiGivenKeys& server,
                          const LmiFile& file) {
  LmiGivenKeys keys;
  const Variables variables = WithLmiAliases(environment);
  for (const Alias& alias : kFallbacks) {
    const LmiGiven* given = Find(variables, alias.name);
    if (given != nullptr) keys.emplace(alias.target, *given);
  }
  for (const std::string_view name : kOfBoth) {
    const auto found = server.find(name);
    if (found != server.end()) keys.insert_or_assign(std::string(name), found->second);
  }
  constexpr std::string_view kPrefix = "OPTION_";
  for (const auto& [name, given] : variables) {
    if (!name.starts_with(kPrefix) || name.size() == kPrefix.size() || given.value.empty()) {
      continue;
    }
    const std::string key = KeyOf(std::string_view(name).substr(kPrefix.size()));
    keys.insert_or_assign(key == "engine" ? key : "option." + key, given);
  }
  AddFile(file, keys);
  for (const Alias& alias : kOverrides) {
    const LmiGiven* given = Find(variables, alias.name);
    if (given != nullptr) keys.insert_or_assign(std::string(alias.target), *given);
  }
  return keys;
}

}  // namespace tandem::apps
