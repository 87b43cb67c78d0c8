//! JSON schemas that llguidance would compile wrongly, and its refusals of schemas in our words.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::sandbox;

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
        // One that this engine cannot read may match anything. A look-around, which it does not know,
        // would bring an automaton of its own, whose memory nothing bounds for all of them together.
        let regex = regex::Regex::new(pattern).ok();
        for name in properties.keys() {
            sandbox::check(0, 0)?;
            if regex.as_ref().is_none_or(|regex| regex.is_match(name)) {
                return Err(Error::invalid(format!(
                    "the name {name:?} of \"properties\" matches the pattern {pattern:?} of \
                     \"patternProperties\", which is not supported together"
                )));
            }
        }
    }
    Ok(())
}
