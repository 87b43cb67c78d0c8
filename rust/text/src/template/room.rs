//! Asks the sandbox for room before minijinja's filters and Python's methods make data: they know
//! no limits, and a client's text alone could make them ask the allocator for too much.

use std::fmt::Write;
use std::mem::size_of;

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{filters, Environment, Error, State};

use super::python::{self, too_large, CheckedString};
use crate::sandbox;

/// An item of a list: filters collect into vectors that double, and pycompat collects twice.
const ITEM_BYTES: usize = 4 * size_of::<Value>();

/// Refuses work that would need so much more.
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

/// The items as text with `between` between them.
pub fn join(items: &Value, between: &str) -> Result<Value, Error> {
    let mut out = CheckedString::default();
    let full = |_| too_large("builds too much data");
    for (i, item) in items.try_iter()?.enumerate() {
        out.write_str(if i > 0 { between } else { "" })
            .map_err(full)?;
        python::write_str(&mut out, &item)?;
    }
    Ok(Value::from(out.into_string()))
}

/// Puts minijinja's filters that make data after the question whether there is room for it. Those
/// that make a value of constant size, or an iterator, stay as they are.
pub fn add_filters(env: &mut Environment<'static>) {
    let plain = [
        ("batch", Value::from_function(filters::batch)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("groupby", Value::from_function(filters::groupby)),
        ("last", Value::from_function(filters::last)),
        ("lines", Value::from_function(filters::lines)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("replace", Value::from_function(filters::replace)),
        ("reverse", Value::from_function(filters::reverse)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("slice", Value::from_function(filters::slice)),
        ("sort", Value::from_function(filters::sort)),
        ("split", Value::from_function(filters::split)),
        ("sum", Value::from_function(filters::sum)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
    ];
    for (name, filter) in plain {
        let asking = move |state: &State, value: Value, rest: Rest<Value>| {
            // An iterator does not know how much it makes.
            let value = match value.kind() {
                ValueKind::Iterable => Value::from(items(&value)?),
                _ => value,
            };
            ask_for(name, &value, &rest)?;
            let args: Vec<Value> = std::iter::once(value).chain(rest.0).collect();
            filter.call(state, &args)
        };
        env.add_filter(name, asking);
    }
    env.add_filter("join", |value: Value, between: Option<&str>| {
        join(&value, between.unwrap_or_default())
    });
    env.add_filter("pprint", |value: Value| {
        let mut out = CheckedString::default();
        match write!(out, "{value:#?}") {
            Ok(()) => Ok(out.into_string()),
            Err(_) => Err(too_large("builds too much data")),
        }
    });
}
