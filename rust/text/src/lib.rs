//! Tokenizer, chat templates and grammars of Tandem, with the C interface `include/tandem_text.h`.
//!
//! One crate, because two Rust static libraries in one program clash. Nothing here executes code
//! found in a model folder: a chat template runs in a sandbox with bounded steps, memory and time.

mod chat_text;
mod error;
mod families;
mod ffi;
mod gbnf;
mod gbnf_terminals;
mod grammar;
mod grammar_blanks;
mod grammar_matcher;
mod grammar_memory;
mod grammar_patterns;
mod grammar_runs;
mod grammar_sizes;
mod grammar_width;
mod json5_text;
mod model;
mod model_folder;
mod sandbox;
mod schema;
mod sentencepiece;
mod sources;
mod split;
mod template;
mod token_bytes;
mod tokenizer;

pub use chat_text::ChatText;
pub use error::{Error, ErrorCode};
pub use grammar::{GrammarCompiler, GrammarKind, GrammarLimits};
pub use grammar_matcher::GrammarMatcher;
pub use json5_text::to_json;
pub use template::{ChatTemplate, TemplateSet};
pub use tokenizer::TextTokenizer;
