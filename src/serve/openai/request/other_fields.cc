#include "serve/openai/request/other_fields.h"

#include <fmt/format.h>

#include <string_view>

namespace tandem::serve::openai {
namespace {

enum class Accepts : uint8_t {
  kAnything,  // no value of it can change an answer
  kFalse,     // a boolean, refused when it is true
  kNothing,   // refused unless it is null, false or empty
};

struct OtherField {
  std::string_view name;
  Accepts accepts = Accepts::kAnything;
  std::string_view refusal = {};
};

constexpr std::string_view kUnsupported = "is not supported by this server";

constexpr OtherField kOtherFields[] = {
    // Who asks, and how the provider accounts for it, caches or hurries.
    {"user"},
    {"metadata"},
    {"request_id"},
    {"safety_identifier"},
    {"service_tier"},
    {"prompt_cache_key"},
    {"prompt_cache_retention"},
    {"prediction"},
    {"store", Accepts::kFalse, "true is not supported: this server stores no answers"},
    // Without effect unless there is beam search.
    {"use_beam_search", Accepts::kFalse, "true is not supported: there is no beam search"},
    {"length_penalty"},
    {"early_stopping"},
    // Other servers' words for what this one always does.
    {"spaces_between_special_tokens"},
    {"detokenize"},
    // What would have to change the answer.
    {"suffix", Accepts::kNothing,
     "is not supported: this server continues a prompt and fills no gap; put what the model should "
     "read into prompt, with the model's own fill-in-the-middle tokens if it has them"},
    {"audio", Accepts::kNothing, kUnsupported},
    {"web_search_options", Accepts::kNothing, kUnsupported},
    {"allowed_token_ids", Accepts::kNothing, kUnsupported},
    {"truncate_prompt_tokens", Accepts::kNothing, kUnsupported},
    {"logits_processors", Accepts::kNothing, kUnsupported},
    {"prompt_embeds", Accepts::kNothing, kUnsupported},
    {"include_stop_str_in_output", Accepts::kFalse, kUnsupported},
    {"return_tokens_as_token_ids", Accepts::kFalse, kUnsupported},
    {"return_token_ids", Accepts::kFalse, kUnsupported},
};

bool IsNothing(const Json& value) {
  if (const bool* boolean = value.AsBool()) return !*boolean;
  if (const std::string* text = value.AsString()) return text->empty();
  if (const Json::Array* list = value.AsArray()) return list->empty();
  if (const Json::Object* object = value.AsObject()) return object->empty();
  return false;
}

// Of what an answer may consist: text alone.
void CheckModalities(FieldReader& fields) {
  const Json* value = fields.Get("modalities");
  if (value == nullptr) return;
  const Json::Array* list = value->AsArray();
  const bool is_text = list != nullptr && list->size() == 1 &&
                       list->front().AsString() != nullptr && *list->front().AsString() == "text";
  if (!is_text) fields.Fail("modalities", R"(only ["text"] is supported by this server)");
}

}  // namespace

void CheckOtherFields(FieldReader& fields) {
  for (const OtherField& field : kOtherFields) {
    switch (field.accepts) {
      case Accepts::kAnything:
        fields.Get(field.name);
        break;
      case Accepts::kFalse:
        if (fields.Boolean(field.name).value_or(false)) fields.Fail(field.name, field.refusal);
        break;
      case Accepts::kNothing:
        if (const Json* value = fields.Get(field.name); value != nullptr && !IsNothing(*value)) {
          fields.Fail(field.name, field.refusal);
        }
        break;
    }
  }
  CheckModalities(fields);
}

}  // namespace tandem::serve::openai
