//! The files that define a tokenizer, and the pipeline that each becomes.

mod byte_pairs;
mod gpt2;
mod sentencepiece;
mod tiktoken;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use tokenizers::{AddedToken, DecoderWrapper, Tokenizer, TokenizerBuilder, TokenizerImpl};

use crate::error::{Error, ErrorCode, Result};
use crate::families::Family;
use crate::model::{Pipeline, Segmenter};
use crate::model_folder::{read_optional_bytes, ListedToken, ModelFolder};
use crate::split::SafePreTokenizer;

const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// A tokenizer as its files define it.
pub struct Source {
    /// For people: the file and what it is.
    pub kind: String,
    pub pipeline: Pipeline,
    /// Whether the pipeline itself puts tokens around a text. Otherwise the family's do, and the first and
    /// last as tokenizer_config.json says.
    pub frames: bool,
    /// Whether a text begins with the BOS token unless tokenizer_config.json says otherwise.
    pub adds_bos: bool,
    /// Names of `bos_token` and the like, for folders that do not give them.
    pub named: fn(&Pipeline, &str) -> Option<String>,
}

/// An error is a sentence about the file, which the caller names.
type Read = fn(&[u8], &ModelFolder, &Family) -> Parsed<Source>;
type Parsed<T> = std::result::Result<T, String>;

/// In order of preference: a folder often has the same tokenizer in several files.
const FILES: [(&str, Read); 6] = [
    ("tokenizer.json", tokenizer_json),
    ("tekken.json", tekken),
    ("tokenizer.model", sentencepiece_or_ranks),
    ("ice_text.model", sentencepiece::read),
    ("qwen.tiktoken", rank_file),
    ("vocab.json", gpt2::read),
];

pub fn open(dir: &Path, folder: &ModelFolder, family: &Family) -> Result<Source> {
    for (name, read) in FILES {
        let Some(bytes) = read_optional_bytes(&dir.join(name), MAX_TOKENIZER_BYTES)? else {
            continue;
        };
        // The crate unwraps on some malformed files.
        let source = catch_unwind(AssertUnwindSafe(|| read(&bytes, folder, family)))
            .unwrap_or_else(|_| Err("it is malformed".into()))
            .map_err(|e| Error::data_loss(format!("{}: {e}", dir.join(name).display())))?;
        let kind = format!("{} ({name})", source.kind);
        return Ok(Source { kind, ..source });
    }
    let names: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
    let message = format!(
        "{} has no tokenizer: none of {}",
        dir.display(),
        names.join(", ")
    );
    Err(Error::new(ErrorCode::NotFound, message))
}

fn utf8(bytes: &[u8]) -> Parsed<&str> {
    std::str::from_utf8(bytes).map_err(|e| format!("it is not UTF-8: {e}"))
}

/// A pipeline of nothing but a model and a decoder.
fn pipeline(model: Segmenter, decoder: DecoderWrapper) -> Parsed<Pipeline> {
    TokenizerBuilder::new()
        .with_model(model)
        .with_normalizer(None)
        .with_pre_tokenizer(None)
        .with_post_processor(None)
        .with_decoder(Some(decoder))
        .with_truncation(None)
        .with_padding(None)
        .build()
        .map_err(|e| e.to_string())
}

/// The crate's own format, with our splits, and without truncation and padding left in the file by
/// training: a server must not shorten a prompt silently.
fn tokenizer_json(bytes: &[u8], folder: &ModelFolder, _: &Family) -> Parsed<Source> {
    let tokenizer = Tokenizer::from_bytes(utf8(bytes)?).map_err(|e| e.to_string())?;
    let inner: TokenizerImpl<_, _, _, _, _> = tokenizer.into_inner();
    let splits = inner
        .get_pre_tokenizer()
        .map(SafePreTokenizer::new)
        .transpose()
        .map_err(|e| format!("pre_tokenizer: {e}"))?;
    let mut pipeline = TokenizerBuilder::new()
        .with_model(Segmenter::Crate(Box::new(inner.get_model().clone())))
        .with_normalizer(inner.get_normalizer().cloned())
        .with_pre_tokenizer(splits)
        .with_post_processor(inner.get_post_processor().cloned())
        .with_decoder(inner.get_decoder().cloned())
        .with_added_vocabulary(inner.get_added_vocabulary().clone())
        .with_truncation(None)
        .with_padding(None)
        .build()
        .map_err(|e| e.to_string())?;
    add_tokens(&mut pipeline, folder.added_tokens_decoder(), Known::Stay)?;
    Ok(Source {
        kind: "Hugging Face".into(),
        pipeline,
        frames: true,
        adds_bos: false,
        named: |_, _| None,
    })
}

fn tekken(bytes: &[u8], folder: &ModelFolder, family: &Family) -> Parsed<Source> {
    let mut pipeline = tiktoken::tekken(utf8(bytes)?)?;
    add_folders_tokens(&mut pipeline, folder, family)?;
    Ok(Source {
        kind: "Mistral's byte-level BPE".into(),
        pipeline,
        frames: false,
        adds_bos: true,
        named: |_, key| {
            let names = [
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
            ];
            let found = names.iter().find(|(name, _)| *name == key);
            found.map(|(_, token)| (*token).to_owned())
        },
    })
}

fn rank_file(bytes: &[u8], folder: &ModelFolder, family: &Family) -> Parsed<Source> {
    let Some(split) = &family.split else {
        return Err("it holds tiktoken's ranks, but how text is split into words is not known: \
                    tokenizer_class in tokenizer_config.json or model_type in config.json must be Qwen's or \
                    GLM-4's"
            .into());
    };
    let mut pipeline = tiktoken::rank_file(utf8(bytes)?, split)?;
    add_folders_tokens(&mut pipeline, folder, family)?;
    Ok(Source {
        kind: format!("tiktoken ranks of {}", family.name),
        pipeline,
        frames: false,
        adds_bos: false,
        named: |_, _| None,
    })
}

/// A SentencePiece model begins with its first piece: field 1 of the message.
fn sentencepiece_or_ranks(bytes: &[u8], folder: &ModelFolder, family: &Family) -> Parsed<Source> {
    match bytes.first() {
        Some(0x0A) | None => sentencepiece::read(bytes, folder, family),
        Some(_) => rank_file(bytes, folder, family),
    }
}

/// The tokens that a folder adds to those of its vocabulary file, in the order of their ids.
fn add_folders_tokens(
    pipeline: &mut Pipeline,
    folder: &ModelFolder,
    family: &Family,
) -> Parsed<()> {
    let special = |name: &str| AddedToken::from(name.to_owned(), true);
    let known = |pipeline: &Pipeline, name: &str| pipeline.token_to_id(name).is_some();
    let appended = (family.appended)();
    // A rank file does not hold them; a SentencePiece model has got them as pieces.
    let spelled = appended.iter().filter(|name| !is_word(name));
    add(pipeline, spelled.map(|name| special(name)))?;
    add_tokens(pipeline, folder.added_tokens_decoder(), Known::Change)?;
    add_tokens(pipeline, folder.added_tokens_json()?, Known::Change)?;
    let names = folder.special_token_names();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.extend(family.special.iter().filter(|name| known(pipeline, name)));
    let names: Vec<_> = names
        .into_iter()
        .filter(|name| !is_word(name))
        .map(special)
        .collect();
    add(pipeline, names)
}

fn add(pipeline: &mut Pipeline, tokens: impl IntoIterator<Item = AddedToken>) -> Parsed<()> {
    pipeline
        .add_tokens(tokens)
        .map(|_| ())
        .map_err(|e| e.to_string())
}

/// Whether a token is spelled like an ordinary word, which a text must be able to contain.
fn is_word(token: &str) -> bool {
    token.chars().all(char::is_alphabetic)
}

/// What happens to tokens that the vocabulary has already.
#[derive(PartialEq)]
enum Known {
    Stay,
    /// They become what the other file says: found in a text, and perhaps special.
    Change,
}

/// Adds tokens that other files of the folder know; transformers does so too.
fn add_tokens(pipeline: &mut Pipeline, tokens: Vec<ListedToken>, known: Known) -> Parsed<()> {
    for ListedToken { id, token, file } in tokens {
        let content = token.content.clone();
        if known == Known::Change || pipeline.token_to_id(&content).is_none() {
            add(pipeline, [token])?;
        }
        let found = pipeline.token_to_id(&content);
        if found != Some(id) {
            let found = found.map_or_else(|| "none".into(), |id| id.to_string());
            return Err(format!(
                "{file} gives {content:?} the id {id}, but here it has {found}"
            ));
        }
    }
    Ok(())
}
