//! A tokenizer.json with its side files: encoding, and a table of the bytes of each token id.

use std::collections::{HashMap, HashSet};
use std::panic::catch_unwind;
use std::path::Path;

use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, Tokenizer,
    TokenizerBuilder, TokenizerImpl,
};

use crate::error::{Error, ErrorCode, Result};
use crate::model_folder::{read_optional, ModelFolder};
use crate::split::SafePreTokenizer;
use crate::token_bytes::TokenDecoder;

const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Far above any vocabulary (the largest known has 262,144), far below the ids that a crafted file
/// could request.
const MAX_VOCAB: usize = 4 << 20;

type Pipeline = TokenizerImpl<
    ModelWrapper,
    NormalizerWrapper,
    SafePreTokenizer,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Immutable after `load`; shared by threads.
pub struct TextTokenizer {
    pipeline: Pipeline,
    /// Bytes of all tokens back to back; token `i` is `bytes[ends[i - 1]..ends[i]]`.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    special: Vec<bool>,
    /// Other bytes for tokens that have them at the start of a text.
    first_bytes: HashMap<u32, Vec<u8>>,
    fingerprint: u64,
    bos: Option<u32>,
    eos: Vec<u32>,
    pad: Option<u32>,
    add_bos: Option<bool>,
    add_eos: Option<bool>,
}

impl TextTokenizer {
    /// Reads tokenizer.json and, where present, tokenizer_config.json, special_tokens_map.json,
    /// generation_config.json and config.json of one folder.
    pub fn load(dir: &Path) -> Result<Self> {
        let folder = ModelFolder::read(dir)?;
        let json =
            read_optional(&dir.join("tokenizer.json"), MAX_TOKENIZER_BYTES)?.ok_or_else(|| {
                let message = format!(
                "{} has no tokenizer.json; a SentencePiece or tiktoken file has to be converted \
                 with transformers first (AutoTokenizer(...).save_pretrained)",
                dir.display()
            );
                Error::new(ErrorCode::NotFound, message)
            })?;
        Self::from_json(&json, &folder)
    }

    fn from_json(json: &str, folder: &ModelFolder) -> Result<Self> {
        // The crate unwraps on some malformed files.
        let mut tokenizer = catch_unwind(|| Tokenizer::from_bytes(json.as_bytes()))
            .map_err(|_| Error::data_loss("tokenizer.json is malformed"))?
            .map_err(|e| Error::data_loss(format!("tokenizer.json: {e}")))?;
        add_tokens_of_config(&mut tokenizer, folder)?;

        let named = |key: &str| {
            let text = folder.special_token(key)?;
            tokenizer.token_to_id(&text)
        };
        let bos = named("bos_token").or_else(|| folder.token_id("bos_token_id"));
        let pad = named("pad_token").or_else(|| folder.token_id("pad_token_id"));
        let mut eos = folder.eos_ids();
        eos.extend(named("eos_token").filter(|id| !eos.contains(id)));

        let decoder = TokenDecoder::new(tokenizer.get_decoder())?;
        // A token that is named only by an id in config.json or generation_config.json may be any
        // word.
        let specials = ["bos_token", "eos_token", "pad_token", "unk_token"];
        let specials: HashSet<u32> = specials.into_iter().filter_map(named).collect();
        let table = token_table(&tokenizer, &decoder, &specials)?;
        let first_bytes = first_bytes(&tokenizer, &decoder, &table);
        let fingerprint = fingerprint(&table);
        let (add_bos, add_eos) = explicit_bos_eos(folder);
        let mut result = Self {
            pipeline: with_safe_splits(tokenizer)?,
            bytes: Vec::new(),
            ends: Vec::new(),
            special: Vec::new(),
            first_bytes,
            fingerprint,
            bos,
            eos,
            pad,
            add_bos,
            add_eos,
        };
        for (bytes, special) in table {
            result.bytes.extend_from_slice(&bytes);
            result.ends.push(result.bytes.len());
            result.special.push(special);
        }
        Ok(result)
    }

    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self
            .pipeline
            .encode_fast(text, add_special)
            .map_err(|e| Error::invalid(format!("the text could not be tokenized: {e}")))?;
        let mut ids = encoding.get_ids().to_vec();
        if add_special {
            self.apply_explicit_bos_eos(&mut ids);
        }
        Ok(ids)
    }

    /// `add_bos_token` and `add_eos_token` of tokenizer_config.json overrule the post-processor, as
    /// they do in the Llama tokenizer classes of transformers.
    fn apply_explicit_bos_eos(&self, ids: &mut Vec<u32>) {
        if let (Some(wanted), Some(bos)) = (self.add_bos, self.bos) {
            match (wanted, ids.first() == Some(&bos)) {
                (true, false) => ids.insert(0, bos),
                (false, true) => drop(ids.remove(0)),
                _ => {}
            }
        }
        if let (Some(wanted), Some(&eos)) = (self.add_eos, self.eos.last()) {
            match (wanted, ids.last() == Some(&eos)) {
                (true, false) => ids.push(eos),
                (false, true) => drop(ids.pop()),
                _ => {}
            }
        }
    }

    /// Raw bytes of a token; empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }

    /// The bytes it adds as the first token of a text.
    pub fn first_bytes(&self, id: u32) -> &[u8] {
        self.first_bytes
            .get(&id)
            .map_or_else(|| self.token_bytes(id), Vec::as_slice)
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.pipeline.token_to_id(token)
    }
    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.ends.len()
    }
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
    /// Equal when every id has the same bytes and the same specialness.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }
}

/// tokenizer_config.json may know tokens that tokenizer.json does not; transformers adds them.
fn add_tokens_of_config(tokenizer: &mut Tokenizer, folder: &ModelFolder) -> Result<()> {
    for (id, content, special) in folder.added_tokens() {
        if tokenizer.token_to_id(&content).is_none() {
            tokenizer
                .add_tokens([AddedToken::from(content.clone(), special)])
                .map_err(|e| Error::data_loss(format!("tokenizer_config.json: {e}")))?;
        }
        let found = tokenizer.token_to_id(&content);
        if found != Some(id) {
            return Err(Error::data_loss(format!(
                "tokenizer_config.json: added_tokens_decoder gives {content:?} the id {id}, \
                 tokenizer.json gives it {found:?}"
            )));
        }
    }
    Ok(())
}

/// Applies only if the Llama classes of transformers would obey the keys.
fn explicit_bos_eos(folder: &ModelFolder) -> (Option<bool>, Option<bool>) {
    let config = &folder.tokenizer_config;
    let class = config.get("tokenizer_class").and_then(|v| v.as_str());
    let obeys = class.is_some_and(|name| {
        ["Llama", "CodeLlama", "Gemma", "Cohere"]
            .iter()
            .any(|family| name.starts_with(family))
    });
    if !obeys {
        return (None, None);
    }
    let flag = |key| config.get(key).and_then(|v| v.as_bool());
    (flag("add_bos_token"), flag("add_eos_token"))
}

fn token_table(
    tokenizer: &Tokenizer,
    decoder: &TokenDecoder,
    specials: &HashSet<u32>,
) -> Result<Vec<(Vec<u8>, bool)>> {
    let vocab = tokenizer.get_vocab(true);
    let size = vocab.values().max().map_or(0, |max| *max as usize + 1);
    if size == 0 || size > MAX_VOCAB {
        return Err(Error::data_loss(format!(
            "tokenizer.json: {size} token ids; 1 to {MAX_VOCAB} are possible"
        )));
    }
    let mut table = vec![(Vec::new(), false); size];
    for (token, id) in &vocab {
        table[*id as usize] = (decoder.bytes(token, false), specials.contains(id));
    }
    for (id, token) in tokenizer.get_added_tokens_decoder() {
        table[id as usize].1 |= token.special;
    }
    Ok(table)
}

fn first_bytes(
    tokenizer: &Tokenizer,
    decoder: &TokenDecoder,
    table: &[(Vec<u8>, bool)],
) -> HashMap<u32, Vec<u8>> {
    if !decoder.knows_first {
        return HashMap::new();
    }
    let vocab = tokenizer.get_vocab(true).into_iter();
    let first = vocab.map(|(token, id)| (id, decoder.bytes(&token, true)));
    first
        .filter(|(id, bytes)| *bytes != table[*id as usize].0)
        .collect()
}

/// FNV-1a over length, bytes and specialness of every id.
fn fingerprint(table: &[(Vec<u8>, bool)]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for (bytes, special) in table {
        (bytes.len() as u32)
            .to_le_bytes()
            .into_iter()
            .for_each(&mut add);
        bytes.iter().copied().for_each(&mut add);
        add(u8::from(*special));
    }
    hash
}

/// The same pipeline with our splits, and without truncation and padding left in the file by
/// training: a server must not shorten a prompt silently.
fn with_safe_splits(tokenizer: Tokenizer) -> Result<Pipeline> {
    let inner = tokenizer.into_inner();
    let splits = inner
        .get_pre_tokenizer()
        .map(SafePreTokenizer::new)
        .transpose()
        .map_err(|e| Error::data_loss(format!("tokenizer.json: pre_tokenizer: {e}")))?;
    TokenizerBuilder::new()
        .with_model(inner.get_model().clone())
        .with_normalizer(inner.get_normalizer().cloned())
        .with_pre_tokenizer(splits)
        .with_post_processor(inner.get_post_processor().cloned())
        .with_decoder(inner.get_decoder().cloned())
        .with_added_vocabulary(inner.get_added_vocabulary().clone())
        .with_truncation(None)
        .with_padding(None)
        .build()
        .map_err(|e| Error::new(ErrorCode::Internal, e.to_string()))
}
