//! What a JSON schema may cost, as far as it shows in the schema itself: the sizes and patterns that
//! neither llguidance's fuel nor its limits bound soon enough.

use serde_json::Value;

use crate::error::{Error, ErrorCode, Result};
use crate::grammar_patterns::{Common, Meetings};
use crate::grammar_width::width;

/// Bytes of a regular expression and of a grammar in Lark. llguidance's time and memory grow with the
/// square of their optional parts, and its fuel does not count them.
pub const MAX_REGEX_BYTES: usize = 16 << 10;
/// Brackets inside each other in a grammar's text; in JSON serde_json's own limit (127) is lower.
const MAX_DEPTH: usize = 200;
/// Sum of all `minItems` and `maxItems` of a schema: llguidance writes a rule for each item.
const MAX_ITEMS: f64 = 20_000.0;
/// Patterns that have to hold for one text, times their characters with repeats written out. llguidance
/// searches for a text of them after each that it adds: a limited number of steps, each as long as all
/// of them.
const MAX_COMMON_PATTERNS: u64 = 4_000;
/// All patterns, counted in the same way, of a schema too large for `Meetings`.
const MAX_PATTERNS_OF_MANY_PARTS: u64 = 1_000_000;

pub fn too_large(sentence: String) -> Error {
    Error::new(ErrorCode::ResourceExhausted, sentence)
}

/// llguidance recurses over brackets, and some of its walks in the threads that fill masks.
pub fn check_text(name: &str, text: &str, max_bytes: usize) -> Result<()> {
    check_bytes(name, text, max_bytes)?;
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(too_large(format!(
                "the {name} nests brackets more than {MAX_DEPTH} deep"
            )));
        }
    }
    Ok(())
}

pub fn check_bytes(name: &str, text: &str, max_bytes: usize) -> Result<()> {
    match text.len() {
        bytes if bytes <= max_bytes => Ok(()),
        bytes => Err(too_large(format!(
            "the {name} has {bytes} bytes; at most {max_bytes} are compiled"
        ))),
    }
}

/// What neither llguidance's fuel nor its sizes bound soon enough.
pub fn check_schema(schema: &Value) -> Result<()> {
    let mut sizes = Sizes {
        // A reference may lead into what is a value elsewhere.
        reads_values: refers_to_values(schema),
        items: 0.0,
        patterns: Common::default(),
        meetings: Meetings::new(schema),
    };
    sizes.visit(schema)?;
    if sizes.meetings.worst().cost() > MAX_COMMON_PATTERNS
        || sizes.meetings.is_cut() && sizes.patterns.cost() > MAX_PATTERNS_OF_MANY_PARTS
    {
        return Err(too_large(
            "too many or too long patterns of the JSON schema have to hold for one text (\"allOf\", or \"pattern\" \
             beside \"$ref\" or \"anyOf\"); put them into one pattern"
                .to_owned(),
        ));
    }
    Ok(())
}

struct Sizes<'a> {
    reads_values: bool,
    items: f64,
    /// All of them.
    patterns: Common,
    meetings: Meetings<'a>,
}

impl<'a> Sizes<'a> {
    /// Every schema in the document.
    fn visit(&mut self, schema: &'a Value) -> Result<()> {
        match schema {
            Value::Array(parts) => parts.iter().try_for_each(|part| self.visit(part))?,
            Value::Object(members) => {
                self.meetings.read(schema)?;
                for (key, value) in members {
                    self.visit_member(key, value)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_member(&mut self, key: &str, value: &'a Value) -> Result<()> {
        match (key, value) {
            ("minItems" | "maxItems", Value::Number(count)) => {
                self.items += count.as_f64().unwrap_or(0.0).max(0.0);
                if self.items > MAX_ITEMS {
                    return Err(too_large(format!(
                        "\"minItems\" and \"maxItems\" of the JSON schema add up to more than {MAX_ITEMS}"
                    )));
                }
            }
            ("pattern", Value::String(pattern)) => self.visit_pattern(pattern)?,
            (key, _) if is_value(key) && !self.reads_values => {}
            (key, Value::Object(members)) if names_schemas(key) => {
                for (name, schema) in members {
                    if key == "patternProperties" {
                        self.visit_pattern(name)?;
                    }
                    self.visit(schema)?;
                }
            }
            (_, value) => self.visit(value)?,
        }
        Ok(())
    }

    fn visit_pattern(&mut self, pattern: &str) -> Result<()> {
        check_text("regular expression", pattern, MAX_REGEX_BYTES)?;
        self.patterns.add(Common {
            count: 1,
            width: width(pattern),
        });
        Ok(())
    }
}

/// Keywords whose value is no schema.
fn is_value(key: &str) -> bool {
    matches!(key, "const" | "enum" | "default" | "example" | "examples")
}

/// Keywords whose value has a schema under each name.
fn names_schemas(key: &str) -> bool {
    matches!(
        key,
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
    )
}

/// Whether a reference may lead elsewhere than to the whole document or to one of its definitions.
fn refers_to_values(document: &Value) -> bool {
    let is_definition = |reference: &str| {
        let name = reference
            .strip_prefix("#/$defs/")
            .or_else(|| reference.strip_prefix("#/definitions/"));
        reference == "#" || name.is_some_and(|name| !name.contains('/'))
    };
    match document {
        Value::Array(parts) => parts.iter().any(refers_to_values),
        Value::Object(members) => members.iter().any(|(key, value)| match value {
            // Under another address, references and definitions are relative to it.
            Value::String(text) if key == "$ref" => !is_definition(text),
            Value::String(_) => key == "$id" || key == "id",
            _ => refers_to_values(value),
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{json, Map};

    use super::*;
    use crate::sandbox::{self, Allowance, Strays};

    #[test]
    fn sizes_add_up_wherever_they_are() {
        let refused = |schema: Value| check_schema(&schema).is_err();
        assert!(refused(
            json!({"minItems": 1e9, "not": {"minItems": -1e18}})
        ));
        assert!(refused(
            json!({"properties": {"a": {"minItems": 1e9}}, "default": {"minItems": -1e18}})
        ));
        assert!(refused(
            json!({"minItems": 12_000, "items": {"maxItems": 12_000}})
        ));
        assert!(refused(
            json!({"properties": {"const": {"minItems": 30_000}}})
        ));
        assert!(refused(json!({"$defs": {"default": {"maxItems": 30_000}}})));
        assert!(!refused(
            json!({"minItems": 12_000, "items": {"maxItems": 8_000}})
        ));
    }

    #[test]
    fn values_are_no_schemas() {
        for value in ["const", "enum", "default", "examples"] {
            let schema = json!({value: [{"minItems": 30_000}]});
            assert!(check_schema(&schema).is_ok(), "{value}");
            let schema = json!({"$ref": format!("#/{value}/0"), value: [{"minItems": 30_000}]});
            assert!(check_schema(&schema).is_err(), "{value} is referred to");
        }
        assert!(check_schema(&json!({"properties": {"minItems": {"const": 30_000}}})).is_ok());
    }

    #[test]
    fn patterns_that_meet_are_few() {
        let patterns = |count: usize| -> Vec<Value> {
            (1..=count)
                .map(|i| json!({"pattern": format!("^[a-z]*[a-m][a-z]{{{i}}}$")}))
                .collect()
        };
        let is_taken = |schema: Value| check_schema(&schema).is_ok();
        assert!(is_taken(json!({"anyOf": patterns(500)})));
        assert!(is_taken(json!({"allOf": patterns(8)})));
        assert!(!is_taken(json!({"allOf": patterns(59)})));
        // In properties of the same name, through references, and beside other keywords.
        let objects = |same: bool| -> Vec<Value> {
            let name = |i| {
                if same {
                    "a".to_owned()
                } else {
                    format!("a{i}")
                }
            };
            patterns(59)
                .into_iter()
                .enumerate()
                .map(|(i, p)| json!({"properties": {name(i): p}}))
                .collect()
        };
        assert!(is_taken(json!({"allOf": objects(false)})));
        assert!(!is_taken(json!({"allOf": objects(true)})));
        let chain: Map<String, Value> = (0..59)
            .map(|i| {
                let next = format!("#/$defs/d{}", i + 1);
                (
                    format!("d{i}"),
                    json!({"pattern": "[a-m][a-z]{30}$", "$ref": next}),
                )
            })
            .collect();
        assert!(!is_taken(json!({"$ref": "#/$defs/d0", "$defs": chain})));
        assert!(!is_taken(
            json!({"pattern": "a{3000}", "anyOf": [{"pattern": "b{3000}"}, {}]})
        ));
    }

    #[test]
    fn many_parts_take_no_time() {
        let doubling: Map<String, Value> = (0..60)
            .map(|i| {
                let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
                (
                    format!("d{i}"),
                    json!({"allOf": [next, next], "pattern": "a"}),
                )
            })
            .collect();
        let schema = json!({"$ref": "#/$defs/d0", "$defs": doubling});
        let _ = check_schema(&schema);
        let itself =
            json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "properties": {"a": {"$ref": "#"}}});
        assert!(check_schema(&itself).is_ok());
    }

    /// The most memory that the check of a schema holds at one time is at most this.
    fn is_checked_within(bytes: usize, schema: Value) -> bool {
        let allowed = Allowance {
            input: "schema",
            bytes: bytes / 4, // what the sandbox stops at is four times as much
            stops_at_blocks: false,
            time: Duration::from_secs(60),
        };
        let strays = Arc::new(Strays::default());
        let checked = sandbox::run(allowed, &strays, move || {
            let checked = check_schema(&schema);
            Ok((checked, schema)) // what was made outside is freed outside
        });
        checked.is_ok() && strays.count() == 0
    }

    #[test]
    fn long_names_are_not_copied() {
        for bytes in [30_000, 60_000] {
            let leaves: Map<String, Value> = (0..2000)
                .map(|i| (format!("a{i}"), json!({"pattern": "x"})))
                .collect();
            let name = "n".repeat(bytes);
            let schema = json!({"allOf": [{}, {}],
                "properties": {name: {"properties": leaves}}});
            assert!(is_checked_within(2 << 20, schema), "{bytes}");
        }
        let levels: Map<String, Value> = (0..16)
            .map(|i| {
                let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
                let names = [0, 1].map(|_| "ab".repeat(800));
                let [one, other] = [format!("{}a", names[0]), format!("{}b", names[1])];
                (
                    format!("d{i}"),
                    json!({"properties": {one: next, other: next}}),
                )
            })
            .chain([("d16".to_owned(), json!({"pattern": "x"}))])
            .collect();
        let schema = json!({"allOf": [{"$ref": "#/$defs/d0"}, {}], "$defs": levels});
        assert!(is_checked_within(16 << 20, schema));
    }
}
