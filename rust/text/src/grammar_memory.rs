//! The memory of all matchers of a compiler, which grows while outputs are written: states of lexers and
//! parsers are made when a text first gets there.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::Arc;

use crate::error::{Error, ErrorCode, Result};

/// What all matchers of a compiler may hold in all.
pub const DEFAULT_BYTES: usize = 1 << 30;
/// Growth allowed to each matcher even when the shared limit is reached: ordinary grammars grow less.
const ALWAYS_BYTES: i64 = 4 << 20;

/// Shared by the matchers of a compiler.
#[derive(Debug)]
pub struct GrammarMemory {
    limit: i64,
    used: AtomicI64,
}

impl GrammarMemory {
    pub fn new(bytes: usize) -> Self {
        Self {
            limit: i64::try_from(bytes).unwrap_or(i64::MAX),
            used: AtomicI64::new(0),
        }
    }

    pub fn used(&self) -> usize {
        usize::try_from(self.used.load(Relaxed)).unwrap_or(0)
    }

    /// Whether another grammar may begin.
    pub fn check(&self) -> Result<()> {
        if self.used.load(Relaxed) < self.limit {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::Unavailable,
            format!(
                "the grammars of running requests hold all of their {} MiB; send the request again later",
                self.limit >> 20
            ),
        ))
    }
}

/// The part of one matcher.
#[derive(Debug)]
pub struct MemoryShare {
    memory: Arc<GrammarMemory>,
    at_first: i64,
    held: i64,
}

impl MemoryShare {
    pub fn new(memory: Arc<GrammarMemory>, bytes: i64) -> Self {
        memory.used.fetch_add(bytes, Relaxed);
        Self {
            memory,
            at_first: bytes,
            held: bytes,
        }
    }

    /// The share of a copy of this matcher, which holds `bytes` of its own.
    pub fn of_copy(&self, bytes: i64) -> Self {
        Self::new(Arc::clone(&self.memory), bytes)
    }

    pub fn memory(&self) -> &GrammarMemory {
        &self.memory
    }

    /// Counts what the matcher holds more, less if negative. An error if it has to end.
    pub fn grow(&mut self, bytes: i64) -> Result<()> {
        self.held += bytes;
        let used = self.memory.used.fetch_add(bytes, Relaxed) + bytes;
        let grown = self.held - self.at_first;
        if bytes <= 0 || used <= self.memory.limit || grown <= ALWAYS_BYTES {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::ResourceExhausted,
            format!(
                "the grammar needs too much memory: this output alone has made {} MiB of states, and those of all \
                 requests may take {} MiB",
                grown >> 20,
                self.memory.limit >> 20
            ),
        ))
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.held, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_grew_beyond_the_limit_ends_and_who_stays_small_goes_on() {
        let memory = Arc::new(GrammarMemory::new(64 << 20));
        let mut large = MemoryShare::new(Arc::clone(&memory), 1 << 20);
        let mut small = large.of_copy(1 << 20);
        assert!(large.grow(60 << 20).is_ok());
        assert!(memory.check().is_ok());
        assert!(small.grow(3 << 20).is_ok());
        assert_eq!(memory.check().unwrap_err().code, ErrorCode::Unavailable);
        let refused = large.grow(1 << 20).unwrap_err();
        assert_eq!(refused.code, ErrorCode::ResourceExhausted);
        assert!(refused.message.contains("61 MiB"), "{}", refused.message);
        assert!(small.grow(2 << 20).is_err(), "no longer small");
        drop(large);
        assert!(small.grow(9 << 20).is_ok());
        drop(small);
        assert_eq!(memory.used(), 0);
    }
}
