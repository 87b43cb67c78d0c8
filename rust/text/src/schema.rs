//! JSON schemas before llguidance compiles them, and its refusals of them in our words.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::grammar::{check_text, too_large, GrammarKind, MAX_REGEX_BYTES};

/// Sum of all `minItems` and `maxItems` of a schema: llguidance writes a rule for each item.
const MAX_ITEMS: f64 = 20_000.0;

/// What neither llguidance's fuel nor its sizes bound soon enough.
pub(crate) fn check_schema(schema: &Value) -> Result<()> {
    let mut open = vec![schema];
    let mut items = 0.0;
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => {
                for (key, value) in members {
                    check_patterns(key, value)?;
                    items += items_of(key, value);
                    open.push(value);
                }
            }
            _ => {}
        }
        if items > MAX_ITEMS {
            return Err(too_large(format!(
                "\"minItems\" and \"maxItems\" of the JSON schema add up to more than {MAX_ITEMS}"
            )));
        }
    }
    Ok(())
}

fn items_of(key: &str, value: &Value) -> f64 {
    match key {
        "minItems" | "maxItems" => value.as_f64().unwrap_or(0.0),
        _ => 0.0,
    }
}

fn check_patterns(key: &str, value: &Value) -> Result<()> {
    match (key, value) {
        ("pattern", Value::String(pattern)) => {
            check_text(GrammarKind::Regex, pattern, MAX_REGEX_BYTES)?;
        }
        ("patternProperties", Value::Object(members)) => {
            for pattern in members.keys() {
                check_text(GrammarKind::Regex, pattern, MAX_REGEX_BYTES)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// What llguidance says of a schema without naming the keyword.
pub(crate) fn by_keyword(message: &str) -> Option<String> {
    if let Some(format) = message.strip_prefix("Unknown format: ") {
        let name = serde_json::to_string(format).ok()?;
        return Some(format!(
            "the value {name} of the keyword \"format\" is not supported"
        ));
    }
    if let Some((_, rest)) = message.split_once("Resource '") {
        let (place, _) = rest.split_once('\'')?;
        return Some(format!(
            "{place} in \"$ref\" or \"$schema\" leaves the JSON schema, and nothing is fetched"
        ));
    }
    if message.starts_with("oneOf constraints are not supported") {
        return Some(
            "the keyword \"oneOf\" of the JSON schema is supported only where its schemas exclude \
             each other"
                .to_owned(),
        );
    }
    let rest = message.strip_prefix("patternProperty regexes ")?;
    let patterns = rest.strip_suffix(" are not disjoint")?;
    Some(format!(
        "the patterns {patterns} of the keyword \"patternProperties\" may match one name, which is \
         not supported"
    ))
}

/// llguidance holds a property to its own schema and not also to that of a pattern that its name
/// matches.
pub(crate) fn check_overlaps(schema: &Value) -> Result<()> {
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => {
                check_overlap(members)?;
                open.extend(members.values());
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_overlap(members: &serde_json::Map<String, Value>) -> Result<()> {
    let of = |key: &str| members.get(key).and_then(Value::as_object);
    let (Some(properties), Some(patterns)) = (of("properties"), of("patternProperties")) else {
        return Ok(());
    };
    for pattern in patterns.keys() {
        // One that this engine cannot read may match anything.
        let regex = fancy_regex::Regex::new(pattern).ok();
        let matches = |name: &&String| {
            regex
                .as_ref()
                .is_none_or(|regex| regex.is_match(name).unwrap_or(true))
        };
        if let Some(name) = properties.keys().find(matches) {
            return Err(Error::invalid(format!(
                "the name {name:?} of \"properties\" matches the pattern {pattern:?} of \
                 \"patternProperties\", which is not supported together"
            )));
        }
    }
    Ok(())
}
