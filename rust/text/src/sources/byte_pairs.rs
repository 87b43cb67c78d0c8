//! Byte-level BPE as the `tokenizers` crate wants it, from tokens that are bytes with ranks.

use std::collections::HashMap;

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::model::{Pipeline, Segmenter};
use crate::sources::pipeline;
use crate::split::SafePreTokenizer;
use crate::token_bytes::byte_level_text;

/// Longer tokens are a damaged file: finding out how a token is merged takes the square of its length.
const MAX_TOKEN_BYTES: usize = 4096;

/// Tokens by their bytes; a token of lower rank is merged first.
#[derive(Default)]
pub struct Ranks {
    ranks: HashMap<Vec<u8>, u32>,
    by_rank: HashMap<u32, Vec<u8>>,
}

impl Ranks {
    pub fn insert(&mut self, bytes: Vec<u8>, rank: u32) -> Result<(), String> {
        if bytes.is_empty() || bytes.len() > MAX_TOKEN_BYTES {
            return Err(format!(
                "the token of rank {rank} has {} bytes; 1 to {MAX_TOKEN_BYTES} are possible",
                bytes.len()
            ));
        }
        if let Some(other) = self.ranks.insert(bytes.clone(), rank) {
            return Err(format!("ranks {other} and {rank} have the same token"));
        }
        match self.by_rank.insert(rank, bytes) {
            None => Ok(()),
            Some(_) => Err(format!("two tokens have the rank {rank}")),
        }
    }

    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The two tokens that `token` is merged from.
    ///
    /// Rank files do not say it. But whatever stands around a token, the merges inside it are those of the
    /// token alone, in the same order, so that its last merge is always of the same two. None if merging
    /// gets stuck before: such a token only ever stands for a whole word.
    fn last_merge<'a>(&self, token: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        // Where parts end.
        let mut ends: Vec<usize> = (1..=token.len()).collect();
        while ends.len() > 2 {
            let start = |part: usize| part.checked_sub(1).map_or(0, |before| ends[before]);
            let pairs = 0..ends.len() - 1;
            let ranked = pairs.filter_map(|left| {
                let merged = &token[start(left)..ends[left + 1]];
                self.ranks.get(merged).map(|rank| (*rank, left))
            });
            let (_, left) = ranked.min()?;
            ends.remove(left);
        }
        (ends.len() == 2).then(|| token.split_at(ends[0]))
    }

    /// `first_id`: the id of rank 0. `others`: further tokens with ids of their own.
    pub fn build(
        &self,
        pattern: &str,
        normalizer: Option<NFC>,
        first_id: u32,
        others: &[(String, u32)],
    ) -> Result<Pipeline, String> {
        if let Some(byte) = (0..=255u8).find(|byte| !self.ranks.contains_key(&[*byte][..])) {
            return Err(format!("no token is the byte 0x{byte:02X} alone"));
        }
        let mut vocabulary = AHashMap::with_capacity(self.len() + others.len());
        for (bytes, rank) in &self.ranks {
            let id = rank.checked_add(first_id);
            let id = id.ok_or_else(|| format!("the rank {rank} is too large"))?;
            vocabulary.insert(byte_level_text(bytes), id);
        }
        for (name, id) in others {
            if vocabulary.insert(name.clone(), *id).is_some() {
                return Err(format!("{name:?} is a token twice"));
            }
        }
        let mut order: Vec<_> = self.by_rank.iter().collect();
        order.sort_unstable_by_key(|(rank, _)| **rank);
        let merges = order.iter().filter_map(|(_, token)| self.last_merge(token));
        let merges = merges.map(|(left, right)| (byte_level_text(left), byte_level_text(right)));
        let model = BPE::builder()
            .vocab_and_merges(vocabulary, merges.collect())
            // A word that is a token needs no merges.
            .ignore_merges(true)
            .build()
            .map_err(|e| e.to_string())?;
        byte_level(model, Some(pattern), normalizer, false)
    }
}

/// Without a pattern the split is GPT-2's.
pub fn byte_level(
    model: BPE,
    pattern: Option<&str>,
    normalizer: Option<NFC>,
    add_prefix_space: bool,
) -> Result<Pipeline, String> {
    let split = match pattern {
        None => ByteLevel::new(add_prefix_space, false, true).into(),
        Some(pattern) => {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| e.to_string())?;
            let bytes = ByteLevel::new(add_prefix_space, false, false);
            PreTokenizerWrapper::from(Sequence::new(vec![split.into(), bytes.into()]))
        }
    };
    let split = SafePreTokenizer::new(&split).map_err(|e| e.to_string())?;
    let model = Segmenter::Crate(Box::new(ModelWrapper::from(model)));
    let mut result = pipeline(model, ByteLevel::new(false, false, false).into())?;
    result.with_pre_tokenizer(Some(split));
    result
        .with_normalizer(normalizer.map(NormalizerWrapper::from))
        .map_err(|e| e.to_string())?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(tokens: &[&str]) -> Ranks {
        let mut ranks = Ranks::default();
        for (token, rank) in tokens.iter().zip(0..) {
            ranks.insert(token.as_bytes().to_vec(), rank).unwrap();
        }
        ranks
    }

    #[test]
    fn a_token_is_merged_as_it_would_be_in_a_text() {
        let ranks = ranks(&[
            "a", "b", "c", "bc", "ab", "abc", "abcabc", "xyz", "aaa", "aa",
        ]);
        let merge = |token: &'static str| ranks.last_merge(token.as_bytes());
        assert_eq!(merge("abc"), Some((&b"a"[..], &b"bc"[..])));
        assert_eq!(merge("abcabc"), Some((&b"abc"[..], &b"abc"[..])));
        assert_eq!(merge("aaa"), Some((&b"aa"[..], &b"a"[..])));
        assert_eq!(merge("xyz"), None);
        assert_eq!(merge("a"), None);
    }
}
