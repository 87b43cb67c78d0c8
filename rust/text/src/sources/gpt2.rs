//! vocab.json with merges.txt: the files of byte-level BPE before tokenizer.json.

use std::collections::HashMap;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;

use super::byte_pairs::byte_level;
use super::{add_folders_tokens, utf8, Parsed, Source};
use crate::families::{Family, QWEN_PATTERN};
use crate::model_folder::ModelFolder;

pub fn read(bytes: &[u8], folder: &ModelFolder, family: &Family) -> Parsed<Source> {
    let vocabulary: HashMap<String, u32> =
        serde_json::from_str(utf8(bytes)?).map_err(|e| e.to_string())?;
    let merges = merges(&folder.text_file("merges.txt").map_err(|e| e.message)?)?;
    let model = BPE::builder()
        .vocab_and_merges(
            vocabulary.into_iter().collect::<ahash::AHashMap<_, _>>(),
            merges,
        )
        .build()
        .map_err(|e| format!("merges.txt does not fit: {e}"))?;
    // Of the classes that read these files, Qwen2's splits text in its own way.
    let is_qwen = folder.is_of("Qwen2Tokenizer", "qwen2");
    let pattern = is_qwen.then_some(QWEN_PATTERN);
    let add_prefix_space = folder.flag("add_prefix_space").unwrap_or(false);
    let mut pipeline = byte_level(model, pattern, is_qwen.then_some(NFC), add_prefix_space)?;
    add_folders_tokens(&mut pipeline, folder, family)?;
    Ok(Source {
        kind: "byte-level BPE with merges.txt".into(),
        pipeline,
        frames: false,
        adds_bos: false,
        named: |_, key| {
            let is_named = ["bos_token", "eos_token", "unk_token"].contains(&key);
            is_named.then(|| "<|endoftext|>".to_owned())
        },
    })
}

/// Lines of two tokens each; the first line may be the version.
fn merges(text: &str) -> Parsed<Vec<(String, String)>> {
    let lines = text.lines().zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with("#version"));
    let pairs = lines.map(|(line, number)| {
        let (left, right) = line
            .split_once(' ')
            .filter(|(_, right)| !right.contains(' '))
            .ok_or_else(|| format!("line {number} of merges.txt is not a pair of tokens"))?;
        Ok((left.to_owned(), right.to_owned()))
    });
    pairs.collect()
}
