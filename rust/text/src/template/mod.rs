//! Chat templates with the semantics of transformers (Jinja2's immutable sandbox), in a sandbox
//! with limits on steps, memory and depth: a template is untrusted input, wherever it comes from.

mod environment;
mod filters;
mod own_text;
mod python;
mod room;

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use self::environment::{environment, strftime, without_generation_tags};
use self::own_text::{mark_source, marked, own_ranges};
use crate::chat_text::{ChatText, ControlTokens};
use crate::error::{Error, ErrorCode, Result};
use crate::families::family_of;
use crate::model_folder::{read_optional, ModelFolder, SPECIAL_TOKEN_KEYS};
use crate::sandbox::{self, Allowance, Strays};
use crate::tokenizer::TextTokenizer;

/// The largest template in use is about 30 KB.
const MAX_TEMPLATE_BYTES: usize = 256 << 10;
const MAX_INPUT_BYTES: usize = 64 << 20;
/// A template that gathers texts (`ns.text = ns.text + message.content`) copies all that it has so far
/// for each item that it goes through, and no limit interrupts a copy: so this bounds items times bytes.
const MAX_GATHERED_BYTES: usize = 16_000_000_000;
/// The name of every template inside its own environment; messages contain it.
const NAME: &str = "chat_template";
/// The template with stand-ins for the characters of control tokens (`own_text`).
const TWIN: &str = "chat_template_twin";

/// One compiled template. Immutable; shared by threads.
pub struct ChatTemplate {
    /// Holds the template.
    env: Environment<'static>,
    source: String,
    tokens: serde_json::Map<String, serde_json::Value>,
    strays: Arc<Strays>,
    has_twin: bool,
    /// Whether it goes through the parts of a message's content.
    reads_parts: bool,
}

/// The variables of a rendering.
struct Context {
    /// With the special tokens as they are, and with stand-ins for a twin.
    variables: Value,
    twins: Option<Value>,
    /// In the lists that came with the request.
    items: usize,
}

impl ChatTemplate {
    /// `special_tokens`: the values of `bos_token`, `eos_token`, ... inside the template.
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
        let text = without_generation_tags(source);
        let strays = Arc::new(Strays::default());
        let env = sandbox::run(allowance(source.len()), &strays, move || {
            let mut env = environment();
            env.add_template_owned(NAME, text)
                .map_err(|e| Error::invalid(e.to_string()))?;
            Ok(env)
        })?;
        Ok(Self {
            env,
            source: source.to_owned(),
            tokens: special_tokens,
            strays,
            has_twin: false,
            reads_parts: reads_parts(source),
        })
    }

    /// From now on renderings tell the template's own control tokens from other text.
    fn make_twin(&mut self, spellings: &[String]) -> Result<()> {
        let twin = mark_source(&without_generation_tags(&self.source), spellings);
        let mut env = self.env.clone();
        self.env = sandbox::run(allowance(twin.len()), &self.strays, move || {
            env.add_template_owned(TWIN, twin)
                .map_err(|e| Error::invalid(e.to_string()))?;
            Ok(env)
        })?;
        self.has_twin = true;
        Ok(())
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// `messages`: a JSON array. `extra`: a JSON object with further variables (tools, documents,
    /// variables from the client). `now`: Unix seconds for strftime_now, else the clock. The ranges
    /// are None without a twin, and if the twin's text differs from the template's by more than
    /// stand-ins.
    fn render(
        &self,
        messages: &str,
        extra: &str,
        add_generation_prompt: bool,
        now: Option<i64>,
    ) -> Result<(String, Option<Vec<Range<usize>>>)> {
        let input_bytes = messages.len() + extra.len();
        if input_bytes > MAX_INPUT_BYTES {
            return Err(Error::invalid(format!(
                "messages have {input_bytes} bytes; at most {MAX_INPUT_BYTES} are rendered"
            )));
        }
        let context = self.context(messages, extra, add_generation_prompt)?;
        let items = context.items;
        let gathered_bytes = items.saturating_mul(input_bytes);
        if gathered_bytes > MAX_GATHERED_BYTES {
            return Err(Error::new(
                ErrorCode::ResourceExhausted,
                format!(
                    "{items} messages and parts of {input_bytes} bytes together are too many for a chat \
                     template; send fewer or shorter ones"
                ),
            ));
        }
        let mut env = self.env.clone();
        env.set_fuel(Some(fuel(input_bytes)));
        let now = now.unwrap_or_else(system_seconds);
        env.add_function("strftime_now", move |format: &str| strftime(now, format));
        let mut allowance = allowance(input_bytes);
        allowance.time += Duration::from_nanos(gathered_bytes as u64 / COPIED_PER_NANOSECOND);
        sandbox::run(allowance, &self.strays, move || {
            let text = text_of(&env, NAME, context.variables)?;
            let Some(twins) = context.twins else {
                return Ok((text, None));
            };
            // What goes wrong in the twin alone is no fault of the request.
            let twin = text_of(&env, TWIN, twins);
            let own = twin.ok().and_then(|twin| own_ranges(&text, &twin));
            Ok((text, own))
        })
    }

    /// Writes a message in the words that the template knows.
    fn suit(&self, message: &mut serde_json::Value) {
        if let Some(role) = message.get_mut("role") {
            if role == "developer" && !self.source.contains("developer") {
                *role = "system".into();
            }
        }
        let Some(content) = message.get_mut("content") else {
            return;
        };
        let text_of = |part: &serde_json::Value| part.get("text")?.as_str().map(str::to_owned);
        if let (false, Some(parts)) = (self.reads_parts, content.as_array()) {
            let texts: Option<Vec<String>> = parts.iter().map(text_of).collect();
            if let Some(texts) = texts {
                *content = texts.join("\n").into();
            }
        } else if self.reads_parts && content.is_string() && !self.source.contains("is string") {
            let text = content.take();
            *content = serde_json::json!([{"type": "text", "text": text}]);
        }
    }

    /// Renderings whose thread remains after it went over its limits.
    pub fn strays(&self) -> usize {
        self.strays.count()
    }

    fn context(&self, messages: &str, extra: &str, add_generation_prompt: bool) -> Result<Context> {
        let mut messages: serde_json::Value =
            serde_json::from_str(messages).map_err(|e| Error::invalid(format!("messages: {e}")))?;
        let Some(list) = messages.as_array_mut() else {
            return Err(Error::invalid("messages must be a JSON array"));
        };
        for message in list {
            self.suit(message);
        }
        let extra: serde_json::Value =
            serde_json::from_str(if extra.is_empty() { "{}" } else { extra })
                .map_err(|e| Error::invalid(format!("template variables: {e}")))?;
        let serde_json::Value::Object(extra) = extra else {
            return Err(Error::invalid("template variables must be a JSON object"));
        };
        let items = items_in(&messages) + extra.values().map(items_in).sum::<usize>();
        // transformers always passes these, so `tools is not none` holds only with tools.
        let mut root = self.tokens.clone();
        root.insert("tools".to_owned(), serde_json::Value::Null);
        root.insert("documents".to_owned(), serde_json::Value::Null);
        for (key, value) in extra {
            let identifier = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let ours = ["messages", "add_generation_prompt"].contains(&key.as_str());
            if !identifier || ours || SPECIAL_TOKEN_KEYS.contains(&key.as_str()) {
                return Err(Error::invalid(format!(
                    "{key:?} cannot be set as a variable of the chat template"
                )));
            }
            root.insert(key, value);
        }
        root.insert("messages".to_owned(), messages);
        root.insert(
            "add_generation_prompt".to_owned(),
            add_generation_prompt.into(),
        );
        let mut variables: Vec<(String, Value)> = root
            .into_iter()
            .map(|(key, value)| (key, Value::from_serialize(value)))
            .collect();
        let named = |variables: &[(String, Value)]| Value::from_iter(variables.iter().cloned());
        let own = named(&variables);
        for (key, value) in &mut variables {
            if let Some(token) = self.tokens.get(key).and_then(|token| token.as_str()) {
                *value = Value::from(marked(token));
            }
        }
        let twins = self.has_twin.then(|| named(&variables));
        Ok(Context {
            variables: own,
            twins,
            items,
        })
    }
}

/// Whether a loop of the template goes through a message's content. Loops over all texts of a
/// content, its characters, are in no template.
fn reads_parts(source: &str) -> bool {
    source.split("{%").skip(1).any(|tag| {
        let tag = tag.split("%}").next().unwrap_or_default();
        let tag = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let items = tag
            .strip_prefix("for ")
            .and_then(|rest| rest.split_once(" in "));
        items.is_some_and(|(_, items)| {
            let name = items.split(['|', ' ']).next().unwrap_or_default();
            let name = name.trim_end_matches(['\'', '"', ']']);
            name.ends_with("content")
        })
    })
}

fn text_of(env: &Environment, name: &str, variables: Value) -> Result<String> {
    let mut text = Text::default();
    env.get_template(name)
        .and_then(|template| {
            template
                .render_captured_to(variables, &mut text)
                .map(|_| ())
        })
        .map_err(render_error)?;
    String::from_utf8(text.0).map_err(|e| Error::new(ErrorCode::Internal, e.to_string()))
}

/// Whether no text in a request can have become part of a control token.
fn is_harmless(controls: &ControlTokens, value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => controls.is_harmless(text),
        serde_json::Value::Array(items) => items.iter().all(|item| is_harmless(controls, item)),
        serde_json::Value::Object(fields) => fields.iter().all(|(key, value)| {
            let is_role = key == "role";
            is_role || (controls.is_harmless(key) && is_harmless(controls, value))
        }),
        _ => true,
    }
}

/// The templates of a model: one, or several by name ("default", "tool_use", "rag").
pub struct TemplateSet {
    templates: Vec<(String, ChatTemplate)>,
    controls: Option<ControlTokens>,
}

impl TemplateSet {
    pub fn compile_one(source: &str, special_tokens_json: &str) -> Result<Self> {
        let tokens = serde_json::from_str(special_tokens_json)
            .map_err(|e| Error::invalid(format!("special tokens: {e}")))?;
        let template = ChatTemplate::compile(source, tokens)?;
        Ok(Self {
            templates: vec![("default".to_owned(), template)],
            controls: None,
        })
    }

    /// The first of chat_template.j2, chat_template.jinja, and `chat_template` of
    /// tokenizer_config.json (a string, or a list of {name, template}); else the family's.
    pub fn load(dir: &Path) -> Result<Self> {
        Self::load_with(dir, "")
    }

    /// `overrides`: as for TextTokenizer::load_with; their `chat_template` goes before all files.
    pub fn load_with(dir: &Path, overrides: &str) -> Result<Self> {
        let folder = ModelFolder::read(dir, overrides)?;
        let mut tokens = serde_json::Map::new();
        for key in SPECIAL_TOKEN_KEYS {
            if let Some(text) = folder.special_token(key) {
                tokens.insert(key.to_owned(), text.into());
            }
        }
        let mut sources = template_sources(dir, &folder)?;
        if let (true, Some(template)) = (sources.is_empty(), family_of(&folder).chat_template) {
            sources.push(("default".to_owned(), template.to_owned()));
        }
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
        Ok(Self {
            templates,
            controls: None,
        })
    }

    /// From now on `render` and `encode` keep clients' text from becoming control tokens.
    pub fn guard(&mut self, tokenizer: &TextTokenizer) -> Result<()> {
        let sources: Vec<&str> = self.templates.iter().map(|(_, t)| t.source()).collect();
        let controls = tokenizer.control_tokens(&sources.join("\n"))?;
        for (_, template) in &mut self.templates {
            template.make_twin(controls.spellings())?;
        }
        self.controls = Some(controls);
        Ok(())
    }

    fn choose(&self, extra: &str) -> &ChatTemplate {
        self.of_tools(
            serde_json::from_str::<serde_json::Value>(extra)
                .is_ok_and(|v| v.get("tools").is_some_and(|tools| !tools.is_null())),
        )
    }

    /// "tool_use" if there are tools and the model has such a template, else "default".
    fn of_tools(&self, has_tools: bool) -> &ChatTemplate {
        let named = |wanted: &str| self.templates.iter().find(|(name, _)| name == wanted);
        let tool_use = if has_tools { named("tool_use") } else { None };
        let (_, template) = tool_use
            .or_else(|| named("default"))
            .unwrap_or(&self.templates[0]);
        template
    }

    pub fn render(
        &self,
        messages: &str,
        extra: &str,
        add_generation_prompt: bool,
        now: Option<i64>,
    ) -> Result<String> {
        self.render_chat(messages, extra, add_generation_prompt, now)
            .map(|chat| chat.text)
    }

    pub fn render_chat(
        &self,
        messages: &str,
        extra: &str,
        add_generation_prompt: bool,
        now: Option<i64>,
    ) -> Result<ChatText> {
        let (text, own) = self
            .choose(extra)
            .render(messages, extra, add_generation_prompt, now)?;
        let own = match (&self.controls, own) {
            (Some(_), Some(own)) => own,
            (None, _) => Vec::new(),
            (Some(controls), None) => {
                let harmless = |json: &str| {
                    serde_json::from_str(json).is_ok_and(|value| is_harmless(controls, &value))
                };
                if !(harmless(messages) && (extra.is_empty() || harmless(extra))) {
                    return Err(Error::invalid(
                        "a text holds, or may complete, the name of a control token, and this \
                         model's chat template does not keep such text apart from its own; leave it \
                         out",
                    ));
                }
                std::iter::once(0..text.len()).collect()
            }
        };
        Ok(ChatText { text, own })
    }

    /// The ids of a rendered chat, or of its beginning. `tokenizer`: the one of `guard`; without
    /// that call every control token's name becomes the token.
    pub fn encode(
        &self,
        tokenizer: &TextTokenizer,
        text: &str,
        own: &[Range<usize>],
    ) -> Result<Vec<u32>> {
        match &self.controls {
            Some(controls) => tokenizer.encode_chat(controls, text, own),
            None => tokenizer.encode(text, false),
        }
    }

    /// The text of the template that renders requests with tools, or without.
    pub fn source(&self, has_tools: bool) -> &str {
        self.of_tools(has_tools).source()
    }

    /// Renderings whose thread remains after it went over its limits.
    pub fn strays(&self) -> usize {
        self.templates.iter().map(|(_, t)| t.strays()).sum()
    }

    /// Whether one of the templates will never be rendered again in this process.
    pub fn stopped(&self) -> bool {
        self.templates.iter().any(|(_, t)| t.strays.stopped())
    }
}

fn template_sources(dir: &Path, folder: &ModelFolder) -> Result<Vec<(String, String)>> {
    if let Some(named) = folder.overridden("chat_template").filter(|v| !v.is_null()) {
        return named_sources(named).ok_or_else(|| {
            Error::invalid("chat_template must be a string or a list of {name, template}")
        });
    }
    for name in ["chat_template.j2", "chat_template.jinja"] {
        if let Some(source) = read_optional(&dir.join(name), MAX_TEMPLATE_BYTES as u64)? {
            return Ok(vec![("default".to_owned(), source)]);
        }
    }
    match folder.tokenizer_config.get("chat_template") {
        None | Some(serde_json::Value::Null) => Ok(Vec::new()),
        Some(value) => named_sources(value).ok_or_else(|| {
            Error::data_loss(
                "tokenizer_config.json: chat_template must be a string or a list of {name, template}",
            )
        }),
    }
}

/// The templates that a `chat_template` holds; `None` if it is neither a text nor a list of them.
fn named_sources(value: &serde_json::Value) -> Option<Vec<(String, String)>> {
    match value {
        serde_json::Value::String(source) => Some(vec![("default".to_owned(), source.clone())]),
        serde_json::Value::Array(list) => list
            .iter()
            .map(|entry| {
                let text = |key: &str| entry.get(key)?.as_str().map(str::to_owned);
                text("name").zip(text("template"))
            })
            .collect(),
        _ => None,
    }
}

/// Steps. Models' own templates take some hundreds per message. A step that compares long texts takes a
/// millisecond and cannot be interrupted, so this also limits the work after the time is up.
fn fuel(input_bytes: usize) -> u64 {
    200_000 + 64 * input_bytes as u64
}

/// The items of all lists in a value.
fn items_in(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => items.len() + items.iter().map(items_in).sum::<usize>(),
        serde_json::Value::Object(fields) => fields.values().map(items_in).sum(),
        _ => 0,
    }
}

/// Bytes that a slow machine copies.
const COPIED_PER_NANOSECOND: u64 = 4;

/// Limits grow with the input, so that a long honest conversation fits. Models' own templates take
/// less than a millisecond for a usual conversation, and up to 150 ns per byte for thousands of
/// tiny messages.
fn allowance(input_bytes: usize) -> Allowance {
    Allowance {
        input: "chat template",
        stops_at_blocks: true,
        bytes: (8 << 20) + 8 * input_bytes,
        time: Duration::from_millis(100) + Duration::from_nanos(500) * input_bytes as u32,
    }
}

/// The rendered text; refused when it grows too long.
#[derive(Default)]
struct Text(Vec<u8>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sandbox::check(self.0.len() + bytes.len(), 0).map_err(io::Error::other)?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn render_error(error: minijinja::Error) -> Error {
    match error.kind() {
        // The only writer is `Text`.
        ErrorKind::WriteFailure => Error::new(
            ErrorCode::ResourceExhausted,
            "the chat template builds too much data",
        ),
        ErrorKind::OutOfFuel => Error::new(
            ErrorCode::ResourceExhausted,
            format!("chat template: {error}"),
        ),
        _ => Error::invalid(format!("chat template: {error}")),
    }
}

fn system_seconds() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs() as i64)
}
