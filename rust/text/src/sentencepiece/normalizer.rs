//! SentencePiece's normalization: rules of a compiled map, spaces to `▁`, a `▁` added at one end.

use super::prefix_tree::PrefixTree;
use super::proto::ModelProto;

/// The character that stands for a space inside pieces.
pub const SPACE: &str = "\u{2581}";

#[derive(Debug, Clone)]
pub struct Normalizer {
    rules: Option<CharsMap>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
    whitespace_is_suffix: bool,
}

impl Normalizer {
    pub fn new(proto: &ModelProto) -> Result<Self, String> {
        let rules = match proto.charsmap.is_empty() {
            true => None,
            false => Some(CharsMap::parse(&proto.charsmap)?),
        };
        Ok(Self {
            rules,
            add_dummy_prefix: proto.add_dummy_prefix,
            remove_extra_whitespaces: proto.remove_extra_whitespaces,
            escape_whitespaces: proto.escape_whitespaces,
            whitespace_is_suffix: proto.whitespace_is_suffix,
        })
    }

    pub fn without_dummy_prefix(&mut self) {
        self.add_dummy_prefix = false;
    }

    /// Whether decoding drops one space at the start of a text.
    pub fn adds_leading_space(&self) -> bool {
        self.add_dummy_prefix || self.remove_extra_whitespaces
    }

    /// `user_defined`: pieces that no rule touches.
    pub fn normalize(&self, text: &str, user_defined: &PrefixTree) -> String {
        let space = if self.escape_whitespaces { SPACE } else { " " };
        let mut rest = text.as_bytes();
        if self.remove_extra_whitespaces {
            while let (b" ", len) = self.first(rest, user_defined) {
                rest = &rest[len..];
            }
        }
        if rest.is_empty() {
            return String::new();
        }
        let mut result = Vec::with_capacity(rest.len() + rest.len() / 2);
        if self.add_dummy_prefix && !self.whitespace_is_suffix {
            result.extend_from_slice(space.as_bytes());
        }
        let mut after_space = self.remove_extra_whitespaces;
        while !rest.is_empty() {
            let (mut part, len) = self.first(rest, user_defined);
            rest = &rest[len..];
            while after_space && part.first() == Some(&b' ') {
                part = &part[1..];
            }
            for byte in part {
                match byte {
                    b' ' => result.extend_from_slice(space.as_bytes()),
                    other => result.push(*other),
                }
            }
            if let Some(last) = part.last() {
                after_space = self.remove_extra_whitespaces && *last == b' ';
            }
        }
        if self.remove_extra_whitespaces {
            while result.ends_with(space.as_bytes()) {
                result.truncate(result.len() - space.len());
            }
        }
        if self.add_dummy_prefix && self.whitespace_is_suffix {
            result.extend_from_slice(space.as_bytes());
        }
        // Only a map that splits characters makes invalid text.
        String::from_utf8(result)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// The normalized form of the first part of a text, and that part's length.
    fn first<'a>(&'a self, text: &'a [u8], user_defined: &PrefixTree) -> (&'a [u8], usize) {
        if text.is_empty() {
            return (text, 0);
        }
        if let Some(len) = user_defined.longest(text) {
            return (&text[..len], len);
        }
        if let Some(rule) = self.rules.as_ref().and_then(|rules| rules.longest(text)) {
            return rule;
        }
        let len = char_len(text);
        match std::str::from_utf8(&text[..len]) {
            Ok(_) => (&text[..len], len),
            Err(_) => ("\u{FFFD}".as_bytes(), 1),
        }
    }
}

/// Bytes of the first character, by its first byte; at most those that there are.
pub fn char_len(text: &[u8]) -> usize {
    let len = match text.first() {
        None => 0,
        Some(0xC0..=0xDF) => 2,
        Some(0xE0..=0xEF) => 3,
        Some(0xF0..=0xFF) => 4,
        Some(_) => 1,
    };
    len.min(text.len())
}

/// A `precompiled_charsmap`: the size of a Darts double array, the array, and the normalized texts, each
/// ended by a NUL.
#[derive(Debug, Clone)]
struct CharsMap {
    units: Vec<u32>,
    texts: Vec<u8>,
}

impl CharsMap {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let broken = || "its precompiled_charsmap is damaged".to_owned();
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
        let size = u32::from_le_bytes(*size) as usize;
        if size == 0 || size % 4 != 0 || size >= rest.len() {
            return Err(broken());
        }
        let (array, texts) = rest.split_at(size);
        let units = array.chunks_exact(4);
        let units = units.map(|unit| u32::from_le_bytes(unit.try_into().expect("four bytes")));
        if texts.last() != Some(&0) {
            return Err(broken());
        }
        Ok(Self {
            units: units.collect(),
            texts: texts.to_vec(),
        })
    }

    /// The text that replaces the longest key at the start of `text`, and the key's length.
    fn longest(&self, text: &[u8]) -> Option<(&[u8], usize)> {
        let mut found = None;
        let mut at = offset(*self.units.first()?);
        for (i, byte) in text.iter().enumerate() {
            at ^= *byte as usize;
            let Some(&unit) = self.units.get(at) else {
                break;
            };
            if unit & 0x8000_00FF != u32::from(*byte) {
                break;
            }
            at ^= offset(unit);
            if unit & 0x100 != 0 {
                let Some(value) = self.units.get(at) else {
                    break;
                };
                found = Some(((value & 0x7FFF_FFFF) as usize, i + 1));
            }
        }
        let (start, len) = found?;
        let replacement = self.texts.get(start..)?;
        let end = replacement.iter().position(|byte| *byte == 0)?;
        Some((&replacement[..end], len))
    }
}

/// The distance to a node's children, as darts-clone packs it.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 0x200) >> 6)) as usize
}
