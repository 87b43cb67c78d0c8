//! The JSON Schema Test Suite (draft 2020-12, tests/data/json_schema_suite) as strict schemas: one
//! that compiles takes no invalid instance, and one that is refused has its keyword named and is not
//! one that llguidance by itself would have followed correctly. How many
//! compile, and how many valid instances they take, stands in results.txt, which may only improve:
//!
//!     TANDEM_RECORD=1 cargo test --test json_schema_suite

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie, INVALID_TOKEN};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use tandem_text::{GrammarCompiler, GrammarKind, GrammarLimits, GrammarMatcher, TextTokenizer};

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

/// A token for each byte, of a tokenizer that has them all.
struct Bytes {
    tokens: Vec<u32>,
    compiler: GrammarCompiler,
}

impl Bytes {
    fn new() -> Self {
        let tokenizer = TextTokenizer::load(&data().join("tokenizers/byte_level")).unwrap();
        let vocab = tokenizer.vocab_size();
        let ordinary = |id: &u32| !tokenizer.is_special(*id);
        let token_of = |byte: u8| {
            (0..vocab as u32)
                .filter(ordinary)
                .find(|id| tokenizer.token_bytes(*id) == [byte])
        };
        Self {
            // Two bytes never occur in UTF-8, and some vocabularies lack them.
            tokens: (0..=255)
                .map(|byte| token_of(byte).unwrap_or(u32::MAX))
                .collect(),
            compiler: GrammarCompiler::new(&tokenizer, vocab, GrammarLimits::default()),
        }
    }

    fn takes(&self, start: &GrammarMatcher, text: &str) -> bool {
        let mut matcher = start.deep_clone();
        let tokens: Vec<_> = text
            .bytes()
            .map(|byte| self.tokens[byte as usize])
            .collect();
        matcher.advance(&tokens).unwrap() == tokens.len() && matcher.is_accepting()
    }
}

/// llguidance by itself, over single bytes.
struct Plain(ParserFactory);

impl Plain {
    fn new() -> Self {
        // The byte 0xff marks special tokens.
        let words: Vec<_> = (0..255u8).map(|byte| vec![byte]).collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, INVALID_TOKEN), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        Self(ParserFactory::new_simple(&env).unwrap())
    }

    /// Whether it compiles the group's schema and takes none of its invalid instances.
    fn follows(&self, group: &Value) -> bool {
        let grammar = TopLevelGrammar::from_json_schema(group["schema"].clone());
        let Ok(start) = self.0.create_parser(grammar) else {
            return false;
        };
        let takes = |text: &String| {
            let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
            let mut matcher = Matcher::new(Ok(start.deep_clone()));
            let taken = matcher.try_consume_tokens(&tokens);
            taken.is_ok_and(|count| count == tokens.len())
                && matcher.is_accepting().unwrap_or(false)
        };
        let mut tests = group["tests"].as_array().unwrap().iter();
        tests.all(|test| test["valid"] == true || !spellings(&test["data"]).iter().any(takes))
    }
}

/// The instance, with its members in every order if they are few: a schema fixes the order.
fn spellings(instance: &Value) -> Vec<String> {
    let Some(members) = instance.as_object().filter(|members| members.len() <= 4) else {
        return vec![instance.to_string()];
    };
    let mut orders: Vec<Vec<(&String, &Value)>> = vec![Vec::new()];
    for member in members {
        let inserted = |order: &Vec<_>| {
            let order = order.clone();
            (0..=order.len()).map(move |place| {
                let mut longer = order.clone();
                longer.insert(place, member);
                longer
            })
        };
        orders = orders.iter().flat_map(inserted).collect();
    }
    let text = |order: &Vec<(&String, &Value)>| {
        let object: serde_json::Map<String, Value> = order
            .iter()
            .map(|(key, value)| ((*key).clone(), (*value).clone()))
            .collect();
        Value::Object(object).to_string()
    };
    orders.iter().map(text).collect()
}

fn keywords_of(schema: &Value, keys: &mut Vec<String>) {
    match schema {
        Value::Array(items) => items.iter().for_each(|item| keywords_of(item, keys)),
        Value::Object(members) => {
            for (key, value) in members {
                keys.push(key.clone());
                keywords_of(value, keys);
            }
        }
        _ => {}
    }
}

#[derive(Default, Clone, Copy, PartialEq, Debug)]
struct Counts {
    schemas: usize,
    compiled: usize,
    valid: usize,
    taken: usize,
    plain: usize, // of the compiled ones, those that llguidance by itself follows
}

impl Counts {
    fn parse(line: &str) -> Option<(String, Self)> {
        let (name, rest) = line.split_once(": ")?;
        let numbers: Vec<usize> = rest
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        let [compiled, schemas, taken, valid] = numbers[..] else {
            return None;
        };
        let counts = Self {
            schemas,
            compiled,
            valid,
            taken,
            plain: 0,
        };
        Some((name.to_owned(), counts))
    }

    fn is_worse_than(&self, before: &Self) -> bool {
        self.compiled < before.compiled
            || (self.compiled == before.compiled && self.taken < before.taken)
    }
}

fn run(name: &str, bytes: &Bytes, plain: &Plain, wrong: &mut Vec<String>) -> Counts {
    let text = std::fs::read_to_string(data().join("json_schema_suite").join(name)).unwrap();
    let groups: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut counts = Counts::default();
    for group in &groups {
        let schema = &group["schema"];
        let place = format!("{name}: {}", group["description"].as_str().unwrap());
        counts.schemas += 1;
        let start = match bytes
            .compiler
            .compile(GrammarKind::JsonSchema, &schema.to_string())
        {
            Ok(start) => start,
            Err(error) => {
                let mut keys = Vec::new();
                keywords_of(schema, &mut keys);
                let quotes = |key: &String, mark: char| {
                    error.message.contains(&format!("{mark}{key}{mark}"))
                };
                let names = |key: &String| quotes(key, '"') || quotes(key, '\'');
                // A keyword of what the schema refers to; or none is at fault: nothing is valid.
                let elsewhere = error.message.starts_with("the keyword \"");
                let nothing_fits = error.message.contains("Unsatisfiable schema");
                if !keys.iter().any(names) && !elsewhere && !nothing_fits {
                    wrong.push(format!(
                        "{place}: no keyword is named in {:?}",
                        error.message
                    ));
                }
                if plain.follows(group) {
                    wrong.push(format!(
                        "{place}: llguidance follows it, but: {}",
                        error.message
                    ));
                }
                continue;
            }
        };
        counts.compiled += 1;
        counts.plain += usize::from(plain.follows(group));
        for test in group["tests"].as_array().unwrap() {
            let instance = &test["data"];
            let taken = spellings(instance)
                .into_iter()
                .find(|text| bytes.takes(&start, text));
            if test["valid"].as_bool().unwrap() {
                counts.valid += 1;
                counts.taken += usize::from(taken.is_some());
                if taken.is_none() && std::env::var_os("TANDEM_VERBOSE").is_some() {
                    println!("{place}: {schema} refused {instance}");
                }
            } else if let Some(text) = taken {
                wrong.push(format!("{place}: {schema} took {text}"));
            }
        }
    }
    counts
}

#[test]
fn strict_schemas_take_nothing_invalid() {
    let (bytes, plain) = (Bytes::new(), Plain::new());
    let mut names: Vec<String> = std::fs::read_dir(data().join("json_schema_suite"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    assert_eq!(names.len(), 46);
    let mut wrong = Vec::new();
    let results: BTreeMap<String, Counts> = names
        .iter()
        .map(|name| (name.clone(), run(name, &bytes, &plain, &mut wrong)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let plain: usize = results.values().map(|counts| counts.plain).sum();
    assert!(plain > 100, "llguidance by itself follows {plain} only");

    let path = data().join("json_schema_suite/results.txt");
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    for (name, before) in recorded.lines().filter_map(Counts::parse) {
        let now = results[&name];
        assert!(
            !now.is_worse_than(&before),
            "{name}: {now:?}, was {before:?}"
        );
    }
    let mut text = String::new();
    for (name, counts) in &results {
        let Counts {
            schemas,
            compiled,
            valid,
            taken,
            ..
        } = counts;
        writeln!(
            text,
            "{name}: {compiled} of {schemas} schemas compile, {taken} of their {valid} valid instances are taken"
        )
        .unwrap();
    }
    if std::env::var_os("TANDEM_RECORD").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert!(
        text == recorded || std::env::var_os("TANDEM_RECORD").is_some(),
        "better than results.txt; record it with TANDEM_RECORD=1:\n{text}"
    );
}
