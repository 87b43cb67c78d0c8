//! The C ABI. Every function is declared in include/tandem_text.h; tests/header.rs compares the two.
//!
//! Rules: handles are opaque and freed once by their `_free`; a panic becomes an error, never
//! unwinds into C++; text crosses as pointer and length, never NUL-terminated.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::Once;

use crate::error::{panic_text, Error, ErrorCode, Result};
use crate::grammar::{GrammarCompiler, GrammarKind, GrammarLimits};
use crate::grammar_matcher::GrammarMatcher;
use crate::json5_text;
use crate::template::TemplateSet;
use crate::tokenizer::TextTokenizer;

/// Bytes owned by the library until `tandem_text_buffer_free`.
#[repr(C)]
pub struct TandemTextBuffer {
    data: *mut u8,
    len: usize,
}

/// Token ids owned by the library until `tandem_text_ids_free`.
#[repr(C)]
pub struct TandemTextIds {
    data: *mut u32,
    len: usize,
}

/// Borrowed bytes; their lifetime is that of the object they point into.
#[repr(C)]
pub struct TandemTextView {
    data: *const u8,
    len: usize,
}

/// The properties of a tokenizer, in one call. Ids are -1 if there is none.
#[repr(C)]
pub struct TandemTextTokenizerInfo {
    kind: TandemTextView,
    vocab_size: usize,
    fingerprint: u64,
    bos_id: i64,
    pad_id: i64,
    eos_ids: *const u32,
    eos_count: usize,
}

/// What one grammar may cost.
#[repr(C)]
pub struct TandemTextGrammarLimits {
    max_text_bytes: u64,
    max_items_in_row: u64,
    initial_lexer_fuel: u64,
    step_lexer_fuel: u64,
    step_max_items: u64,
    max_lexer_states: u64,
    max_grammar_size: u64,
    log_level: u32,
}

impl TandemTextView {
    fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    /// # Safety
    /// `data` must point to `len` readable bytes, or `len` be 0.
    unsafe fn bytes(&self) -> &[u8] {
        match self.len {
            0 => &[],
            len => std::slice::from_raw_parts(self.data, len),
        }
    }

    /// # Safety
    /// As `bytes`.
    unsafe fn text(&self, what: &str) -> Result<&str> {
        std::str::from_utf8(self.bytes())
            .map_err(|e| Error::invalid(format!("{what} is not UTF-8: {e}")))
    }
}

impl TandemTextIds {
    fn of(ids: Vec<u32>) -> Self {
        let ids = Box::leak(ids.into_boxed_slice());
        Self {
            data: ids.as_mut_ptr(),
            len: ids.len(),
        }
    }
}

impl TandemTextBuffer {
    fn of(bytes: Vec<u8>) -> Self {
        let bytes = Box::leak(bytes.into_boxed_slice());
        Self {
            data: bytes.as_mut_ptr(),
            len: bytes.len(),
        }
    }

    fn from_string(text: String) -> Self {
        Self::of(text.into_bytes())
    }
}

/// Runs `body`; its error, or a panic's message, goes to `error` and its code is returned (0 = ok).
///
/// # Safety
/// `error` must be writable.
unsafe fn guarded(error: *mut TandemTextBuffer, body: impl FnOnce() -> Result<()>) -> u32 {
    // A panic is reported to the caller; the default hook would print users' text to stderr.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic_text(&*panic);
            Error::new(
                ErrorCode::Internal,
                format!("panic in the text library: {text}"),
            )
        }
    };
    error.write(TandemTextBuffer::from_string(failure.message));
    failure.code as u32
}

/// # Safety
/// `buffer` must come from this library and not have been freed.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_buffer_free(buffer: TandemTextBuffer) {
    if !buffer.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            buffer.data,
            buffer.len,
        )));
    }
}

/// # Safety
/// `ids` must come from this library and not have been freed.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_ids_free(ids: TandemTextIds) {
    if !ids.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            ids.data, ids.len,
        )));
    }
}

/// # Safety
/// Views must be readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_tokenizer_new(
    model_dir: TandemTextView,
    config_overrides_json: TandemTextView,
    out: *mut *mut TextTokenizer,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let dir = Path::new(model_dir.text("the path of the model folder")?);
        let overrides = config_overrides_json.text("the tokenizer's configuration")?;
        let tokenizer = TextTokenizer::load_with(dir, overrides)?;
        out.write(Box::into_raw(Box::new(tokenizer)));
        Ok(())
    })
}

/// # Safety
/// `text` must be readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_json5_to_json(
    text: TandemTextView,
    out: *mut TandemTextBuffer,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let json = json5_text::to_json(text.text("the file")?)?;
        out.write(TandemTextBuffer::from_string(json));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` must be live or null.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_tokenizer_free(tokenizer: *mut TextTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// `tokenizer` must be live, `text` readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_tokenizer_encode(
    tokenizer: *const TextTokenizer,
    text: TandemTextView,
    add_special: bool,
    out: *mut TandemTextIds,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let ids = (*tokenizer).encode(text.text("the text")?, add_special)?;
        out.write(TandemTextIds::of(ids));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` must be live and `out` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_tokenizer_info(
    tokenizer: *const TextTokenizer,
    out: *mut TandemTextTokenizerInfo,
) {
    let tokenizer = &*tokenizer;
    let eos = tokenizer.eos();
    out.write(TandemTextTokenizerInfo {
        kind: TandemTextView::of(tokenizer.kind().as_bytes()),
        vocab_size: tokenizer.vocab_size(),
        fingerprint: tokenizer.fingerprint(),
        bos_id: tokenizer.bos().map_or(-1, i64::from),
        pad_id: tokenizer.pad().map_or(-1, i64::from),
        eos_ids: eos.as_ptr(),
        eos_count: eos.len(),
    });
}

/// # Safety
/// `tokenizer` must be live; the view lives as long as it.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_tokenizer_token_bytes(
    tokenizer: *const TextTokenizer,
    id: u32,
) -> TandemTextView {
    TandemTextView::of((*tokenizer).token_bytes(id))
}

/// # Safety
/// `tokenizer` must be live; the view lives as long as it.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_tokenizer_first_bytes(
    tokenizer: *const TextTokenizer,
    id: u32,
) -> TandemTextView {
    TandemTextView::of((*tokenizer).first_bytes(id))
}

/// # Safety
/// `tokenizer` must be live.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_tokenizer_is_special(
    tokenizer: *const TextTokenizer,
    id: u32,
) -> bool {
    (*tokenizer).is_special(id)
}

/// -1 when there is no such token.
///
/// # Safety
/// `tokenizer` must be live and `token` readable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_tokenizer_token_to_id(
    tokenizer: *const TextTokenizer,
    token: TandemTextView,
) -> i64 {
    let look_up = || {
        let text = std::str::from_utf8(token.bytes()).ok()?;
        (*tokenizer).token_to_id(text).map(i64::from)
    };
    catch_unwind(AssertUnwindSafe(look_up))
        .ok()
        .flatten()
        .unwrap_or(-1)
}

/// # Safety
/// Views must be readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_template_load(
    model_dir: TandemTextView,
    config_overrides_json: TandemTextView,
    out: *mut *mut TemplateSet,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let dir = Path::new(model_dir.text("the path of the model folder")?);
        let overrides = config_overrides_json.text("the tokenizer's configuration")?;
        let templates = TemplateSet::load_with(dir, overrides)?;
        out.write(Box::into_raw(Box::new(templates)));
        Ok(())
    })
}

/// # Safety
/// Views must be readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_template_new(
    source: TandemTextView,
    special_tokens_json: TandemTextView,
    out: *mut *mut TemplateSet,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let source = source.text("the chat template")?;
        let tokens = special_tokens_json.text("special tokens")?;
        let templates = TemplateSet::compile_one(source, tokens)?;
        out.write(Box::into_raw(Box::new(templates)));
        Ok(())
    })
}

/// # Safety
/// `templates` must be live or null.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_template_free(templates: *mut TemplateSet) {
    if !templates.is_null() {
        drop(Box::from_raw(templates));
    }
}

/// # Safety
/// `templates` must be live; the view lives as long as it.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_template_source(
    templates: *const TemplateSet,
    has_tools: bool,
) -> TandemTextView {
    TandemTextView::of((*templates).source(has_tools).as_bytes())
}

/// # Safety
/// `templates` must be live.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_template_stopped(templates: *const TemplateSet) -> bool {
    (*templates).stopped()
}

/// # Safety
/// `templates` must be live, views readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_template_render(
    templates: *const TemplateSet,
    messages_json: TandemTextView,
    variables_json: TandemTextView,
    add_generation_prompt: bool,
    now_unix_seconds: i64,
    out: *mut TandemTextBuffer,
    own: *mut TandemTextIds,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let messages = messages_json.text("messages")?;
        let variables = variables_json.text("template variables")?;
        let now = (now_unix_seconds >= 0).then_some(now_unix_seconds);
        let chat = (*templates).render_chat(messages, variables, add_generation_prompt, now)?;
        let ends = chat.own.iter().flat_map(|r| [r.start as u32, r.end as u32]);
        own.write(TandemTextIds::of(ends.collect()));
        out.write(TandemTextBuffer::from_string(chat.text));
        Ok(())
    })
}

/// # Safety
/// `templates` must be live and not in use, `tokenizer` live, `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_template_guard(
    templates: *mut TemplateSet,
    tokenizer: *const TextTokenizer,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || (*templates).guard(&*tokenizer))
}

/// # Safety
/// Handles must be live, `text` and `own` readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_template_encode(
    templates: *const TemplateSet,
    tokenizer: *const TextTokenizer,
    text: TandemTextView,
    own: *const u32,
    own_count: usize,
    out: *mut TandemTextIds,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let text = text.text("the chat")?;
        let ends: &[u32] = match own_count {
            0 => &[],
            count => std::slice::from_raw_parts(own, count),
        };
        let own = ends.chunks_exact(2).map(|r| r[0] as usize..r[1] as usize);
        let ids = (*templates).encode(&*tokenizer, text, &own.collect::<Vec<_>>())?;
        out.write(TandemTextIds::of(ids));
        Ok(())
    })
}

/// # Safety
/// `out` must be writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_grammar_default_limits(out: *mut TandemTextGrammarLimits) {
    let limits = GrammarLimits::default();
    out.write(TandemTextGrammarLimits {
        max_text_bytes: limits.max_text_bytes,
        max_items_in_row: limits.max_items_in_row,
        initial_lexer_fuel: limits.initial_lexer_fuel,
        step_lexer_fuel: limits.step_lexer_fuel,
        step_max_items: limits.step_max_items,
        max_lexer_states: limits.max_lexer_states,
        max_grammar_size: limits.max_grammar_size,
        log_level: limits.log_level,
    });
}

/// # Safety
/// `tokenizer` must be live, `limits` readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_grammar_compiler_new(
    tokenizer: *const TextTokenizer,
    vocab_size: usize,
    limits: *const TandemTextGrammarLimits,
    out: *mut *mut GrammarCompiler,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let limits = &*limits;
        let limits = GrammarLimits {
            max_text_bytes: limits.max_text_bytes,
            max_items_in_row: limits.max_items_in_row,
            initial_lexer_fuel: limits.initial_lexer_fuel,
            step_lexer_fuel: limits.step_lexer_fuel,
            step_max_items: limits.step_max_items,
            max_lexer_states: limits.max_lexer_states,
            max_grammar_size: limits.max_grammar_size,
            log_level: limits.log_level,
        };
        let compiler = GrammarCompiler::new(&*tokenizer, vocab_size, limits);
        out.write(Box::into_raw(Box::new(compiler)));
        Ok(())
    })
}

/// # Safety
/// `compiler` must be live.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_grammar_compiler_stopped(
    compiler: *const GrammarCompiler,
) -> bool {
    (*compiler).stopped()
}

/// # Safety
/// `compiler` must be live or null.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_grammar_compiler_free(compiler: *mut GrammarCompiler) {
    if !compiler.is_null() {
        drop(Box::from_raw(compiler));
    }
}

/// # Safety
/// `compiler` must be live, `text` and `thought` readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_grammar_compile(
    compiler: *const GrammarCompiler,
    kind: u32,
    text: TandemTextView,
    thought: TandemTextView,
    out: *mut *mut GrammarMatcher,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let kind = GrammarKind::of(kind).ok_or_else(|| Error::invalid("no such grammar kind"))?;
        let thought = thought.text("the grammar of reasoning")?;
        let matcher = (*compiler).compile_after(thought, kind, text.text("the grammar")?)?;
        out.write(Box::into_raw(Box::new(matcher)));
        Ok(())
    })
}

/// # Safety
/// `matcher` must be live and not in use, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_clone(
    matcher: *const GrammarMatcher,
    out: *mut *mut GrammarMatcher,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        out.write(Box::into_raw(Box::new((*matcher).try_deep_clone()?)));
        Ok(())
    })
}

/// # Safety
/// `matcher` must be live or null.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_free(matcher: *mut GrammarMatcher) {
    if !matcher.is_null() {
        drop(Box::from_raw(matcher));
    }
}

/// # Safety
/// `matcher` must be live, `allowed` and `end_ids` as long as said, `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_fill_mask(
    matcher: *mut GrammarMatcher,
    allowed: *mut u32,
    words: usize,
    end_ids: *const u32,
    end_count: usize,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        let ends = slice_of(end_ids, end_count);
        (*matcher).fill_mask(std::slice::from_raw_parts_mut(allowed, words), ends)
    })
}

/// # Safety
/// `matcher` must be live, `tokens` as long as said, `taken` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_advance(
    matcher: *mut GrammarMatcher,
    tokens: *const u32,
    count: usize,
    taken: *mut usize,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        taken.write((*matcher).advance(slice_of(tokens, count))?);
        Ok(())
    })
}

/// # Safety
/// `matcher` must be live and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_roll_back(
    matcher: *mut GrammarMatcher,
    count: usize,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || (*matcher).roll_back(count))
}

/// # Safety
/// `matcher` must be live and used by no other thread; `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_forced(
    matcher: *mut GrammarMatcher,
    out: *mut TandemTextBuffer,
    error: *mut TandemTextBuffer,
) -> u32 {
    guarded(error, || {
        out.write(TandemTextBuffer::of((*matcher).forced()));
        Ok(())
    })
}

/// # Safety
/// `matcher` must be live.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_is_complete(matcher: *const GrammarMatcher) -> bool {
    (*matcher).is_complete()
}

/// # Safety
/// `matcher` must be live.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_is_accepting(matcher: *mut GrammarMatcher) -> bool {
    (*matcher).is_accepting()
}

/// # Safety
/// `matcher` must be live.
#[no_mangle]
pub unsafe extern "C" fn tandem_text_matcher_bytes(matcher: *const GrammarMatcher) -> usize {
    (*matcher).bytes()
}

/// # Safety
/// `data` must point to `len` readable ids, or `len` be 0.
unsafe fn slice_of<'a>(data: *const u32, len: usize) -> &'a [u32] {
    match len {
        0 => &[],
        len => std::slice::from_raw_parts(data, len),
    }
}
