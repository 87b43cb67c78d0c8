//! Values as Python prints them: the templates were written against Jinja2.

use std::fmt::{self, Write};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::room::{self, too_large, CheckedString};

/// JSON from outside nests at most 128 deep; values built by a template may not nest much deeper,
/// because comparing and dropping a value recurse.
const MAX_DEPTH: usize = 160;

/// `str(value)`.
pub fn str_of(value: &Value) -> Result<String, Error> {
    let mut out = CheckedString::default();
    write_str(&mut out, value)?;
    Ok(out.into_string())
}

/// `str(value)` into a writer; the writer refuses text that grows too long.
pub fn write_str(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text).map_err(|_| Stop::Full),
        None => write_repr(out, value, 0),
    };
    written.map_err(Stop::into_error)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`, the `tojson` of transformers.
pub fn to_json(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut out = CheckedString::default();
    write_json(&mut out, value, indent, 0).map_err(Stop::into_error)?;
    Ok(out.into_string())
}

enum Stop {
    Full,
    Depth,
    NotJson(ValueKind),
    Inner(Error),
}

impl Stop {
    fn into_error(self) -> Error {
        match self {
            Stop::Full => too_large("builds too much data"),
            Stop::Depth => too_large("nests values too deeply"),
            Stop::NotJson(kind) => Error::new(
                ErrorKind::InvalidOperation,
                format!("{kind} cannot be written as JSON"),
            ),
            Stop::Inner(error) => error,
        }
    }
}

impl From<fmt::Error> for Stop {
    fn from(_: fmt::Error) -> Self {
        Stop::Full
    }
}

fn write_repr(out: &mut dyn Write, value: &Value, depth: usize) -> Result<(), Stop> {
    if depth > MAX_DEPTH {
        return Err(Stop::Depth);
    }
    match value.kind() {
        // At the top level an undefined value prints as nothing; inside a list it is a word.
        ValueKind::Undefined => Ok(out.write_str(if depth == 0 { "" } else { "Undefined" })?),
        ValueKind::None => Ok(out.write_str("None")?),
        ValueKind::Bool => Ok(out.write_str(if value.is_true() { "True" } else { "False" })?),
        ValueKind::Number => Ok(write_number(out, value)?),
        ValueKind::String => Ok(write_quoted(out, value.as_str().unwrap_or_default())?),
        ValueKind::Seq | ValueKind::Iterable => {
            out.write_char('[')?;
            for (i, item) in value.try_iter().map_err(Stop::Inner)?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                write_repr(out, &item, depth + 1)?;
            }
            Ok(out.write_char(']')?)
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (i, key) in value.try_iter().map_err(Stop::Inner)?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                write_repr(out, &key, depth + 1)?;
                out.write_str(": ")?;
                let item = value.get_item(&key).map_err(Stop::Inner)?;
                write_repr(out, &item, depth + 1)?;
            }
            Ok(out.write_char('}')?)
        }
        _ => Ok(write!(out, "{value}")?),
    }
}

/// Python's repr of a number: floats always with a point or an exponent.
fn write_number(out: &mut dyn Write, value: &Value) -> fmt::Result {
    if value.is_integer() {
        return write!(out, "{value}");
    }
    let Ok(number) = f64::try_from(value.clone()) else {
        return write!(out, "{value}");
    };
    let magnitude = number.abs();
    if number.is_finite() && magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return write!(out, "{mantissa}e{sign}{:02}", exponent.abs());
    }
    if number.is_nan() {
        return out.write_str("nan");
    }
    if number.is_infinite() {
        return out.write_str(if number > 0.0 { "inf" } else { "-inf" });
    }
    write!(out, "{number:?}")
}

/// Python's repr of a string: single quotes unless only they occur inside.
fn write_quoted(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if u32::from(c) < 0x20 || c == '\x7f' => write!(out, "\\x{:02x}", u32::from(c))?,
            c => out.write_char(c)?,
        }
    }
    out.write_char(quote)
}

fn write_json(
    out: &mut dyn Write,
    value: &Value,
    indent: Option<usize>,
    depth: usize,
) -> Result<(), Stop> {
    if depth > MAX_DEPTH {
        return Err(Stop::Depth);
    }
    match value.kind() {
        ValueKind::None => Ok(out.write_str("null")?),
        ValueKind::Bool => Ok(out.write_str(if value.is_true() { "true" } else { "false" })?),
        ValueKind::Number => Ok(write_number(out, value)?),
        ValueKind::String => write_json_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = room::items(value).map_err(Stop::Inner)?;
            write_json_items(out, ('[', ']'), items.len(), indent, depth, |out, i| {
                write_json(out, &items[i], indent, depth + 1)
            })
        }
        ValueKind::Map => {
            let keys = room::items(value).map_err(Stop::Inner)?;
            write_json_items(out, ('{', '}'), keys.len(), indent, depth, |out, i| {
                let mut key = String::new();
                write_str(&mut key, &keys[i]).map_err(Stop::Inner)?;
                write_json_string(out, &key)?;
                out.write_str(": ")?;
                let item = value.get_item(&keys[i]).map_err(Stop::Inner)?;
                write_json(out, &item, indent, depth + 1)
            })
        }
        kind => Err(Stop::NotJson(kind)),
    }
}

/// The brackets, commas and line breaks around the items of a list or a map.
fn write_json_items(
    out: &mut dyn Write,
    (open, close): (char, char),
    count: usize,
    indent: Option<usize>,
    depth: usize,
    mut write_item: impl FnMut(&mut dyn Write, usize) -> Result<(), Stop>,
) -> Result<(), Stop> {
    out.write_char(open)?;
    for i in 0..count {
        match indent {
            Some(width) => {
                out.write_str(if i > 0 { "," } else { "" })?;
                new_line(out, width * (depth + 1))?;
            }
            None => out.write_str(if i > 0 { ", " } else { "" })?,
        }
        write_item(out, i)?;
    }
    if let Some(width) = indent.filter(|_| count > 0) {
        new_line(out, width * depth)?;
    }
    Ok(out.write_char(close)?)
}

fn new_line(out: &mut dyn Write, spaces: usize) -> Result<(), Stop> {
    const PAD: &str = "                                                                ";
    out.write_char('\n')?;
    for _ in 0..spaces / PAD.len() {
        out.write_str(PAD)?;
    }
    Ok(out.write_str(&PAD[..spaces % PAD.len()])?)
}

fn write_json_string(out: &mut dyn Write, text: &str) -> Result<(), Stop> {
    let quoted = serde_json::to_string(text).map_err(|_| Stop::Full)?;
    Ok(out.write_str(&quoted)?)
}
