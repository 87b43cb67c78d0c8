//! A matcher walks one choice of one request through its grammar.

use std::sync::Arc;

use llguidance::{Matcher, TokenParser};
use toktrie::{TokTrie, TokenId, INVALID_TOKEN};

use crate::error::{Error, ErrorCode, Result};
use crate::grammar_blanks::BlankRuns;
use crate::grammar_memory::{GrammarMemory, MemoryShare};
use crate::sandbox;

/// More than the drafts of any step.
const MAX_FORCED_BYTES: usize = 1024;

/// One choice of one request in its grammar. One thread at a time.
pub struct GrammarMatcher {
    matcher: Matcher,
    eos: TokenId,
    bytes: usize,
    share: MemoryShare,
    /// Of JSON.
    blanks: Option<BlankRuns>,
}

impl GrammarMatcher {
    /// At the start of a grammar that this thread's sandbox has just compiled: what the sandbox holds is
    /// the grammar's.
    pub(crate) fn new(
        parser: TokenParser,
        eos: TokenId,
        memory: Arc<GrammarMemory>,
        blanks: Option<BlankRuns>,
    ) -> Self {
        Self {
            matcher: Matcher::new(Ok(parser)),
            eos,
            bytes: sandbox::bytes_held(),
            share: MemoryShare::new(memory, sandbox::bytes_held() as i64),
            blanks,
        }
    }

    /// A copy in the same state, that shares nothing with this one.
    pub fn deep_clone(&self) -> Self {
        let before = sandbox::bytes_owned();
        let matcher = self.matcher.deep_clone();
        Self {
            matcher,
            eos: self.eos,
            bytes: self.bytes,
            share: self.share.of_copy(sandbox::bytes_owned() - before),
            blanks: self.blanks.clone(),
        }
    }

    /// As `deep_clone`, where there is memory for one more.
    pub fn try_deep_clone(&self) -> Result<Self> {
        self.share.memory().check()?;
        Ok(self.deep_clone())
    }

    /// Counts what a step has left in memory since `before`. A matcher that has to end gives its memory
    /// back at once, and fails for ever.
    fn settle(&mut self, before: i64) -> Result<()> {
        self.share
            .grow(sandbox::bytes_owned() - before)
            .inspect_err(|error| {
                let before = sandbox::bytes_owned();
                self.matcher = Matcher::new(Err(anyhow::anyhow!(error.message.clone())));
                let freed = self.share.grow(sandbox::bytes_owned() - before);
                debug_assert!(freed.is_ok());
            })
    }

    /// Memory of the compiled grammar.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Clears in `allowed` (bit 0 of word 0: token 0) the tokens that may not come next. Those of
    /// `end_ids` are kept where the output may end here; else only where the grammar names them. If
    /// the grammar admits nothing more than the end, the rest is cleared.
    pub fn fill_mask(&mut self, allowed: &mut [u32], end_ids: &[u32]) -> Result<()> {
        let before = sandbox::bytes_owned();
        let filled = self.fill(allowed, end_ids);
        self.settle(before)?;
        filled
    }

    fn fill(&mut self, allowed: &mut [u32], end_ids: &[u32]) -> Result<()> {
        let mask = match self.is_complete() {
            true => None,
            false => Some(self.matcher.compute_mask().map_err(stuck)?),
        };
        let bit = |words: &[u32], id: u32| {
            words
                .get((id / 32) as usize)
                .is_some_and(|word| word >> (id % 32) & 1 != 0)
        };
        let words = mask.as_ref().map_or(&[][..], |mask| mask.as_slice());
        let may_end = match self.eos {
            INVALID_TOKEN => self.is_accepting(),
            eos => mask.is_none() || bit(words, eos),
        };
        // llguidance's own end token is one of `end_ids` or none at all.
        let is_end = |id: u32| may_end || id != self.eos && bit(words, id);
        let ends: Vec<u32> = end_ids
            .iter()
            .copied()
            .filter(|id| is_end(*id) && bit(allowed, *id))
            .collect();
        for (i, word) in allowed.iter_mut().enumerate() {
            *word &= words.get(i).copied().unwrap_or(0);
        }
        if let Some(word) = allowed.get_mut((self.eos / 32) as usize) {
            *word &= !(1 << (self.eos % 32));
        }
        for id in ends {
            allowed[(id / 32) as usize] |= 1 << (id % 32);
        }
        if let Some(blanks) = &self.blanks {
            blanks.bar_more(allowed);
        }
        Ok(())
    }

    /// Takes the tokens up to the first that the grammar does not admit; returns how many.
    pub fn advance(&mut self, tokens: &[u32]) -> Result<usize> {
        if self.is_complete() {
            return Ok(0);
        }
        let before = sandbox::bytes_owned();
        let taken = self.matcher.try_consume_tokens(tokens).map_err(stuck);
        self.settle(before)?;
        let taken = taken?;
        if let Some(blanks) = &mut self.blanks {
            blanks.push(&tokens[..taken]);
        }
        Ok(taken)
    }

    /// Undoes the last `count` tokens taken.
    pub fn roll_back(&mut self, count: usize) -> Result<()> {
        if let Some(blanks) = &mut self.blanks {
            blanks.pop(count);
        }
        self.matcher.rollback(count).map_err(stuck)
    }

    /// The text that must follow, if there is only one; at most `MAX_FORCED_BYTES` of it. No spelling
    /// in tokens is meant, and masks stay what they are.
    pub fn forced(&mut self) -> Vec<u8> {
        if self.is_complete() {
            return Vec::new();
        }
        let mut bytes = self.matcher.compute_ff_bytes();
        // A token that the grammar names is no text.
        let end = bytes
            .iter()
            .position(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER);
        bytes.truncate(end.unwrap_or(bytes.len()).min(MAX_FORCED_BYTES));
        bytes
    }

    /// Whether the output may end here.
    pub fn is_accepting(&mut self) -> bool {
        self.is_complete() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// Whether the output must end here: it is a whole sentence of the grammar, and nothing may
    /// follow.
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }
}

/// A matcher that cannot go on. Its grammar went over a limit, or the tokens cannot spell it.
fn stuck(error: anyhow::Error) -> Error {
    let message = error.to_string();
    let message = without_dumps(&message);
    let sentence = match message {
        "NoExtensionBias" => "no token of the model continues the grammar here".to_owned(),
        _ => format!("the grammar cannot be followed any further: {message}"),
    };
    Error::new(ErrorCode::ResourceExhausted, sentence)
}

/// llguidance's message without its dumps of state.
pub(crate) fn without_dumps(message: &str) -> &str {
    let dumps = ["\n<backtrace>", "\n<state>", "\n<non-verbose"];
    let end = dumps.iter().filter_map(|dump| message.find(dump)).min();
    message[..end.unwrap_or(message.len())].trim_end()
}
