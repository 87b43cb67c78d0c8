#include "serve/openai/tokenizer/requests.h"

#include <fmt/format.h>

#include <utility>

#include "serve/field_reader.h"
#include "serve/json.h"
#include "serve/openai/completions/response.h"
#include "serve/openai/request/prompts.h"
#include "serve/openai/request/request.h"
#include "serve/request_builder.h"

namespace tandem::serve::openai {
namespace {

// The text of tokens, with the names of special ones.
std::string TextOf(std::span<const int32_t> tokens, const TextCodec& codec) {
  const auto decoder = codec.NewDecoder({}, /*skip_special=*/false);
  std::string text;
  for (const int32_t token : tokens) text += decoder->Push(token);
  return text + decoder->Flush();
}

Result<std::vector<int32_t>> TokensOf(const TextRequest& text, const TextCodec& codec,
                                      const RequestLimits& limits, const EngineLimits& engine) {
  if (text.messages) return PromptTokens(text, codec, limits, engine);
  if (text.text->empty() && !text.add_special_tokens) return std::vector<int32_t>();
  // However long: whoever counts tokens wants to know by how many a text is too long.
  Result<std::vector<int32_t>> tokens = codec.Encode(*text.text, text.add_special_tokens);
  if (!tokens.ok() && tokens.status().code() == Code::kInvalidArgument) {
    return FieldError("prompt", tokens.status().message());
  }
  return tokens;
}

}  // namespace

Result<TokenizeCall> ParseTokenize(std::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  FieldReader fields(json);
  TokenizeCall call;
  call.model = fields.String("model").value_or("");
  call.return_token_strs = fields.Boolean("return_token_strs").value_or(false);
  const bool is_chat = fields.Get("messages") != nullptr;
  const bool adds = fields.Boolean("add_special_tokens").value_or(!is_chat);
  const std::optional<std::string> prompt = fields.String("prompt");
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (is_chat && prompt) return FieldError("prompt", "cannot stand beside messages");
  if (is_chat) {
    TANDEM_ASSIGN_OR_RETURN(Call chat, ParseCall(Endpoint::kChat, body));
    call.text = std::move(chat.prompts.front());
    return call;
  }
  if (!prompt) return FieldError("prompt", "is required, unless there are messages");
  call.text.text = *prompt;
  call.text.add_special_tokens = adds;
  return call;
}

Result<std::string> Tokenize(const TokenizeCall& call, const TextCodec& codec,
                             const RequestLimits& limits, const EngineLimits& engine) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                          TokensOf(call.text, codec, limits, engine));
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("count").Int(static_cast<int64_t>(tokens.size()));
  writer.Key("max_model_len").Int(engine.max_seq_len).Key("tokens").BeginArray();
  for (const int32_t token : tokens) writer.Int(token);
  writer.EndArray().Key("token_strs");
  if (call.return_token_strs) {
    writer.BeginArray();
    for (const int32_t token : tokens) writer.String(TokenName(codec, token));
    writer.EndArray();
  } else {
    writer.Null();
  }
  writer.EndObject();
  return out;
}

Result<DetokenizeCall> ParseDetokenize(std::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  FieldReader fields(json);
  DetokenizeCall call;
  call.model = fields.String("model").value_or("");
  TANDEM_RETURN_IF_ERROR(fields.status());
  const Json* tokens = fields.Get("tokens");
  if (tokens == nullptr) return FieldError("tokens", "is required");
  if (tokens->AsArray() == nullptr || !ReadTokenIds(*tokens->AsArray(), call.tokens)) {
    return FieldError("tokens", "must be an array of token ids");
  }
  return call;
}

Result<std::string> Detokenize(const DetokenizeCall& call, const TextCodec& codec) {
  TANDEM_RETURN_IF_ERROR(CheckTokens("tokens", call.tokens, codec));
  std::string out;
  JsonWriter(out).BeginObject().Key("prompt").String(TextOf(call.tokens, codec)).EndObject();
  return out;
}

std::string DescribeTokenizer(const TextCodec& codec, const EngineLimits& engine) {
  std::string out;
  JsonWriter writer(out);
  const auto write = [&](std::string_view name, std::optional<int32_t> token) {
    writer.Key(name);
    token ? writer.String(TextOf(std::span(&*token, 1), codec)) : writer.Null();
  };
  const std::vector<int32_t> ends = codec.end_ids();
  writer.BeginObject();
  write("bos_token", codec.bos_id());
  write("eos_token", ends.empty() ? std::nullopt : std::optional(ends.front()));
  write("pad_token", codec.pad_id());
  writer.Key("vocab_size").Int(codec.vocab_size());
  writer.Key("model_max_length").Int(engine.max_seq_len);
  writer.Key("chat_template");
  const std::string_view chat_template = codec.ChatSource(/*has_tools=*/false);
  chat_template.empty() ? writer.Null() : writer.String(chat_template);
  writer.EndObject();
  return out;
}

}  // namespace tandem::serve::openai
