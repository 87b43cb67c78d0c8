//! minijinja's filters that make data, each after asking whether there is room for it.

use std::fmt::Write;

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{filters, Environment, Error, State};

use super::python;
use super::room::{self, too_large, CheckedString};

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

/// Replaces minijinja's filters that make data by ones that ask first. Those that make a value of
/// constant size, or an iterator, stay as they are.
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
                ValueKind::Iterable => Value::from(room::items(&value)?),
                _ => value,
            };
            room::ask_for(name, &value, &rest)?;
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
