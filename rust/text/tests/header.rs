//! The hand-written C header and the Rust definitions must agree.

use std::collections::BTreeMap;

const HEADER: &str = include_str!("../include/tandem_text.h");
const FFI: &str = include_str!("../src/ffi.rs");
const ERROR: &str = include_str!("../src/error.rs");

/// Unifies the C and Rust spellings of a type.
fn canonical(ty: &str) -> String {
    let ty = ty.trim().replace("struct ", "");
    if let Some(inner) = ty.strip_prefix("*mut ") {
        return format!("{}*", canonical(inner));
    }
    if let Some(inner) = ty.strip_prefix("*const ") {
        return format!("const {}*", canonical(inner));
    }
    match ty.as_str() {
        "u8" | "uint8_t" => "u8".into(),
        "u32" | "uint32_t" => "u32".into(),
        "u64" | "uint64_t" => "u64".into(),
        "i64" | "int64_t" => "i64".into(),
        "usize" | "size_t" => "usize".into(),
        "()" | "void" => "void".into(),
        _ => match ty.strip_suffix('*') {
            Some(pointee) => match pointee.trim().strip_prefix("const ") {
                Some(inner) => format!("const {}*", canonical(inner)),
                None => format!("{}*", canonical(pointee)),
            },
            None => ty,
        },
    }
}

fn without_comments(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let lines = lines.map(|line| line.split("//").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join(" ")
}

type Signature = (Vec<(String, String)>, String);

fn rust_functions() -> BTreeMap<String, Signature> {
    let mut found = BTreeMap::new();
    for part in FFI.split("extern \"C\" fn ").skip(1) {
        let (name, rest) = part.split_once('(').unwrap();
        let (args, rest) = rest.split_once(')').unwrap();
        let returns = rest.split_once('{').unwrap().0.trim();
        let returns = returns.strip_prefix("->").unwrap_or("()");
        let args = args.split(',').filter(|a| !a.trim().is_empty());
        let args = args.map(|a| {
            let (name, ty) = a.split_once(':').unwrap();
            (name.trim().to_owned(), canonical(ty))
        });
        found.insert(name.to_owned(), (args.collect(), canonical(returns)));
    }
    found
}

fn c_functions() -> BTreeMap<String, Signature> {
    let text = without_comments(HEADER);
    let mut found = BTreeMap::new();
    for statement in text.split([';', '{', '}']) {
        let Some((head, args)) = statement.split_once('(') else {
            continue;
        };
        let Some(name) = head
            .split_whitespace()
            .last()
            .filter(|n| n.starts_with("tandem_text_"))
        else {
            continue;
        };
        let returns = head.trim().strip_suffix(name).unwrap();
        let args = args.trim().trim_end_matches(')').split(',');
        let args = args.map(|arg| {
            let (ty, name) = arg.trim().rsplit_once(' ').unwrap();
            (name.to_owned(), canonical(ty))
        });
        found.insert(name.to_owned(), (args.collect(), canonical(returns)));
    }
    found
}

fn rust_structs() -> BTreeMap<String, Vec<(String, String)>> {
    let mut found = BTreeMap::new();
    for part in FFI.split("#[repr(C)]\npub struct ").skip(1) {
        let (name, rest) = part.split_once('{').unwrap();
        let body = rest.split_once('}').unwrap().0;
        let fields = body.split(',').filter_map(|f| f.trim().split_once(':'));
        let fields = fields.map(|(n, ty)| (n.trim().to_owned(), canonical(ty)));
        found.insert(name.trim().to_owned(), fields.collect());
    }
    found
}

fn c_structs() -> BTreeMap<String, Vec<(String, String)>> {
    let text = without_comments(HEADER);
    let mut found = BTreeMap::new();
    for part in text.split("typedef struct ").skip(1) {
        let Some((name, rest)) = part.split_once('{').filter(|(name, _)| !name.contains(';'))
        else {
            continue;
        };
        let body = rest.split_once('}').unwrap().0;
        let fields = body.split(';').filter_map(|f| f.trim().rsplit_once(' '));
        let fields = fields.map(|(ty, n)| (n.to_owned(), canonical(ty)));
        found.insert(name.trim().to_owned(), fields.collect());
    }
    found
}

#[test]
fn functions_agree() {
    let rust = rust_functions();
    assert!(
        rust.len() >= 14,
        "the parser of ffi.rs found {}",
        rust.len()
    );
    assert_eq!(rust, c_functions());
}

#[test]
fn structs_agree() {
    let rust = rust_structs();
    assert_eq!(rust.len(), 5);
    assert_eq!(rust, c_structs());
}

#[test]
fn codes_agree() {
    let body = ERROR
        .split_once("enum ErrorCode {")
        .unwrap()
        .1
        .split_once('}')
        .unwrap()
        .0;
    for line in body.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.trim_end_matches(',').split_once(" = ").unwrap();
        let mut constant = String::from("TANDEM_TEXT");
        for c in name.chars() {
            if c.is_ascii_uppercase() {
                constant.push('_');
            }
            constant.push(c.to_ascii_uppercase());
        }
        assert!(
            HEADER.contains(&format!("  {constant} = {value},")),
            "{constant}"
        );
    }
}

#[test]
fn grammar_kinds_agree() {
    use tandem_text::GrammarKind::{self, *};
    let kinds = [
        (JsonObject, "JSON_OBJECT"),
        (JsonSchema, "JSON_SCHEMA"),
        (LooseJsonSchema, "LOOSE_JSON_SCHEMA"),
        (Regex, "REGEX"),
        (Choice, "CHOICE"),
        (Lark, "LARK"),
        (Guidance, "GUIDANCE"),
    ];
    for (number, (kind, name)) in kinds.into_iter().enumerate() {
        assert_eq!(kind as usize, number);
        assert_eq!(GrammarKind::of(number as u32), Some(kind));
        let constant = format!("  TANDEM_TEXT_{name} = {number},");
        assert!(HEADER.contains(&constant), "{constant}");
    }
    assert_eq!(GrammarKind::of(kinds.len() as u32), None);
}
