//! Damaged tokenizer files: a sentence that names the file, and never a panic.

use std::fs;
use std::path::{Path, PathBuf};

use tandem_text::{Error, ErrorCode, TextTokenizer};

fn fixture(folder: &str, file: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tokenizers/folders");
    fs::read(root.join(folder).join(file)).unwrap()
}

/// A folder that is removed again.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("tandem_damaged_{name}_{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.0.join(file), bytes).unwrap();
    }
    fn load(&self) -> Result<TextTokenizer, Error> {
        TextTokenizer::load(&self.0)
    }
    /// The message of the error that `bytes` in `file` give.
    fn refuses(&self, file: &str, bytes: impl AsRef<[u8]>) -> String {
        self.write(file, bytes);
        let error = self.load().err().expect("an error");
        assert_eq!(error.code, ErrorCode::DataLoss, "{}", error.message);
        assert!(error.message.contains(file), "{}", error.message);
        error.message
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field of a message: its number and its bytes.
fn field(number: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = varint(number << 3 | 2);
    bytes.extend(varint(content.len() as u64));
    bytes.extend_from_slice(content);
    bytes
}

fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
    let mut bytes = field(1, text.as_bytes());
    bytes.push(2 << 3 | 5);
    bytes.extend(score.to_le_bytes());
    bytes.push(3 << 3);
    bytes.extend(varint(kind));
    field(1, &bytes)
}

fn model(pieces: &[Vec<u8>], trainer: &[u8], normalizer: &[u8]) -> Vec<u8> {
    let mut bytes = pieces.concat();
    bytes.extend(field(2, trainer));
    bytes.extend(field(3, normalizer));
    bytes
}

#[test]
fn a_damaged_sentencepiece_model_is_explained() {
    let folder = Folder::new("sentencepiece");
    let refuses = |bytes: Vec<u8>, because: &str| {
        let message = folder.refuses("tokenizer.model", bytes);
        assert!(message.contains(because), "{message}");
    };
    let good = fixture("llama", "tokenizer.model");
    refuses(Vec::new(), "0 pieces of type unknown");
    refuses(good[..good.len() - 1].to_vec(), "are left");
    refuses(good[..100].to_vec(), "are left");
    // A length of 2^60 bytes.
    refuses(
        [&[0x0A][..], &varint(1 << 60)].concat(),
        "longer than the 0 bytes",
    );
    refuses(vec![0x0A, 0xFF], "in the middle of a number");
    refuses([&[0x0A][..], &[0xFF; 11]].concat(), "more than 64 bits");
    refuses(vec![0x0A, 0x01, 0x0F], "wire type 7");

    let unknown = piece("<unk>", 0.0, 2);
    let bpe = [3 << 3, 2];
    let of = |pieces: &[Vec<u8>]| model(pieces, &bpe, &[]);
    refuses(of(&[piece("a", 0.0, 1)]), "0 pieces of type unknown");
    refuses(
        of(&[unknown.clone(), piece("b", 0.0, 2)]),
        "2 pieces of type unknown",
    );
    let twice = [unknown.clone(), piece("a", 0.0, 1), piece("a", 1.0, 1)];
    refuses(of(&twice), "pieces 1 and 2 are both \"a\"");
    refuses(
        of(&[unknown.clone(), piece("", 0.0, 1)]),
        "piece 1 is empty",
    );
    refuses(
        of(&[unknown.clone(), piece("a", f32::NAN, 1)]),
        "score of piece 1 is NaN",
    );
    refuses(of(&[unknown.clone(), piece("a", 0.0, 9)]), "type 9");
    refuses(
        of(&[unknown.clone(), piece(&"a".repeat(9000), 0.0, 1)]),
        "9000 bytes",
    );
    let not_text = field(1, &field(1, &[0xFF]));
    refuses(of(&[unknown.clone(), not_text]), "not UTF-8");
    let fallback = [&bpe[..], &varint(35 << 3), &[1]].concat();
    let pieces = [unknown.clone()];
    refuses(model(&pieces, &fallback, &[]), "no piece <0x00>");
    refuses(model(&pieces, &[3 << 3, 4], &[]), "models of characters");
    for charsmap in [&[1, 2, 3][..], &[4, 0, 0, 0, 1, 0, 0, 0], &[255; 64]] {
        refuses(
            model(&pieces, &bpe, &field(2, charsmap)),
            "precompiled_charsmap",
        );
    }
}

#[test]
fn a_charsmap_that_leads_nowhere_changes_nothing() {
    let folder = Folder::new("charsmap");
    // One unit whose children lie far outside, and an empty text.
    let charsmap = [
        &4u32.to_le_bytes()[..],
        &0xFFFF_FF00u32.to_le_bytes(),
        b"x\0",
    ]
    .concat();
    let pieces = [piece("<unk>", 0.0, 2), piece("a", 0.0, 1)];
    let bytes = model(&pieces, &[3 << 3, 2], &field(2, &charsmap));
    folder.write("tokenizer.model", bytes);
    let ids = folder.load().unwrap().encode("aé", false).unwrap();
    assert_eq!(ids, [0, 1, 0]);
}

#[test]
fn a_damaged_rank_file_is_explained() {
    let folder = Folder::new("ranks");
    let good = String::from_utf8(fixture("qwen", "qwen.tiktoken")).unwrap();
    folder.write(
        "tokenizer_config.json",
        r#"{"tokenizer_class": "QWenTokenizer"}"#,
    );
    let refuses = |text: &str, because: &str| {
        let message = folder.refuses("qwen.tiktoken", text);
        assert!(message.contains(because), "{message}");
    };
    let first = good.lines().next().unwrap();
    refuses("", "no token is the byte 0x00 alone");
    refuses(&good.replacen(first, "", 1), "no token is the byte");
    refuses(
        &good.replacen(first, "?? 0", 1),
        "line 1: the token is not base64",
    );
    refuses(
        &good.replacen(first, "IQ==", 1),
        "line 1 is not a token and its rank",
    );
    refuses(
        &good.replacen(first, "IQ== 0 1", 1),
        "line 1 is not a token and its rank",
    );
    refuses(&good.replacen(first, "IQ== many", 1), "\"many\" is no rank");
    refuses(&good.replacen(first, "IQ== 99999999999", 1), "is no rank");
    refuses(&format!("{good}{first}"), "have the same token");
    refuses(&format!("{good}AAAA 0"), "two tokens have the rank 0");
    refuses(&format!("{good}AAAA 4294967295"), "token ids");
    refuses(
        &format!("{good}{} 9999", "QUFB".repeat(2000)),
        "has 6000 bytes",
    );

    folder.write("tokenizer_config.json", "{}");
    refuses(&good, "tokenizer_class");
}

#[test]
fn a_damaged_tekken_file_is_explained() {
    let folder = Folder::new("tekken");
    let good: serde_json::Value =
        serde_json::from_slice(&fixture("tekken", "tekken.json")).unwrap();
    let refuses = |pointer: &str, value: serde_json::Value, because: &str| {
        let mut changed = good.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        let message = folder.refuses("tekken.json", changed.to_string());
        assert!(message.contains(because), "{message}");
    };
    folder.refuses("tekken.json", "{");
    refuses("", "no object".into(), "config.pattern");
    refuses("/config/pattern", "(".into(), "");
    refuses("/config/pattern", 1.into(), "config.pattern is not a text");
    refuses("/config/default_vocab_size", 7.into(), "cannot be special");
    refuses(
        "/config/default_vocab_size",
        1_000_000.into(),
        "config wants",
    );
    refuses(
        "/config/default_num_special_tokens",
        (-1).into(),
        "is not a number",
    );
    refuses(
        "/config/default_num_special_tokens",
        3.into(),
        "config wants",
    );
    refuses("/vocab", 3.into(), "vocab is not a list");
    let names = (0..21).map(|i| serde_json::json!({"rank": i, "token_str": format!("<{i}>")}));
    let names: serde_json::Value = names.collect();
    refuses(
        "/special_tokens",
        names,
        "21 special tokens are named; config has 20",
    );
    refuses("/special_tokens", 3.into(), "special_tokens is not a list");
    refuses("/vocab/5/rank", 4.into(), "two tokens have the rank 4");
    refuses("/vocab/5/rank", 4_000_000.into(), "vocab[5].rank");
    refuses(
        "/vocab/5/token_bytes",
        "?".into(),
        "vocab[5].token_bytes is not base64",
    );
    refuses("/vocab/5/token_bytes", "AA==".into(), "have the same token");
    refuses("/special_tokens/1/rank", 3.into(), "special_tokens[1]");
    refuses(
        "/special_tokens/1/token_str",
        "<unk>".into(),
        "is a token twice",
    );
}

#[test]
fn damaged_vocabularies_with_merges_are_explained() {
    let folder = Folder::new("merges");
    let good = fixture("gpt2", "vocab.json");
    let missing = folder.refuses("vocab.json", &good);
    assert!(missing.contains("merges.txt does not exist"), "{missing}");
    folder.write("merges.txt", "#version: 0.2\na b c\n");
    let malformed = folder.refuses("vocab.json", &good);
    assert!(malformed.contains("line 2 of merges.txt"), "{malformed}");
    folder.write("merges.txt", "a nosuchtoken\n");
    let unknown = folder.refuses("vocab.json", &good);
    assert!(unknown.contains("merges.txt does not fit"), "{unknown}");
    folder.write("merges.txt", "");
    folder.refuses("vocab.json", r#"{"a": -1}"#);
    folder.refuses("vocab.json", r#"{"a": 4294967295}"#);
}

#[test]
fn files_that_contradict_each_other_are_explained() {
    let folder = Folder::new("contradiction");
    folder.write("tokenizer.model", fixture("llama", "tokenizer.model"));
    folder.write("added_tokens.json", r#"{"<a>": 700, "<b>": 710}"#);
    let message = folder.load().err().unwrap().message;
    assert!(
        message.contains("added_tokens.json gives \"<b>\" the id 710"),
        "{message}"
    );
    folder.write("added_tokens.json", r#"{"<a>": "x"}"#);
    let message = folder.load().err().unwrap().message;
    assert!(message.contains("\"<a>\" has no id"), "{message}");
    // An offset far beyond every vocabulary.
    let folder = Folder::new("offset");
    folder.write("ice_text.model", fixture("chatglm", "ice_text.model"));
    let config = r#"{"tokenizer_class": "ChatGLMTokenizer", "num_image_tokens": 99999999999999}"#;
    folder.write("tokenizer_config.json", config);
    assert!(folder.load().is_err());
}

/// Cut anywhere, with bytes changed: an error or a tokenizer that works.
#[test]
fn no_change_of_a_file_makes_a_panic() {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let folders = [
        ("llama", "tokenizer.model"),
        ("merged", "tokenizer.model"),
        ("bpe_rules", "tokenizer.model"),
        ("unigram_bytes", "tokenizer.model"),
        ("chatglm", "ice_text.model"),
        ("qwen", "qwen.tiktoken"),
        ("tekken", "tekken.json"),
        ("gpt2", "vocab.json"),
    ];
    let (mut loaded, mut refused) = (0, 0);
    for (name, file) in folders {
        let folder = Folder::new(&format!("changed_{name}"));
        for side in ["tokenizer_config.json", "config.json", "merges.txt"] {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tokenizers");
            let _ = fs::copy(
                root.join("folders").join(name).join(side),
                folder.0.join(side),
            );
        }
        let good = fixture(name, file);
        for round in 0..150 {
            let mut bytes = good.clone();
            for _ in 0..1 + round % 5 {
                let at = random(bytes.len());
                // Half of the changes are in the first and last bytes, where lengths and settings are.
                let at = match round % 4 {
                    0 => at % 64,
                    1 => bytes.len() - 1 - at % 128.min(bytes.len()),
                    _ => at,
                };
                bytes[at] = match random(3) {
                    0 => random(256) as u8,
                    1 => bytes[at] ^ (1 << random(8)),
                    _ => [0, 0xFF, 0x7F, 0x80][random(4)],
                };
            }
            if round % 7 == 0 {
                bytes.truncate(random(bytes.len()));
            }
            folder.write(file, &bytes);
            match folder.load() {
                Ok(tokenizer) => {
                    loaded += 1;
                    for text in [
                        "",
                        "The lazy dog  ▁\t\n",
                        "你好 é \u{200d}👩‍👩‍👧‍👦<|tab|>",
                        "aaaa abab  ",
                    ] {
                        let ids = tokenizer.encode(text, true).unwrap();
                        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
                    }
                }
                Err(error) => {
                    refused += 1;
                    assert_ne!(error.code, ErrorCode::Internal, "{}", error.message);
                }
            }
        }
    }
    println!("{loaded} loaded, {refused} refused");
    assert!(
        loaded > 100 && refused > 100,
        "{loaded} loaded, {refused} refused"
    );
}
