//! Maps a token to its raw bytes, inside a text and at its start.
//!
//! Decoding concatenates these bytes, so C++ can stream text and walk a token through an automaton
//! byte by byte. This holds for ByteLevel, WordPiece, and the SentencePiece family (Replace,
//! ByteFallback, Fuse, Strip, Metaspace). Others are refused.

use std::collections::HashMap;
use std::sync::LazyLock;

use tokenizers::decoders::wordpiece::cleanup;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

use crate::error::{Error, ErrorCode, Result};

/// The effect of one decoder on one token.
enum Step {
    ByteLevel(HashMap<char, u8>),
    Replace {
        from: String,
        to: String,
    },
    ByteFallback,
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Metaspace {
        mark: char,
        first_loses_marks: bool,
    },
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    /// Acts on the whole text, which `Fuse` has joined: drops its first space.
    StripText,
}

pub struct TokenDecoder {
    steps: Vec<Step>,
    is_fused: bool,
    /// Whether any token has other bytes at the start of a text.
    pub knows_first: bool,
}

impl TokenDecoder {
    pub fn new(decoder: Option<&DecoderWrapper>) -> Result<Self> {
        let Some(decoder) = decoder else {
            return Err(unsupported("none (tokens joined by spaces)"));
        };
        let mut result = Self {
            steps: Vec::new(),
            is_fused: false,
            knows_first: false,
        };
        result.add(decoder)?;
        Ok(result)
    }

    fn add(&mut self, decoder: &DecoderWrapper) -> Result<()> {
        let step = match decoder {
            DecoderWrapper::Sequence(sequence) => {
                for inner in sequence.get_decoders() {
                    self.add(inner)?;
                }
                return Ok(());
            }
            DecoderWrapper::Fuse(_) => {
                self.is_fused = true;
                return Ok(());
            }
            DecoderWrapper::ByteLevel(_) => {
                self.is_fused = true;
                Step::ByteLevel(byte_level_alphabet())
            }
            DecoderWrapper::Replace(replace) => {
                let (from, to) = replace_pair(replace)?;
                Step::Replace { from, to }
            }
            DecoderWrapper::ByteFallback(_) => Step::ByteFallback,
            DecoderWrapper::Strip(strip) if !self.is_fused => Step::Strip {
                content: strip.content,
                start: strip.start,
                stop: strip.stop,
            },
            DecoderWrapper::Strip(strip) => match (strip.content, strip.start, strip.stop) {
                (_, 0, 0) => return Ok(()),
                (' ', 1, 0) => Step::StripText,
                _ => {
                    return Err(unsupported(
                        "Strip of more than one leading space of a text",
                    ))
                }
            },
            DecoderWrapper::Metaspace(metaspace) if !self.is_fused => Step::Metaspace {
                mark: metaspace.get_replacement(),
                first_loses_marks: metaspace.prepend_scheme != PrependScheme::Never,
            },
            DecoderWrapper::WordPiece(piece) if !self.is_fused => Step::WordPiece {
                prefix: piece.prefix.clone(),
                cleanup: piece.cleanup,
            },
            DecoderWrapper::Metaspace(_) => return Err(unsupported("Metaspace after Fuse")),
            DecoderWrapper::WordPiece(_) => return Err(unsupported("WordPiece after Fuse")),
            DecoderWrapper::BPE(_) => return Err(unsupported("BPEDecoder")),
            DecoderWrapper::CTC(_) => return Err(unsupported("CTC")),
        };
        self.knows_first |= matches!(
            step,
            Step::StripText
                | Step::WordPiece { .. }
                | Step::Metaspace {
                    first_loses_marks: true,
                    ..
                }
        );
        self.steps.push(step);
        Ok(())
    }

    /// `is_first`: the token is the first of its text.
    pub fn bytes(&self, token: &str, is_first: bool) -> Vec<u8> {
        let mut text = token.to_owned();
        for (i, step) in self.steps.iter().enumerate() {
            text = match step {
                Step::ByteLevel(alphabet) => {
                    let bytes = text.chars().map(|c| alphabet.get(&c).copied()).collect();
                    let bytes: Option<Vec<u8>> = bytes;
                    // Bytes need not be whole characters: the steps after this look only at the
                    // text's start.
                    let bytes = bytes.unwrap_or_else(|| text.into_bytes());
                    return self.strip_text(bytes, i, is_first);
                }
                Step::Replace { from, to } => text.replace(from, to),
                Step::ByteFallback => match fallback_byte(&text) {
                    Some(byte) => return self.strip_text(vec![byte], i, is_first),
                    None => text,
                },
                Step::Strip {
                    content,
                    start,
                    stop,
                } => strip(&text, *content, *start, *stop).to_owned(),
                Step::Metaspace {
                    mark,
                    first_loses_marks,
                } => {
                    let space = if is_first && *first_loses_marks {
                        ""
                    } else {
                        " "
                    };
                    text.replace(*mark, space)
                }
                Step::WordPiece {
                    prefix,
                    cleanup: cleans,
                } => {
                    let joined = match text.strip_prefix(prefix.as_str()) {
                        Some(rest) if !is_first => rest.to_owned(),
                        None if !is_first => format!(" {text}"),
                        _ => text,
                    };
                    if *cleans {
                        cleanup(&joined)
                    } else {
                        joined
                    }
                }
                Step::StripText => continue,
            };
        }
        self.strip_text(text.into_bytes(), 0, is_first)
    }

    /// The steps from `next` on that apply to the whole text.
    fn strip_text(&self, mut bytes: Vec<u8>, next: usize, is_first: bool) -> Vec<u8> {
        let strips = |step: &Step| matches!(step, Step::StripText);
        if is_first && self.steps[next..].iter().any(strips) && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        bytes
    }
}

/// Removes at most `start` and `stop` characters at the two ends, while they are `content`.
fn strip(mut text: &str, content: char, start: usize, stop: usize) -> &str {
    for _ in 0..start {
        text = text.strip_prefix(content).unwrap_or(text);
    }
    for _ in 0..stop {
        text = text.strip_suffix(content).unwrap_or(text);
    }
    text
}

fn unsupported(what: &str) -> Error {
    Error::new(
        ErrorCode::Unimplemented,
        format!(
            "tokenizer.json: decoder {what} is not supported; supported are ByteLevel, WordPiece, \
             Metaspace, and Sequence of Replace, ByteFallback, Fuse and Strip"
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
    byte_level_chars().into_iter().zip(0..=255).collect()
}

/// Bytes as byte-level models spell them.
pub fn byte_level_text(bytes: &[u8]) -> String {
    static CHARS: LazyLock<Vec<char>> = LazyLock::new(byte_level_chars);
    bytes.iter().map(|byte| CHARS[*byte as usize]).collect()
}

/// The printable stand-in of each byte.
fn byte_level_chars() -> Vec<char> {
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
            char::from_u32(code).expect("below the surrogates")
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
