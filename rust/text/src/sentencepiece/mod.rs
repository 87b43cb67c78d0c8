//! SentencePiece models (tokenizer.model, ice_text.model): text to ids exactly as the reference library
//! segments it.
//!
//! The `tokenizers` crate's models are near but not the same: they give each merge a rank of its own where
//! SentencePiece compares scores that may be equal, know no user-defined pieces inside a text, and add up
//! scores in 64 bits.

mod bpe;
mod normalizer;
mod prefix_tree;
mod proto;
mod unigram;

use std::collections::hash_map::Entry;
use std::collections::HashMap;

use self::normalizer::Normalizer;
pub use self::normalizer::SPACE;
use self::prefix_tree::PrefixTree;
pub use self::proto::PieceType;
use self::proto::{Algorithm, ModelProto, Piece};

/// A part of the normalized text and its piece; none if it is unknown.
type Segment<'a> = (&'a str, Option<u32>);

/// A longer piece is a damaged file; SentencePiece's own limit.
const MAX_PIECE_BYTES: usize = 8000;

/// The pieces, looked up in the two ways of the algorithms.
#[derive(Debug, Clone)]
struct Pieces {
    list: Vec<Piece>,
    /// Pieces that segmentation finds: normal, user-defined and unused ones.
    ordinary: HashMap<String, u32>,
    /// Unknown, control and byte pieces.
    reserved: HashMap<String, u32>,
    user_defined: PrefixTree,
    /// The ordinary pieces; empty for BPE.
    tree: PrefixTree,
    min_score: f32,
    max_score: f32,
}

impl Pieces {
    fn ordinary(&self, text: &str) -> Option<u32> {
        self.ordinary.get(text).copied()
    }
    fn id(&self, text: &str) -> Option<u32> {
        let reserved = self.reserved.get(text).copied();
        reserved.or_else(|| self.ordinary(text))
    }
    fn kind(&self, id: u32) -> PieceType {
        self.list[id as usize].kind
    }
    fn is_unused(&self, id: u32) -> bool {
        self.kind(id) == PieceType::Unused
    }
    fn is_user_defined(&self, id: u32) -> bool {
        self.kind(id) == PieceType::UserDefined
    }
    fn score(&self, id: u32) -> f32 {
        self.list[id as usize].score
    }

    fn new(list: Vec<Piece>, algorithm: Algorithm) -> Result<Self, String> {
        let mut ordinary = HashMap::new();
        let mut reserved = HashMap::new();
        for (piece, id) in list.iter().zip(0u32..) {
            check_piece(piece, id)?;
            let map = match is_ordinary(piece) {
                true => &mut ordinary,
                false => &mut reserved,
            };
            match map.entry(piece.text.clone()) {
                Entry::Vacant(entry) => drop(entry.insert(id)),
                Entry::Occupied(entry) => {
                    return Err(format!(
                        "pieces {} and {id} are both {:?}",
                        entry.get(),
                        piece.text
                    ))
                }
            }
        }
        let keys = |wanted: fn(&Piece) -> bool| {
            let ids = list.iter().zip(0u32..);
            let wanted = ids.filter(move |(piece, _)| wanted(piece));
            wanted.map(|(piece, id)| (piece.text.as_str(), id))
        };
        let user_defined = PrefixTree::new(keys(|p| p.kind == PieceType::UserDefined));
        let tree = match algorithm {
            Algorithm::Bpe => PrefixTree::default(),
            Algorithm::Unigram => PrefixTree::new(keys(is_ordinary)),
        };
        let normal = list.iter().filter(|p| p.kind == PieceType::Normal);
        let scores = normal.map(|piece| piece.score);
        Ok(Self {
            min_score: scores.clone().fold(f32::MAX, f32::min),
            // The reference starts from the smallest positive number too.
            max_score: scores.fold(f32::MIN_POSITIVE, f32::max),
            ordinary,
            reserved,
            user_defined,
            tree,
            list,
        })
    }
}

fn is_ordinary(piece: &Piece) -> bool {
    use PieceType::{Normal, Unused, UserDefined};
    matches!(piece.kind, Normal | UserDefined | Unused)
}

fn check_piece(piece: &Piece, id: u32) -> Result<(), String> {
    match piece.text.len() {
        0 => return Err(format!("piece {id} is empty")),
        len if len > MAX_PIECE_BYTES => {
            return Err(format!(
                "piece {id} has {len} bytes; at most {MAX_PIECE_BYTES} are possible"
            ))
        }
        _ => {}
    }
    match piece.score.is_finite() {
        true => Ok(()),
        false => Err(format!("the score of piece {id} is {}", piece.score)),
    }
}

/// Immutable once read.
#[derive(Debug, Clone)]
pub struct SentencePiece {
    algorithm: Algorithm,
    normalizer: Normalizer,
    pieces: Pieces,
    unknown: u32,
    /// The ids of the 256 bytes, with byte fallback.
    bytes: Option<Vec<u32>>,
    /// Names of pieces that stand for white space: (white space, its piece), longest first.
    whitespace: Vec<(String, String)>,
    bos: String,
    eos: String,
    pad: String,
}

impl SentencePiece {
    /// `appended`: control pieces after those of the file. `named`: ids of pieces that another file names;
    /// under another name they become control pieces.
    pub fn parse(
        bytes: &[u8],
        appended: &[String],
        named: impl Iterator<Item = (u32, String)>,
    ) -> Result<Self, String> {
        let mut proto = ModelProto::parse(bytes)?;
        let control = |text: String| Piece {
            text,
            score: 0.0,
            kind: PieceType::Control,
        };
        proto.pieces.extend(appended.iter().cloned().map(control));
        for (id, name) in named {
            match proto.pieces.get_mut(id as usize) {
                Some(piece) if piece.text != name => *piece = control(name),
                _ => {}
            }
        }
        let normalizer = Normalizer::new(&proto)?;
        let pieces = Pieces::new(proto.pieces, proto.algorithm)?;
        let unknown: Vec<u32> = (0..pieces.list.len() as u32)
            .filter(|id| pieces.kind(*id) == PieceType::Unknown)
            .collect();
        let [unknown] = unknown[..] else {
            return Err(format!(
                "it has {} pieces of type unknown instead of one",
                unknown.len()
            ));
        };
        Ok(Self {
            algorithm: proto.algorithm,
            bytes: byte_ids(&pieces, proto.byte_fallback)?,
            whitespace: whitespace_names(&pieces),
            normalizer,
            pieces,
            unknown,
            bos: proto.bos,
            eos: proto.eos,
            pad: proto.pad,
        })
    }

    /// For callers that mark the start of the text themselves.
    pub fn without_dummy_prefix(&mut self) {
        self.normalizer.without_dummy_prefix();
    }

    /// Whether decoding drops one space at the start of a text.
    pub fn adds_leading_space(&self) -> bool {
        self.normalizer.adds_leading_space()
    }

    pub fn algorithm_name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Unigram => "unigram",
            Algorithm::Bpe => "BPE",
        }
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        let text = self.name_whitespace(text);
        let text = self.normalizer.normalize(&text, &self.pieces.user_defined);
        let segments = match self.algorithm {
            Algorithm::Unigram => unigram::segment(&self.pieces, &text),
            Algorithm::Bpe => bpe::segment(&self.pieces, &text),
        };
        let mut ids = Vec::with_capacity(segments.len());
        let mut after_unknown = false;
        for (part, id) in segments {
            let id = id.unwrap_or(self.unknown);
            let is_unknown = id == self.unknown;
            match &self.bytes {
                Some(bytes) if is_unknown => {
                    ids.extend(part.bytes().map(|byte| bytes[byte as usize]));
                }
                // Unknown neighbours are one token.
                _ if is_unknown && after_unknown => {}
                _ => ids.push(id),
            }
            after_unknown = is_unknown;
        }
        ids
    }

    fn name_whitespace(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (whitespace, name) in &self.whitespace {
            if text.contains(whitespace.as_str()) {
                text = text.replace(whitespace.as_str(), name);
            }
        }
        text
    }

    /// The white space that a piece stands for by its name.
    pub fn whitespace_of(&self, piece: &str) -> Option<&str> {
        let mut named = self.whitespace.iter();
        let found = named.find(|(_, name)| name == piece);
        found.map(|(whitespace, _)| whitespace.as_str())
    }

    pub fn id(&self, piece: &str) -> Option<u32> {
        self.pieces.id(piece)
    }
    pub fn piece(&self, id: u32) -> Option<&str> {
        self.pieces
            .list
            .get(id as usize)
            .map(|piece| piece.text.as_str())
    }
    pub fn len(&self) -> usize {
        self.pieces.list.len()
    }
    /// Every piece with its type, in the order of ids.
    pub fn pieces(&self) -> impl Iterator<Item = (&str, PieceType)> {
        self.pieces
            .list
            .iter()
            .map(|piece| (piece.text.as_str(), piece.kind))
    }
    /// The text of a token that the model names itself: `bos_token`, `eos_token`, `pad_token`, `unk_token`.
    pub fn named(&self, key: &str) -> Option<&str> {
        let name = match key {
            "bos_token" => &self.bos,
            "eos_token" => &self.eos,
            "pad_token" => &self.pad,
            "unk_token" => return self.piece(self.unknown),
            _ => return None,
        };
        let id = self.id(name)?;
        (self.pieces.kind(id) == PieceType::Control).then_some(name.as_str())
    }
}

/// The name of a byte's piece.
fn byte_name(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

fn byte_ids(pieces: &Pieces, byte_fallback: bool) -> Result<Option<Vec<u32>>, String> {
    if !byte_fallback {
        return Ok(None);
    }
    let id = |byte: u8| {
        let id = pieces.reserved.get(&byte_name(byte)).copied();
        let id = id.filter(|id| pieces.kind(*id) == PieceType::Byte);
        id.ok_or_else(|| {
            format!(
                "it falls back to bytes, but has no piece {}",
                byte_name(byte)
            )
        })
    };
    (0..=255).map(id).collect::<Result<_, _>>().map(Some)
}

/// Models of icetk (ChatGLM-6B) have pieces named after white space.
fn whitespace_names(pieces: &Pieces) -> Vec<(String, String)> {
    const LONGEST_BLANK: usize = 80;
    let blanks = (2..=LONGEST_BLANK).rev();
    let blanks = blanks.map(|count| (" ".repeat(count), format!("<|blank_{count}|>")));
    let controls = [("\n", "<n>"), ("\t", "<|tab|>")];
    let controls = controls.map(|(text, name)| (text.to_owned(), name.to_owned()));
    let names: Vec<_> = controls.into_iter().chain(blanks).collect();
    match names.iter().all(|(_, name)| pieces.id(name).is_some()) {
        true => names,
        false => Vec::new(),
    }
}
