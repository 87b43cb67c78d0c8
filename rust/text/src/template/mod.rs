//! Chat templates with the semantics of transformers (Jinja2's immutable sandbox), in a sandbox
//! whose steps, bytes and depth are bounded: a template is input, wherever it comes from.

mod budget;
mod constants;
mod guard;
mod python;
mod rewrite;
mod strftime;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::machinery::{
    make_string_output, parse, tokenize, CodeGenerator, Instructions, Token, Vm, WhitespaceConfig,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind};

use crate::error::{Error, ErrorCode, Result};
use crate::model_folder::{read_optional, ModelFolder};

/// The largest template in use is about 30 KB.
const MAX_TEMPLATE_BYTES: usize = 256 << 10;
/// Of one `{{ }}` or `{% %}`: `1+1+1+...` nests as deep as it is long, and the parser's own limit
/// does not see it.
const MAX_TAG_TOKENS: usize = 5_000;
/// Parsing and compiling recurse; with the limits above they stay well below this. Pages that are
/// not touched cost nothing.
const COMPILE_STACK_BYTES: usize = 256 << 20;
const MAX_INPUT_BYTES: usize = 64 << 20;
/// Levels of macros and loops inside each other.
const RECURSION_LIMIT: usize = 120;

const SPECIAL_TOKEN_KEYS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// One compiled template. Immutable; shared by threads.
pub struct ChatTemplate {
    /// Declared before `source`, which it borrows from, so that it drops first.
    instructions: Instructions<'static>,
    env: Environment<'static>,
    tokens: serde_json::Map<String, serde_json::Value>,
    source: OwnedSource,
}

/// Text that `instructions` borrows from; freed with the template.
struct OwnedSource(*mut str);

// Nobody writes to the text.
unsafe impl Send for OwnedSource {}
unsafe impl Sync for OwnedSource {}

impl OwnedSource {
    fn new(text: String) -> Self {
        Self(Box::into_raw(text.into_boxed_str()))
    }
    /// # Safety
    /// The result must not be used after `self` is dropped.
    unsafe fn get(&self) -> &'static str {
        &*self.0
    }
}

impl Drop for OwnedSource {
    fn drop(&mut self) {
        // Made by Box::into_raw in `new`, dropped once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl ChatTemplate {
    /// `special_tokens`: what `bos_token`, `eos_token`, ... mean inside the template.
    pub fn compile(
        source: &str,
        special_tokens: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Self> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(Error::invalid(format!(
                "the chat template has {} bytes; at most {MAX_TEMPLATE_BYTES} are allowed",
                source.len()
            )));
        }
        let owned = OwnedSource::new(without_generation_tags(source));
        // Stored beside `instructions` and dropped after them.
        let text = unsafe { owned.get() };
        let instructions = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(COMPILE_STACK_BYTES);
            let compiled = thread.spawn_scoped(scope, || compile_instructions(text));
            compiled
                .map_err(|e| Error::new(ErrorCode::Internal, format!("no thread: {e}")))?
                .join()
                .map_err(|_| Error::new(ErrorCode::Internal, "the template compiler panicked"))?
                .map_err(invalid)
        })?;
        Ok(Self {
            instructions,
            env: environment(),
            tokens: special_tokens,
            source: owned,
        })
    }

    pub fn source(&self) -> &str {
        // The borrow ends with &self.
        unsafe { self.source.get() }
    }

    /// `messages`: a JSON array. `extra`: a JSON object with further variables (tools, documents,
    /// add_generation_prompt, what the client passes on). `now`: Unix seconds for strftime_now.
    pub fn render(&self, messages: &str, extra: &str, now: Option<i64>) -> Result<String> {
        let input_bytes = messages.len() + extra.len();
        if input_bytes > MAX_INPUT_BYTES {
            return Err(Error::invalid(format!(
                "messages have {input_bytes} bytes; at most {MAX_INPUT_BYTES} are rendered"
            )));
        }
        let context = self.context(messages, extra)?;
        let mut env = self.env.clone();
        env.set_fuel(Some(budget::fuel(input_bytes)));
        let now = now.unwrap_or_else(system_seconds);
        env.add_function("strftime_now", move |format: &str| {
            strftime::strftime(now, format)
        });

        let _scope = budget::Scope::begin(input_bytes);
        let mut text = String::new();
        Vm::new(&env)
            .eval(
                &self.instructions,
                context,
                &BTreeMap::new(),
                &mut make_string_output(&mut text),
                AutoEscape::None,
            )
            .map_err(render_error)?;
        Ok(text)
    }

    fn context(&self, messages: &str, extra: &str) -> Result<Value> {
        let messages: serde_json::Value =
            serde_json::from_str(messages).map_err(|e| Error::invalid(format!("messages: {e}")))?;
        if !messages.is_array() {
            return Err(Error::invalid("messages must be a JSON array"));
        }
        let extra: serde_json::Value =
            serde_json::from_str(if extra.is_empty() { "{}" } else { extra })
                .map_err(|e| Error::invalid(format!("template variables: {e}")))?;
        let serde_json::Value::Object(extra) = extra else {
            return Err(Error::invalid("template variables must be a JSON object"));
        };
        // transformers always passes these, so `tools is not none` holds only with tools.
        let mut root = self.tokens.clone();
        root.insert("tools".to_owned(), serde_json::Value::Null);
        root.insert("documents".to_owned(), serde_json::Value::Null);
        root.insert("add_generation_prompt".to_owned(), false.into());
        for (key, value) in extra {
            let identifier = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !identifier || key == "messages" || SPECIAL_TOKEN_KEYS.contains(&key.as_str()) {
                return Err(Error::invalid(format!(
                    "{key:?} cannot be set as a variable of the chat template"
                )));
            }
            root.insert(key, value);
        }
        root.insert("messages".to_owned(), messages);
        Ok(Value::from_serialize(root))
    }
}

fn compile_instructions(
    source: &'static str,
) -> std::result::Result<Instructions<'static>, minijinja::Error> {
    let whitespace = WhitespaceConfig {
        keep_trailing_newline: false,
        lstrip_blocks: true,
        trim_blocks: true,
    };
    let mut tag_tokens = 0;
    for token in tokenize(source, false, SyntaxConfig::default(), whitespace) {
        tag_tokens = match token?.0 {
            Token::VariableStart | Token::BlockStart => 0,
            _ => tag_tokens + 1,
        };
        if tag_tokens > MAX_TAG_TOKENS {
            return Err(budget::too_large(
                "has an expression of more than 5,000 tokens",
            ));
        }
    }
    let syntax = SyntaxConfig::default();
    let ast = parse(source, "chat_template", syntax, whitespace)?;
    constants::check(&ast)?;
    let mut generator = CodeGenerator::new("chat_template", source);
    generator.compile_stmt(&ast);
    // Without `block` there is one body; the other half of the result is empty.
    let (instructions, _) = generator.finish();
    Ok(rewrite::guard_instructions(&instructions))
}

/// The templates of a model: one, or several by name ("default", "tool_use", "rag").
pub struct TemplateSet {
    templates: Vec<(String, ChatTemplate)>,
}

impl TemplateSet {
    pub fn compile_one(source: &str, special_tokens_json: &str) -> Result<Self> {
        let tokens = serde_json::from_str(special_tokens_json)
            .map_err(|e| Error::invalid(format!("special tokens: {e}")))?;
        let template = ChatTemplate::compile(source, tokens)?;
        Ok(Self {
            templates: vec![("default".to_owned(), template)],
        })
    }

    /// The first of chat_template.j2, chat_template.jinja, and `chat_template` of
    /// tokenizer_config.json (a string, or a list of {name, template}).
    pub fn load(dir: &Path) -> Result<Self> {
        let folder = ModelFolder::read(dir)?;
        let mut tokens = serde_json::Map::new();
        for key in SPECIAL_TOKEN_KEYS {
            if let Some(text) = folder.special_token(key) {
                tokens.insert(key.to_owned(), text.into());
            }
        }
        let sources = template_sources(dir, &folder)?;
        if sources.is_empty() {
            return Err(Error::new(
                ErrorCode::NotFound,
                format!(
                    "{} has no chat template (chat_template.jinja, or chat_template in \
                     tokenizer_config.json); use the completions endpoint, or add one",
                    dir.display()
                ),
            ));
        }
        let templates = sources
            .into_iter()
            .map(|(name, source)| {
                let template = ChatTemplate::compile(&source, tokens.clone()).map_err(|e| {
                    Error::new(e.code, format!("chat template {name:?}: {}", e.message))
                })?;
                Ok((name, template))
            })
            .collect::<Result<_>>()?;
        Ok(Self { templates })
    }

    /// "tool_use" when there are tools and the model has such a template, else "default".
    fn choose(&self, extra: &str) -> &ChatTemplate {
        let has_tools = serde_json::from_str::<serde_json::Value>(extra)
            .is_ok_and(|v| v.get("tools").is_some_and(|tools| !tools.is_null()));
        let named = |wanted: &str| self.templates.iter().find(|(name, _)| name == wanted);
        let tool_use = if has_tools { named("tool_use") } else { None };
        let (_, template) = tool_use
            .or_else(|| named("default"))
            .unwrap_or(&self.templates[0]);
        template
    }

    pub fn render(&self, messages: &str, extra: &str, now: Option<i64>) -> Result<String> {
        self.choose(extra).render(messages, extra, now)
    }

    pub fn source(&self) -> &str {
        self.choose("{}").source()
    }
}

fn template_sources(dir: &Path, folder: &ModelFolder) -> Result<Vec<(String, String)>> {
    for name in ["chat_template.j2", "chat_template.jinja"] {
        if let Some(source) = read_optional(&dir.join(name), MAX_TEMPLATE_BYTES as u64)? {
            return Ok(vec![("default".to_owned(), source)]);
        }
    }
    let malformed = || {
        Error::data_loss(
            "tokenizer_config.json: chat_template must be a string or a list of {name, template}",
        )
    };
    match folder.tokenizer_config.get("chat_template") {
        None | Some(serde_json::Value::Null) => Ok(Vec::new()),
        Some(serde_json::Value::String(source)) => Ok(vec![("default".to_owned(), source.clone())]),
        Some(serde_json::Value::Array(list)) => list
            .iter()
            .map(|entry| {
                let text = |key: &str| entry.get(key)?.as_str().map(str::to_owned);
                text("name").zip(text("template")).ok_or_else(malformed)
            })
            .collect(),
        Some(_) => Err(malformed()),
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_formatter(|out, _state, value| python::write_str(&mut Counted(out), value));
    env.add_function("raise_exception", |message: String| {
        Err::<(), _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    guard::install(&mut env);
    env
}

/// The output, charged as it grows; blocks that are captured into variables come here too.
struct Counted<'a, 'b>(&'a mut minijinja::Output<'b>);

impl std::fmt::Write for Counted<'_, '_> {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        budget::charge_bytes(s.len()).map_err(|_| std::fmt::Error)?;
        self.0.write_str(s)
    }
}

/// `{% generation %}` only marks what the assistant said, for training: it becomes `{% if true %}`.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let inner = &rest[start + 2..start + length];
        let replaced = match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+')
        {
            "generation" => inner.replace("generation", "if true"),
            "endgeneration" => inner.replace("endgeneration", "endif"),
            _ => inner.to_owned(),
        };
        result.push_str(&rest[..start + 2]);
        result.push_str(&replaced);
        result.push_str("%}");
        rest = &rest[start + length + 2..];
    }
    result.push_str(rest);
    result
}

fn invalid(error: minijinja::Error) -> Error {
    Error::invalid(error.to_string())
}

fn render_error(error: minijinja::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::OutOfFuel => ErrorCode::ResourceExhausted,
        _ => ErrorCode::InvalidArgument,
    };
    Error::new(code, format!("chat template: {error}"))
}

fn system_seconds() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs() as i64)
}
