//! Special tokens and chat templates in the small JSON files next to tokenizer.json.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, ErrorCode, Result};

const MAX_JSON_BYTES: u64 = 64 << 20;

/// A whole file as text, refused beyond `max_bytes`; `None` if there is no such file.
pub fn read_optional(path: &Path, max_bytes: u64) -> Result<Option<String>> {
    let name = path.display();
    let size = match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => {
            return Err(Error::invalid(format!("{name} is not a regular file")))
        }
        Ok(meta) => meta.len(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::new(ErrorCode::NotFound, format!("{name}: {e}"))),
    };
    if size > max_bytes {
        return Err(Error::invalid(format!(
            "{name} is {size} bytes; at most {max_bytes} are read"
        )));
    }
    let bytes =
        fs::read(path).map_err(|e| Error::new(ErrorCode::NotFound, format!("{name}: {e}")))?;
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|e| Error::data_loss(format!("{name} is not UTF-8: {e}")))
}

fn read_object(dir: &Path, name: &str) -> Result<Map<String, Value>> {
    let Some(text) = read_optional(&dir.join(name), MAX_JSON_BYTES)? else {
        return Ok(Map::new());
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::data_loss(format!("{name} must hold a JSON object"))),
        Err(e) => Err(Error::data_loss(format!("{name}: {e}"))),
    }
}

/// The parsed side files; a missing one is an empty object.
pub struct ModelFolder {
    pub tokenizer_config: Map<String, Value>,
    special_tokens_map: Map<String, Value>,
    generation_config: Map<String, Value>,
    config: Map<String, Value>,
}

impl ModelFolder {
    pub fn read(dir: &Path) -> Result<Self> {
        if !dir.is_dir() {
            let message = format!("{} is not a folder", dir.display());
            return Err(Error::new(ErrorCode::NotFound, message));
        }
        Ok(Self {
            tokenizer_config: read_object(dir, "tokenizer_config.json")?,
            special_tokens_map: read_object(dir, "special_tokens_map.json")?,
            generation_config: read_object(dir, "generation_config.json")?,
            config: read_object(dir, "config.json")?,
        })
    }

    /// The text of `bos_token`, `eos_token`, ...: a string or `{"content": ...}` in
    /// tokenizer_config.json, else in special_tokens_map.json. An explicit null means "none".
    pub fn special_token(&self, key: &str) -> Option<String> {
        match self.tokenizer_config.get(key) {
            Some(value) => token_text(value),
            None => self.special_tokens_map.get(key).and_then(token_text),
        }
    }

    /// Ids that end a generation: generation_config.json's, else config.json's (or its text_config's).
    pub fn eos_ids(&self) -> Vec<u32> {
        let nested = self.config.get("text_config").and_then(Value::as_object);
        [
            self.generation_config.get("eos_token_id"),
            self.config.get("eos_token_id"),
            nested.and_then(|c| c.get("eos_token_id")),
        ]
        .into_iter()
        .flatten()
        .map(ids)
        .find(|found| !found.is_empty())
        .unwrap_or_default()
    }

    /// An id that is named only by config.json or generation_config.json, such as `pad_token_id`.
    pub fn token_id(&self, key: &str) -> Option<u32> {
        [&self.generation_config, &self.config]
            .into_iter()
            .find_map(|object| object.get(key).and_then(|v| ids(v).first().copied()))
    }

    /// Tokens of `added_tokens_decoder` as (id, content, special), by id.
    pub fn added_tokens(&self) -> Vec<(u32, String, bool)> {
        let Some(Value::Object(map)) = self.tokenizer_config.get("added_tokens_decoder") else {
            return Vec::new();
        };
        let mut tokens: Vec<_> = map
            .iter()
            .filter_map(|(id, token)| {
                let special = token.get("special").and_then(Value::as_bool);
                Some((
                    id.parse().ok()?,
                    token_text(token)?,
                    special.unwrap_or(false),
                ))
            })
            .collect();
        tokens.sort_by_key(|(id, _, _)| *id);
        tokens
    }
}

fn token_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(map) => Some(map.get("content")?.as_str()?.to_owned()),
        _ => None,
    }
}

fn ids(value: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}
