//! minijinja configured to read and print as Jinja2 does under transformers.

use std::fmt::{self, Write};

use chrono::DateTime;
use minijinja::value::{from_args, Kwargs, Rest, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{filters, python, room};
use crate::sandbox;

/// Nesting depth of macros and loops.
const RECURSION_LIMIT: usize = 200;

pub fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_formatter(|out, _state, value| python::write_str(&mut Checked(out), value));
    env.set_unknown_method_callback(method);
    env.add_function("raise_exception", |message: String| {
        Err::<(), _>(Error::new(ErrorKind::InvalidOperation, message))
    });
    filters::add_filters(&mut env);
    env.add_filter("string", |value: Value| python::str_of(&value));
    env.add_filter("tojson", tojson);
    env.add_filter("indent", indent);
    env
}

/// Collects printed text and refuses it when it grows too long; captured text also comes here.
struct Checked<'a, 'b>(&'a mut Output<'b>);

impl Write for Checked<'_, '_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        sandbox::check(s.len(), 0).map_err(|_| fmt::Error)?;
        self.0.write_str(s)
    }
}

fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Arguments that transformers also accepts; this filter always behaves that way.
    for key in ["ensure_ascii", "separators", "sort_keys"] {
        let _ignored: Option<Value> = options.get(key)?;
    }
    options.assert_all_used()?;
    python::to_json(&value, indent)
}

/// Jinja2's filter, which keeps a line break at the end; minijinja's drops it.
fn indent(text: &str, options: Rest<Value>) -> Result<String, Error> {
    let (width, first, blank, kwargs): (Option<usize>, Option<bool>, Option<bool>, Kwargs) =
        from_args(&options)?;
    let width = width.or(kwargs.get("width")?).unwrap_or(4);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let lines = text.split('\n').count();
    room::ask(lines.saturating_mul(width).saturating_add(text.len()), 0)?;
    let pad = " ".repeat(width);
    let mut indented = String::with_capacity(text.len());
    for (i, line) in text.split('\n').enumerate() {
        indented.push_str(if i > 0 { "\n" } else { "" });
        let wanted = match i {
            0 => first,
            _ => blank || !line.is_empty(),
        };
        indented.push_str(if wanted { &pad } else { "" });
        indented.push_str(line);
    }
    Ok(indented)
}

/// Python's methods on strings, lists and maps.
fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name) {
        // pycompat's version never ends when it counts the empty text.
        (Some(s), "count") => {
            let (what,): (&str,) = from_args(args)?;
            Ok(Value::from(s.matches(what).count()))
        }
        (Some(s), "join") => {
            let (items,): (&Value,) = from_args(args)?;
            filters::join(items, s)
        }
        _ => {
            room::ask_for(name, value, args)?;
            unknown_method_callback(state, value, name, args)
        }
    }
}

/// The date in UTC, for templates that tell the model what day it is.
pub fn strftime(unix_seconds: i64, format: &str) -> Result<String, Error> {
    let mut text = String::new();
    let written = DateTime::from_timestamp(unix_seconds, 0)
        .map(|time| write!(text, "{}", time.format(format)));
    match written {
        Some(Ok(())) => Ok(text),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now cannot write the time {unix_seconds} as {format:?}"),
        )),
    }
}

/// `{% generation %}` only marks the assistant's text, for training: it becomes `{% if true %}`.
pub fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let inner = &rest[start + 2..start + length];
        let replaced = match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+')
        {
            "generation" => inner.replace("generation", "if true"),
            "endgeneration" => inner.replace("endgeneration", "endif"),
            _ => inner.to_owned(),
        };
        result.push_str(&rest[..start + 2]);
        result.push_str(&replaced);
        result.push_str("%}");
        rest = &rest[start + length + 2..];
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_seconds: i64, format: &str) -> String {
        strftime(unix_seconds, format).unwrap()
    }

    #[test]
    fn dates_are_gregorian() {
        assert_eq!(at(0, "%Y-%m-%d %A %j"), "1970-01-01 Thursday 001");
        assert_eq!(at(951_782_400, "%d %b %Y %j"), "29 Feb 2000 060");
        assert_eq!(
            at(1_704_067_199, "%F %T %a %j"),
            "2023-12-31 23:59:59 Sun 365"
        );
        assert_eq!(at(1_735_603_200, "%e %B %Y, %j"), "31 December 2024, 366");
        assert_eq!(at(1_709_251_200, "%-d %-m %I:%M %p"), "1 3 12:00 AM");
        assert_eq!(
            at(1_709_251_200, "%y %h %e %Z %z %s %%"),
            "24 Mar  1 UTC +0000 1709251200 %"
        );
    }

    #[test]
    fn unknown_codes_are_named() {
        assert!(strftime(0, "%!").unwrap_err().to_string().contains("%!"));
        assert!(strftime(i64::MAX, "%Y").is_err());
    }
}
