#include "serve/kserve/models/generation_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/request/sampling_parameters.h"
#include "serve/kserve/input_reader.h"

namespace tandem::serve::kserve {
namespace {

// Triton's word for a sampling parameter of the token-level model.
std::string TokenInputOf(std::string_view parameter) {
  if (parameter == "top_p_reset_id") return "runtime_top_p_reset_ids";
  return (parameter.starts_with("top_") ? "runtime_" : "") + std::string(parameter);
}

void Read(InputReader& inputs, std::string_view name, std::optional<double>& out) {
  out = inputs.Float(name);
}
void Read(InputReader& inputs, std::string_view name, std::optional<int64_t>& out) {
  out = inputs.Int(name);
}

void ReadSampling(ModelKind kind, InputReader& inputs, TextRequest& text) {
  text.defaults = SamplingDefaults::kGreedy;
  ForEachSamplingParameter([&](const SamplingParameter& parameter, const auto& members) {
    const std::string name = kind == ModelKind::kTensorrtLlm ? TokenInputOf(parameter.name)
                                                             : std::string(parameter.name);
    Read(inputs, name, text.sampling.*members.given);
  });
  text.names.min_tokens = "min_tokens";
  if (!text.sampling.min_tokens) {
    text.names.min_tokens = "min_length";
    text.sampling.min_tokens = inputs.Int(text.names.min_tokens);
  }
  const std::optional<uint64_t> seed = inputs.Unsigned("seed");
  const std::optional<uint64_t> old_seed = inputs.Unsigned("random_seed");
  text.seed = seed ? seed : old_seed;
}

// Beam search is not supported; the other inputs matter only with it.
Status ReadBeams(InputReader& inputs) {
  if (inputs.Int("beam_width").value_or(1) != 1) {
    return FieldError("beam_width", "only 1 is supported by this server");
  }
  for (const std::string_view name :
       {"length_penalty", "len_penalty", "early_stopping", "beam_search_diversity_rate"}) {
    inputs.Has(name);
  }
  return {};
}

// The words of a list [2, n]: token ids one after the other, and the end of each word.
Result<std::vector<std::vector<int32_t>>> ReadWordIds(InputReader& inputs, std::string_view name) {
  const std::vector<int64_t> both = inputs.Ints(name);
  const size_t count = both.size() / 2;
  std::vector<std::vector<int32_t>> words;
  int64_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const int64_t end = both[count + i];
    if (end < 0) break;
    if (end < begin || end > static_cast<int64_t>(count)) {
      return FieldError(name, "its second row must hold the end of each word, in order");
    }
    std::vector<int32_t> word;
    for (int64_t at = begin; at < end; ++at) {
      word.push_back(static_cast<int32_t>(both[static_cast<size_t>(at)]));
    }
    // As the list of one empty word is sent: token 0, and -1 as its end.
    if (!word.empty()) words.push_back(std::move(word));
    begin = end;
  }
  return words;
}

// Tokens that the client has drafted itself, padded with -1. Their logits have as many rows, or
// only those of the tokens.
void ReadDraft(InputReader& inputs, size_t width, ExternalDraft& draft) {
  constexpr size_t kHandle =
      4;  // values by which some servers pass logits on; here they come whole
  const std::vector<int64_t> ids = inputs.Ints("draft_input_ids");
  draft.logits = inputs.Floats("draft_logits");
  if (draft.logits.size() == kHandle) draft.logits.clear();
  const bool is_padded = width > 0 && draft.logits.size() == ids.size() * width;
  auto kept = draft.logits.begin();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0) continue;
    draft.tokens.push_back(static_cast<int32_t>(ids[i]));
    if (!is_padded) continue;
    const auto row = draft.logits.begin() + static_cast<std::ptrdiff_t>(i * width);
    kept = std::copy(row, row + static_cast<std::ptrdiff_t>(width), kept);
  }
  if (is_padded) draft.logits.erase(kept, draft.logits.end());
  if (const auto threshold = inputs.Float("draft_acceptance_threshold")) {
    draft.threshold = *threshold;
  }
}

Status ReadTokenInputs(const InferRequest& request, InputReader& inputs, TextRequest& text) {
  text.names = {.prompt = "input_ids",
                .max_tokens = "request_output_len",
                .num_choices = "num_return_sequences",
                .stop = "stop_words_list",
                .logit_bias = "embedding_bias"};
  text.wants_text = false;
  const std::vector<int64_t> ids = inputs.Ints("input_ids");
  const int64_t length = inputs.Int("input_lengths").value_or(0);
  if (length < 1 || length > static_cast<int64_t>(ids.size())) {
    return FieldError("input_lengths", fmt::format("must be an integer from 1 to the {} elements "
                                                   "of input_ids",
                                                   ids.size()));
  }
  // Rows are padded on the right.
  text.tokens.emplace();
  for (int64_t i = 0; i < length; ++i) {
    text.tokens->push_back(static_cast<int32_t>(ids[static_cast<size_t>(i)]));
  }
  text.max_tokens = inputs.Int("request_output_len");
  inputs.Has("decoder_input_ids");  // the chain of the stages sends them without elements
  if (inputs.Int("decoder_input_lengths").value_or(0) > 0) {
    return Unimplemented("decoder_input_ids: this model has no decoder of its own")
        .WithField("decoder_input_ids");
  }
  TANDEM_ASSIGN_OR_RETURN(text.stop_sequences, ReadWordIds(inputs, "stop_words_list"));
  TANDEM_ASSIGN_OR_RETURN(text.banned_sequences, ReadWordIds(inputs, "bad_words_list"));
  const Tensor* logits = request.Input("draft_logits");
  const bool has_rows = logits != nullptr && !logits->shape.empty();
  ReadDraft(inputs, has_rows ? static_cast<size_t>(logits->shape.back()) : 0, text.draft);
  const std::vector<float> bias = inputs.Floats("embedding_bias");
  for (size_t i = 0; i < bias.size(); ++i) {
    if (bias[i] != 0.0f) text.logit_bias.emplace_back(static_cast<int64_t>(i), bias[i]);
  }
  return {};
}

Status ReadTextInputs(ModelKind kind, const GenerationDefaultsOfModel& defaults,
                      InputReader& inputs, TextRequest& text) {
  text.names = {.prompt = "text_input",
                .num_choices = "num_return_sequences",
                .stop = "stop_words",
                .logit_bias = "embedding_bias_words"};
  text.text = inputs.String("text_input");
  text.add_special_tokens = defaults.add_special_tokens;
  text.skip_special_tokens = defaults.skip_special_tokens;
  text.max_tokens = inputs.Int("max_tokens");
  text.stop = inputs.Words("stop_words");
  text.bad_words = inputs.Words("bad_words");
  const std::vector<std::string> words = inputs.Strings("embedding_bias_words");
  const std::vector<float> weights = inputs.Floats("embedding_bias_weights");
  if (words.size() != weights.size()) {
    return FieldError("embedding_bias_weights", "must have as many values as embedding_bias_words");
  }
  for (size_t i = 0; i < words.size(); ++i) text.word_bias.emplace_back(words[i], weights[i]);
  if (kind != ModelKind::kBls) return {};
  text.max_draft_tokens = inputs.Int("num_draft_tokens");
  // Both rules of acceptance draw from the target's own distribution: which one the engine applies
  // is its option, and the answers have the same law.
  inputs.Has("use_draft_logits");
  return {};
}

// TensorRT-LLM's names of grammars, then ours.
struct GuideType {
  std::string_view name;
  GrammarKind kind;
};
constexpr GuideType kGuideTypes[] = {
    {"json", GrammarKind::kJsonObject},        {"json_object", GrammarKind::kJsonObject},
    {"json_schema", GrammarKind::kJsonSchema}, {"regex", GrammarKind::kRegex},
    {"ebnf_grammar", GrammarKind::kLark},      {"lark_grammar", GrammarKind::kLark},
    {"choice", GrammarKind::kChoice},          {"llguidance", GrammarKind::kGuidance}};

Status ReadGuide(InputReader& inputs, TextRequest& text) {
  const std::string type = inputs.String("guided_decoding_guide_type").value_or("");
  std::string guide = inputs.String("guided_decoding_guide").value_or("");
  if (type.empty()) {
    if (guide.empty()) return {};
    return FieldError("guided_decoding_guide", "needs guided_decoding_guide_type");
  }
  const auto* const found = std::ranges::find(kGuideTypes, type, &GuideType::name);
  if (found == std::end(kGuideTypes)) {
    return FieldError("guided_decoding_guide_type",
                      "must be one of json, json_object, json_schema, regex, ebnf_grammar, "
                      "lark_grammar, choice, llguidance");
  }
  if (found->kind != GrammarKind::kJsonObject && guide.empty()) {
    return FieldError("guided_decoding_guide", fmt::format("is required for {}", type));
  }
  text.grammar = std::make_shared<const OutputGrammar>(OutputGrammar{
      .kind = found->kind, .text = std::move(guide), .field = "guided_decoding_guide"});
  return {};
}

// Members of a request's parameters that mean something here; Triton gives the others no meaning
// either.
Status ReadParameters(const Parameters& parameters, TextRequest& text) {
  constexpr int64_t kMaxMicros = int64_t{86400} * 1'000'000;
  const auto integer = [&](std::string_view name) -> Result<std::optional<int64_t>> {
    const auto found = parameters.find(name);
    if (found == parameters.end()) return std::optional<int64_t>();
    if (const auto* value = std::get_if<int64_t>(&found->second)) return std::optional(*value);
    if (const auto* value = std::get_if<uint64_t>(&found->second)) {
      return std::optional(static_cast<int64_t>(std::min<uint64_t>(*value, INT64_MAX)));
    }
    return FieldError(name, "must be an integer");
  };
  TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> timeout, integer("timeout"));
  if (timeout && *timeout > 0) {
    text.timeout = std::chrono::microseconds(std::min(*timeout, kMaxMicros));
  }
  // Levels count from 1, the highest; 0 is the default.
  TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> level, integer("priority"));
  if (level && *level < 0) return FieldError("priority", "must be at least 0");
  if (level && *level > 0) text.priority = 1.0 / static_cast<double>(*level);
  if (const auto type = parameters.find("request_type"); type != parameters.end()) {
    const auto* name = std::get_if<std::string>(&type->second);
    if (name == nullptr || *name != "context_and_generation") {
      return Unimplemented("request_type: only context_and_generation is supported by this server")
          .WithField("request_type");
    }
  }
  return {};
}

// What decides the number and the contents of responses is one for all entries of a request.
Status CheckCommonInputs(const InferRequest& request) {
  for (const Tensor& tensor : request.inputs) {
    const bool is_common = tensor.name == "num_return_sequences" || tensor.name == "stream" ||
                           tensor.name == "streaming" || tensor.name == "stop" ||
                           tensor.name == "exclude_input_in_output" ||
                           tensor.name.starts_with("return_");
    if (!is_common || tensor.data.empty()) continue;
    const size_t bytes = ElementBytes(tensor.type);
    for (size_t at = bytes; at < tensor.data.size(); at += bytes) {
      if (tensor.data.compare(at, bytes, tensor.data, 0, bytes) == 0) continue;
      return FieldError(tensor.name, "must be the same for every prompt of a request");
    }
  }
  return {};
}

Result<TextRequest> ReadEntry(ModelKind kind, const InferRequest& request, int64_t batch,
                              int64_t entry, const GenerationDefaultsOfModel& defaults,
                              GenerationRequest& asked) {
  InputReader inputs(request, batch, entry);
  TextRequest text;
  TANDEM_RETURN_IF_ERROR(ReadBeams(inputs));
  TANDEM_RETURN_IF_ERROR(kind == ModelKind::kTensorrtLlm
                             ? ReadTokenInputs(request, inputs, text)
                             : ReadTextInputs(kind, defaults, inputs, text));
  ReadSampling(kind, inputs, text);
  TANDEM_RETURN_IF_ERROR(ReadParameters(request.parameters, text));
  TANDEM_RETURN_IF_ERROR(ReadGuide(inputs, text));
  text.end_id = inputs.Int("end_id");
  text.num_choices = inputs.Int(text.names.num_choices).value_or(1);
  text.cache_key = request.caller;
  inputs.Has("pad_id");  // rows of answers are padded with -1, and rows of prompts by the client

  asked.exclude_input = inputs.Bool("exclude_input_in_output", defaults.exclude_input);
  asked.return_log_probs = inputs.Bool("return_log_probs");
  asked.return_cache_stats = inputs.Bool("return_kv_cache_reuse_stats");
  asked.return_perf_metrics = inputs.Bool("return_perf_metrics");
  asked.return_num_input_tokens = inputs.Bool("return_num_input_tokens");
  asked.return_num_output_tokens = inputs.Bool("return_num_output_tokens");
  asked.is_streamed = inputs.Bool(kind == ModelKind::kTensorrtLlm ? "streaming" : "stream");
  asked.stop = inputs.Bool("stop");
  text.num_top_logprobs = asked.return_log_probs ? 0 : -1;
  text.continues_prompt = !asked.exclude_input;
  text.return_context_logits = inputs.Bool("return_context_logits");
  text.return_generation_logits = inputs.Bool("return_generation_logits");
  TANDEM_RETURN_IF_ERROR(inputs.CheckAllRead());
  return text;
}

}  // namespace

Result<GenerationRequest> ReadGeneration(ModelKind kind, const InferRequest& request, int64_t batch,
                                         const GenerationDefaultsOfModel& defaults) {
  GenerationRequest asked;
  if (InputReader inputs(request, batch, 0); inputs.Bool("stop")) {
    if (request.id.empty()) {
      return InvalidArgument(
                 "stop: the request to stop is the one with the same id, and this one "
                 "has no id")
          .WithField("stop");
    }
    asked.stop = true;
    return asked;
  }
  TANDEM_RETURN_IF_ERROR(CheckCommonInputs(request));
  for (int64_t entry = 0; entry < batch; ++entry) {
    TANDEM_ASSIGN_OR_RETURN(TextRequest text,
                            ReadEntry(kind, request, batch, entry, defaults, asked));
    asked.prompts.push_back(std::move(text));
  }
  return asked;
}

Status NamingInputs(ModelKind kind, const FieldNames& names, const Status& error) {
  const std::string& field = error.field();
  using Names = std::pair<std::string_view, std::string_view>;  // theirs, and the model's
  const Names inputs[] = {{"prompt", names.prompt},
                          {"max_tokens", names.max_tokens},
                          {"min_tokens", names.min_tokens},
                          {"n", names.num_choices},
                          {"stop", names.stop},
                          {"logit_bias", names.logit_bias},
                          {"end_ids", "end_id"},
                          {"draft", "draft_input_ids"},
                          {"draft.logits", "draft_logits"},
                          {"draft.threshold", "draft_acceptance_threshold"}};
  const auto* const found = std::ranges::find(inputs, field, &Names::first);
  std::string input = found == std::end(inputs) ? field : std::string(found->second);
  if (kind == ModelKind::kTensorrtLlm && field == "bad_words") input = "bad_words_list";
  if (kind == ModelKind::kTensorrtLlm && found == std::end(inputs) &&
      std::ranges::count(kSamplingParameters, field, &SamplingParameter::name) > 0) {
    input = TokenInputOf(field);
  }
  if (input == field) return error;
  std::string message = error.message();
  if (message.starts_with(field)) message.replace(0, field.size(), input);
  return Status(error.code(), std::move(message)).WithField(input).WithReason(error.reason());
}

}  // namespace tandem::serve::kserve
