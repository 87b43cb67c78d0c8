// The C interface of rust/text: tokenizers, chat templates and grammars. Used only by src/text.
//
// A handle comes from a `_new` or `_load` and goes back once to its `_free`; between them it is
// immutable and may be used by any number of threads, but a matcher by one at a time. Functions
// that can fail return a TandemTextCode and, when it is not 0, fill `error` with a sentence that
// the caller frees. No function unwinds: a panic inside is code 5. Text is UTF-8 with a length,
// never NUL-terminated. rust/text/tests/header.rs checks this file against the definitions.
#ifndef TANDEM_TEXT_H_
#define TANDEM_TEXT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum TandemTextCode {
  TANDEM_TEXT_OK = 0,
  TANDEM_TEXT_INVALID_ARGUMENT = 1,
  TANDEM_TEXT_NOT_FOUND = 2,
  TANDEM_TEXT_RESOURCE_EXHAUSTED = 3,
  TANDEM_TEXT_DATA_LOSS = 4,
  TANDEM_TEXT_INTERNAL = 5,
  TANDEM_TEXT_UNIMPLEMENTED = 6,
  TANDEM_TEXT_UNAVAILABLE = 7,
  TANDEM_TEXT_SYSTEM_LIMIT = 8,  // the operating system refused a thread
} TandemTextCode;

typedef struct TextTokenizer TextTokenizer;
typedef struct TemplateSet TemplateSet;
typedef struct GrammarCompiler GrammarCompiler;
typedef struct GrammarMatcher GrammarMatcher;

typedef enum TandemTextGrammarKind {
  TANDEM_TEXT_JSON_OBJECT = 0,        // any JSON object; the text is not read
  TANDEM_TEXT_JSON_SCHEMA = 1,        // a keyword that is not supported is an error
  TANDEM_TEXT_LOOSE_JSON_SCHEMA = 2,  // a keyword that is not supported is ignored
  TANDEM_TEXT_REGEX = 3,              // Rust's syntax; the whole output matches
  TANDEM_TEXT_CHOICE = 4,             // a JSON array of strings
  TANDEM_TEXT_LARK = 5,               // llguidance's dialect of Lark, or GBNF
  TANDEM_TEXT_GUIDANCE = 6,           // llguidance's JSON: {"grammars": [...]}
} TandemTextGrammarKind;

// Bytes owned by the library until tandem_text_buffer_free.
typedef struct TandemTextBuffer {
  uint8_t* data;
  size_t len;
} TandemTextBuffer;

// Token ids owned by the library until tandem_text_ids_free.
typedef struct TandemTextIds {
  uint32_t* data;
  size_t len;
} TandemTextIds;

// Borrowed bytes.
typedef struct TandemTextView {
  const uint8_t* data;
  size_t len;
} TandemTextView;

typedef struct TandemTextTokenizerInfo {
  TandemTextView kind;      // for people: the file that defines it and what it holds
  size_t vocab_size;        // one more than the largest id
  uint64_t fingerprint;     // equal when every id has the same bytes and specialness
  int64_t bos_id;           // -1: none
  int64_t pad_id;           // -1: none
  const uint32_t* eos_ids;  // lives as long as the tokenizer
  size_t eos_count;
} TandemTextTokenizerInfo;

// What one grammar may cost: the bytes of its text, then llguidance's ParserLimits; and what
// llguidance writes to the standard error.
typedef struct TandemTextGrammarLimits {
  uint64_t max_text_bytes;
  uint64_t max_items_in_row;    // branches of an unambiguous grammar
  uint64_t initial_lexer_fuel;  // regex nodes while compiling; 50,000 take a millisecond
  uint64_t step_lexer_fuel;     // regex nodes of a mask; 14,000 take a millisecond
  uint64_t step_max_items;      // parser items of a mask; 20,000 take a millisecond
  uint64_t max_lexer_states;    // 1 to 2 KB each
  uint64_t max_grammar_size;    // symbols in rules
  uint32_t log_level;           // 0: nothing, 1: warnings, 2: every step
} TandemTextGrammarLimits;

void tandem_text_buffer_free(TandemTextBuffer buffer);
void tandem_text_ids_free(TandemTextIds ids);

// JSON5 text as JSON text with the same value.
uint32_t tandem_text_json5_to_json(TandemTextView text, TandemTextBuffer* out,
                                   TandemTextBuffer* error);

// Reads a model folder's tokenizer (rust/text/src/sources) and its side files. The overrides are an
// object whose members replace those of tokenizer_config.json, or empty.
uint32_t tandem_text_tokenizer_new(TandemTextView model_dir, TandemTextView config_overrides_json,
                                   TextTokenizer** out, TandemTextBuffer* error);
void tandem_text_tokenizer_free(TextTokenizer* tokenizer);
uint32_t tandem_text_tokenizer_encode(const TextTokenizer* tokenizer, TandemTextView text,
                                      bool add_special, TandemTextIds* out,
                                      TandemTextBuffer* error);
void tandem_text_tokenizer_info(const TextTokenizer* tokenizer, TandemTextTokenizerInfo* out);
// Empty for an id without a token. Lives as long as the tokenizer.
TandemTextView tandem_text_tokenizer_token_bytes(const TextTokenizer* tokenizer, uint32_t id);
// The bytes it adds as the first token of a text: some decoders drop its space there.
TandemTextView tandem_text_tokenizer_first_bytes(const TextTokenizer* tokenizer, uint32_t id);
bool tandem_text_tokenizer_is_special(const TextTokenizer* tokenizer, uint32_t id);
// -1: no such token.
int64_t tandem_text_tokenizer_token_to_id(const TextTokenizer* tokenizer, TandemTextView token);

// Reads and compiles the chat template(s) of a model folder; a chat_template in the overrides goes
// before all files.
uint32_t tandem_text_template_load(TandemTextView model_dir, TandemTextView config_overrides_json,
                                   TemplateSet** out, TandemTextBuffer* error);
// Compiles one template; special_tokens_json is an object such as {"bos_token": "<s>"}.
uint32_t tandem_text_template_new(TandemTextView source, TandemTextView special_tokens_json,
                                  TemplateSet** out, TandemTextBuffer* error);
void tandem_text_template_free(TemplateSet* templates);
// The text of the template that renders requests with tools, or without. Lives as long as the
// handle.
TandemTextView tandem_text_template_source(const TemplateSet* templates, bool has_tools);
// Whether renderings that sleep for ever have stopped a template until the program starts again.
bool tandem_text_template_stopped(const TemplateSet* templates);
// messages_json: an array; variables_json: an object (tools, documents, ...) or empty;
// now_unix_seconds: the time for strftime_now, negative for the clock. `own`: begin and end of each
// range of bytes in which the template wrote control tokens; empty before guard.
uint32_t tandem_text_template_render(const TemplateSet* templates, TandemTextView messages_json,
                                     TandemTextView variables_json, bool add_generation_prompt,
                                     int64_t now_unix_seconds, TandemTextBuffer* out,
                                     TandemTextIds* own, TandemTextBuffer* error);
// From now on renderings tell control tokens that the template wrote from text of the request. Call
// it before other threads have the templates.
uint32_t tandem_text_template_guard(TemplateSet* templates, const TextTokenizer* tokenizer,
                                    TandemTextBuffer* error);
// The ids of a rendered chat or of its beginning; `own` as render gave it. After guard only text in
// these ranges becomes control tokens; the tokenizer is then the same.
uint32_t tandem_text_template_encode(const TemplateSet* templates, const TextTokenizer* tokenizer,
                                     TandemTextView text, const uint32_t* own, size_t own_count,
                                     TandemTextIds* out, TandemTextBuffer* error);

void tandem_text_grammar_default_limits(TandemTextGrammarLimits* out);
// For one tokenizer and a model with `vocab_size` tokens; both may be freed before it.
uint32_t tandem_text_grammar_compiler_new(const TextTokenizer* tokenizer, size_t vocab_size,
                                          const TandemTextGrammarLimits* limits,
                                          GrammarCompiler** out, TandemTextBuffer* error);
// Whether no grammar will be compiled again until the program starts again.
bool tandem_text_grammar_compiler_stopped(const GrammarCompiler* compiler);
void tandem_text_grammar_compiler_free(GrammarCompiler* compiler);
// A matcher at the start of the grammar; `kind` is a TandemTextGrammarKind. It may be freed after
// its compiler. `thought`: rules of Lark that define `thought`, which comes before what the grammar
// describes; empty: nothing does.
uint32_t tandem_text_grammar_compile(const GrammarCompiler* compiler, uint32_t kind,
                                     TandemTextView text, TandemTextView thought,
                                     GrammarMatcher** out, TandemTextBuffer* error);
// A copy in the same state that shares nothing with `matcher`. UNAVAILABLE while the matchers of
// its compiler hold all the memory that they may.
uint32_t tandem_text_matcher_clone(const GrammarMatcher* matcher, GrammarMatcher** out,
                                   TandemTextBuffer* error);
void tandem_text_matcher_free(GrammarMatcher* matcher);
// Clears in `allowed` (bit 0 of word 0: token 0) the tokens that may not come next. Those of
// `end_ids` are kept where the output may end, and where the grammar names them. An error is final.
uint32_t tandem_text_matcher_fill_mask(GrammarMatcher* matcher, uint32_t* allowed, size_t words,
                                       const uint32_t* end_ids, size_t end_count,
                                       TandemTextBuffer* error);
// Takes the tokens up to the first that the grammar does not admit; `taken` says how many.
uint32_t tandem_text_matcher_advance(GrammarMatcher* matcher, const uint32_t* tokens, size_t count,
                                     size_t* taken, TandemTextBuffer* error);
// Undoes the last `count` tokens taken.
uint32_t tandem_text_matcher_roll_back(GrammarMatcher* matcher, size_t count,
                                       TandemTextBuffer* error);
// The text that must follow, if there is only one: its first bytes, not always whole characters.
uint32_t tandem_text_matcher_forced(GrammarMatcher* matcher, TandemTextBuffer* out,
                                    TandemTextBuffer* error);
// Whether the output must end here: nothing may follow.
bool tandem_text_matcher_is_complete(const GrammarMatcher* matcher);
// Whether the output may end here.
bool tandem_text_matcher_is_accepting(GrammarMatcher* matcher);
// Memory of the compiled grammar, which the matcher's copies share.
size_t tandem_text_matcher_bytes(const GrammarMatcher* matcher);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TANDEM_TEXT_H_
