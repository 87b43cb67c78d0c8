//! Constrained output: grammars compiled by llguidance against a tokenizer's vocabulary.
//!
//! A grammar comes from a client. Compiling runs in a sandbox (a thread with a large stack, because
//! llguidance recurses over rules and regexes); its text, its depth and llguidance's own limits bound
//! what it may cost. Nothing is fetched: a `$ref` to another document is an error.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::{BiasComputer, SlicedBiasComputer};
use llguidance::{JsonCompileOptions, ParserFactory};
use serde_json::{json, Value};
use toktrie::{
    ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, INVALID_TOKEN,
};

use crate::error::{Error, ErrorCode, Result};
use crate::gbnf;
use crate::grammar_blanks::{BlankRuns, BlankTokens};
use crate::grammar_matcher::{without_dumps, GrammarMatcher};
use crate::grammar_memory::{self, GrammarMemory};
use crate::grammar_runs::RunComputer;
use crate::grammar_sizes::{check_bytes, check_schema, check_text, MAX_REGEX_BYTES};
use crate::sandbox::{self, Allowance, Strays};
use crate::schema::{by_keyword, check_overlaps};
use crate::tokenizer::TextTokenizer;

/// Keep in step with `TandemTextGrammarKind` of the C header (a test compares them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum GrammarKind {
    /// Any JSON object; the text is not read.
    JsonObject = 0,
    /// A JSON schema. A keyword that is not supported is an error.
    JsonSchema = 1,
    /// A JSON schema. Keywords that are not supported are ignored.
    LooseJsonSchema = 2,
    /// A regular expression of Rust's syntax, for the whole output.
    Regex = 3,
    /// A JSON array of strings: one of them is the output.
    Choice = 4,
    /// llguidance's dialect of Lark, or GBNF.
    Lark = 5,
    /// llguidance's own JSON: {"grammars": [{"lark_grammar": ...}, {"json_schema": ...}]}.
    Guidance = 6,
}

impl GrammarKind {
    pub fn of(number: u32) -> Option<Self> {
        use GrammarKind::*;
        [
            JsonObject,
            JsonSchema,
            LooseJsonSchema,
            Regex,
            Choice,
            Lark,
            Guidance,
        ]
        .get(number as usize)
        .copied()
    }

    fn is_json(self) -> bool {
        matches!(
            self,
            Self::JsonObject | Self::JsonSchema | Self::LooseJsonSchema
        )
    }

    /// For people.
    fn name(self) -> &'static str {
        match self {
            Self::JsonObject => "JSON object",
            Self::JsonSchema | Self::LooseJsonSchema => "JSON schema",
            Self::Regex => "regular expression",
            Self::Choice => "list of choices",
            Self::Lark | Self::Guidance => "grammar",
        }
    }
}

/// What one grammar may cost. The defaults of those after the text are llguidance's.
#[derive(Debug, Clone)]
pub struct GrammarLimits {
    pub max_text_bytes: u64,
    pub max_items_in_row: u64,
    pub initial_lexer_fuel: u64,
    pub step_lexer_fuel: u64,
    pub step_max_items: u64,
    pub max_lexer_states: u64,
    pub max_grammar_size: u64,
    /// What llguidance writes to the standard error: nothing, its warnings, or every step.
    pub log_level: u32,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        let llguidance = ParserLimits::default();
        Self {
            max_text_bytes: 256 << 10,
            max_items_in_row: llguidance.max_items_in_row as u64,
            initial_lexer_fuel: llguidance.initial_lexer_fuel,
            step_lexer_fuel: llguidance.step_lexer_fuel,
            step_max_items: llguidance.step_max_items as u64,
            max_lexer_states: llguidance.max_lexer_states as u64,
            max_grammar_size: llguidance.max_grammar_size as u64,
            log_level: 0,
        }
    }
}

impl GrammarLimits {
    fn of_parser(&self) -> ParserLimits {
        ParserLimits {
            max_items_in_row: self.max_items_in_row as usize,
            initial_lexer_fuel: self.initial_lexer_fuel,
            step_lexer_fuel: self.step_lexer_fuel,
            step_max_items: self.step_max_items as usize,
            max_lexer_states: self.max_lexer_states as usize,
            max_grammar_size: self.max_grammar_size as usize,
            precompute_large_lexemes: true,
            verbose_errors: false,
        }
    }
}

/// What compiling one grammar may take. llguidance's limits end it some time later; until then it
/// has idle processor time only.
const COMPILING: Allowance = Allowance {
    input: "grammar",
    bytes: 64 << 20,
    stops_at_blocks: false,
    time: Duration::from_secs(2),
};
/// The trie's limit is 1,024; a longer token is never drawn under a grammar.
const MAX_TOKEN_BYTES: usize = 1000;

/// Compiles grammars for one tokenizer and one model's vocabulary. Immutable; shared by threads.
pub struct GrammarCompiler {
    words: Vec<Vec<u8>>,
    eos: TokenId,
    limits: GrammarLimits,
    /// Made by the first grammar: a trie of all tokens takes memory that most models never need.
    factory: OnceLock<std::result::Result<Arc<Factory>, String>>,
    blanks: Arc<BlankTokens>,
    strays: Arc<Strays>,
    memory: Arc<GrammarMemory>,
}

impl GrammarCompiler {
    /// `vocab_size`: the model's. Tokens beyond it are never allowed.
    pub fn new(tokenizer: &TextTokenizer, vocab_size: usize, limits: GrammarLimits) -> Self {
        let count = tokenizer.vocab_size().min(vocab_size) as u32;
        let eos = tokenizer.eos().iter().copied().find(|id| *id < count);
        let words: Vec<_> = (0..count).map(|id| word_of(tokenizer, id)).collect();
        Self {
            blanks: Arc::new(BlankTokens::new(&words)),
            words,
            eos: eos.unwrap_or(INVALID_TOKEN),
            limits,
            factory: OnceLock::new(),
            strays: Arc::default(),
            memory: Arc::new(GrammarMemory::new(grammar_memory::DEFAULT_BYTES)),
        }
    }

    /// With so much memory for all of its matchers.
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory = Arc::new(GrammarMemory::new(bytes));
        self
    }

    /// What all matchers hold now.
    pub fn bytes_in_use(&self) -> usize {
        self.memory.used()
    }

    /// Whether no grammar will ever be compiled again.
    pub fn stopped(&self) -> bool {
        self.strays.stopped()
    }

    /// Grammars whose thread went over its memory, and sleeps for ever with what it held.
    pub fn asleep(&self) -> usize {
        self.strays.asleep()
    }

    /// A matcher at the start of the grammar.
    pub fn compile(&self, kind: GrammarKind, text: &str) -> Result<GrammarMatcher> {
        self.compile_after("", kind, text)
    }

    /// The same for outputs in which a thought comes first, and blanks: `thought` are rules of Lark,
    /// one of that name among them. Empty: no thought.
    pub fn compile_after(
        &self,
        thought: &str,
        kind: GrammarKind,
        text: &str,
    ) -> Result<GrammarMatcher> {
        check_bytes(kind.name(), text, self.limits.max_text_bytes as usize)?;
        self.memory.check()?;
        let factory = self.factory()?;
        let (text, eos, blanks) = (text.to_owned(), self.eos, Arc::clone(&self.blanks));
        let memory = Arc::clone(&self.memory);
        let thought = thought.to_owned();
        sandbox::run(COMPILING, &self.strays, move || {
            let mut grammar = grammar_of(kind, &text)?;
            if !thought.is_empty() {
                put_before(&thought, &mut grammar);
            }
            compile(&factory, eos, blanks, memory, kind, grammar)
        })
    }

    fn factory(&self) -> Result<Arc<Factory>> {
        let made = self.factory.get_or_init(|| {
            let info = TokRxInfo::new(self.words.len() as u32, self.eos);
            let trie = TokTrie::from(&info, &self.words);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = SlicedBiasComputer::general_slices();
            let mut parsers = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
                .map_err(|e| format!("{e:#}"))?;
            parsers.set_stderr_log_level(self.limits.log_level);
            *parsers.limits_mut() = self.limits.of_parser();
            let masks = Arc::new(RunComputer::new(parsers.slicer()));
            Ok(Arc::new(Factory { parsers, masks }))
        });
        made.clone().map_err(|e| {
            Error::new(
                ErrorCode::Internal,
                format!("no grammar can be used with this tokenizer: {e}"),
            )
        })
    }
}

/// What all grammars of a vocabulary share.
struct Factory {
    parsers: ParserFactory,
    masks: Arc<RunComputer>,
}

fn compile(
    factory: &Factory,
    eos: TokenId,
    blanks: Arc<BlankTokens>,
    memory: Arc<GrammarMemory>,
    kind: GrammarKind,
    grammar: TopLevelGrammar,
) -> Result<GrammarMatcher> {
    let mut parser = factory
        .parsers
        .create_parser(grammar)
        .map_err(|error| refusal(kind, &format!("{error:#}")))?;
    parser.bias_computer = Arc::clone(&factory.masks) as Arc<dyn BiasComputer>;
    let blanks = kind.is_json().then(|| BlankRuns::new(blanks));
    Ok(GrammarMatcher::new(parser, eos, memory, blanks))
}

/// A token as the trie spells it: a special token's name after a marker that no text contains.
fn word_of(tokenizer: &TextTokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    match tokenizer.is_special(id) {
        _ if bytes.is_empty() || bytes.len() > MAX_TOKEN_BYTES => Vec::new(),
        true => [&[marker], bytes].concat(),
        // Never part of UTF-8, and would read as a special token.
        false if bytes.contains(&marker) => Vec::new(),
        false => bytes.to_vec(),
    }
}

fn grammar_of(kind: GrammarKind, text: &str) -> Result<TopLevelGrammar> {
    match kind {
        GrammarKind::JsonObject => Ok(TopLevelGrammar::from_json_schema(json!({"type": "object"}))),
        GrammarKind::JsonSchema => schema_of(kind, text, false),
        GrammarKind::LooseJsonSchema => schema_of(kind, text, true),
        GrammarKind::Regex => {
            check_text(kind.name(), text, MAX_REGEX_BYTES)?;
            Ok(TopLevelGrammar::from_regex(text))
        }
        GrammarKind::Choice => choice_of(text),
        GrammarKind::Lark => {
            check_lark(text)?;
            Ok(TopLevelGrammar::from_lark(match gbnf::is_gbnf(text) {
                true => gbnf::to_lark(text)?,
                false => text.to_owned(),
            }))
        }
        GrammarKind::Guidance => {
            let grammar: TopLevelGrammar = from_json(kind, text)?;
            for part in &grammar.grammars {
                check_lark(part.lark_grammar.as_deref().unwrap_or(""))?;
                check_schema(part.json_schema.as_ref().unwrap_or(&Value::Null))?;
            }
            Ok(grammar)
        }
    }
}

/// Makes a grammar that begins with the thought, and refers to the other, which begins with its first.
fn put_before(thought: &str, grammar: &mut TopLevelGrammar) {
    let Some(first) = grammar.grammars.first_mut() else {
        return; // refused when it is compiled
    };
    let name = first.name.get_or_insert_with(|| "output".to_owned());
    let start = format!("start: thought BLANKS? @{name}\nBLANKS: /[ \\t\\r\\n]{{1,8}}/\n{thought}");
    let mut start = GrammarWithLexer::from_lark(start);
    start.name = None; // from_lark gives all the same
    grammar.grammars.insert(0, start);
}

fn from_json<T: serde::de::DeserializeOwned>(kind: GrammarKind, text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|e| Error::invalid(format!("the {} cannot be read: {e}", kind.name())))
}

fn schema_of(kind: GrammarKind, text: &str, lenient: bool) -> Result<TopLevelGrammar> {
    let mut schema: Value = from_json(kind, text)?;
    check_schema(&schema)?;
    if !lenient {
        check_overlaps(&schema)?;
    }
    let options = JsonCompileOptions {
        lenient,
        ..JsonCompileOptions::default()
    };
    let is_boolean = schema.is_boolean();
    match schema.as_object_mut() {
        Some(members) => match members.get_mut("x-guidance") {
            // The client's own options hold.
            Some(Value::Object(given)) if lenient => {
                given.entry("lenient").or_insert(Value::Bool(true));
            }
            Some(_) => {}
            None => options.apply_to(&mut schema),
        },
        None if is_boolean => {}
        None => return Err(Error::invalid("the JSON schema must be an object")),
    }
    Ok(TopLevelGrammar::from_grammar(
        GrammarWithLexer::from_json_schema(schema),
    ))
}

/// One regular expression: as alternatives of a rule, each choice would be a lexeme of its own.
fn choice_of(text: &str) -> Result<TopLevelGrammar> {
    let choices: Vec<String> = from_json(GrammarKind::Choice, text)?;
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(Error::invalid(
            "the list of choices must hold at least one string, and no empty one",
        ));
    }
    let escaped: Vec<_> = choices.iter().map(|choice| escape(choice)).collect();
    Ok(TopLevelGrammar::from_regex(&escaped.join("|")))
}

/// A regular expression for this text alone. Not every character may follow a backslash: `\<` is a
/// word's beginning.
fn escape(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_ascii_control() => pattern.push_str(&format!("\\x{:02X}", c as u32)),
            '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => {
                pattern.extend(['\\', c]);
            }
            _ => pattern.push(c),
        }
    }
    pattern
}

fn check_lark(text: &str) -> Result<()> {
    check_text(GrammarKind::Lark.name(), text, MAX_REGEX_BYTES)?;
    for (place, marker) in text.match_indices("%json") {
        let mut schemas =
            serde_json::Deserializer::from_str(&text[place + marker.len()..]).into_iter::<Value>();
        // Where it cannot be read llguidance says so.
        if let Some(Ok(schema)) = schemas.next() {
            check_schema(&schema)?;
        }
    }
    Ok(())
}

/// llguidance's message as our sentence, without its dumps of state.
fn refusal(kind: GrammarKind, message: &str) -> Error {
    let message = without_dumps(message);
    if let Some(list) = message.strip_prefix("Unimplemented keys: ") {
        let keys = list.trim_matches(['[', ']']);
        let (noun, verb) = match keys.contains(',') {
            true => ("keywords", "are"),
            false => ("keyword", "is"),
        };
        return Error::invalid(format!(
            "the {noun} {keys} of the JSON schema {verb} not supported"
        ));
    }
    match kind.is_json().then(|| by_keyword(message)).flatten() {
        Some(sentence) => Error::invalid(sentence),
        None => Error::invalid(format!("the {} is not supported: {message}", kind.name())),
    }
}

#[cfg(test)]
#[path = "../tests/hostile_to_checks/mod.rs"]
mod hostile_to_checks;

#[cfg(test)]
mod tests {
    use super::*;

    /// With as much memory as a client's has: a thread that does not end, or sleeps for ever, takes one
    /// of the few places of all grammars.
    #[test]
    fn checks_before_compiling_end_within_their_memory() {
        let allowed = Allowance {
            time: Duration::from_secs(60),
            ..COMPILING
        };
        for (kind, name, text) in hostile_to_checks::grammars() {
            assert!(text.len() <= 256 << 10, "{name}: {} bytes", text.len());
            let strays = Arc::new(Strays::default());
            let _ = sandbox::run(allowed, &strays, move || grammar_of(kind, &text).map(drop));
            assert_eq!(strays.count(), 0, "{name}");
        }
    }

    /// C++ copies one matcher from many threads at once.
    #[test]
    fn matchers_may_be_shared() {
        fn shared<T: Send + Sync>() {}
        shared::<GrammarMatcher>();
        shared::<GrammarCompiler>();
    }
}
