#include "serve/openai/request/llgtrt_fields.h"

#include <string>
#include <utility>

namespace tandem::serve::openai {
namespace {

void CheckLora(FieldReader& fields) {
  if (fields.String("lora_model")) {
    fields.Fail("lora_model", "is not supported by this server: it has no adapters");
  }
  const std::optional<std::string> load = fields.String("load_lora_weights");
  if (!load || *load == "auto" || *load == "never") return;
  fields.Fail("load_lora_weights", *load == "always"
                                       ? "is not supported by this server: it has no adapters"
                                       : "must be one of auto, never, always");
}

void CheckLogLevel(FieldReader& fields) {
  const std::optional<std::string> level = fields.String("llg_log_level");
  if (!level || *level == "none" || *level == "warning") return;
  const bool is_known = *level == "json" || *level == "verbose";
  fields.Fail("llg_log_level", is_known ? "only none and warning are supported by this server: "
                                          "what a grammar refuses is told in the error"
                                        : "must be one of none, warning, json, verbose");
}

// Null without one.
const Json* SchemaOf(const Json& body) {
  const Json* format = body.Find("response_format");
  const Json* wrapper = format == nullptr ? nullptr : format->Find("json_schema");
  return wrapper == nullptr ? nullptr : wrapper->Find("schema");
}

}  // namespace

void ReadLlgtrtFields(FieldReader& fields, Call& call, TextRequest& text) {
  CheckLora(fields);
  CheckLogLevel(fields);
  fields.Boolean("include_json_schema_in_prompt");
  call.echo.expanded = fields.Boolean("return_expanded_prompt").value_or(false);
  text.return_prompt = text.return_prompt || call.echo.expanded;
}

Status ShowSchemaInPrompt(const Json& body, TextRequest& text) {
  const Json* include = body.Find("include_json_schema_in_prompt");
  const bool hides = include != nullptr && include->AsBool() != nullptr && !*include->AsBool();
  const Json* schema = hides ? nullptr : SchemaOf(body);
  if (!hides && (schema == nullptr || schema->is_null())) return {};
  const std::string& before = text.chat.variables;
  TANDEM_ASSIGN_OR_RETURN(const Json variables, ParseJson(before.empty() ? "{}" : before));
  Json::Object members = *variables.AsObject();
  if (hides) {
    std::erase_if(members, [](const JsonMember& member) { return member.name == "tools"; });
  } else if (variables.Find("json_schema") == nullptr) {
    members.push_back({"json_schema", *schema});
  }
  text.chat.variables = Json(std::move(members)).Dump();
  return {};
}

}  // namespace tandem::serve::openai
