//! What one render may cost beyond the interpreter's own fuel: bytes made and values walked.
//!
//! Fuel counts instructions, and one instruction can double a string; so everything that makes or
//! walks a value charges here. Thread-local, because filters are plain functions and a render stays
//! on its thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

/// A render that does honest work takes milliseconds; this only catches what the counters miss.
const MAX_RENDER_TIME: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
struct Budget {
    bytes: u64,
    nodes: u64,
    deadline: Instant,
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
        BUDGET.set(Some(Budget {
            bytes: (4 << 20) + 32 * input,
            nodes: 1_000_000 + 32 * input,
            deadline: Instant::now() + MAX_RENDER_TIME,
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
    if Instant::now() > budget.deadline {
        return Err(too_large("takes too long"));
    }
    BUDGET.set(Some(budget));
    Ok(())
}

pub fn too_large(what: &str) -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("the chat template {what}"))
}
