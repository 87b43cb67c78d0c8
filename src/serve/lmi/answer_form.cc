#include "serve/lmi/answer_form.h"

#include <utility>
#include <vector>

namespace tandem::serve::lmi {
namespace {

void WriteTopTokenLists(const AnswerForm& form, const std::vector<TokenPiece>& tokens,
                        const TextCodec& codec, JsonWriter& writer) {
  writer.Key("top_tokens").BeginArray();
  for (const TokenPiece& token : tokens) {
    WriteTopTokens(token, form.call.top_tokens, codec, form.dialect, writer);
  }
  writer.EndArray();
}

void WriteTokenList(const AnswerForm& form, const TextChoice& answer, JsonWriter& writer) {
  writer.Key("tokens").BeginArray();
  for (const TokenPiece& piece : answer.pieces) {
    if (piece.token >= 0) WriteToken(TokenOf(piece), form.dialect, writer);
  }
  if (answer.end) WriteToken(TokenOf(*answer.end, /*is_special=*/true), form.dialect, writer);
  writer.EndArray();
}

}  // namespace

AnswerForm FormOf(InputsCall& call, const Settings& settings, std::vector<TextRequest>& prompts) {
  AnswerForm form;
  prompts = std::move(call.prompts);
  const TextRequest& first = prompts.at(0);
  form.has_stops = !first.stop.empty() || !first.stop_token_ids.empty();
  form.call = std::move(call);
  form.call.prompts.clear();
  form.dialect = {settings.generation, settings.tgi_compat};
  form.settings = &settings;
  return form;
}

bool IsAsynchronous(const Dialect& dialect) {
  return dialect.generation == Generation::k034 && !dialect.tgi_compat;
}

std::string_view ReasonOf(const AnswerForm& form, TextFinish finish,
                          const std::optional<TokenPiece>& end, const TextCodec& codec) {
  if (IsAsynchronous(form.dialect)) return TextFinishName(finish);
  return FinishReasonOf(finish, end ? &*end : nullptr, form.has_stops, codec);
}

std::string_view PrefixOf(const AnswerForm& form, size_t input) {
  return form.call.full_text ? std::string_view(form.call.inputs.at(input)) : std::string_view();
}

void WritePrefill(const AnswerForm& form, const PromptText* prompt, JsonWriter& writer) {
  if (!form.call.prefill || prompt == nullptr) return;
  writer.Key("prefill").BeginArray();
  for (const TokenPiece& piece : prompt->pieces) {
    WriteToken(TokenOf(piece), form.dialect, writer);
  }
  writer.EndArray();
}

std::vector<TokenPiece> TokensOf(const TextChoice& answer) {
  std::vector<TokenPiece> tokens;
  for (const TokenPiece& piece : answer.pieces) {
    if (piece.token >= 0) tokens.push_back(piece);
  }
  if (answer.end) tokens.push_back(*answer.end);
  return tokens;
}

void WriteWholeDetails(const AnswerForm& form, const Detailed& detailed, const TextCodec& codec,
                       JsonWriter& writer) {
  const TextChoice& answer = detailed.answer;
  const std::vector<TokenPiece> tokens = TokensOf(answer);
  const auto count = static_cast<int64_t>(tokens.size());
  writer.Key("finish_reason").String(ReasonOf(form, answer.finish, answer.end, codec));
  if (IsAsynchronous(form.dialect)) {
    writer.Key("generated_tokens").Int(count);
    writer.Key("seed").Int(static_cast<int64_t>(detailed.usage.seed));
  } else if (form.dialect.generation == Generation::k026 && !form.dialect.tgi_compat) {
    WriteTokenList(form, answer, writer);
  } else {
    writer.Key("generated_tokens").Int(count);
    writer.Key("inputs").String(form.call.inputs.at(detailed.input));
    WriteTokenList(form, answer, writer);
  }
  WritePrefill(form, answer.prompt.get(), writer);
  if (form.call.top_tokens > 0) WriteTopTokenLists(form, tokens, codec, writer);
}

}  // namespace tandem::serve::lmi
