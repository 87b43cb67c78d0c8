// The C interface of rust/text: tokenizers and chat templates. Used only by src/text.
//
// A handle comes from a `_new` or `_load` and goes back once to its `_free`; between them it is
// immutable and may be used by any number of threads. Functions that can fail return a
// TandemTextCode and, when it is not 0, fill `error` with a sentence that the caller frees. No
// function unwinds: a panic inside is code 5. Text is UTF-8 with a length, never NUL-terminated.
// rust/text/tests/header.rs checks this file against the definitions.
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

void tandem_text_buffer_free(TandemTextBuffer buffer);
void tandem_text_ids_free(TandemTextIds ids);

// Reads a model folder's tokenizer (rust/text/src/sources) and its side files.
uint32_t tandem_text_tokenizer_new(TandemTextView model_dir, TextTokenizer** out,
                                   TandemTextBuffer* error);
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

// Reads and compiles the chat template(s) of a model folder.
uint32_t tandem_text_template_load(TandemTextView model_dir, TemplateSet** out,
                                   TandemTextBuffer* error);
// Compiles one template; special_tokens_json is an object such as {"bos_token": "<s>"}.
uint32_t tandem_text_template_new(TandemTextView source, TandemTextView special_tokens_json,
                                  TemplateSet** out, TandemTextBuffer* error);
void tandem_text_template_free(TemplateSet* templates);
// The text of the default template. Lives as long as the handle.
TandemTextView tandem_text_template_source(const TemplateSet* templates);
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

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TANDEM_TEXT_H_
