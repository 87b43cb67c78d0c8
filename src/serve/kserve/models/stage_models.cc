#include "serve/kserve/models/stage_models.h"

#include <fmt/format.h>
#include <model_config.pb.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/request/validate_request.h"
#include "serve/kserve/input_reader.h"
#include "serve/kserve/models/task_model.h"
#include "serve/request_builder.h"

namespace tandem::serve::kserve {
namespace {

// Most elements of a tensor that is made here: short rows are padded to the longest, so a request
// of few bytes could ask for many.
constexpr size_t kMaxElements = size_t{1} << 22;

Status CheckElements(std::string_view input, size_t rows, size_t longest) {
  if (longest == 0 || rows <= kMaxElements / longest) return {};
  return FieldError(input, fmt::format("its rows, padded to the longest, would have {} x {} "
                                       "elements; at most {} are made for one request",
                                       rows, longest, kMaxElements));
}

constexpr size_t kMaxWordBytes = RequestLimits().max_word_bytes;  // as in the text models

Status AtInput(std::string_view input, const Status& status) {
  return status.field().empty() ? FieldError(input, status.message()) : status;
}

// Lists of words as the engine's word inputs have them: [batch, 2, longest], for each entry the
// token ids of its words one after the other, padded with 0, and the end of each word, padded with
// -1. Entries without words are as wide as the others, and one wide where words were given.
Result<Tensor> WordIds(const TextCodec& codec, const InferRequest& request, int64_t batch,
                       std::string_view input, std::string output) {
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(batch));
  std::vector<std::vector<int32_t>> ends(static_cast<size_t>(batch));
  for (int64_t entry = 0; entry < batch; ++entry) {
    InputReader inputs(request, batch, entry);
    auto& own_ids = ids[static_cast<size_t>(entry)];
    const std::vector<std::string> words = inputs.Words(input);
    TANDEM_RETURN_IF_ERROR(CheckWordSizes(input, words, kMaxListValues, kMaxWordBytes));
    for (const std::string& word : words) {
      Result<std::vector<int32_t>> tokens = codec.Encode(word, /*add_special_tokens=*/false);
      if (!tokens.ok()) return AtInput(input, tokens.status());
      if (tokens->empty()) continue;
      own_ids.insert(own_ids.end(), tokens->begin(), tokens->end());
      ends[static_cast<size_t>(entry)].push_back(static_cast<int32_t>(own_ids.size()));
    }
    TANDEM_RETURN_IF_ERROR(CheckElements(input, ids.size(), own_ids.size()));
  }
  const size_t longest = std::max(LongestOf(ids), size_t{request.Input(input) != nullptr});
  std::vector<int32_t> values;
  for (size_t entry = 0; entry < ids.size(); ++entry) {
    AppendPadded(ids[entry], longest, 0, values);
    AppendPadded(ends[entry], longest, -1, values);
  }
  return Int32Tensor(std::move(output), {batch, 2, static_cast<int64_t>(longest)}, values);
}

// What is added to each token's logit: [batch, vocab], or [batch, 0] without words.
Result<Tensor> EmbeddingBias(const TextCodec& codec, const InferRequest& request, int64_t batch) {
  std::vector<float> values;
  const auto vocab = static_cast<size_t>(codec.vocab_size());
  for (int64_t entry = 0; entry < batch; ++entry) {
    InputReader inputs(request, batch, entry);
    const std::vector<std::string> words = inputs.Strings("EMBEDDING_BIAS_WORDS");
    const std::vector<float> weights = inputs.Floats("EMBEDDING_BIAS_WEIGHTS");
    if (words.size() != weights.size()) {
      return FieldError("EMBEDDING_BIAS_WEIGHTS",
                        "must have as many values as EMBEDDING_BIAS_WORDS");
    }
    if (words.empty()) continue;
    TANDEM_RETURN_IF_ERROR(
        CheckWordSizes("EMBEDDING_BIAS_WORDS", words, kMaxLogitBias, kMaxWordBytes));
    TANDEM_RETURN_IF_ERROR(
        CheckElements("EMBEDDING_BIAS_WORDS", static_cast<size_t>(entry + 1), vocab));
    values.resize(vocab * static_cast<size_t>(entry + 1));
    float* const row = values.data() + vocab * static_cast<size_t>(entry);
    for (size_t i = 0; i < words.size(); ++i) {
      const auto tokens = codec.Encode(words[i], /*add_special_tokens=*/false);
      if (!tokens.ok()) return AtInput("EMBEDDING_BIAS_WORDS", tokens.status());
      for (const int32_t token : *tokens) row[token] += weights[i];
    }
  }
  if (!values.empty()) values.resize(vocab * static_cast<size_t>(batch));
  return FloatTensor("EMBEDDING_BIAS", {batch, values.empty() ? 0 : static_cast<int64_t>(vocab)},
                     values);
}

Result<InferResponse> Preprocess(const GenerateService& service, bool is_batched,
                                 bool add_special_tokens, const InferRequest& request) {
  const TextCodec& codec = service.codec();
  const int64_t batch = is_batched ? request.Input("QUERY")->shape.front() : 1;
  const std::vector<int32_t> ends = codec.end_ids();
  const int32_t usual_end = ends.empty() ? -1 : ends.front();
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int32_t> lengths;
  std::vector<int32_t> output_lengths;
  std::vector<int32_t> end_ids;
  std::vector<int32_t> pad_ids;
  for (int64_t entry = 0; entry < batch; ++entry) {
    InputReader inputs(request, batch, entry);
    for (const std::string_view name :
         {"QUERY", "REQUEST_OUTPUT_LEN", "BAD_WORDS_DICT", "STOP_WORDS_DICT",
          "EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS", "END_ID", "PAD_ID"}) {
      inputs.Has(name);
    }
    TANDEM_RETURN_IF_ERROR(inputs.CheckAllRead());
    TANDEM_ASSIGN_OR_RETURN(prompts.emplace_back(),
                            TokenizePrompt("QUERY", inputs.String("QUERY").value_or(""),
                                           add_special_tokens, codec, service.engine_limits()));
    lengths.push_back(static_cast<int32_t>(prompts.back().size()));
    output_lengths.push_back(static_cast<int32_t>(*inputs.Int("REQUEST_OUTPUT_LEN")));
    end_ids.push_back(static_cast<int32_t>(inputs.Int("END_ID").value_or(usual_end)));
    pad_ids.push_back(static_cast<int32_t>(
        inputs.Int("PAD_ID").value_or(codec.pad_id().value_or(end_ids.back()))));
  }
  const size_t longest = LongestOf(prompts);
  TANDEM_RETURN_IF_ERROR(CheckElements("QUERY", prompts.size(), longest));
  std::vector<int32_t> matrix;
  for (size_t entry = 0; entry < prompts.size(); ++entry) {
    AppendPadded(prompts[entry], longest, pad_ids[entry], matrix);
  }
  TANDEM_ASSIGN_OR_RETURN(Tensor bad_words,
                          WordIds(codec, request, batch, "BAD_WORDS_DICT", "BAD_WORDS_IDS"));
  TANDEM_ASSIGN_OR_RETURN(Tensor stop_words,
                          WordIds(codec, request, batch, "STOP_WORDS_DICT", "STOP_WORDS_IDS"));
  TANDEM_ASSIGN_OR_RETURN(Tensor bias, EmbeddingBias(codec, request, batch));
  const std::vector<int32_t> none(static_cast<size_t>(batch), 0);
  InferResponse response;
  response.outputs.push_back(
      Int32Tensor("INPUT_ID", {batch, static_cast<int64_t>(longest)}, matrix));
  response.outputs.push_back(Int32Tensor("REQUEST_INPUT_LEN", {batch, 1}, lengths));
  response.outputs.push_back(Int32Tensor("DECODER_INPUT_ID", {batch, 0}, {}));
  response.outputs.push_back(Int32Tensor("REQUEST_DECODER_INPUT_LEN", {batch, 1}, none));
  response.outputs.push_back(std::move(bad_words));
  response.outputs.push_back(std::move(stop_words));
  response.outputs.push_back(std::move(bias));
  response.outputs.push_back(Int32Tensor("REQUEST_OUTPUT_LEN", {batch, 1}, output_lengths));
  response.outputs.push_back(Int32Tensor("OUT_END_ID", {batch, 1}, end_ids));
  response.outputs.push_back(Int32Tensor("OUT_PAD_ID", {batch, 1}, pad_ids));
  return response;
}

// The text of a row of tokens.
std::string Decode(const TextCodec& codec, bool skip_special, std::span<const int64_t> tokens) {
  const auto decoder = codec.NewDecoder({}, skip_special);
  std::string text;
  for (const int64_t token : tokens) {
    // Rows are padded with -1, and some clients pad with ids that the model does not have.
    if (token >= 0 && token < codec.vocab_size())
      text += decoder->Push(static_cast<int32_t>(token));
  }
  return text + decoder->Flush();
}

// Inputs that older clients send through this stage.
constexpr std::pair<const char*, const char*> kPassed[] = {
    {"CUM_LOG_PROBS", "OUT_CUM_LOG_PROBS"},
    {"OUTPUT_LOG_PROBS", "OUT_OUTPUT_LOG_PROBS"},
    {"CONTEXT_LOGITS", "OUT_CONTEXT_LOGITS"},
    {"GENERATION_LOGITS", "OUT_GENERATION_LOGITS"},
};

Result<InferResponse> Postprocess(const TextCodec& codec, bool skip_special_tokens,
                                  const InferRequest& request) {
  const Tensor& batch = *request.Input("TOKENS_BATCH");
  const std::vector<int64_t> tokens = Integers(batch);
  const auto row_tokens = static_cast<size_t>(batch.shape.back());
  size_t rows = 1;  // of the batch, if the model has one, and its beams
  for (size_t i = 0; i + 1 < batch.shape.size(); ++i) rows *= static_cast<size_t>(batch.shape[i]);
  TANDEM_RETURN_IF_ERROR(CheckElements("TOKENS_BATCH", rows, std::max<size_t>(row_tokens, 1)));
  std::vector<int64_t> lengths(rows, static_cast<int64_t>(row_tokens));
  if (const Tensor* given = request.Input("SEQUENCE_LENGTH")) {
    lengths = Integers(*given);
    if (lengths.size() != rows) {
      return FieldError(
          "SEQUENCE_LENGTH",
          fmt::format("has {} values for the {} rows of TOKENS_BATCH", lengths.size(), rows));
    }
  }
  std::vector<std::string> texts;
  for (size_t row = 0; row < rows; ++row) {
    const auto length =
        static_cast<size_t>(std::clamp<int64_t>(lengths[row], 0, static_cast<int64_t>(row_tokens)));
    texts.push_back(
        Decode(codec, skip_special_tokens, std::span(tokens).subspan(row * row_tokens, length)));
  }
  InferResponse response;
  response.outputs.push_back(StringTensor("OUTPUT", {static_cast<int64_t>(rows)}, texts));
  for (const auto& [input, output] : kPassed) {
    if (const Tensor* tensor = request.Input(input)) {
      response.outputs.push_back(*tensor);
      response.outputs.back().name = output;
    }
  }
  return response;
}

}  // namespace

InferModelPtr MakePreprocessingModel(const inference::ModelConfig& config, ModelPtr engine,
                                     bool add_special_tokens) {
  const bool is_batched = config.max_batch_size() > 0;
  return MakeTaskModel(config, [engine = std::move(engine), is_batched,
                                add_special_tokens](const InferRequest& request) {
    return Preprocess(*engine->service, is_batched, add_special_tokens, request);
  });
}

InferModelPtr MakePostprocessingModel(const inference::ModelConfig& config, ModelPtr engine,
                                      bool skip_special_tokens) {
  return MakeTaskModel(
      config, [engine = std::move(engine), skip_special_tokens](const InferRequest& request) {
        return Postprocess(engine->service->codec(), skip_special_tokens, request);
      });
}

}  // namespace tandem::serve::kserve
