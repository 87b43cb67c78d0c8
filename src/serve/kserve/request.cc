#include "serve/kserve/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "serve/json.h"

namespace tandem::serve::kserve {
namespace {

constexpr TensorInfo kInputs[] = {
    {.name = "text_input", .type = DataType::kString, .is_required = true},
    {.name = "decoder_text_input", .type = DataType::kString},
    {.name = "image_input", .type = DataType::kFp16, .is_list = true, .bls_only = true},
    {.name = "image_bytes_input", .type = DataType::kUint8, .is_list = true, .bls_only = true},
    {.name = "video_bytes_input", .type = DataType::kUint8, .is_list = true, .bls_only = true},
    {.name = "image_url_input", .type = DataType::kString, .is_list = true, .bls_only = true},
    {.name = "max_tokens", .type = DataType::kInt32, .is_required = true},
    {.name = "bad_words", .type = DataType::kString, .is_list = true},
    {.name = "stop_words", .type = DataType::kString, .is_list = true},
    {.name = "exclude_input_in_output", .type = DataType::kBool},
    {.name = "end_id", .type = DataType::kInt32},
    {.name = "pad_id", .type = DataType::kInt32},
    {.name = "top_k", .type = DataType::kInt32},
    {.name = "top_p", .type = DataType::kFp32},
    {.name = "temperature", .type = DataType::kFp32},
    {.name = "length_penalty", .type = DataType::kFp32},
    {.name = "repetition_penalty", .type = DataType::kFp32},
    {.name = "min_length", .type = DataType::kInt32},
    {.name = "min_tokens", .type = DataType::kInt32},
    {.name = "presence_penalty", .type = DataType::kFp32},
    {.name = "frequency_penalty", .type = DataType::kFp32},
    {.name = "random_seed", .type = DataType::kUint64},
    {.name = "seed", .type = DataType::kUint64},
    {.name = "return_log_probs", .type = DataType::kBool},
    {.name = "return_context_logits", .type = DataType::kBool},
    {.name = "return_generation_logits", .type = DataType::kBool},
    {.name = "return_kv_cache_reuse_stats", .type = DataType::kBool},
    {.name = "return_perf_metrics", .type = DataType::kBool},
    {.name = "return_num_input_tokens", .type = DataType::kBool},
    {.name = "return_num_output_tokens", .type = DataType::kBool},
    {.name = "beam_width", .type = DataType::kInt32},
    {.name = "num_return_sequences", .type = DataType::kInt32},
    {.name = "stream", .type = DataType::kBool},
    {.name = "prompt_embedding_table", .type = DataType::kFp16, .is_list = true},
    {.name = "prompt_table_extra_id", .type = DataType::kUint64},
    {.name = "prompt_vocab_size", .type = DataType::kInt32},
    {.name = "embedding_bias_words", .type = DataType::kString, .is_list = true},
    {.name = "embedding_bias_weights", .type = DataType::kFp32, .is_list = true},
    {.name = "num_draft_tokens", .type = DataType::kInt32, .bls_only = true},
    {.name = "use_draft_logits", .type = DataType::kBool, .bls_only = true},
    {.name = "lora_task_id", .type = DataType::kUint64},
    {.name = "lora_weights", .type = DataType::kFp16, .is_list = true},
    {.name = "lora_config", .type = DataType::kInt32, .is_list = true},
    {.name = "guided_decoding_guide_type", .type = DataType::kString},
    {.name = "guided_decoding_guide", .type = DataType::kString},
};

constexpr TensorInfo kOutputs[] = {
    {.name = "text_output", .type = DataType::kString, .is_list = true},
    {.name = "cum_log_probs", .type = DataType::kFp32, .is_list = true},
    {.name = "output_log_probs", .type = DataType::kFp32, .is_list = true},
};

// An input made from a member's JSON value: elements of the input's type.
struct Tensor {
  const TensorInfo* info = nullptr;
  std::vector<const Json*> elements;  // checked
};

bool HasInput(const Model& model, const TensorInfo& info) {
  return !info.bls_only || model.role == ModelRole::kBls;
}

const TensorInfo* FindInput(const Model& model, std::string_view name) {
  for (const TensorInfo& info : kInputs) {
    if (info.name == name && HasInput(model, info)) return &info;
  }
  return nullptr;
}

Status CheckElement(const TensorInfo& info, const Json& value) {
  const auto wrong = [&](std::string_view is_not, std::string_view wanted) {
    return InvalidArgument(fmt::format("unable to parse '{}': attempt to access JSON {} as {}",
                                       info.name, is_not, wanted))
        .WithField(info.name);
  };
  switch (info.type) {
    case DataType::kString:
      if (value.AsString() == nullptr) return wrong("non-string", "string");
      return {};
    case DataType::kBool:
      if (value.AsBool() == nullptr) return wrong("non-boolean", "boolean");
      return {};
    case DataType::kFp32:
      if (!value.is_number()) return wrong("non-number", "double");
      return {};
    case DataType::kInt32:
      if (value.AsInt() == nullptr) return wrong("non-signed-integer", "signed-integer");
      if (*value.AsInt() < std::numeric_limits<int32_t>::min() ||
          *value.AsInt() > std::numeric_limits<int32_t>::max()) {
        return InvalidArgument(
                   fmt::format("unable to parse '{}': the value does not fit INT32", info.name))
            .WithField(info.name);
      }
      return {};
    case DataType::kUint64:
      if (value.AsUint() == nullptr && (value.AsInt() == nullptr || *value.AsInt() < 0)) {
        return wrong("non-unsigned-integer", "unsigned-integer");
      }
      return {};
    case DataType::kFp16:
    case DataType::kUint8:
      return InvalidArgument(fmt::format("input '{}': {} data cannot be given as JSON", info.name,
                                         DataTypeName(info.type)))
          .WithField(info.name);
  }
  return {};
}

class BodyReader {
 public:
  explicit BodyReader(const Model& model) : model_(model) {}

  Status Read(const Json& body) {
    for (const JsonMember& member : *body.AsObject()) {
      if (member.name == "id") {
        if (member.value.AsString() == nullptr) {
          return InvalidArgument(
                     "unable to parse 'id': attempt to access JSON non-string as string")
              .WithField("id");
        }
        id = *member.value.AsString();
      } else if (member.name == "parameters") {
        if (member.value.AsObject() == nullptr) {
          return InvalidArgument("Expected 'parameters' to be an object").WithField("parameters");
        }
        for (const JsonMember& inner : *member.value.AsObject()) {
          TANDEM_RETURN_IF_ERROR(ReadMember(inner));
        }
      } else {
        TANDEM_RETURN_IF_ERROR(ReadMember(member));
      }
    }
    return CheckRequired();
  }

  // The input's only element; null if it was not given or has no elements.
  const Json* One(std::string_view name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() || it->second.elements.empty() ? nullptr
                                                               : it->second.elements.front();
  }
  std::vector<const Json*> All(std::string_view name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? std::vector<const Json*>() : it->second.elements;
  }
  const Json* Parameter(std::string_view name) const {
    const auto it = parameters_.find(name);
    return it == parameters_.end() ? nullptr : it->second;
  }

  std::string id;

 private:
  Status ReadMember(const JsonMember& member) {
    const TensorInfo* info = FindInput(model_, member.name);
    if (info != nullptr) return ReadInput(*info, member.value);
    const Json& value = member.value;
    if (value.AsString() == nullptr && value.AsBool() == nullptr && !value.is_number()) {
      return InvalidArgument(
                 fmt::format("parameter '{}' has invalid type. It should be either 'int', "
                             "'bool', or 'string'.",
                             member.name))
          .WithField(member.name);
    }
    if (member.name.starts_with("triton_")) {
      return InvalidArgument(fmt::format("parameter keys starting with 'triton_' are reserved for "
                                         "internal use: '{}'",
                                         member.name))
          .WithField(member.name);
    }
    parameters_[member.name] = &value;
    return {};
  }

  Status ReadInput(const TensorInfo& info, const Json& value) {
    if (tensors_.contains(info.name)) {
      return InvalidArgument(fmt::format("input '{}' already exists in request", info.name))
          .WithField(info.name);
    }
    Tensor tensor{&info, {}};
    if (const Json::Array* list = value.AsArray()) {
      for (const Json& item : *list) tensor.elements.push_back(&item);
    } else {
      tensor.elements.push_back(&value);
    }
    for (const Json* element : tensor.elements) {
      if (element->AsArray() != nullptr) return WrongShape(info);
      TANDEM_RETURN_IF_ERROR(CheckElement(info, *element));
    }
    if (!info.is_list && tensor.elements.size() > 1) return WrongShape(info);
    tensors_.emplace(info.name, std::move(tensor));
    return {};
  }

  Status WrongShape(const TensorInfo& info) const {
    return InvalidArgument(
               fmt::format("unexpected shape for input '{}' for model '{}'. Expected [{}]",
                           info.name, model_.name, info.is_list ? "1,-1" : "1,1"))
        .WithField(info.name);
  }

  Status CheckRequired() const {
    std::string missing;
    for (const TensorInfo& info : kInputs) {
      if (!info.is_required || One(info.name) != nullptr) continue;
      missing += fmt::format("{}'{}'", missing.empty() ? "" : ",", info.name);
    }
    if (missing.empty()) return {};
    std::string got;
    for (const auto& [name, tensor] : tensors_) {
      got += fmt::format("{}'{}'", got.empty() ? "" : ",", name);
    }
    const auto most =
        std::count_if(std::begin(kInputs), std::end(kInputs),
                      [this](const TensorInfo& info) { return HasInput(model_, info); });
    return InvalidArgument(fmt::format(
        "expected number of inputs between 2 and {} but got {} inputs for model '{}'. Got "
        "input(s) [{}], but missing required input(s) [{}]. Please provide all required "
        "input(s).",
        most, tensors_.size(), model_.name, got, missing));
  }

  const Model& model_;
  std::map<std::string_view, Tensor, std::less<>> tensors_;
  std::map<std::string_view, const Json*, std::less<>> parameters_;
};

std::optional<int64_t> Int(const BodyReader& body, std::string_view name) {
  const Json* value = body.One(name);
  return value == nullptr ? std::nullopt : std::optional(*value->AsInt());
}
std::optional<double> Float(const BodyReader& body, std::string_view name) {
  const Json* value = body.One(name);
  return value == nullptr ? std::nullopt : value->Number();
}
void Read(const BodyReader& body, std::string_view name, std::optional<double>& out) {
  out = Float(body, name);
}
void Read(const BodyReader& body, std::string_view name, std::optional<int64_t>& out) {
  out = Int(body, name);
}
std::optional<uint64_t> Unsigned(const BodyReader& body, std::string_view name) {
  const Json* value = body.One(name);
  if (value == nullptr) return std::nullopt;
  return value->AsUint() != nullptr ? *value->AsUint() : static_cast<uint64_t>(*value->AsInt());
}
bool Bool(const BodyReader& body, std::string_view name, bool otherwise) {
  const Json* value = body.One(name);
  return value == nullptr ? otherwise : *value->AsBool();
}
std::vector<std::string> Words(const BodyReader& body, std::string_view name) {
  std::vector<std::string> words;
  for (const Json* word : body.All(name)) {
    if (!word->AsString()->empty()) words.push_back(*word->AsString());
  }
  return words;
}

// Inputs of the full model that this server does not support: accepted while they request nothing.
Status RefuseUnsupported(const BodyReader& body) {
  for (const std::string_view name : {"return_context_logits", "return_generation_logits"}) {
    if (Bool(body, name, false)) {
      return FieldError(name, "true is not supported by this server");
    }
  }
  if (Int(body, "beam_width").value_or(1) != 1) {
    return FieldError("beam_width", "only 1 is supported by this server");
  }
  for (const std::string_view name :
       {"decoder_text_input", "image_url_input", "prompt_table_extra_id", "lora_task_id",
        "lora_config", "guided_decoding_guide", "guided_decoding_guide_type"}) {
    const Json* value = body.One(name);
    if (value == nullptr || (value->AsString() != nullptr && value->AsString()->empty())) continue;
    return FieldError(name, "is not supported by this server");
  }
  return {};
}

Status ReadBias(const BodyReader& body, TextRequest& text) {
  const std::vector<const Json*> words = body.All("embedding_bias_words");
  const std::vector<const Json*> weights = body.All("embedding_bias_weights");
  if (words.size() != weights.size()) {
    return FieldError("embedding_bias_weights", "must have as many values as embedding_bias_words");
  }
  for (size_t i = 0; i < words.size(); ++i) {
    text.word_bias.emplace_back(*words[i]->AsString(), *weights[i]->Number());
  }
  return {};
}

// Only names in kInputs are inputs: the rest of the table stays empty.
void ReadSampling(const BodyReader& body, TextRequest& text) {
  text.defaults = SamplingDefaults::kGreedy;
  ForEachSamplingParameter([&](const SamplingParameter& parameter, const auto& members) {
    Read(body, parameter.name, text.sampling.*members.given);
  });
  if (!text.sampling.min_tokens) {
    text.names.min_tokens = "min_length";
    text.sampling.min_tokens = Int(body, text.names.min_tokens);
  }
  const std::optional<uint64_t> seed = Unsigned(body, "seed");
  text.seed = seed ? seed : Unsigned(body, "random_seed");
}

}  // namespace

std::string_view DataTypeName(DataType type) {
  switch (type) {
    case DataType::kString:
      return "BYTES";
    case DataType::kInt32:
      return "INT32";
    case DataType::kUint64:
      return "UINT64";
    case DataType::kFp32:
      return "FP32";
    case DataType::kBool:
      return "BOOL";
    case DataType::kFp16:
      return "FP16";
    case DataType::kUint8:
      return "UINT8";
  }
  return "";
}

std::span<const TensorInfo> Inputs() { return kInputs; }
std::span<const TensorInfo> Outputs() { return kOutputs; }

Result<Call> ParseGenerate(const Model& model, std::string_view body_text) {
  JsonLimits limits;
  limits.allow_duplicates = true;  // checked by the rule, with its own message
  Result<Json> json = ParseJson(body_text.empty() ? "{}" : body_text, limits);
  if (!json.ok()) return json.status().Annotate("failed to parse the request JSON buffer");
  if (json->AsObject() == nullptr) {
    return InvalidArgument("failed to parse the request JSON buffer: the body must be an object");
  }
  BodyReader body(model);
  TANDEM_RETURN_IF_ERROR(body.Read(*json));
  TANDEM_RETURN_IF_ERROR(RefuseUnsupported(body));
  Call call;
  call.id = body.id;
  call.return_log_probs = Bool(body, "return_log_probs", false);
  call.echo_prompt = !Bool(body, "exclude_input_in_output", true);
  call.stream_tokens = Bool(body, "stream", true);
  TextRequest& text = call.text;
  text.names = {.prompt = "text_input",
                .num_choices = "num_return_sequences",
                .stop = "stop_words",
                .logit_bias = "embedding_bias_words"};
  text.text = *body.One(text.names.prompt)->AsString();
  text.max_tokens = Int(body, text.names.max_tokens);
  text.stop = Words(body, text.names.stop);
  text.bad_words = Words(body, "bad_words");
  text.end_id = Int(body, "end_id");
  text.num_choices = Int(body, text.names.num_choices).value_or(1);
  text.num_top_logprobs = call.return_log_probs ? 0 : -1;
  text.use_draft = Int(body, "num_draft_tokens").value_or(1) != 0;
  text.continues_prompt = call.echo_prompt;
  ReadSampling(body, text);
  TANDEM_RETURN_IF_ERROR(ReadBias(body, text));
  if (const Json* timeout = body.Parameter("timeout");
      timeout != nullptr && timeout->AsInt() != nullptr && *timeout->AsInt() > 0) {
    constexpr int64_t kMaxMicros = int64_t{86400} * 1'000'000;
    text.timeout = std::chrono::microseconds(std::min(*timeout->AsInt(), kMaxMicros));
  }
  return call;
}

}  // namespace tandem::serve::kserve
