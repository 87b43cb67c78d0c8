//! Rank files of tiktoken (qwen.tiktoken, GLM-4's tokenizer.model) and Mistral's tekken.json.

use serde_json::Value;
use tokenizers::normalizers::NFC;
use tokenizers::AddedToken;

use super::byte_pairs::Ranks;
use crate::families::RankSplit;
use crate::model::Pipeline;

/// Special tokens of a tekken.json that does not list them.
const TEKKEN_SPECIAL_TOKENS: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Lines of a token in base64 and its rank.
pub fn rank_file(text: &str, split: &RankSplit) -> Result<Pipeline, String> {
    let mut ranks = Ranks::default();
    let lines = text.lines().zip(1..);
    for (line, number) in lines.filter(|(line, _)| !line.trim().is_empty()) {
        let mut words = line.split_ascii_whitespace();
        let (Some(token), Some(rank), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("line {number} is not a token and its rank"));
        };
        let token = base64::decode(token)
            .map_err(|e| format!("line {number}: the token is not base64: {e}"))?;
        let rank = rank
            .parse()
            .map_err(|_| format!("line {number}: {rank:?} is no rank"))?;
        ranks
            .insert(token, rank)
            .map_err(|e| format!("line {number}: {e}"))?;
    }
    ranks.build(split.pattern, split.is_nfc.then_some(NFC), 0, &[])
}

/// The ids of tekken.json: special tokens first, then the ranks, as many as its vocabulary has.
pub fn tekken(text: &str) -> Result<Pipeline, String> {
    let json: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let config = &json["config"];
    let count = |key: &str| {
        let count = config[key].as_u64().and_then(|n| u32::try_from(n).ok());
        count.ok_or_else(|| format!("config.{key} is not a number"))
    };
    let pattern = config["pattern"]
        .as_str()
        .ok_or("config.pattern is not a text")?;
    let special_count = count("default_num_special_tokens")?;
    let size = count("default_vocab_size")?;
    let wanted = size
        .checked_sub(special_count)
        .ok_or_else(|| format!("config: of {size} tokens {special_count} cannot be special"))?;
    let entries = json["vocab"].as_array().ok_or("vocab is not a list")?;
    let mut ranks = Ranks::default();
    for (entry, at) in entries.iter().zip(0..wanted) {
        let rank = entry["rank"].as_u64().and_then(|n| u32::try_from(n).ok());
        let rank = rank.filter(|rank| *rank < wanted);
        let rank =
            rank.ok_or_else(|| format!("vocab[{at}].rank is not a number below {wanted}"))?;
        let token = entry["token_bytes"].as_str().map(base64::decode);
        match token {
            Some(Ok(token)) => ranks.insert(token, rank)?,
            _ => return Err(format!("vocab[{at}].token_bytes is not base64")),
        }
    }
    if ranks.len() != wanted as usize {
        return Err(format!(
            "vocab has {} tokens; config wants {wanted}",
            ranks.len()
        ));
    }
    let specials = special_tokens(&json["special_tokens"], special_count)?;
    let mut result = ranks.build(pattern, None, special_count, &specials)?;
    let names = specials
        .into_iter()
        .map(|(name, _)| AddedToken::from(name, true));
    result.add_tokens(names).map_err(|e| e.to_string())?;
    Ok(result)
}

/// Names with ids; ids without a name get one.
fn special_tokens<'a>(list: &'a Value, count: u32) -> Result<Vec<(String, u32)>, String> {
    let named: Vec<&str> = match list {
        Value::Null => TEKKEN_SPECIAL_TOKENS.to_vec(),
        Value::Array(list) => {
            let name = |(at, token): (usize, &'a Value)| {
                let is_in_order = token["rank"].as_u64() == Some(at as u64);
                let name = token["token_str"].as_str().filter(|_| is_in_order);
                name.ok_or_else(|| format!("special_tokens[{at}] is not a name with the rank {at}"))
            };
            list.iter()
                .enumerate()
                .map(name)
                .collect::<Result<_, _>>()?
        }
        _ => return Err("special_tokens is not a list".into()),
    };
    if named.len() > count as usize {
        return Err(format!(
            "{} special tokens are named; config has {count}",
            named.len()
        ));
    }
    let fill = (named.len() as u32..count).map(|id| format!("<SPECIAL_{id}>"));
    let names = named.iter().map(|name| (*name).to_owned()).chain(fill);
    Ok(names.zip(0..).collect())
}
