//! The checks that template/rewrite.rs weaves into a compiled template, and filters that charge.

use std::sync::OnceLock;

use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::budget::{charge_bytes, charge_nodes, too_large};
use super::python::{str_of, to_json, MAX_DEPTH};

/// Names that no template can spell, so none can call or shadow them.
pub const SETTLE: &str = "(settle)";
pub const WEIGH: &str = "(weigh)";
pub const TICK: &str = "(tick)";
pub const CONCAT: &str = "(concat)";
pub const MULTIPLY: &str = "(multiply)";

/// A list slot, roughly; containers are charged for their own spine, strings for their text.
const BYTES_PER_ITEM: usize = 32;

/// Filters that look other filters up must see the guarded ones, so they keep their own state; the
/// rest run inside this environment after charging for their input.
fn plain() -> &'static Environment<'static> {
    static PLAIN: OnceLock<Environment<'static>> = OnceLock::new();
    PLAIN.get_or_init(Environment::new)
}

const WRAPPED_FILTERS: &[&str] = &[
    "abs", "attr", "batch", "bool", "chain", "count", "d", "default", "dictsort", "first", "float",
    "groupby", "int", "items", "last", "length", "lines", "list", "max", "min", "reverse", "round",
    "safe", "slice", "sort", "split", "sum", "unique", "zip",
];

/// These take the text of any value.
const TEXT_FILTERS: &[&str] = &[
    "capitalize",
    "e",
    "escape",
    "lower",
    "title",
    "trim",
    "upper",
];

const WRAPPED_TESTS: &[&str] = &[
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "endingwith",
    "eq",
    "equalto",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "le",
    "lessthan",
    "lower",
    "lt",
    "ne",
    "sameas",
    "startingwith",
    "upper",
];

pub fn install(env: &mut Environment<'static>) {
    env.add_function(SETTLE, settle);
    env.add_function(WEIGH, |value: Value| weigh(&value, 0).map(|()| value));
    // Native code that was reached or is about to be: indexing walks a string, a loop lists a map.
    env.add_function(TICK, |value: Value| charge_nodes(1).map(|()| value));
    env.add_function(CONCAT, concat);
    env.add_function(MULTIPLY, multiply);
    for &name in WRAPPED_FILTERS {
        env.add_filter(name, move |args: Rest<Value>| {
            args.iter().try_for_each(|arg| weigh(arg, 0))?;
            settle(plain().empty_state().apply_filter(name, &args)?)
        });
    }
    for &name in TEXT_FILTERS {
        env.add_filter(name, move |value: Value, options: Rest<Value>| {
            let mut args = vec![Value::from(str_of(&value)?)];
            args.extend(options.iter().cloned());
            settle(plain().empty_state().apply_filter(name, &args)?)
        });
    }
    for &name in WRAPPED_TESTS {
        env.add_test(name, move |args: Rest<Value>| {
            args.iter().try_for_each(|arg| weigh(arg, 0))?;
            plain().empty_state().perform_test(name, &args)
        });
    }
    env.add_filter("string", |value: Value| str_of(&value));
    env.add_filter("tojson", tojson);
    env.add_filter("replace", |value: Value, from: String, to: String| {
        replace(&str_of(&value)?, &from, &to, None)
    });
    env.add_filter("join", |items: Value, glue: Option<String>| {
        join(&items, glue.as_deref().unwrap_or(""))
    });
    env.add_filter("indent", indent);
    // They print Rust's view of values, or pad to any width in one step.
    for name in ["pprint", "format"] {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    env.set_unknown_method_callback(method);
}

/// Charges for walking a value: as many steps as comparing or printing it would take.
fn weigh(value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_large("nests values too deeply"));
    }
    match value.kind() {
        ValueKind::String => charge_nodes(1 + value.as_str().map_or(0, str::len) / 64),
        ValueKind::Seq => value.try_iter()?.try_for_each(|item| {
            charge_nodes(1)?;
            weigh(&item, depth + 1)
        }),
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            charge_nodes(2)?;
            weigh(&value.get_item(&key)?, depth + 1)
        }),
        _ => charge_nodes(1),
    }
}

/// Accounts for a value that was just made. A lazy sequence becomes a list here: a chain of them
/// would be walked by native code that no fuel bounds.
fn settle(value: Value) -> Result<Value, Error> {
    let value = match value.kind() {
        ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()? {
                charge_bytes(BYTES_PER_ITEM)?;
                items.push(item);
            }
            Value::from(items)
        }
        ValueKind::Seq | ValueKind::Map => {
            charge_bytes(BYTES_PER_ITEM * value.len().unwrap_or(1))?;
            value
        }
        ValueKind::String => {
            charge_bytes(value.as_str().map_or(0, str::len))?;
            return Ok(value);
        }
        _ => value,
    };
    weigh(&value, 0)?;
    Ok(value)
}

/// `left ~ right`.
fn concat(left: Value, right: Value) -> Result<String, Error> {
    let mut text = str_of(&left)?;
    text.push_str(&str_of(&right)?);
    Ok(text)
}

/// `left * right`, whose result for text and lists is charged before it is made.
fn multiply(left: Value, right: Value) -> Result<Value, Error> {
    let invalid = || {
        let message = format!("cannot multiply {} by {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, message)
    };
    for (value, count) in [(&left, &right), (&right, &left)] {
        if !matches!(value.kind(), ValueKind::String | ValueKind::Seq) {
            continue;
        }
        let count = i64::try_from(count.clone()).map_err(|_| invalid())?;
        let count = usize::try_from(count).unwrap_or(0);
        if let Some(text) = value.as_str() {
            charge_bytes(text.len().saturating_mul(count))?;
            return Ok(Value::from(text.repeat(count)));
        }
        let items: Vec<Value> = value.try_iter()?.collect();
        let total = items.len().saturating_mul(count);
        charge_bytes(total.saturating_mul(BYTES_PER_ITEM))?;
        let repeated = items.iter().cycle().take(total).cloned();
        return settle(Value::from_iter(repeated));
    }
    if left.is_integer() && right.is_integer() {
        let product = i64::try_from(left.clone())
            .and_then(|a| Ok(a.checked_mul(i64::try_from(right.clone())?)))?;
        return product
            .map(Value::from)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the product is too large"));
    }
    match (f64::try_from(left.clone()), f64::try_from(right.clone())) {
        (Ok(a), Ok(b)) if left.is_number() && right.is_number() => Ok(Value::from(a * b)),
        _ => Err(invalid()),
    }
}

fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // What transformers also accepts and this filter does anyway.
    for key in ["ensure_ascii", "separators", "sort_keys"] {
        let _ignored: Option<Value> = options.get(key)?;
    }
    options.assert_all_used()?;
    to_json(&value, indent)
}

fn replace(s: &str, from: &str, to: &str, count: Option<usize>) -> Result<String, Error> {
    charge_bytes(s.len())?;
    let matches = s.matches(from).take(count.unwrap_or(usize::MAX)).count();
    charge_bytes(matches.saturating_mul(to.len()))?;
    Ok(match count {
        Some(count) => s.replacen(from, to, count),
        None => s.replace(from, to),
    })
}

fn join(items: &Value, glue: &str) -> Result<String, Error> {
    let mut text = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        if i > 0 {
            charge_bytes(glue.len())?;
            text.push_str(glue);
        }
        text.push_str(&str_of(&item)?);
    }
    Ok(text)
}

fn indent(value: Value, options: Rest<Value>) -> Result<String, Error> {
    let s = str_of(&value)?;
    let (width, first, blank, kwargs): (Option<usize>, Option<bool>, Option<bool>, Kwargs) =
        from_args(&options)?;
    let width = width.or(kwargs.get("width")?).unwrap_or(4);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let lines = s.split('\n').count();
    charge_bytes(s.len() + lines.saturating_mul(width))?;
    let pad = " ".repeat(width);
    let mut text = String::with_capacity(s.len());
    for (i, line) in s.split('\n').enumerate() {
        text.push_str(if i > 0 { "\n" } else { "" });
        let wanted = if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        text.push_str(if wanted { &pad } else { "" });
        text.push_str(line);
    }
    Ok(text)
}

/// Python's methods on strings, lists and maps.
fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    weigh(value, 0)?;
    args.iter().try_for_each(|arg| weigh(arg, 0))?;
    match (value.as_str(), name) {
        (Some(s), "replace") => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            let count = count.and_then(|n| usize::try_from(n).ok());
            replace(s, from, to, count).map(Value::from)
        }
        (Some(glue), "join") => {
            let (items,): (Value,) = from_args(args)?;
            join(&items, glue).map(Value::from)
        }
        (Some(s), "count") => {
            let (what,): (&str,) = from_args(args)?;
            Ok(Value::from(s.matches(what).count()))
        }
        // Pads to any width in one step, and no chat template needs it.
        (Some(_), "format") => Err(Error::from(ErrorKind::UnknownMethod)),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}
