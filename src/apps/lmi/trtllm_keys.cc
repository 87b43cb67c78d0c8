// The keys of the TensorRT-LLM container: of its engines, and of its quantization.
#include <fmt/format.h>

#include "apps/lmi/key_rows.h"
#include "apps/models/config_rows.h"

namespace tandem::apps::lmi_rows {
namespace {

using S = LmiSettings;
constexpr int64_t kMostTokens = 1 << 24;

constexpr std::string_view kNothingIsBuilt = "nothing is compiled or converted";

template <auto kField>
std::string ConfigOption() {
  return std::string(ConfigOptionRows().RowOf<kField>().name);
}

// Python's None, and the word of 0.26 for what it could not guess.
LmiKey Version(std::string_view name, Defaults defaults, std::string option) {
  LmiKey key = Option(name, LmiValue::kWord, std::move(defaults), std::move(option),
                      "for a model whose `config.json` does not tell");
  key.take = [take = key.take](const std::string& value, LmiSettings& settings) -> Status {
    return value == "unspecified" ? Status() : take(value, settings);
  };
  return key;
}

Result<std::string> SchemeOf(const std::string& value) {
  if (IsAmong(value, "none|smoothquant|awq|fp8")) return value;
  return InvalidArgument(fmt::format("must be smoothquant, awq or fp8, not '{}'", value));
}

LmiKey AwqFormat(std::string_view name) {
  return Converted(name, LmiValue::kWord, {{26, "int4_awq"}}, "awq_format", "`int4_awq` alone",
                   [](const std::string& value) -> Result<std::string> {
                     if (value == "int4_awq") return value;
                     return InvalidArgument(fmt::format("must be int4_awq, not '{}'", value));
                   });
}

LmiKey CalibSize(std::string_view name) {
  return Option(name, LmiValue::kInteger, {{26, "32"}, {27, "512"}}, "calib_size",
                "texts of the calibration, for all schemes");
}

}  // namespace

std::span<const LmiKey> TrtLlmKeys() {
  static const std::vector<LmiKey> keys = {
      WithDefaultSet(Integer<[](S& s) -> auto& { return s.limits.max_input_len; }>(
          "option.max_input_len", {{26, "1024"}}, 1, kMostTokens,
          "tokens of a prompt; a longer one is refused",
          EngineOption<&EngineOptions::max_input_len>())),
      WithDefaultSet(Integer<[](S& s) -> auto& { return s.limits.max_output_len; }>(
          "option.max_output_len", {{26, "512"}}, 1, kMostTokens,
          "with `option.max_input_len` it makes the longest sequence",
          EngineOption<&EngineOptions::max_seq_len>())),
      Ignored("option.use_custom_all_reduce", {{26, "false"}},
              "sums over GPUs are kernels of this program"),
      WithDefaultSet(Option("option.tokens_per_block", LmiValue::kInteger,
                            {{26, "64"}, {28, "128"}}, EngineOption<&EngineOptions::block_tokens>(),
                            "tokens of a block of the cache")),
      Option("option.batch_scheduler_policy", LmiValue::kWord, {{26, "max_utilization"}},
             EngineOption<&EngineOptions::policy>(), "the same words"),
      WithDefaultOnGpu(Option("option.kv_cache_free_gpu_mem_fraction", LmiValue::kNumber,
                              {{26, "0.95"}},
                              EngineOption<&EngineOptions::kv_cache_free_fraction>(),
                              "of the memory free after loading. The default holds on a GPU; of "
                              "several models each gets an equal share of it")),
      Integer<[](S& s) -> auto& { return s.limits.max_num_sequences; }>(
          "option.max_num_sequences", {}, 1, 1 << 20, "see `option.max_rolling_batch_size`",
          EngineOption<&EngineOptions::max_batch_size>()),
      Overlap("option.enable_trt_overlap", {{26, "false"}},
              "true: 1, false: 0; without it 1 on a GPU"),
      Option("option.enable_kv_cache_reuse", LmiValue::kBool, {{26, "false"}},
             EngineOption<&EngineOptions::enable_prefix_reuse>(),
             "without it on: the text is the same, and nothing has to be built for it"),
      Version("option.baichuan_model_version", {{26, "v1_13b"}},
              ConfigOption<&ConfigOptions::baichuan_model_version>()),
      Version("option.chatglm_model_version", {{26, "unspecified"}, {30, ""}},
              ConfigOption<&ConfigOptions::chatglm_model_version>()),
      Version("option.gpt_model_version", {{26, "gpt2"}},
              ConfigOption<&ConfigOptions::gpt_model_version>()),
      Ignored("option.multi_block_mode", {{26, "false"}},
              "attention splits long sequences where that is faster"),
      Ignored("option.use_fused_mlp", {{26, "false"}}, "the fastest kernels are always used"),
      Option("option.rotary_base", LmiValue::kNumber, {{26, "10000.0"}},
             ConfigOption<&ConfigOptions::rotary_base>(), "without it as `config.json` says"),
      Option("option.rotary_dim", LmiValue::kInteger, {{26, "64"}},
             ConfigOption<&ConfigOptions::rotary_dim>(), "without it as `config.json` says"),
      Option("option.rotary_scaling_type", LmiValue::kWord, {},
             ConfigOption<&ConfigOptions::rotary_scaling_type>(), "together with the factor"),
      Option("option.rotary_scaling_factor", LmiValue::kNumber, {},
             ConfigOption<&ConfigOptions::rotary_scaling_factor>(), "together with the type"),
      Integer<[](S& s) -> auto& { return s.limits.max_num_tokens; }>(
          "option.max_num_tokens", {{27, "16384"}}, 1, 1 << 20,
          "tokens of one step. From 0.27 on, as there, one that is given raises the defaults of "
          "`option.max_input_len` and `option.max_output_len` to it, but at most to 4096, and of "
          "the batch to 256",
          EngineOption<&EngineOptions::max_num_tokens>()),
      Integer<[](S& s) -> auto& { return s.limits.max_prefill_tokens; }>(
          "option.max_rolling_batch_prefill_tokens", {}, 1, 1 << 20,
          "tokens of one step, unless `option.max_num_tokens` is given",
          EngineOption<&EngineOptions::max_num_tokens>()),
      Ignored("option.enforce_eager", {}, "steps on a GPU are always replayed as graphs"),
      Ignored("option.logits_dtype", {{27, "fp32"}}, "logits are fp32"),
      Ignored("option.trtllm_checkpoint_path", {}, std::string(kNothingIsBuilt)),
      Ignored("option.num_checkpoint_workers", {}, std::string(kNothingIsBuilt)),
      Ignored("option.num_engine_workers", {}, std::string(kNothingIsBuilt)),
      Ignored("option.load_by_shard", {{27, "false"}}, "weights are always read piece by piece"),
  };
  return keys;
}

std::span<const LmiKey> QuantizationKeys() {
  static const std::vector<LmiKey> keys = {
      Converted("option.quantize", LmiValue::kWord, {}, "quantize",
                "`smoothquant`, `awq` or `fp8`: the model is quantized with calibration when it is "
                "loaded",
                SchemeOf),
      Option("option.smoothquant_alpha", LmiValue::kNumber, {{26, "0.8"}}, "smoothquant_alpha",
             "share of the range that moves from activations into weights"),
      Option("option.smoothquant_per_token", LmiValue::kBool, {{26, "false"}},
             "smoothquant_per_token", "activations with a scale a token"),
      Ignored("option.smoothquant_per_channel", {{26, "false"}},
              "weights always have a scale an output, which is finer and not slower"),
      Ignored("option.multi_query_mode", {{26, "false"}},
              "`config.json` says how heads share keys and values"),
      AwqFormat("option.awq_format"),
      AwqFormat("option.q_format"),
      CalibSize("option.awq_calib_size"),
      CalibSize("option.calib_size"),
      Option("option.calib_batch_size", LmiValue::kInteger, {{28, "32"}}, "calib_batch_size",
             "texts that are run together"),
      Option("option.calib_dataset", LmiValue::kText, {}, "calib_dataset",
             "not a key of LMI: a file of texts to calibrate with, instead of the embedded "
             "dictionary"),
      Option("option.awq_block_size", LmiValue::kInteger, {{28, "128"}}, "awq_block_size",
             "inputs that share a scale: 64 or 128"),
      Ignored("option.use_fp8_context_fmha", {{28, "false"}},
              "attention computes in 16 bits; `--kv_cache_dtype fp8` stores its keys and values in "
              "fp8"),
  };
  return keys;
}

}  // namespace tandem::apps::lmi_rows
