//! What one render may cost beyond the interpreter's own fuel: bytes made, values walked, and the
//! processor's time.
//!
//! Fuel counts instructions, and one instruction can double a string; so everything that makes or
//! walks a value charges here. Thread-local, because filters are plain functions and a render stays
//! on its thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

/// Catches what the counters price too low. Models' own templates take less than a millisecond for a
/// usual conversation, and up to 150 ns a byte for thousands of tiny messages. It is the thread's own
/// time: a busy machine fails nobody.
const RENDER_TIME: Duration = Duration::from_millis(100);
const RENDER_TIME_PER_INPUT_BYTE: Duration = Duration::from_nanos(500);

#[derive(Clone, Copy)]
struct Budget {
    bytes: u64,
    nodes: u64,
    /// On the thread's clock.
    end: Duration,
    /// Before this the time cannot be spent: a thread's clock is never faster than the world's, and
    /// reading it costs ten times as much.
    next_look: Instant,
}

thread_local! {
    static BUDGET: Cell<Option<Budget>> = const { Cell::new(None) };
}

/// Holds the budget of one render; dropping it ends the render's claim on the thread.
pub struct Scope(());

impl Scope {
    /// Limits grow with the input, so that a long honest conversation fits.
    pub fn begin(input_bytes: usize) -> Self {
        let input = input_bytes as u64;
        let time = RENDER_TIME + RENDER_TIME_PER_INPUT_BYTE * input_bytes as u32;
        BUDGET.set(Some(Budget {
            bytes: (4 << 20) + 32 * input,
            nodes: 1_000_000 + 32 * input,
            end: thread_time() + time,
            next_look: Instant::now() + time,
        }));
        Scope(())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        BUDGET.set(None);
    }
}

pub fn fuel(input_bytes: usize) -> u64 {
    2_000_000 + 64 * input_bytes as u64
}

pub fn charge_bytes(count: usize) -> Result<(), Error> {
    charge(count as u64, 0)
}

pub fn charge_nodes(count: usize) -> Result<(), Error> {
    charge(0, count as u64)
}

/// Outside a render (folding, tests) nothing is counted.
fn charge(bytes: u64, nodes: u64) -> Result<(), Error> {
    let Some(mut budget) = BUDGET.get() else {
        return Ok(());
    };
    let left = budget
        .bytes
        .checked_sub(bytes)
        .zip(budget.nodes.checked_sub(nodes));
    (budget.bytes, budget.nodes) = left.ok_or_else(|| too_large("builds too much data"))?;
    let now = Instant::now();
    if now >= budget.next_look {
        let left = budget.end.checked_sub(thread_time());
        budget.next_look = now + left.ok_or_else(|| too_large("takes too long"))?;
    }
    BUDGET.set(Some(budget));
    Ok(())
}

/// What this thread has run so far.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The clock is there on every Linux, and the pointer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn too_large(what: &str) -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("the chat template {what}"))
}
