//! The tokenizer of a model folder: encoding, and a table of the bytes of each token id.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use crate::chat_text::ControlTokens;
use crate::error::{Error, Result};
use crate::families::family_of;
use crate::model::{Pipeline, Segmenter};
use crate::model_folder::{ModelFolder, SPECIAL_TOKEN_KEYS};
use crate::sources;
use crate::token_bytes::TokenDecoder;

/// Far above any vocabulary (the largest known has 262,144), far below the ids that a crafted file
/// could request.
const MAX_VOCAB: usize = 4 << 20;

/// Immutable after `load`; shared by threads.
pub struct TextTokenizer {
    kind: String,
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
    /// The one that the tokenizer itself ends a text with.
    own_eos: Option<u32>,
    pad: Option<u32>,
    /// The folder's own, where the operator names another one or none.
    replaced_bos: Option<u32>,
    add_bos: Option<bool>,
    add_eos: Option<bool>,
    /// Tokens around a text, and how those before it are spelled: a chat template may have written them.
    before: Vec<u32>,
    before_text: String,
    after: Vec<u32>,
}

impl TextTokenizer {
    /// Reads the first tokenizer file of one folder that there is (`sources`) and, where present,
    /// tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and
    /// config.json.
    pub fn load(dir: &Path) -> Result<Self> {
        Self::load_with(dir, "")
    }

    /// `overrides`: a JSON object with members that replace those of tokenizer_config.json. With
    /// `bos_token` in it, texts begin with that token, or with none where it is null.
    pub fn load_with(dir: &Path, overrides: &str) -> Result<Self> {
        let folder = ModelFolder::read(dir, overrides)?;
        let family = family_of(&folder);
        let source = sources::open(dir, &folder, family)?;
        let pipeline = source.pipeline;

        let named = |key: &str| {
            let own = || (source.named)(&pipeline, key).filter(|_| !folder.denies(key));
            pipeline.token_to_id(&folder.special_token(key).or_else(own)?)
        };
        for key in SPECIAL_TOKEN_KEYS {
            let text = folder.overridden(key).and(folder.special_token(key));
            if let Some(text) = text.filter(|text| pipeline.token_to_id(text).is_none()) {
                return Err(Error::invalid(format!(
                    "{key}: {text:?} is no token of this tokenizer"
                )));
            }
        }
        let own_bos = || {
            let own = folder.own_special_token("bos_token");
            let own = own.or_else(|| (source.named)(&pipeline, "bos_token"));
            let id = own.and_then(|text| pipeline.token_to_id(&text));
            id.or_else(|| folder.token_id("bos_token_id"))
        };
        let (bos, replaced_bos) = match folder.overridden("bos_token") {
            Some(_) => (named("bos_token"), own_bos()),
            None => (
                named("bos_token").or_else(|| folder.token_id("bos_token_id")),
                None,
            ),
        };
        let pad = named("pad_token").or_else(|| folder.token_id("pad_token_id"));
        let mut eos = folder.eos_ids();
        let own_eos = named("eos_token").or(eos.last().copied());
        let stops = family
            .stops
            .iter()
            .filter_map(|name| pipeline.token_to_id(name));
        for id in named("eos_token").into_iter().chain(stops) {
            if !eos.contains(&id) {
                eos.push(id);
            }
        }
        // A token that is named only by an id in config.json or generation_config.json may be any
        // word.
        let specials = ["bos_token", "eos_token", "pad_token", "unk_token"];
        let controls = pipeline.get_model().controls();
        let controls = controls
            .iter()
            .filter_map(|name| pipeline.token_to_id(name));
        let specials: HashSet<u32> = specials
            .into_iter()
            .filter_map(named)
            .chain(controls)
            .collect();
        let decoder = TokenDecoder::new(pipeline.get_decoder())?;
        let table = token_table(&pipeline, &decoder, &specials)
            .map_err(|e| Error::data_loss(format!("{}: {e}", source.kind)))?;
        let (add_bos, add_eos) = match source.frames {
            true => explicit_bos_eos(&folder),
            false if family.before.is_empty() && family.after.is_empty() => (
                folder.flag("add_bos_token").or(Some(source.adds_bos)),
                folder.flag("add_eos_token"),
            ),
            false => (None, None),
        };
        let add_bos = match folder.overridden("bos_token") {
            Some(_) => Some(bos.is_some()),
            None => add_bos,
        };
        let ids = |names: &[&str]| -> Vec<u32> {
            let framed = names.iter().filter(|_| !source.frames);
            framed
                .filter_map(|name| pipeline.token_to_id(name))
                .collect()
        };
        let mut result = Self {
            kind: source.kind,
            bytes: Vec::new(),
            ends: Vec::new(),
            special: Vec::new(),
            first_bytes: first_bytes(&pipeline, &decoder, &table),
            fingerprint: fingerprint(&table),
            bos,
            eos,
            own_eos,
            pad,
            replaced_bos,
            add_bos,
            add_eos,
            before: ids(family.before),
            before_text: family.before.concat(),
            after: ids(family.after),
            pipeline,
        };
        for (bytes, special) in table {
            result.bytes.extend_from_slice(&bytes);
            result.ends.push(result.bytes.len());
            result.special.push(special);
        }
        Ok(result)
    }

    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = text;
        if !self.before.is_empty() {
            let written = text.strip_prefix(self.before_text.as_str());
            if add_special || written.is_some() {
                ids.extend_from_slice(&self.before);
            }
            rest = written.unwrap_or(text);
        }
        ids.extend(self.encode_rest(rest, add_special)?);
        if add_special {
            ids.extend_from_slice(&self.after);
            self.apply_explicit_bos_eos(&mut ids);
        }
        Ok(ids)
    }

    /// The control tokens of chats that `template` writes.
    pub fn control_tokens(&self, template: &str) -> Result<ControlTokens> {
        let is_special = |id| self.is_special(id);
        ControlTokens::new(&self.pipeline, is_special, &self.before_text, template)
    }

    /// Encodes a rendered chat. `own`: what of its control tokens' text the template wrote; other
    /// text never becomes a control token.
    pub fn encode_chat(
        &self,
        controls: &ControlTokens,
        text: &str,
        own: &[Range<usize>],
    ) -> Result<Vec<u32>> {
        let length = self.before_text.len();
        let written = length > 0 && text.starts_with(self.before_text.as_str());
        let is_own = written && own.first().is_some_and(|r| r.start == 0 && r.end >= length);
        let skipped = if is_own { length } else { 0 };
        let moved = |at: usize| at.saturating_sub(skipped);
        let own: Vec<Range<usize>> = own
            .iter()
            .map(|r| moved(r.start)..moved(r.end))
            .filter(|r| !r.is_empty())
            .collect();
        let guarded = controls.encode(&self.pipeline, &text[skipped..], &own)?;
        let mut ids = if is_own {
            self.before.clone()
        } else {
            Vec::new()
        };
        match guarded {
            Some(rest) => ids.extend(rest),
            None => ids.extend(self.encode_rest(&text[skipped..], false)?),
        }
        Ok(ids)
    }

    fn encode_rest(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self
            .pipeline
            .encode_fast(text, add_special)
            .map_err(|e| Error::invalid(format!("the text could not be tokenized: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// `add_bos_token` and `add_eos_token` of tokenizer_config.json overrule the post-processor, as
    /// they do in the Llama tokenizer classes of transformers.
    fn apply_explicit_bos_eos(&self, ids: &mut Vec<u32>) {
        let replaced = self.replaced_bos.filter(|bos| Some(*bos) != self.bos);
        if replaced.is_some() && ids.first() == replaced.as_ref() {
            ids.remove(0);
        }
        if let (Some(wanted), Some(bos)) = (self.add_bos, self.bos) {
            match (wanted, ids.first() == Some(&bos)) {
                (true, false) => ids.insert(0, bos),
                (false, true) => drop(ids.remove(0)),
                _ => {}
            }
        }
        if let (Some(wanted), Some(eos)) = (self.add_eos, self.own_eos) {
            match (wanted, ids.last() == Some(&eos)) {
                (true, false) => ids.push(eos),
                (false, true) => drop(ids.pop()),
                _ => {}
            }
        }
    }

    /// For people: what the tokenizer is and which file it comes from.
    pub fn kind(&self) -> &str {
        &self.kind
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

/// Applies only if the Llama classes of transformers would obey the keys.
fn explicit_bos_eos(folder: &ModelFolder) -> (Option<bool>, Option<bool>) {
    let obeys = folder.tokenizer_class().is_some_and(|name| {
        ["Llama", "CodeLlama", "Gemma", "Cohere"]
            .iter()
            .any(|family| name.starts_with(family))
    });
    if !obeys {
        return (None, None);
    }
    (folder.flag("add_bos_token"), folder.flag("add_eos_token"))
}

fn token_table(
    pipeline: &Pipeline,
    decoder: &TokenDecoder,
    specials: &HashSet<u32>,
) -> std::result::Result<Vec<(Vec<u8>, bool)>, String> {
    let vocab = pipeline.get_vocab(true);
    let size = vocab.values().max().map_or(0, |max| *max as usize + 1);
    if size == 0 || size > MAX_VOCAB {
        return Err(format!(
            "it has {size} token ids; 1 to {MAX_VOCAB} are possible"
        ));
    }
    let mut table = vec![(Vec::new(), false); size];
    for (token, id) in &vocab {
        table[*id as usize] = (
            bytes_of(pipeline, decoder, token, false),
            specials.contains(id),
        );
    }
    for (id, token) in pipeline.get_added_tokens_decoder() {
        table[id as usize].1 |= token.special;
    }
    Ok(table)
}

fn bytes_of(pipeline: &Pipeline, decoder: &TokenDecoder, token: &str, is_first: bool) -> Vec<u8> {
    let whitespace = match pipeline.get_model() {
        Segmenter::SentencePiece { model, .. } => model.whitespace_of(token),
        Segmenter::Crate(_) => None,
    };
    match whitespace {
        Some(text) => text.as_bytes().to_vec(),
        None => decoder.bytes(token, is_first),
    }
}

fn first_bytes(
    pipeline: &Pipeline,
    decoder: &TokenDecoder,
    table: &[(Vec<u8>, bool)],
) -> HashMap<u32, Vec<u8>> {
    if !decoder.knows_first {
        return HashMap::new();
    }
    let vocab = pipeline.get_vocab(true).into_iter();
    let first = vocab.map(|(token, id)| (id, bytes_of(pipeline, decoder, &token, true)));
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
