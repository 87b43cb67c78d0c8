// Constrained output: GrammarSet compiles grammars for one tokenizer, a GrammarState is how far an
// output has come in its grammar. A set is shared by shared_ptr and may be used by any number of
// threads at once. A state is owned by one choice of one request and used by one thread at a time;
// a const one is only copied, by any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/status.h"
#include "text/tokenizer.h"

struct GrammarCompiler;  // the handles of rust/text
struct GrammarMatcher;

namespace tandem {

// The numbers are those of TandemTextGrammarKind.
enum class GrammarKind : uint8_t {
  kJsonObject = 0,       // any JSON object; the text is not read
  kJsonSchema = 1,       // a keyword that is not supported is refused
  kLooseJsonSchema = 2,  // a keyword that is not supported is ignored
  kRegex = 3,            // Rust's syntax; the whole output matches
  kChoice = 4,           // a JSON array of strings: the output is one of them
  kLark = 5,             // llguidance's dialect of Lark, or GBNF (rules with ::=)
  kGuidance = 6,         // llguidance's JSON: {"grammars": [...]}
};

// What one grammar may cost: llguidance's ParserLimits, with its defaults. Beyond them compiling is
// refused, or the choice that has got there fails.
struct GrammarLimits {
  size_t max_text_bytes = 256 << 10;
  uint64_t max_items_in_row = 2000;         // branches of an unambiguous grammar
  uint64_t initial_lexer_fuel = 1'000'000;  // regex nodes while compiling
  uint64_t step_lexer_fuel = 200'000;       // regex nodes of a mask
  uint64_t step_max_items = 50'000;         // parser items of a mask
  uint64_t max_lexer_states = 250'000;      // 1 to 2 KB each
  uint64_t max_grammar_size = 500'000;      // symbols in rules
  // What llguidance writes to the standard error. 0: nothing, 1: its warnings, 2: every step.
  uint32_t log_level = 0;
};

class GrammarState {
 public:
  // Takes the handle. With null the object can only be assigned to.
  explicit GrammarState(::GrammarMatcher* handle) : handle_(handle) {}
  ~GrammarState();
  GrammarState(GrammarState&& other) noexcept;
  GrammarState& operator=(GrammarState&& other) noexcept;

  // In the same state; shares nothing that changes.
  Result<GrammarState> Clone() const;
  // Clears in `allowed` (bit 0 of word 0: token 0) the tokens that may not come next. Those of
  // `end_ids` are kept where the output may end, and where the grammar names them. After an error
  // every further call fails.
  Status FillMask(std::span<uint32_t> allowed, std::span<const int32_t> end_ids);
  // Takes the tokens up to the first that the grammar does not admit; returns how many.
  Result<size_t> Advance(std::span<const int32_t> tokens);
  // Undoes the last `count` tokens taken.
  Status RollBack(size_t count);
  // The bytes that must follow, if there is only one text: not always whole characters.
  Result<std::string> Forced();
  // Whether the output may end here.
  bool IsAccepting();
  // Memory of the compiled grammar, which copies share.
  size_t Bytes() const;

 private:
  ::GrammarMatcher* handle_;  // owned; null after a move
};

class GrammarSet {
 public:
  // For a model with `model_vocab` tokens. The tokenizer may be destroyed before.
  static Result<std::shared_ptr<GrammarSet>> Create(const Tokenizer& tokenizer, int64_t model_vocab,
                                                    const GrammarLimits& limits = {});
  ~GrammarSet();
  GrammarSet(const GrammarSet&) = delete;
  GrammarSet& operator=(const GrammarSet&) = delete;

  // The state at the start of a grammar. Takes up to 2 s of processor time, and once some tenths of
  // a second for the tokenizer; nothing for a grammar that was compiled lately. INVALID_ARGUMENT
  // with a sentence that names the keyword or the place. `thought`: rules of Lark that define a
  // rule of that name, for what comes before the grammar's sentence, with blanks between; empty:
  // nothing does.
  Result<std::shared_ptr<const GrammarState>> Compile(GrammarKind kind, std::string_view text,
                                                      std::string_view thought = "");
  // The state at the start of a grammar that was compiled lately; null if it was not.
  std::shared_ptr<const GrammarState> Find(GrammarKind kind, std::string_view text,
                                           std::string_view thought = "");
  // Whether abandoned threads have made Compile UNAVAILABLE until the process ends.
  bool Stopped() const;

 private:
  struct Entry {
    GrammarKind kind;
    std::string text;
    std::string thought;
    std::shared_ptr<const GrammarState> start;
  };

  explicit GrammarSet(::GrammarCompiler* handle) : handle_(handle) {}
  void Keep(Entry entry);

  ::GrammarCompiler* const handle_;  // owned
  Mutex mutex_;
  std::list<Entry> recent_ TANDEM_GUARDED_BY(mutex_);  // the latest first; bounded by their bytes
};

}  // namespace tandem
