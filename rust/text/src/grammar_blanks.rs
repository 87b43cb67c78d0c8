//! Blanks after each other in a JSON text that follows a grammar come to an end.

use std::sync::Arc;

/// Blanks after each other in JSON: an indentation of ten levels.
const MAX_BLANKS: u16 = 40;

/// What the blanks at the ends of all tokens are.
pub(crate) struct BlankTokens {
    /// A bit for each token that begins with a blank.
    begin: Vec<u32>,
    /// Blanks at the end of each token, and whether it has nothing else.
    ends: Vec<(u16, bool)>,
}

impl BlankTokens {
    pub(crate) fn new(words: &[Vec<u8>]) -> Self {
        let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        let mut begin = vec![0; words.len().div_ceil(32)];
        let mut ends = Vec::with_capacity(words.len());
        for (id, word) in words.iter().enumerate() {
            let count = word.iter().rev().take_while(is_blank).count();
            ends.push((count as u16, count == word.len()));
            if word.first().is_some_and(|byte| is_blank(&byte)) {
                begin[id / 32] |= 1 << (id % 32);
            }
        }
        Self { begin, ends }
    }
}

/// Between the parts of a JSON text any number of blanks may stand, and a small or confused model
/// writes nothing else until its tokens are used up. After `MAX_BLANKS` no more are allowed while
/// anything else is.
#[derive(Clone)]
pub(crate) struct BlankRuns {
    tokens: Arc<BlankTokens>,
    /// After each token taken: the blanks at the end of the text.
    runs: Vec<u16>,
}

impl BlankRuns {
    pub(crate) fn new(tokens: Arc<BlankTokens>) -> Self {
        Self {
            tokens,
            runs: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, tokens: &[u32]) {
        for id in tokens {
            let (count, is_whole) = self.tokens.ends[*id as usize];
            let before = self.runs.last().copied().unwrap_or(0);
            let run = if is_whole {
                before.saturating_add(count)
            } else {
                count
            };
            self.runs.push(run);
        }
    }

    pub(crate) fn pop(&mut self, count: usize) {
        self.runs.truncate(self.runs.len().saturating_sub(count));
    }

    pub(crate) fn bar_more(&self, allowed: &mut [u32]) {
        let blank = |i: usize| self.tokens.begin.get(i).copied().unwrap_or(0);
        let others = |(i, word): (usize, &u32)| word & !blank(i) != 0;
        let is_long = self.runs.last().is_some_and(|run| *run >= MAX_BLANKS);
        if is_long && allowed.iter().enumerate().any(others) {
            for (i, word) in allowed.iter_mut().enumerate() {
                *word &= !blank(i);
            }
        }
    }
}
