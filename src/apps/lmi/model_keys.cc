// The keys that every kind of LMI container has.
#include <fmt/format.h>

#include <algorithm>

#include "apps/lmi/key_rows.h"
#include "ops/backend.h"

namespace tandem::apps::lmi_rows {
namespace {

using S = LmiSettings;
constexpr int64_t kMost = int64_t{1} << 40;

Result<std::string> DTypeOf(const std::string& value) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"fp16", "float16"}, {"float16", "float16"}, {"bf16", "bfloat16"}, {"bfloat16", "bfloat16"},
      {"fp32", "float32"}, {"float32", "float32"}, {"auto", "auto"}};
  for (const auto& [name, ours] : kNames) {
    if (value == name) return std::string(ours);
  }
  return InvalidArgument(fmt::format(
      "must be fp16, bf16, fp32 or auto, not '{}'{}", value,
      value == "int8" ? "; option.quantize=smoothquant makes 8-bit weights and inputs" : ""));
}

Status TakePredictTimeout(const std::string& value, LmiSettings& settings) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t seconds, ParseInteger(value, 1, 86400));
  settings.http.predict_timeout = std::chrono::seconds(seconds);
  settings.options["max_queue_wait"] = value;
  return {};
}

Status TakeFormatter(const std::string& value, LmiSettings& settings) {
  using serve::lmi::OutputFormatter;
  constexpr std::pair<std::string_view, OutputFormatter> kNames[] = {
      {"json", OutputFormatter::kJson},
      {"json_chat", OutputFormatter::kJson},
      {"jsonlines", OutputFormatter::kJsonLines},
      {"jsonlines_chat", OutputFormatter::kJsonLines},
      {"sse", OutputFormatter::kSse},
      {"sse_chat", OutputFormatter::kSse},
      {"none", OutputFormatter::kNone},
  };
  for (const auto& [name, formatter] : kNames) {
    if (value == name) settings.http.output_formatter = formatter;
  }
  return {};  // others are as if it were not set, as there
}

// A GPU by its number; of several the first is as good as any.
Status TakeDevices(const std::string& value, LmiSettings& settings) {
  if (value == "*") return {};
  const std::string first = value.substr(0, value.find(';'));
  if (first == "-1" || first == "cpu") {
    settings.options["device"] = "cpu";
    return {};
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t gpu, ParseInteger(first, 0, 1023));
  settings.options["device"] = fmt::format("cuda:{}", gpu);
  return {};
}

// SageMaker counts no GPUs on machines without any.
Status TakeTensorDegree(const std::string& value, LmiSettings& settings) {
  if (value == "max") {
    const int gpus = ops::NumCudaDevices();
    if (gpus > 1) settings.options["world_size"] = fmt::format("{}", gpus);
    return {};
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t degree, ParseInteger(value, 0, 64));
  settings.options["tensor_parallel_size"] = fmt::format("{}", std::max<int64_t>(degree, 1));
  return {};
}

// Only what names the container's own handlers.
Status TakeEntryPoint(const std::string& value, LmiSettings& settings) {
  settings.sources.entry_point = value;
  if (value.starts_with("djl_python.")) return {};
  return InvalidArgument(
      fmt::format("'{}' is code of its own, and no Python is run here; leave it out to serve the "
                  "model without it",
                  value));
}

}  // namespace

std::span<const LmiKey> ModelKeys() {
  static const std::vector<LmiKey> keys = {
      Only("engine", LmiValue::kWord, {{26, ""}}, "Python|MPI|DeepSpeed|TensorRT-LLM",
           "is for other kinds of models"),
      Text<[](S& s) -> auto& { return s.sources.model_id; }>(
          "option.model_id", {},
          "the model: a folder (its name may be relative to the one with `serving.properties`), an "
          "id on the Hugging Face hub, or `s3://`; without it the folder itself"),
      Text<[](S& s) -> auto& { return s.sources.revision; }>(
          "option.revision", {}, "branch, tag or commit of a model on the hub"),
      Converted("option.dtype", LmiValue::kWord, {{26, "fp16"}, {33, "auto"}}, "dtype",
                "without it the checkpoint's own type, whatever the release", DTypeOf),
      {.name = "option.tensor_parallel_degree",
       .type = LmiValue::kWord,
       .defaults = {{26, "max"}},
       .effect = LmiEffect::kOption,
       .option = "tensor_parallel_size",
       .note = "GPUs, or ranks on a CPU, that the model is split over. `max`: as many as an "
               "artifact was built for, else all GPUs where the model can be split so, and one "
               "rank on a CPU. Without the key one, or as many as an artifact was built for",
       .take = TakeTensorDegree},
      Stages("option.pipeline_parallel_degree", {{26, "1"}}),
      Except("option.rolling_batch", LmiValue::kWord, {{26, "auto"}}, "disable",
             "is refused, as the TensorRT-LLM container does",
             "requests always share steps, whichever scheduler is named"),
      WithDefaultSet(Integer<[](S& s) -> auto& { return s.limits.max_rolling_batch_size; }>(
          "option.max_rolling_batch_size", {{26, "32"}, {27, "256"}, {34, "32"}}, 1, 4096,
          "sequences that run at a time; the least of this, `option.max_num_sequences` and "
          "`option.max_batch_size`",
          EngineOption<&EngineOptions::max_batch_size>())),
      Ignored("option.trust_remote_code", {{26, "false"}},
              "code of a model is never run, nor needed"),
      {.name = "option.entryPoint",
       .type = LmiValue::kText,
       .defaults = {},
       .effect = LmiEffect::kLimited,
       .option = {},
       .note = "only the container's own handlers, `djl_python.*`: no Python is run. A `model.py` "
               "beside `serving.properties` is refused unless one of them is named",
       .take = TakeEntryPoint},
      Ignored("option.parallel_loading", {{26, "false"}}, "there is one copy of a model"),
      Ignored("option.model_loading_timeout", {{26, "1800"}},
              "loading takes as long as it takes; SageMaker's own limit ends it"),
      WithDefaultSet({.name = "option.predict_timeout",
                      .type = LmiValue::kInteger,
                      .defaults = {{26, "240"}},
                      .effect = LmiEffect::kOption,
                      .option = "max_queue_wait",
                      .note =
                          "seconds that a request waits for a place in the batch, and then for its "
                          "first token; one that runs is not ended",
                      .take = TakePredictTimeout}),
      {.name = "option.output_formatter",
       .type = LmiValue::kWord,
       .defaults = {},
       .effect = LmiEffect::kSetting,
       .option = {},
       .note = "form of answers, unless a request names its own; without it `json`, and "
               "`jsonlines` for streams",
       .take = TakeFormatter},
      Ignored("option.enable_streaming", {{26, "false"}},
              "a request that has `\"stream\": true` is streamed"),
      Bool<[](S& s) -> auto& { return s.http.tgi_compat; }>(
          "option.tgi_compat", {{26, "false"}}, "answers in the form of text-generation-inference"),
      Ignored("option.waiting_steps", {}, "new requests join whenever there is room"),
      Ignored("option.mpi_mode", {{26, "false"}}, "there are no processes to start"),
      Ignored("option.async_mode", {{26, "false"}},
              "the form of answers follows from `--lmi_generation`"),
      Only("option.bedrock_compat", LmiValue::kBool, {{26, "false"}}, "false",
           "asks for the API of Bedrock, which is not served"),
      Only("option.enable_lora", LmiValue::kBool, {{26, "false"}}, "false",
           "asks for adapters, which are not supported yet; merge the adapter into the model"),
      Ignored("option.enable_venv", {{26, "false"}}, "no Python is run"),
      Text<[](S& s) -> auto& { return s.sources.draft_model_id; }>(
          "option.draft_model_id", {},
          "the draft model, in the forms of `option.model_id` (`--draft`)"),
      Option("option.spec_length", LmiValue::kInteger, {{26, "0"}}, "draft_len",
             "tokens of every draft; 0: chosen for each sequence by what pays"),
      Ignored("option.max_output_size", {{26, "67108864"}},
              "answers are sent as they are made and never held as a whole"),
      Only("option.task", LmiValue::kWord, {}, "text-generation|auto",
           "is another task: text is generated here"),
      Integer<[](S& s) -> auto& { return s.http.job_queue_size; }>(
          "job_queue_size", {{26, "1000"}}, 1, 1 << 20,
          "waiting requests of a model; further ones get 503",
          EngineOption<&EngineOptions::max_queue_size>()),
      Integer<[](S& s) -> auto& { return s.http.batch_size; }>(
          "batch_size", {{26, "1"}}, 1, kMost,
          "told by `GET /models/NAME`; requests share steps whatever it is"),
      Integer<[](S& s) -> auto& { return s.http.max_batch_delay_ms; }>(
          "max_batch_delay", {{26, "100"}}, 0, kMost, "told likewise; no request waits for others"),
      Integer<[](S& s) -> auto& { return s.http.max_idle_s; }>(
          "max_idle_time", {{26, "60"}}, 0, kMost, "told likewise; an engine stays loaded"),
      Ignored("retry_threshold", {{26, "0"}},
              "an engine whose device is lost makes `/ping` fail, so that it is replaced"),
      Ignored("log_request_metric", {{26, "false"}}, "`/metrics` has the times of tokens"),
      Ignored("metrics_aggregation", {{26, "1000"}}, "`/metrics` has the times of tokens"),
      {.name = "load_on_devices",
       .type = LmiValue::kWord,
       .defaults = {{26, "*"}},
       .effect = LmiEffect::kOption,
       .option = "device",
       .note = "number of the GPU, of several (`0;1`) the first; -1 or `cpu`: the CPU",
       .take = TakeDevices},
      Ignored("minWorkers", {}, "a model has one engine, which runs many requests at a time", "1"),
      Ignored("maxWorkers", {}, "as `minWorkers`", "1"),
      Ignored("gpu.minWorkers", {}, "as `minWorkers`", "1"),
      Ignored("gpu.maxWorkers", {}, "as `minWorkers`", "1"),
      Ignored("cpu.minWorkers", {}, "as `minWorkers`", "1"),
      Ignored("cpu.maxWorkers", {}, "as `minWorkers`", "1"),
      Ignored("required_memory_mb", {}, "what a model needs is computed before it is loaded"),
      Ignored("gpu.required_memory_mb", {}, "as `required_memory_mb`"),
      Ignored("reserved_memory_mb", {{26, "500"}}, "as `required_memory_mb`"),
      Ignored("gpu.reserved_memory_mb", {}, "as `required_memory_mb`"),
  };
  return keys;
}

}  // namespace tandem::apps::lmi_rows
