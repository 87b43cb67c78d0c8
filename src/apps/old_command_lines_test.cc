// The command lines of TensorRT-LLM's documents and of guides to it, word for word, with the
// variables of their shell filled in.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "apps/cli/arguments.h"
#include "apps/cli/command.h"

namespace tandem::apps {
namespace {

struct OldLine {
  std::string_view verb;
  std::vector<std::string_view> words;
  std::map<std::string_view, std::string_view> expected;  // every option that is set, as given
};

std::vector<OldLine> OldLines() {
  return {
      {"build",
       {"--checkpoint_dir",
        "CKPT",
        "--output_dir",
        "ENGINE",
        "--max_num_tokens",
        "4096",
        "--max_input_len",
        "127000",
        "--max_seq_len",
        "128000",
        "--max_batch_size",
        "128",
        "--use_fused_mlp",
        "enable",
        "--use_paged_context_fmha",
        "enable",
        "--gemm_plugin",
        "fp8",
        "--use_fp8_context_fmha",
        "enable",
        "--gemm_swiglu_plugin",
        "fp8",
        "--max_draft_len=10",
        "--speculative_decoding_mode=draft_tokens_external",
        "--gather_generation_logits"},
       {{"checkpoint_dir", "CKPT"},
        {"output_dir", "ENGINE"},
        {"max_num_tokens", "4096"},
        {"max_input_len", "127000"},
        {"max_seq_len", "128000"},
        {"max_batch_size", "128"},
        {"use_fused_mlp", "enable"},
        {"use_paged_context_fmha", "enable"},
        {"gemm_plugin", "fp8"},
        {"use_fp8_context_fmha", "enable"},
        {"gemm_swiglu_plugin", "fp8"},
        {"max_draft_len", "10"},
        {"speculative_decoding_mode", "draft_tokens_external"},
        {"gather_generation_logits", "true"}}},
      // The draft's line, its last flag moved before others.
      {"build",
       {"--checkpoint_dir", "CKPT", "--gather_generation_logits", "--output_dir", "ENGINE"},
       {{"checkpoint_dir", "CKPT"},
        {"gather_generation_logits", "true"},
        {"output_dir", "ENGINE"}}},
      {"convert",
       {"--model_dir", "MODEL", "--dtype", "float16", "--tp_size", "1", "--output_dir", "CKPT"},
       {{"model_dir", "MODEL"}, {"dtype", "float16"}, {"tp_size", "1"}, {"output_dir", "CKPT"}}},
      {"build",
       {"--checkpoint_dir=CKPT", "--gpt_attention_plugin=float16", "--gemm_plugin=float16",
        "--remove_input_padding=enable", "--paged_kv_cache=enable", "--tp_size=1",
        "--max_batch_size=256", "--max_input_len=2048", "--max_output_len=1024",
        "--max_num_tokens=1024", "--opt_num_tokens=1024", "--output_dir=ENGINE",
        "--context_fmha=enable", "--use_paged_context_fmha=enable",
        "--context_fmha_fp32_acc=enable", "--multi_block_mode=enable"},
       {{"checkpoint_dir", "CKPT"},
        {"gpt_attention_plugin", "float16"},
        {"gemm_plugin", "float16"},
        {"remove_input_padding", "enable"},
        {"paged_kv_cache", "enable"},
        {"tp_size", "1"},
        {"max_batch_size", "256"},
        {"max_input_len", "2048"},
        {"max_output_len", "1024"},
        {"max_num_tokens", "1024"},
        {"opt_num_tokens", "1024"},
        {"output_dir", "ENGINE"},
        {"context_fmha", "enable"},
        {"use_paged_context_fmha", "enable"},
        {"context_fmha_fp32_acc", "enable"},
        {"multi_block_mode", "enable"}}},
      {"convert",
       {"--model_dir=MODEL", "--output_dir=CKPT", "--dtype=float16"},
       {{"model_dir", "MODEL"}, {"output_dir", "CKPT"}, {"dtype", "float16"}}},
      {"build",
       {"--checkpoint_dir=CKPT", "--output_dir=ENGINE", "--gemm_plugin=float16",
        "--use_paged_context_fmha=enable", "--max_batch_size=4", "--max_input_len=3200",
        "--max_seq_len=4800"},
       {{"checkpoint_dir", "CKPT"},
        {"output_dir", "ENGINE"},
        {"gemm_plugin", "float16"},
        {"use_paged_context_fmha", "enable"},
        {"max_batch_size", "4"},
        {"max_input_len", "3200"},
        {"max_seq_len", "4800"}}},
      {"build",
       {"--checkpoint_dir=CKPT", "--output_dir=ENGINE", "--gemm_plugin=float16",
        "--use_paged_context_fmha=enable", "--speculative_decoding_mode=draft_tokens_external",
        "--max_batch_size=4", "--max_draft_len=10", "--max_input_len=3200", "--max_seq_len=4800"},
       {{"checkpoint_dir", "CKPT"},
        {"output_dir", "ENGINE"},
        {"gemm_plugin", "float16"},
        {"use_paged_context_fmha", "enable"},
        {"speculative_decoding_mode", "draft_tokens_external"},
        {"max_batch_size", "4"},
        {"max_draft_len", "10"},
        {"max_input_len", "3200"},
        {"max_seq_len", "4800"}}},
      {"run",
       {"--tokenizer_dir=MODEL", "--draft_engine_dir=DRAFT", "--engine_dir=TARGET",
        "--draft_target_model_config=[4,[0],[1],False]", "--max_output_len=256",
        "--kv_cache_enable_block_reuse", "--kv_cache_free_gpu_memory_fraction=0.5",
        "--input_text=How does Draft-Sampling work?"},
       {{"tokenizer_dir", "MODEL"},
        {"draft", "DRAFT"},
        {"model", "TARGET"},
        {"draft_target_model_config", "[4,[0],[1],False]"},
        {"max_output_len", "256"},
        {"enable_kv_cache_reuse", "true"},
        {"kv_cache_free_gpu_mem_fraction", "0.5"},
        {"input_text", "How does Draft-Sampling work?"}}},
      // Flags that these tools had in other releases, bare before another option.
      {"convert",
       {"--load_by_shard", "--load_model_on_cpu", "--model_dir", "MODEL", "--workers", "4"},
       {{"load_by_shard", "true"},
        {"load_model_on_cpu", "true"},
        {"model_dir", "MODEL"},
        {"workers", "4"}}},
      {"convert",
       {"--model_dir", "MODEL", "-sq", "0.5", "--per_token", "--per_channel", "--output_dir",
        "CKPT"},
       {{"model_dir", "MODEL"},
        {"smoothquant", "0.5"},
        {"per_token", "true"},
        {"per_channel", "true"},
        {"output_dir", "CKPT"}}},
      {"convert",
       {"--model_dir", "MODEL", "--use_weight_only", "--weight_only_precision", "int4_gptq",
        "--per_group", "--group_size", "128", "--quant_ckpt_path", "GPTQ", "--n_layer", "32"},
       {{"model_dir", "MODEL"},
        {"use_weight_only", "true"},
        {"weight_only_precision", "int4_gptq"},
        {"per_group", "true"},
        {"group_size", "128"},
        {"quant_ckpt_path", "GPTQ"},
        {"n_layer", "32"}}},
      {"quantize",
       {"--model_dir", "MODEL", "--dtype", "auto", "--qformat", "fp8", "--kv_cache_dtype", "fp8",
        "--output_dir", "CKPT", "--calib_size", "512", "--tp_size", "2", "--pp_size", "1"},
       {{"model_dir", "MODEL"},
        {"dtype", "auto"},
        {"qformat", "fp8"},
        {"kv_cache_dtype", "fp8"},
        {"output_dir", "CKPT"},
        {"calib_size", "512"},
        {"tp_size", "2"},
        {"pp_size", "1"}}},
      {"quantize",
       {"--model_dir", "MODEL", "--dtype", "float16", "--qformat", "int4_awq", "--export_path",
        "./awq.pt", "--calib_size", "32"},
       {{"model_dir", "MODEL"},
        {"dtype", "float16"},
        {"qformat", "int4_awq"},
        {"output_dir", "./awq.pt"},
        {"calib_size", "32"}}},
      {"build",
       {"--model_dir", "MODEL", "--quant_ckpt_path", "./awq.pt", "--dtype", "float16",
        "--use_gpt_attention_plugin", "float16", "--use_gemm_plugin", "float16",
        "--remove_input_padding", "--use_inflight_batching", "--paged_kv_cache",
        "--use_weight_only", "--weight_only_precision", "int4_awq", "--per_group", "--output_dir",
        "ENGINE"},
       {{"model_dir", "MODEL"},
        {"checkpoint_dir", "./awq.pt"},
        {"dtype", "float16"},
        {"use_gpt_attention_plugin", "float16"},
        {"use_gemm_plugin", "float16"},
        {"remove_input_padding", "true"},
        {"use_inflight_batching", "true"},
        {"paged_kv_cache", "true"},
        {"use_weight_only", "true"},
        {"weight_only_precision", "int4_awq"},
        {"per_group", "true"},
        {"output_dir", "ENGINE"}}},
      {"run",
       {"--use_py_session", "--output_generation_logits", "--engine_dir", "TARGET", "--debug_mode",
        "--multi_block_mode", "true", "--input_text", "one", "two"},
       {{"use_py_session", "true"},
        {"output_generation_logits", "true"},
        {"model", "TARGET"},
        {"debug_mode", "true"},
        {"multi_block_mode", "true"},
        {"input_text", "one"}}},
      {"build",
       {"--remove_input_padding", "--paged_kv_cache", "--gpt_attention_plugin", "--gemm_plugin",
        "float16", "--strongly_typed", "--checkpoint_dir", "CKPT"},
       {{"remove_input_padding", "true"},
        {"paged_kv_cache", "true"},
        {"gpt_attention_plugin", "true"},
        {"gemm_plugin", "float16"},
        {"strongly_typed", "true"},
        {"checkpoint_dir", "CKPT"}}},
  };
}

TEST(OldCommandLinesTest, SetWhatTheySay) {
  for (const OldLine& line : OldLines()) {
    const auto& commands = Commands();
    const auto command = std::ranges::find(commands, line.verb, &Command::name);
    if (command == commands.end()) continue;  // a build without text has no `run`
    OptionValues values(command->options);
    const Status status = ReadArguments(line.words, values);
    ASSERT_TRUE(status.ok()) << line.verb << ": " << status.message();
    std::map<std::string_view, std::string_view> given;
    for (const OptionSpec& spec : command->options) {
      if (values.IsSet(spec)) given[spec.name] = values.Given(spec);
    }
    EXPECT_EQ(given, line.expected) << line.verb;
  }
}

TEST(OldCommandLinesTest, ARecordedFlagLeavesThePromptAlone) {
  const auto& commands = Commands();
  const auto run = std::ranges::find(commands, "run", &Command::name);
  if (run == commands.end()) GTEST_SKIP() << "this build has no run";
  OptionValues values(run->options);
  const std::vector<std::string_view> words = {"--debug_mode", "TARGET", "--use_py_session",
                                               "DRAFT"};
  ASSERT_TRUE(ReadArguments(words, values).ok());
  EXPECT_EQ(values.Text(*values.Find("model")), "TARGET");
  EXPECT_EQ(values.Text(*values.Find("draft")), "DRAFT");
}

}  // namespace
}  // namespace tandem::apps
