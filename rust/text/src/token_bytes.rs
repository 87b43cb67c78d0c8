//! Token → raw bytes, and the rule for the first token of a text.
//!
//! Decoding is concatenation of these bytes, which is what lets C++ stream text and walk a token
//! through an automaton byte by byte. It holds for the decoders of generative models: ByteLevel, and
//! the SentencePiece family (Replace, ByteFallback, Fuse, Strip, Metaspace). Others are refused.

use std::collections::HashMap;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

use crate::error::{Error, ErrorCode, Result};

/// What happens to spaces at the start of a decoded text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FirstTokenRule {
    Keep = 0,
    /// One space at the start of the text goes (decoder `Strip`, Llama 2).
    StripOneSpace = 1,
    /// Every word mark of the first token goes (decoder `Metaspace`).
    DropWordMarks = 2,
}

pub struct TokenDecoder {
    byte_of_char: Option<HashMap<char, u8>>,
    replacements: Vec<(String, String)>,
    byte_fallback: bool,
    joined_by_space: bool,
    pub first_token: FirstTokenRule,
}

impl TokenDecoder {
    pub fn new(decoder: Option<&DecoderWrapper>) -> Result<Self> {
        let mut result = Self {
            byte_of_char: None,
            replacements: Vec::new(),
            byte_fallback: false,
            joined_by_space: decoder.is_none(),
            first_token: FirstTokenRule::Keep,
        };
        if let Some(decoder) = decoder {
            result.add(decoder)?;
        }
        if result.joined_by_space {
            return Err(unsupported("none (tokens joined by spaces)"));
        }
        Ok(result)
    }

    fn add(&mut self, decoder: &DecoderWrapper) -> Result<()> {
        match decoder {
            DecoderWrapper::ByteLevel(_) => self.byte_of_char = Some(byte_level_alphabet()),
            DecoderWrapper::Sequence(sequence) => {
                for inner in sequence.get_decoders() {
                    self.add(inner)?;
                }
            }
            DecoderWrapper::Replace(replace) => self.replacements.push(replace_pair(replace)?),
            DecoderWrapper::ByteFallback(_) => self.byte_fallback = true,
            DecoderWrapper::Fuse(_) => {}
            DecoderWrapper::Strip(strip) => match (strip.content, strip.start, strip.stop) {
                (_, 0, 0) => {}
                (' ', 1, 0) => self.first_token = FirstTokenRule::StripOneSpace,
                _ => return Err(unsupported("Strip of more than one leading space")),
            },
            DecoderWrapper::Metaspace(metaspace) => {
                let mark = metaspace.get_replacement().to_string();
                self.replacements.push((mark, " ".to_owned()));
                if metaspace.prepend_scheme != PrependScheme::Never {
                    self.first_token = FirstTokenRule::DropWordMarks;
                }
            }
            DecoderWrapper::WordPiece(_) => return Err(unsupported("WordPiece")),
            DecoderWrapper::BPE(_) => return Err(unsupported("BPEDecoder")),
            DecoderWrapper::CTC(_) => return Err(unsupported("CTC")),
        }
        Ok(())
    }

    pub fn bytes(&self, token: &str) -> Vec<u8> {
        if let Some(alphabet) = &self.byte_of_char {
            let mapped: Option<Vec<u8>> =
                token.chars().map(|c| alphabet.get(&c).copied()).collect();
            return mapped.unwrap_or_else(|| token.as_bytes().to_vec());
        }
        let mut text = token.to_owned();
        for (from, to) in &self.replacements {
            text = text.replace(from, to);
        }
        match self.byte_fallback.then(|| fallback_byte(&text)).flatten() {
            Some(byte) => vec![byte],
            None => text.into_bytes(),
        }
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(
        ErrorCode::Unimplemented,
        format!(
            "tokenizer.json: decoder {what} is not supported; supported are ByteLevel, Metaspace, \
             and Sequence of Replace, ByteFallback, Fuse and Strip"
        ),
    )
}

/// `<0x0A>` → 0x0A.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// The pattern of `Replace` is private to the crate, so it is read from what the crate serializes.
fn replace_pair(replace: &tokenizers::normalizers::Replace) -> Result<(String, String)> {
    let json = serde_json::to_value(replace)
        .map_err(|e| Error::new(ErrorCode::Internal, format!("Replace: {e}")))?;
    match json["pattern"]["String"].as_str() {
        Some(pattern) => Ok((pattern.to_owned(), replace.content.to_owned())),
        None => Err(unsupported("Replace with a regular expression")),
    }
}

/// GPT-2's printable stand-ins for bytes, reversed.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256u32;
    (0..=255u8)
        .map(|byte| {
            let code = if printable(byte) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).expect("below the surrogates"), byte)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_covers_every_byte_once() {
        let alphabet = byte_level_alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!(alphabet[&'Ġ'], b' ');
        assert_eq!(alphabet[&'Ċ'], b'\n');
        assert_eq!(alphabet[&'a'], b'a');
    }

    #[test]
    fn only_well_formed_byte_tokens_are_bytes() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0xFF>"), Some(255));
        assert_eq!(fallback_byte("<0xF>"), None);
        assert_eq!(fallback_byte("<0xZZ>"), None);
        assert_eq!(fallback_byte("0x0A"), None);
    }
}
