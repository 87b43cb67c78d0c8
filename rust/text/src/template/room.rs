//! Asks the sandbox for room before data is made: minijinja's filters and Python's methods know no
//! limits, and a client's text alone could make them ask the allocator for too much.

use std::fmt::{self, Write};
use std::mem::size_of;

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

use crate::sandbox;

/// An item of a list: filters collect into vectors that double, and pycompat collects twice.
const ITEM_BYTES: usize = 4 * size_of::<Value>();

/// A string that is refused when it grows too long for its sandbox.
#[derive(Default)]
pub struct CheckedString(String);

impl CheckedString {
    pub fn into_string(self) -> String {
        self.0
    }
}

impl Write for CheckedString {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        sandbox::check(self.0.len() + s.len(), 0).map_err(|_| fmt::Error)?;
        self.0.push_str(s);
        Ok(())
    }
}

pub fn too_large(what: &str) -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("the chat template {what}"))
}

/// Refuses work that would need this many more bytes or blocks.
pub fn ask(bytes: usize, blocks: usize) -> Result<(), Error> {
    sandbox::check(bytes, blocks).map_err(|_| too_large("builds too much data"))
}

/// Asks for what the filter or method `name` makes of `value`, or more.
pub fn ask_for(name: &str, value: &Value, args: &[Value]) -> Result<(), Error> {
    let Some(text) = value.as_str() else {
        let items = value.len().unwrap_or(0);
        let blocks = match name {
            "batch" | "groupby" | "unique" | "dictsort" => 2 * items,
            _ => 0,
        };
        return ask(items.saturating_mul(ITEM_BYTES), blocks);
    };
    // Short texts need no block, but a loop over them may allocate for each (`sandbox::GRACE`).
    let texts = |count: usize| ask(text.len() + count.saturating_mul(ITEM_BYTES), count);
    let argument = |i: usize| args.get(i).and_then(Value::as_str).unwrap_or_default();
    match name {
        "split" => texts(pieces(text, args)),
        "lines" | "splitlines" => texts(text.lines().count()),
        // Each character becomes an item.
        "list" | "sort" | "map" | "select" | "reject" | "selectattr" | "rejectattr" | "slice"
        | "last" | "min" | "max" => texts(text.chars().count()),
        "batch" | "groupby" | "unique" => {
            let items = text.chars().count();
            ask(items.saturating_mul(ITEM_BYTES), 2 * items)
        }
        "replace" => {
            let times = text.matches(argument(0)).count();
            ask(text.len() + times.saturating_mul(argument(1).len()), 0)
        }
        "escape" | "e" => ask(6 * text.len(), 0),
        "strip" | "lstrip" | "rstrip" | "trim" | "reverse" => ask(text.len(), 0),
        // A letter's other case has at most three times as many bytes.
        "upper" | "lower" | "title" | "capitalize" => ask(3 * text.len(), 0),
        _ => ask(0, 0),
    }
}

/// The number of pieces of Python's `split(separator=None, maxsplit=-1)`.
fn pieces(text: &str, args: &[Value]) -> usize {
    let most = args
        .get(1)
        .and_then(Value::as_usize)
        .map_or(usize::MAX, |splits| splits.saturating_add(1));
    match args.first().and_then(Value::as_str) {
        Some(separator) => text.splitn(most, separator).count(),
        None => text.split_whitespace().take(most).count(),
    }
}

/// The items of a value, which may be made one by one.
pub fn items(value: &Value) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()? {
        // The vector may double for this item.
        ask(items.len() * size_of::<Value>(), 1)?;
        items.push(item);
    }
    Ok(items)
}
