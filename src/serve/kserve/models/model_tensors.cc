#include "serve/kserve/models/model_tensors.h"

#include <model_config.pb.h>

#include <array>
#include <span>
#include <string_view>

namespace tandem::serve::kserve {
namespace {

using inference::TYPE_BOOL;
using inference::TYPE_FP16;
using inference::TYPE_FP32;
using inference::TYPE_INT32;
using inference::TYPE_INT64;
using inference::TYPE_STRING;
using inference::TYPE_UINT64;
using inference::TYPE_UINT8;

constexpr unsigned Bit(ModelKind kind) { return 1u << static_cast<unsigned>(kind); }
constexpr unsigned kE = Bit(ModelKind::kEnsemble);
constexpr unsigned kX = Bit(ModelKind::kBls);
constexpr unsigned kL = Bit(ModelKind::kTensorrtLlm);
constexpr unsigned kPre = Bit(ModelKind::kPreprocessing);
constexpr unsigned kPost = Bit(ModelKind::kPostprocessing);
constexpr unsigned kText = kE | kX;
constexpr unsigned kAll = kText | kL;

// Dimensions without the batch's.
struct Dims {
  std::array<int, 4> values{};
  int count = 0;
};
constexpr Dims kOne{{1}, 1};
constexpr Dims kList{{-1}, 1};
constexpr Dims kMatrix{{-1, -1}, 2};
constexpr Dims kCube{{-1, -1, -1}, 3};
constexpr Dims kWordIds{{2, -1}, 2};
constexpr Dims kLoraConfig{{-1, 3}, 2};
constexpr Dims kImage{{-1, 3, -1, -1}, 4};
constexpr Dims kImageBytes{{-1, -1, -1, -1}, 4};

struct TensorRow {
  std::string_view name;
  inference::DataType type;
  Dims dims;
  unsigned models;        // that have it
  unsigned required = 0;  // of those
};

constexpr TensorRow kInputs[] = {
    // Text-level.
    {"text_input", TYPE_STRING, kOne, kText, kText},
    {"decoder_text_input", TYPE_STRING, kOne, kText},
    {"image_input", TYPE_FP16, kImage, kX},
    {"image_bytes_input", TYPE_UINT8, kImageBytes, kX},
    {"video_bytes_input", TYPE_UINT8, kImageBytes, kX},
    {"image_url_input", TYPE_STRING, kList, kX},
    {"max_tokens", TYPE_INT32, kOne, kText, kText},
    {"bad_words", TYPE_STRING, kList, kText},
    {"stop_words", TYPE_STRING, kList, kText},
    {"top_k", TYPE_INT32, kOne, kText},
    {"top_p", TYPE_FP32, kOne, kText},
    {"length_penalty", TYPE_FP32, kOne, kText},
    {"stream", TYPE_BOOL, kOne, kText},
    {"prompt_table_extra_id", TYPE_UINT64, kOne, kText},
    {"embedding_bias_words", TYPE_STRING, kList, kText},
    {"embedding_bias_weights", TYPE_FP32, kList, kText},
    {"num_draft_tokens", TYPE_INT32, kOne, kX},
    {"use_draft_logits", TYPE_BOOL, kOne, kX},
    // Token-level.
    {"input_ids", TYPE_INT32, kList, kL},
    {"input_lengths", TYPE_INT32, kOne, kL, kL},
    {"request_output_len", TYPE_INT32, kOne, kL, kL},
    {"draft_input_ids", TYPE_INT32, kList, kL},
    {"draft_logits", TYPE_FP32, kMatrix, kL},
    {"draft_acceptance_threshold", TYPE_FP32, kOne, kL},
    {"decoder_input_ids", TYPE_INT32, kList, kL},
    {"decoder_input_lengths", TYPE_INT32, kOne, kL},
    {"encoder_input_features", TYPE_FP16, kMatrix, kL},
    {"encoder_output_lengths", TYPE_INT32, kOne, kL},
    {"cross_attention_mask", TYPE_BOOL, kMatrix, kL},
    {"skip_cross_attn_blocks", TYPE_BOOL, kOne, kL},
    {"stop_words_list", TYPE_INT32, kWordIds, kL},
    {"bad_words_list", TYPE_INT32, kWordIds, kL},
    {"embedding_bias", TYPE_FP32, kList, kL},
    {"runtime_top_k", TYPE_INT32, kOne, kL},
    {"runtime_top_p", TYPE_FP32, kOne, kL},
    {"runtime_top_p_min", TYPE_FP32, kOne, kL},
    {"runtime_top_p_decay", TYPE_FP32, kOne, kL},
    {"runtime_top_p_reset_ids", TYPE_INT32, kOne, kL},
    {"len_penalty", TYPE_FP32, kOne, kL},
    {"early_stopping", TYPE_BOOL, kOne, kL},
    {"beam_search_diversity_rate", TYPE_FP32, kOne, kL},
    {"stop", TYPE_BOOL, kOne, kL},
    {"streaming", TYPE_BOOL, kOne, kL},
    {"prompt_table_extra_ids", TYPE_UINT64, kList, kL},
    {"context_phase_params", TYPE_UINT8, kList, kL},
    {"retention_token_range_starts", TYPE_INT32, kList, kL},
    {"retention_token_range_ends", TYPE_INT32, kList, kL},
    {"retention_token_range_priorities", TYPE_INT32, kList, kL},
    {"retention_token_range_durations_ms", TYPE_INT32, kList, kL},
    {"retention_decode_priority", TYPE_INT32, kOne, kL},
    {"retention_decode_duration_ms", TYPE_INT32, kOne, kL},
    {"lookahead_window_size", TYPE_INT32, kOne, kL},
    {"lookahead_ngram_size", TYPE_INT32, kOne, kL},
    {"lookahead_verification_set_size", TYPE_INT32, kOne, kL},
    // Both.
    {"end_id", TYPE_INT32, kOne, kAll},
    {"pad_id", TYPE_INT32, kOne, kAll},
    {"temperature", TYPE_FP32, kOne, kAll},
    {"repetition_penalty", TYPE_FP32, kOne, kAll},
    {"presence_penalty", TYPE_FP32, kOne, kAll},
    {"frequency_penalty", TYPE_FP32, kOne, kAll},
    {"min_length", TYPE_INT32, kOne, kAll},
    {"min_tokens", TYPE_INT32, kOne, kAll},
    {"random_seed", TYPE_UINT64, kOne, kAll},
    {"seed", TYPE_UINT64, kOne, kAll},
    {"exclude_input_in_output", TYPE_BOOL, kOne, kAll},
    {"return_log_probs", TYPE_BOOL, kOne, kAll},
    {"return_context_logits", TYPE_BOOL, kOne, kAll},
    {"return_generation_logits", TYPE_BOOL, kOne, kAll},
    {"return_kv_cache_reuse_stats", TYPE_BOOL, kOne, kAll},
    {"return_perf_metrics", TYPE_BOOL, kOne, kAll},
    {"return_num_input_tokens", TYPE_BOOL, kOne, kAll},
    {"return_num_output_tokens", TYPE_BOOL, kOne, kAll},
    {"beam_width", TYPE_INT32, kOne, kAll},
    {"num_return_sequences", TYPE_INT32, kOne, kAll},
    {"prompt_embedding_table", TYPE_FP16, kMatrix, kAll},
    {"prompt_vocab_size", TYPE_INT32, kOne, kAll},
    {"lora_task_id", TYPE_UINT64, kOne, kAll},
    {"lora_weights", TYPE_FP16, kMatrix, kAll},
    {"lora_config", TYPE_INT32, kLoraConfig, kAll},
    {"guided_decoding_guide_type", TYPE_STRING, kOne, kAll},
    {"guided_decoding_guide", TYPE_STRING, kOne, kAll},
    // Stages.
    {"QUERY", TYPE_STRING, kOne, kPre, kPre},
    {"DECODER_QUERY", TYPE_STRING, kOne, kPre},
    {"REQUEST_OUTPUT_LEN", TYPE_INT32, kOne, kPre, kPre},
    {"BAD_WORDS_DICT", TYPE_STRING, kList, kPre},
    {"STOP_WORDS_DICT", TYPE_STRING, kList, kPre},
    {"EMBEDDING_BIAS_WORDS", TYPE_STRING, kList, kPre},
    {"EMBEDDING_BIAS_WEIGHTS", TYPE_FP32, kList, kPre},
    {"END_ID", TYPE_INT32, kOne, kPre},
    {"PAD_ID", TYPE_INT32, kOne, kPre},
    {"PROMPT_TABLE_EXTRA_ID", TYPE_UINT64, kOne, kPre},
    {"IMAGE_BYTES", TYPE_UINT8, kImageBytes, kPre},
    {"IMAGE_URL", TYPE_STRING, kList, kPre},
    {"VIDEO_BYTES", TYPE_UINT8, kImageBytes, kPre},
    {"TOKENS_BATCH", TYPE_INT32, kMatrix, kPost, kPost},
    {"SEQUENCE_LENGTH", TYPE_INT32, kList, kPost},
    {"CUM_LOG_PROBS", TYPE_FP32, kList, kPost},
    {"OUTPUT_LOG_PROBS", TYPE_FP32, kMatrix, kPost},
    {"CONTEXT_LOGITS", TYPE_FP32, kMatrix, kPost},
    {"GENERATION_LOGITS", TYPE_FP32, kCube, kPost},
};

constexpr TensorRow kOutputs[] = {
    {"text_output", TYPE_STRING, kList, kText},
    {"output_ids", TYPE_INT32, kMatrix, kL},  // clients take the first output for this
    {"sequence_length", TYPE_INT32, kList, kL},
    {"cum_log_probs", TYPE_FP32, kList, kAll},
    {"output_log_probs", TYPE_FP32, kMatrix, kAll},
    {"context_logits", TYPE_FP32, kMatrix, kAll},
    {"generation_logits", TYPE_FP32, kCube, kAll},
    {"batch_index", TYPE_INT32, kOne, kAll},
    {"sequence_index", TYPE_INT32, kOne, kAll},
    {"kv_cache_alloc_new_blocks", TYPE_INT32, kOne, kAll},
    {"kv_cache_reused_blocks", TYPE_INT32, kOne, kAll},
    {"kv_cache_alloc_total_blocks", TYPE_INT32, kOne, kAll},
    {"arrival_time_ns", TYPE_INT64, kOne, kAll},
    {"first_scheduled_time_ns", TYPE_INT64, kOne, kAll},
    {"first_token_time_ns", TYPE_INT64, kOne, kAll},
    {"last_token_time_ns", TYPE_INT64, kOne, kAll},
    {"acceptance_rate", TYPE_FP32, kOne, kAll},
    {"total_accepted_draft_tokens", TYPE_INT32, kOne, kAll},
    {"total_draft_tokens", TYPE_INT32, kOne, kAll},
    {"num_input_tokens", TYPE_INT32, kOne, kAll},
    {"num_output_tokens", TYPE_INT32, kOne, kAll},
    {"INPUT_ID", TYPE_INT32, kList, kPre},
    {"REQUEST_INPUT_LEN", TYPE_INT32, kOne, kPre},
    {"DECODER_INPUT_ID", TYPE_INT32, kList, kPre},
    {"REQUEST_DECODER_INPUT_LEN", TYPE_INT32, kOne, kPre},
    {"BAD_WORDS_IDS", TYPE_INT32, kWordIds, kPre},
    {"STOP_WORDS_IDS", TYPE_INT32, kWordIds, kPre},
    {"EMBEDDING_BIAS", TYPE_FP32, kList, kPre},
    {"REQUEST_OUTPUT_LEN", TYPE_INT32, kList, kPre},
    {"OUT_END_ID", TYPE_INT32, kOne, kPre},
    {"OUT_PAD_ID", TYPE_INT32, kOne, kPre},
    {"OUT_PROMPT_TABLE_EXTRA_IDS", TYPE_UINT64, kOne, kPre},
    {"OUTPUT", TYPE_STRING, kList, kPost},
    {"OUT_CUM_LOG_PROBS", TYPE_FP32, kList, kPost},
    {"OUT_OUTPUT_LOG_PROBS", TYPE_FP32, kMatrix, kPost},
    {"OUT_CONTEXT_LOGITS", TYPE_FP32, kMatrix, kPost},
    {"OUT_GENERATION_LOGITS", TYPE_FP32, kCube, kPost},
};

template <typename Tensor>
void Fill(const TensorRow& row, Tensor& tensor) {
  tensor.set_name(std::string(row.name));
  tensor.set_data_type(row.type);
  for (int i = 0; i < row.dims.count; ++i) {
    tensor.add_dims(row.dims.values[static_cast<size_t>(i)]);
  }
}

}  // namespace

inference::ModelConfig MakeConfig(ModelKind kind, const std::string& name, int max_batch_size,
                                  bool is_decoupled) {
  inference::ModelConfig config;
  config.set_name(name);
  if (kind == ModelKind::kEnsemble) {
    config.set_platform("ensemble");
  } else {
    config.set_backend(std::string(RowOf(kind).backend));
  }
  config.set_max_batch_size(max_batch_size);
  config.mutable_model_transaction_policy()->set_decoupled(is_decoupled);
  for (const TensorRow& row : kInputs) {
    if ((row.models & Bit(kind)) == 0) continue;
    inference::ModelInput& input = *config.add_input();
    Fill(row, input);
    input.set_optional((row.required & Bit(kind)) == 0);
  }
  for (const TensorRow& row : kOutputs) {
    if ((row.models & Bit(kind)) != 0) Fill(row, *config.add_output());
  }
  return config;
}

}  // namespace tandem::serve::kserve
