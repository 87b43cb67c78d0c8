// Tokens and details of answers in djl-serving's JSON, which differs by release and with
// tgi_compat. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json.h"
#include "serve/lmi/settings.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve::lmi {

// Whose JSON an answer has.
struct Dialect {
  Generation generation = Generation::k027;
  bool tgi_compat = false;
};

// A token as it is shown; a view of a piece.
struct ShownToken {
  int64_t id = 0;
  std::string_view text;
  float logprob = 0.0f;         // NaN: it has none
  bool is_special = false;      // it ends the answer, or is no token
  std::string_view error = {};  // why the answer ends
};
ShownToken TokenOf(const TokenPiece& piece, bool is_special = false);

// {"id","text","log_prob"} and what else there is.
void WriteToken(const ShownToken& token, const Dialect& dialect, JsonWriter& writer);
void WriteTokens(std::span<const TokenPiece> pieces, const Dialect& dialect, JsonWriter& writer);
// The `count` likeliest tokens in the piece's place, the likeliest first.
void WriteTopTokens(const TokenPiece& piece, int64_t count, const TextCodec& codec,
                    const Dialect& dialect, JsonWriter& writer);

// length, eos_token or stop_sequence; empty before the end. `end`: the token that ended it, or
// null. `has_stops`: the request has strings or tokens of its own that end it.
std::string_view FinishReasonOf(TextFinish finish, const TokenPiece* end, bool has_stops,
                                const TextCodec& codec);

}  // namespace tandem::serve::lmi
