#include "serve/lmi/tokens.h"

#include <algorithm>
#include <cmath>

namespace tandem::serve::lmi {
namespace {

void WriteLogprob(std::string_view name, float logprob, JsonWriter& writer) {
  writer.Key(name);
  std::isnan(logprob) ? writer.Null() : writer.Float(logprob);
}

// 0.26 leaves out what Python takes for false.
void WriteOldToken(const ShownToken& token, JsonWriter& writer) {
  writer.BeginObject();
  if (token.id != 0) writer.Key("id").Int(token.id);
  if (!token.text.empty()) writer.Key("text").String(token.text);
  const bool has_logprob = !std::isnan(token.logprob) && token.logprob != 0.0f;
  if (has_logprob) writer.Key("log_prob").Float(token.logprob);
  if (token.is_special) writer.Key("special_token").Bool(true);
  writer.EndObject();
}

}  // namespace

ShownToken TokenOf(const TokenPiece& piece, bool is_special) {
  return {piece.token, piece.text, piece.logprob, is_special};
}

void WriteToken(const ShownToken& token, const Dialect& dialect, JsonWriter& writer) {
  if (dialect.tgi_compat) {
    writer.BeginObject().Key("id").Int(token.id).Key("text").String(token.text);
    WriteLogprob("logprob", token.logprob, writer);
    if (token.is_special) writer.Key("special").Bool(true);
    writer.EndObject();
    return;
  }
  if (dialect.generation == Generation::k026) return WriteOldToken(token, writer);
  if (dialect.generation == Generation::k034) {
    writer.BeginObject().Key("id").Null().Key("text").String(token.text);
    writer.Key("logprob").Null().EndObject();
    return;
  }
  writer.BeginObject().Key("id").Int(token.id).Key("text").String(token.text);
  WriteLogprob("log_prob", token.logprob, writer);
  if (token.is_special) writer.Key("special_token").Bool(true);
  if (!token.error.empty()) writer.Key("error_msg").String(token.error);
  writer.EndObject();
}

void WriteTokens(std::span<const TokenPiece> pieces, const Dialect& dialect, JsonWriter& writer) {
  writer.BeginArray();
  for (const TokenPiece& piece : pieces) {
    if (piece.token >= 0) WriteToken(TokenOf(piece), dialect, writer);
  }
  writer.EndArray();
}

void WriteTopTokens(const TokenPiece& piece, int64_t count, const TextCodec& codec,
                    const Dialect& dialect, JsonWriter& writer) {
  writer.BeginArray();
  const size_t most = std::min(static_cast<size_t>(count), piece.top.size());
  for (const TopLogprob& top : std::span(piece.top).first(most)) {
    const std::string text = codec.TokenBytes(top.token);
    WriteToken({top.token, text, top.logprob}, dialect, writer);
  }
  writer.EndArray();
}

std::string_view FinishReasonOf(TextFinish finish, const TokenPiece* end, bool has_stops,
                                const TextCodec& codec) {
  if (finish == TextFinish::kNone) return {};
  if (finish == TextFinish::kLength) return "length";
  if (end == nullptr) return has_stops ? "stop_sequence" : "eos_token";
  const std::vector<int32_t> ids = codec.end_ids();
  return std::ranges::count(ids, end->token) > 0 || !has_stops ? "eos_token" : "stop_sequence";
}

}  // namespace tandem::serve::lmi
