// The load of `tandem bench throughput --grammar`: requests under grammars that admit what a dummy
// model says.
#include <fmt/core.h>

#include <algorithm>
#include <random>
#include <string>

#include "apps/bench/bench.h"
#include "apps/models/tokenizers.h"

namespace tandem::apps {
namespace {

// The text as a regular expression that matches it alone.
std::string Literally(std::string_view text) {
  std::string regex;
  for (const char c : text) {
    if (std::string_view(R"(\.+*?()|[]{}^$#&-~/)").find(c) != std::string_view::npos) regex += '\\';
    regex += c;
  }
  return regex;
}

// Tokens whose text is printable ASCII, so that any sequence of them is a text.
class PlainTokens {
 public:
  explicit PlainTokens(const serve::TextCodec& codec) : codec_(codec) {}

  // INVALID_ARGUMENT for another token.
  Result<std::string> Text(int32_t token) const {
    std::string text = codec_.TokenBytes(token);
    const auto plain = [](char c) { return c >= ' ' && c <= '~'; };
    if (!text.empty() && std::ranges::all_of(text, plain)) return text;
    return InvalidArgument(fmt::format(
        "--grammar: token {} of --tokenizer_dir is not printable ASCII, which all must be", token));
  }
  Result<std::string> Any() { return Text(token_(random_)); }

 private:
  const serve::TextCodec& codec_;
  std::mt19937 random_{1};
  std::uniform_int_distribution<int32_t> token_{0, codec_.vocab_size() - 1};
};

// At every other token one of three tokens may follow, and any characters, as many as the token
// has, at the others. `first`: 0, the output begins with one of three; 1: with any. So sequences
// that run together need masks of both kinds at once, as texts of clients would.
Result<std::string> GrammarOf(const DummyMap& map, const Request& request, size_t first,
                              PlainTokens& tokens) {
  std::string regex;
  int32_t token = request.prompt.back();
  for (int32_t i = 0; i < request.max_tokens; ++i) {
    token = map.Expected(token);
    TANDEM_ASSIGN_OR_RETURN(const std::string text, tokens.Text(token));
    if ((first + static_cast<size_t>(i)) % 2 == 1) {
      regex += fmt::format("[ -~]{{{}}}", text.size());
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string second, tokens.Any());
    TANDEM_ASSIGN_OR_RETURN(const std::string third, tokens.Any());
    regex += fmt::format("({}|{}|{})", Literally(text), Literally(second), Literally(third));
  }
  return regex;
}

}  // namespace

Result<std::vector<std::shared_ptr<const TokenConstraint>>> DummyGrammars(
    const Session& session, std::span<const Request> requests) {
  if (!session.target.map) return InvalidArgument("--grammar: needs --dummy and --tokenizer_dir");
  TANDEM_ASSIGN_OR_RETURN(const TextModel text, OpenTextModel(session));
  PlainTokens tokens(*text.codec);
  std::vector<std::shared_ptr<const TokenConstraint>> grammars;
  for (const Request& request : requests) {
    serve::OutputGrammar grammar;
    grammar.kind = GrammarKind::kRegex;
    TANDEM_ASSIGN_OR_RETURN(grammar.text,
                            GrammarOf(*session.target.map, request, grammars.size() % 2, tokens));
    TANDEM_ASSIGN_OR_RETURN(grammars.emplace_back(), text.codec->FollowGrammar(grammar, {}));
  }
  return grammars;
}

}  // namespace tandem::apps
