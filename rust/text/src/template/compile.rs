//! From template text to guarded instructions, on a stack that no template overflows.

use minijinja::machinery::{parse, tokenize, CodeGenerator, Instructions, Token, WhitespaceConfig};
use minijinja::syntax::SyntaxConfig;

use super::{budget, constants, rewrite};
use crate::error::{Error, ErrorCode, Result};

/// The largest template in use is about 30 KB.
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;
/// Of one `{{ }}` or `{% %}`: `1+1+1+...` nests as deep as it is long, and the parser's own limit
/// does not see it.
const MAX_TAG_TOKENS: usize = 5_000;
/// Parsing and compiling recurse; with the limits above they stay well below this. Pages that are
/// not touched cost nothing.
const COMPILE_STACK_BYTES: usize = 256 << 20;

/// Instructions together with the text that they borrow from.
pub struct Compiled {
    /// Declared before `source`, so that it drops first.
    instructions: Instructions<'static>,
    source: OwnedSource,
}

impl Compiled {
    pub fn new(source: &str) -> Result<Self> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(Error::invalid(format!(
                "the chat template has {} bytes; at most {MAX_TEMPLATE_BYTES} are allowed",
                source.len()
            )));
        }
        let owned = OwnedSource::new(without_generation_tags(source));
        // Lives as long as `owned`, which is stored beside what borrows from it.
        let text = unsafe { owned.get() };
        let instructions = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(COMPILE_STACK_BYTES);
            let compiled = thread.spawn_scoped(scope, || compile_instructions(text));
            compiled
                .map_err(|e| Error::new(ErrorCode::Internal, format!("no thread: {e}")))?
                .join()
                .map_err(|_| Error::new(ErrorCode::Internal, "the template compiler panicked"))?
                .map_err(|e| Error::invalid(e.to_string()))
        })?;
        Ok(Self {
            instructions,
            source: owned,
        })
    }

    pub fn source(&self) -> &str {
        // The borrow ends with &self.
        unsafe { self.source.get() }
    }

    /// Shortened to the borrow of self: nothing may keep them longer.
    pub fn instructions<'a>(&'a self) -> &'a Instructions<'a> {
        &self.instructions
    }
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

fn compile_instructions(
    source: &'static str,
) -> std::result::Result<Instructions<'static>, minijinja::Error> {
    let whitespace = WhitespaceConfig {
        keep_trailing_newline: false,
        lstrip_blocks: true,
        trim_blocks: true,
    };
    let mut tag_tokens = 0;
    for token in tokenize(source, false, SyntaxConfig, whitespace) {
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
    let ast = parse(source, "chat_template", SyntaxConfig, whitespace)?;
    constants::check(&ast)?;
    let mut generator = CodeGenerator::new("chat_template", source);
    generator.compile_stmt(&ast);
    // Without `block` there is one body; the other half of the result is empty.
    let (instructions, _) = generator.finish();
    Ok(rewrite::guard_instructions(&instructions))
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
