//! SentencePiece's unigram model: the segmentation with the greatest sum of scores.

use super::normalizer::char_len;
use super::{Pieces, Segment};

/// An unknown character's score lies this far below the worst piece's.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The best way to reach a place in the text.
#[derive(Clone, Copy, Default)]
struct Best {
    score: f32,
    /// Where its last segment starts, and that segment's piece.
    from: Option<(usize, Option<u32>)>,
}

impl Best {
    /// Sums of 64 bits are rounded before they are compared, as the reference does: many differ by no more.
    fn offer(&mut self, score: f64, start: usize, id: Option<u32>) {
        let score = score as f32;
        if self.from.is_none() || score > self.score {
            *self = Self {
                score,
                from: Some((start, id)),
            };
        }
    }
}

pub fn segment<'a>(pieces: &'a Pieces, text: &'a str) -> Vec<Segment<'a>> {
    let bytes = text.as_bytes();
    let mut best = vec![Best::default(); bytes.len() + 1];
    let unknown = pieces.min_score - UNKNOWN_PENALTY;
    let mut start = 0;
    while start < bytes.len() {
        let so_far = best[start].score;
        let character = char_len(&bytes[start..]);
        let mut has_character = false;
        for (len, id) in pieces.tree.prefixes(&bytes[start..]) {
            if pieces.is_unused(id) {
                continue;
            }
            let score = match pieces.is_user_defined(id) {
                true => f64::from(len as f32 * pieces.max_score) - 0.1,
                false => f64::from(pieces.score(id)),
            };
            best[start + len].offer(score + f64::from(so_far), start, Some(id));
            has_character |= len == character;
        }
        if !has_character {
            best[start + character].offer(f64::from(unknown + so_far), start, None);
        }
        start += character;
    }
    let mut result = Vec::new();
    let mut end = bytes.len();
    while let Some((start, id)) = best[end].from {
        result.push((&text[start..end], id));
        end = start;
    }
    result.reverse();
    result
}
