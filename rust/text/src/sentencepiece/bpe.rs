//! SentencePiece's BPE: of all neighbours that make a piece, the best scored are merged first, the leftmost
//! of equal ones.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::normalizer::char_len;
use super::{Pieces, Segment};

/// A part of the text; merged parts keep the left one's place, and `len` 0 marks the others.
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
    is_user_defined: bool,
}

/// Two neighbours that make a piece. Out of date when their lengths have changed.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Pair {
    fn key(&self) -> (f32, Reverse<usize>) {
        (self.score, Reverse(self.left))
    }
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        let (score, left) = self.key();
        let (other_score, other_left) = other.key();
        score.total_cmp(&other_score).then(left.cmp(&other_left))
    }
}
impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Pair {}

struct Merger<'a> {
    pieces: &'a Pieces,
    text: &'a str,
    symbols: Vec<Symbol>,
    agenda: BinaryHeap<Pair>,
    /// How an unused piece was made: the length of its left part. It is taken apart again at the end.
    unused: HashMap<&'a str, usize>,
}

pub fn segment<'a>(pieces: &'a Pieces, text: &'a str) -> Vec<Segment<'a>> {
    let mut merger = Merger {
        pieces,
        text,
        symbols: split(pieces, text),
        agenda: BinaryHeap::new(),
        unused: HashMap::new(),
    };
    for right in 1..merger.symbols.len() {
        merger.consider(Some(right - 1), Some(right));
    }
    merger.merge();
    merger.result()
}

/// Characters, and whole user-defined pieces.
fn split(pieces: &Pieces, text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let rest = &text.as_bytes()[start..];
        let user_defined = pieces.user_defined.longest(rest);
        let len = user_defined.unwrap_or_else(|| char_len(rest));
        let index = symbols.len();
        if let Some(last) = symbols.last_mut() {
            last.next = Some(index);
        }
        symbols.push(Symbol {
            start,
            len,
            previous: index.checked_sub(1),
            next: None,
            is_user_defined: user_defined.is_some(),
        });
        start += len;
    }
    symbols
}

impl<'a> Merger<'a> {
    /// Puts two neighbours on the agenda if they make a piece.
    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else {
            return;
        };
        let (a, b) = (&self.symbols[left], &self.symbols[right]);
        if a.is_user_defined || b.is_user_defined {
            return;
        }
        let len = a.len + b.len;
        let piece = &self.text[a.start..a.start + len];
        let Some(id) = self.pieces.ordinary(piece) else {
            return;
        };
        if self.pieces.is_unused(id) {
            self.unused.insert(piece, a.len);
        }
        self.agenda.push(Pair {
            score: self.pieces.score(id),
            left,
            right,
            len,
        });
    }

    fn merge(&mut self) {
        while let Some(pair) = self.agenda.pop() {
            let (left, right) = (&self.symbols[pair.left], &self.symbols[pair.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            let next = right.next;
            let previous = left.previous;
            self.symbols[pair.left].len = pair.len;
            self.symbols[pair.left].next = next;
            self.symbols[pair.right].len = 0;
            if let Some(next) = next {
                self.symbols[next].previous = Some(pair.left);
            }
            self.consider(previous, Some(pair.left));
            self.consider(Some(pair.left), next);
        }
    }

    fn result(&self) -> Vec<Segment<'a>> {
        let mut result = Vec::new();
        let mut parts = Vec::new();
        let mut at = (!self.symbols.is_empty()).then_some(0);
        while let Some(index) = at {
            let symbol = &self.symbols[index];
            parts.push(&self.text[symbol.start..symbol.start + symbol.len]);
            while let Some(part) = parts.pop() {
                let id = self.pieces.id(part);
                let apart = id.is_some_and(|id| self.pieces.is_unused(id));
                match self.unused.get(part) {
                    Some(&left) if apart => {
                        parts.push(&part[left..]);
                        parts.push(&part[..left]);
                    }
                    _ => result.push((part, id)),
                }
            }
            at = symbol.next;
        }
        result
    }
}
