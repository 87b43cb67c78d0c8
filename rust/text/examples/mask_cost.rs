//! What grammars cost with a tokenizer: compiling, copying, and the masks of 32 rows, one after the other.
//!
//!     cargo run --release --example mask_cost FOLDER

use std::path::Path;
use std::time::Instant;

use tandem_text::{GrammarCompiler, GrammarKind, GrammarLimits, TextTokenizer};

const ROWS: usize = 32;
const SCHEMA: &str = r#"{"type": "object", "required": ["name", "age", "mail", "tags", "size"],
    "additionalProperties": false, "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"},
        "mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.com$"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "size": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}}}"#;
const TEXT: &str = r#"{"name": "Ada Lovelace, countess of Lovelace and mathematician", "age": 36, "mail": "ada@lovelace.com", "tags": ["red", "blue"], "size": {"x": 1.25}}"#;

fn main() {
    let folder = std::env::args().nth(1).expect("a model folder");
    let tokenizer = TextTokenizer::load(Path::new(&folder)).expect("a tokenizer");
    let vocab = tokenizer.vocab_size();
    let compiler = GrammarCompiler::new(&tokenizer, vocab, GrammarLimits::default());
    let begun = Instant::now();
    compiler.compile(GrammarKind::JsonObject, "").unwrap();
    println!(
        "{vocab} tokens; the first grammar took {:?}",
        begun.elapsed()
    );
    let ids = tokenizer.encode(TEXT, false).unwrap();
    for (kind, grammar) in [
        (GrammarKind::JsonSchema, SCHEMA),
        (GrammarKind::JsonObject, ""),
        (GrammarKind::Regex, "(?s:.*)"),
        (GrammarKind::Regex, r"[\x20-\x7E]*"),
    ] {
        let begun = Instant::now();
        let start = compiler.compile(kind, grammar).unwrap();
        let compiled = begun.elapsed();
        let begun = Instant::now();
        let mut rows: Vec<_> = (0..ROWS).map(|_| start.deep_clone()).collect();
        let copied = begun.elapsed() / ROWS as u32;
        let mut words = vec![0u32; vocab.div_ceil(32)];
        let mut times = Vec::new();
        for id in &ids {
            let begun = Instant::now();
            for row in &mut rows {
                words.fill(u32::MAX);
                row.fill_mask(&mut words, tokenizer.eos()).unwrap();
            }
            times.push(begun.elapsed());
            for row in &mut rows {
                assert_eq!(row.advance(&[*id]).unwrap(), 1);
            }
        }
        times.sort();
        println!(
            "{kind:?}: compiled in {compiled:?}, copied in {copied:?}; masks of {ROWS} rows: median {:?}, \
             mean {:?}, 90 % {:?}, longest {:?}",
            times[times.len() / 2],
            times.iter().sum::<std::time::Duration>() / times.len() as u32,
            times[times.len() * 9 / 10],
            times.last().unwrap(),
        );
    }
}
