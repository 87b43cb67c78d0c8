#include "serve/openai/responses/object.h"

#include "serve/http/router.h"

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kDefaultText = R"({"format":{"type":"text"}})";

// Members of the request that come back as they were sent, and what they are without it: JSON.
struct Echoed {
  std::string_view name;
  std::string_view otherwise;
};
constexpr Echoed kEchoed[] = {
    {"instructions", "null"},
    {"max_output_tokens", "null"},
    {"metadata", "{}"},
    {"reasoning", R"({"effort":null,"summary":null})"},
    {"temperature", "null"},
    {"text", kDefaultText},
    {"tool_choice", "\"auto\""},
    {"tools", "[]"},
    {"top_logprobs", "0"},
    {"top_p", "null"},
    {"truncation", "\"disabled\""},
    {"user", "null"},
    {"parallel_tool_calls", "true"},
    {"service_tier", "\"default\""},
};

void WriteUsage(const ResponsesState& state, JsonWriter& writer) {
  const CallUsage& usage = state.usage;
  writer.BeginObject().Key("input_tokens").Int(usage.prompt_tokens);
  writer.Key("input_tokens_details").BeginObject();
  writer.Key("cached_tokens").Int(usage.cached_tokens).Key("cache_write_tokens").Int(0);
  writer.EndObject().Key("output_tokens").Int(usage.completion_tokens);
  writer.Key("output_tokens_details").BeginObject();
  writer.Key("reasoning_tokens").Int(state.reasoning_tokens).EndObject();
  writer.Key("total_tokens").Int(usage.prompt_tokens + usage.completion_tokens).EndObject();
}

}  // namespace

std::string_view ResponseStatusName(ResponseStatus status) {
  switch (status) {
    case ResponseStatus::kInProgress:
      return "in_progress";
    case ResponseStatus::kCompleted:
      return "completed";
    case ResponseStatus::kIncomplete:
      return "incomplete";
    case ResponseStatus::kFailed:
      return "failed";
  }
  return "";
}

void WriteErrorMembers(const Status& error, JsonWriter& writer) {
  const int status = HttpStatusOf(error.code());
  std::string_view code = "invalid_prompt";
  if (status == 429) code = "rate_limit_exceeded";
  if (status >= 500) code = "server_error";
  writer.Key("code").String(code).Key("message").String(error.message());
}

void WriteResponseObject(const ResponsesHeader& header, const ResponsesState& state,
                         const ResponsesAnswer& answer, JsonWriter& writer) {
  writer.BeginObject().Key("id").String(header.id).Key("object").String("response");
  writer.Key("created_at").Int(header.created);
  writer.Key("status").String(ResponseStatusName(state.status)).Key("background").Bool(false);
  writer.Key("error");
  if (state.status == ResponseStatus::kFailed) {
    writer.BeginObject();
    WriteErrorMembers(state.error, writer);
    writer.EndObject();
  } else {
    writer.Null();
  }
  writer.Key("incomplete_details");
  if (state.status == ResponseStatus::kIncomplete) {
    writer.BeginObject().Key("reason").String("max_output_tokens").EndObject();
  } else {
    writer.Null();
  }
  writer.Key("model").String(header.model).Key("output");
  answer.WriteItems(writer);
  writer.Key("previous_response_id").Null().Key("store").Bool(false);
  for (const Echoed& member : kEchoed) {
    const Json* value = header.body.Find(member.name);
    const bool is_given = value != nullptr && !value->is_null();
    writer.Key(member.name).Value(is_given ? *value : *ParseJson(member.otherwise));
  }
  writer.Key("usage");
  const bool has_ended =
      state.status == ResponseStatus::kCompleted || state.status == ResponseStatus::kIncomplete;
  has_ended ? WriteUsage(state, writer) : void(writer.Null());
  writer.EndObject();
}

}  // namespace tandem::serve::openai
