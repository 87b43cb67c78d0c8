//! Grammars made to cost the checks before compiling too much: what is long and the many ways that lead
//! there are separate. Also a module of the crate's own tests.

use serde_json::{json, Value};

use super::GrammarKind::{self, *};

pub fn grammars() -> Vec<(GrammarKind, &'static str, String)> {
    let under = |count: usize, prefix: &str, schema: &Value| -> serde_json::Map<String, Value> {
        (0..count)
            .map(|i| (format!("{prefix}{i}"), schema.clone()))
            .collect()
    };
    let pattern = json!({"pattern": "x"});
    let long_name = json!({"allOf": [{}, {}], "properties":
        {"n".repeat(120_000): {"properties": under(4800, "a", &pattern)}}});
    let doubling: serde_json::Map<_, _> = (0..16)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            let names = ["a", "b"].map(|name| name.repeat(1600));
            let properties = names.map(|name| (name, next.clone()));
            let properties: serde_json::Map<_, _> = properties.into_iter().collect();
            (
                format!("d{i}"),
                json!({"type": "object", "properties": properties}),
            )
        })
        .chain([("d16".to_owned(), pattern.clone())])
        .collect();
    let levels: serde_json::Map<_, _> = (0..3000)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            (format!("d{i}"), json!({"anyOf": [next, {}]}))
        })
        .chain([(
            "d3000".to_owned(),
            json!({"properties": under(4000, "", &pattern)}),
        )])
        .collect();
    let chain = json!({"allOf": [{"$ref": "#/$defs/d0"}, {"type": "object"}]});
    let with_defs = |defs: serde_json::Map<String, Value>| {
        let mut schema = chain.clone();
        schema["$defs"] = defs.into();
        schema.to_string()
    };
    let look_ahead = r"(?=\pL{400})".repeat(1200);
    let gbnf = |line: &dyn Fn(usize) -> String, length: usize, last: &str| {
        let lines: Vec<_> = (0..length).map(line).collect();
        format!(
            "root ::= \"x\" root | r0\n{}\nr{length} ::= {last}",
            lines.join("\n")
        )
    };
    let class = format!(
        "[{}]",
        (0x100..0xC00)
            .filter_map(char::from_u32)
            .collect::<String>()
    );
    vec![
        (JsonSchema, "patterns below a long name", long_name.to_string()),
        (JsonSchema, "long names doubled by references", with_defs(doubling)),
        (JsonSchema, "anyOf 3,000 references deep", with_defs(levels)),
        (JsonSchema, "allOf of 80,000", json!({"allOf": vec![json!({}); 80_000]}).to_string()),
        (JsonSchema, "enum of 120,000 numbers", json!({"enum": vec![0; 120_000]}).to_string()),
        (JsonSchema, "enum of 30,000 objects", json!({"enum": vec![json!({"": 0}); 30_000]}).to_string()),
        (JsonSchema, "a reference of 50,000 bytes", json!({"allOf": vec![json!({"$ref": "#/$defs/a"}); 5000],
            "$defs": {"a": {"$ref": format!("#/$defs/{}", "n".repeat(50_000))}, "n".repeat(50_000): {"pattern": "a".repeat(16_000)}}}).to_string()),
        (JsonSchema, "look-aheads of wide classes", json!({"properties": {"a": {}}, "patternProperties": {look_ahead: {}}}).to_string()),
        (JsonSchema, "many names and many patterns of names", json!({"properties": under(5000, "p", &json!({})),
            "patternProperties": under(5000, "[a-m]{1,9}x", &json!({}))}).to_string()),
        (Lark, "GBNF, doubling alternatives", gbnf(&|i| format!("r{i} ::= r{0} | r{0}", i + 1), 60, "\"c\"")),
        (Lark, "GBNF, doubling empty rules", gbnf(&|i| format!("r{i} ::= r{0} r{0}", i + 1), 60, "\"\"")),
        (Lark, "GBNF, a wide class first in many rules", gbnf(&|i| format!("r{i}::=r{}|\"b\"root", i + 1), 450, &class)),
        (Lark, "GBNF, many optional rules in a row", format!("root ::= {} root | \"x\"\na ::= \"a\" root \"b\" | \"c\"?", "a? ".repeat(4000))),
    ]
}
