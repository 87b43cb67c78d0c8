//! Ids and bytes compared with the reference library's (tests/data/tokenizers/make.py), and text of
//! one character class, which makes careless tokenizers slow or overflow their stack.

use std::ffi::CString;
use std::path::PathBuf;
use std::time::Duration;

use tandem_text::{ErrorCode, TextTokenizer};

const FIXTURES: [&str; 6] = [
    "byte_level",
    "byte_level_gpt2",
    "metaspace_bytes",
    "metaspace_decoder",
    "metaspace_kept",
    "word_piece",
];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/tokenizers")
        .join(name)
}

fn load(name: &str) -> TextTokenizer {
    TextTokenizer::load(&folder(name)).unwrap()
}

fn cases(name: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder(name).join("cases.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Concatenated token bytes, with the first token's start form: the decoding of the C++ code in its
/// simplest form.
fn decode(tokenizer: &TextTokenizer, ids: &[u32], skip_special: bool) -> String {
    let kept = ids
        .iter()
        .filter(|id| !(skip_special && tokenizer.is_special(**id)));
    let mut bytes = Vec::new();
    for (i, id) in kept.enumerate() {
        bytes.extend_from_slice(if i == 0 {
            tokenizer.first_bytes(*id)
        } else {
            tokenizer.token_bytes(*id)
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn ids_equal_the_reference() {
    for name in FIXTURES {
        let tokenizer = load(name);
        for case in cases(name) {
            let text = case["text"].as_str().unwrap();
            assert_eq!(
                tokenizer.encode(text, true).unwrap(),
                ids(&case["ids"]),
                "{name} {text:?}"
            );
            let plain = tokenizer.encode(text, false).unwrap();
            assert_eq!(plain, ids(&case["plain_ids"]), "{name} {text:?}");
        }
    }
}

#[test]
fn concatenated_bytes_equal_the_reference_decoding() {
    for name in FIXTURES {
        let tokenizer = load(name);
        for case in cases(name) {
            let ids = ids(&case["ids"]);
            assert_eq!(decode(&tokenizer, &ids, true), case["decoded"], "{name}");
            assert_eq!(
                decode(&tokenizer, &ids, false),
                case["decoded_with_special"],
                "{name}"
            );
        }
    }
}

/// The processor time of this thread so far, which does not depend on other load.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The clock exists on every Linux, and the pointer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_mebibyte_of_one_class_is_quick_on_a_small_stack() {
    let sentencepiece = ["folders/llama", "folders/merged", "folders/chatglm"];
    for name in FIXTURES.into_iter().chain(sentencepiece) {
        let worker = move || {
            let tokenizer = load(name);
            for unit in ["a", "^", " ", "\n", "7", "漢", "👩‍👩‍👧‍👦", "\u{300}", " a", "A1"]
            {
                let text = unit.repeat((1 << 20) / unit.len());
                let start = thread_time();
                let ids = tokenizer.encode(&text, false).unwrap();
                let took = thread_time() - start;
                // A quadratic tokenizer takes hours.
                assert!(took < Duration::from_secs(30), "{name} {unit:?}: {took:?}");
                println!("{name} {unit:?} {took:?} {} ids", ids.len());
                // A word mark or a prefix space may be added in front; nothing may be lost.
                let changes_text = ["word_piece", "folders/chatglm"];
                assert!(
                    changes_text.contains(&name)
                        || decode(&tokenizer, &ids, false)
                            .trim_start()
                            .ends_with(text.trim_start())
                );
            }
        };
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        thread.spawn(worker).unwrap().join().unwrap();
    }
}

#[test]
fn special_tokens_come_from_the_side_files() {
    let tokenizer = load("byte_level");
    assert_eq!(tokenizer.bos(), Some(0));
    assert_eq!(tokenizer.eos(), [1, 2]);
    assert_eq!(tokenizer.pad(), Some(1));
    assert!(tokenizer.is_special(2));
    assert!(!tokenizer.is_special(100));
    assert_eq!(tokenizer.token_to_id("<|eot|>"), Some(2));
    assert_eq!(tokenizer.token_to_id("no such token"), None);
    assert_eq!(tokenizer.vocab_size(), 628);
    assert!(tokenizer.token_bytes(99_999).is_empty());

    let tokenizer = load("metaspace_bytes");
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.pad()),
        (Some(1), &[2][..], None)
    );
    assert_eq!(tokenizer.token_bytes(3 + 0xE2), [0xE2]);
}

/// A copy of a fixture's folder with one more file; removed at the end.
struct Copy(PathBuf);

impl Copy {
    fn new(fixture: &str, file: &str, text: &str) -> Self {
        let name = format!("tandem_text_{fixture}_{file}_{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for entry in std::fs::read_dir(folder(fixture)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
        }
        std::fs::write(dir.join(file), text).unwrap();
        Self(dir)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_word_named_by_its_id_alone_stays_a_word() {
    let word = load("metaspace_bytes").encode("word", false).unwrap()[0];
    let config = format!(
        r#"{{"pad_token_id": {word}, "bos_token_id": {word}, "eos_token_id": [2, {word}]}}"#
    );
    let copy = Copy::new("metaspace_bytes", "generation_config.json", &config);
    let tokenizer = TextTokenizer::load(&copy.0).unwrap();
    assert_eq!(tokenizer.pad(), Some(word));
    assert_eq!(tokenizer.eos(), [2, word]);
    assert!(!tokenizer.is_special(word));
    assert!(tokenizer.is_special(2));
}

#[test]
fn a_token_that_the_tokenizer_names_is_special() {
    let word = load("metaspace_bytes").encode("word", false).unwrap()[0];
    let text = String::from_utf8(load("metaspace_bytes").token_bytes(word).to_vec()).unwrap();
    let config = format!(r#"{{"eos_token": {:?}}}"#, text.replace(' ', "▁"));
    let copy = Copy::new("metaspace_bytes", "tokenizer_config.json", &config);
    assert!(TextTokenizer::load(&copy.0).unwrap().is_special(word));
}

#[test]
fn fingerprints_tell_tokenizers_apart() {
    let first = load("byte_level").fingerprint();
    assert_eq!(first, load("byte_level").fingerprint());
    assert_ne!(first, load("metaspace_bytes").fingerprint());
}

#[test]
fn broken_folders_are_explained() {
    let error = |path: PathBuf| TextTokenizer::load(&path).err().unwrap();
    assert_eq!(
        error(PathBuf::from("/no/such/folder")).code,
        ErrorCode::NotFound
    );

    let dir = std::env::temp_dir().join(format!("tandem_text_{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    assert!(error(dir.clone()).message.contains("tokenizer.json"));
    let json = dir.join("tokenizer.json");
    let good = std::fs::read_to_string(folder("byte_level").join("tokenizer.json")).unwrap();
    for broken in [
        "",
        "{}",
        "[1",
        "null",
        &good[..good.len() / 2],
        &"[".repeat(100_000),
    ] {
        std::fs::write(&json, broken).unwrap();
        assert_eq!(error(dir.clone()).code, ErrorCode::DataLoss);
    }
    let word_piece = good.replace(
        r#""decoder":{"type":"ByteLevel""#,
        r#""decoder":{"type":"Fuse","x":"#,
    );
    std::fs::write(&json, word_piece).unwrap();
    let _ = error(dir.clone());
    std::fs::write(&json, good).unwrap();
    std::fs::write(dir.join("tokenizer_config.json"), "{\"bos_token\": ").unwrap();
    assert!(error(dir.clone()).message.contains("tokenizer_config.json"));
    std::fs::remove_file(dir.join("tokenizer_config.json")).unwrap();

    // A pipe has no end until somebody writes to it.
    std::fs::remove_file(&json).unwrap();
    let path = CString::new(json.to_str().unwrap()).unwrap();
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let pipe = error(dir.clone());
    assert_eq!(pipe.code, ErrorCode::InvalidArgument);
    assert!(pipe.message.contains("not a regular file"));
    std::fs::remove_dir_all(&dir).unwrap();
}

fn load_with(name: &str, overrides: &str) -> Result<TextTokenizer, tandem_text::Error> {
    TextTokenizer::load_with(&folder(name), overrides)
}

#[test]
fn an_operators_bos_replaces_the_folders() {
    for name in ["byte_level", "metaspace_bytes"] {
        let own = load(name);
        let (bos, eos) = (own.bos().unwrap(), own.eos()[0]);
        let text = own.encode("Hi", false).unwrap();
        assert_eq!(
            own.encode("Hi", true).unwrap(),
            [&[bos], &text[..]].concat()
        );

        let none = load_with(name, r#"{"bos_token": null}"#).unwrap();
        assert_eq!(none.bos(), None);
        assert_eq!(none.encode("Hi", true).unwrap(), text, "{name}");

        let end = String::from_utf8(own.token_bytes(eos).to_vec()).unwrap();
        let json = serde_json::json!({"bos_token": {"content": end}}).to_string();
        let other = load_with(name, &json).unwrap();
        assert_eq!(other.bos(), Some(eos));
        assert_eq!(
            other.encode("Hi", true).unwrap(),
            [&[eos], &text[..]].concat()
        );
    }
}

#[test]
fn an_operators_tokens_are_special_and_end_answers() {
    let own = load("byte_level");
    let begin = own.token_to_id("<|begin|>").unwrap();
    let word = (0..).find(|id| !own.is_special(*id) && own.token_bytes(*id) == b"a");
    let word = word.unwrap();
    assert!(!own.eos().contains(&begin));
    let tokenizer = load_with("byte_level", r#"{"eos_token": "<|begin|>"}"#).unwrap();
    assert!(tokenizer.eos().contains(&begin));
    let padded = load_with("byte_level", r#"{"pad_token": "a"}"#).unwrap();
    assert_eq!(padded.pad(), Some(word));
    assert!(padded.is_special(word));
}

#[test]
fn an_operators_unknown_token_is_refused_by_name() {
    let error = load_with("byte_level", r#"{"eos_token": "<nope>"}"#)
        .err()
        .unwrap();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert_eq!(
        error.message,
        "eos_token: \"<nope>\" is no token of this tokenizer"
    );
    assert!(load_with("byte_level", "[]").is_err());
}
