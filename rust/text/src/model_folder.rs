//! Special tokens and chat templates in the small JSON files next to tokenizer.json.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::error::{Error, ErrorCode, Result};

const MAX_JSON_BYTES: u64 = 64 << 20;

pub const SPECIAL_TOKEN_KEYS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// A whole file as text, refused beyond `max_bytes`; `None` if there is no such file.
pub fn read_optional(path: &Path, max_bytes: u64) -> Result<Option<String>> {
    let Some(bytes) = read_optional_bytes(path, max_bytes)? else {
        return Ok(None);
    };
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|e| Error::data_loss(format!("{} is not UTF-8: {e}", path.display())))
}

pub fn read_optional_bytes(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>> {
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
    fs::read(path)
        .map(Some)
        .map_err(|e| Error::new(ErrorCode::NotFound, format!("{name}: {e}")))
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
    /// An operator's values, which replace those of tokenizer_config.json.
    overrides: Map<String, Value>,
    pub tokenizer_config: Map<String, Value>,
    special_tokens_map: Map<String, Value>,
    generation_config: Map<String, Value>,
    config: Map<String, Value>,
    added_tokens: Map<String, Value>,
    dir: PathBuf,
}

/// A token that a file lists with its id.
pub struct ListedToken {
    pub id: u32,
    pub token: AddedToken,
    pub file: &'static str,
}

impl ModelFolder {
    /// `overrides`: a JSON object with members of tokenizer_config.json; empty: none.
    pub fn read(dir: &Path, overrides: &str) -> Result<Self> {
        if !dir.is_dir() {
            let message = format!("{} is not a folder", dir.display());
            return Err(Error::new(ErrorCode::NotFound, message));
        }
        let overrides = match overrides {
            "" => Map::new(),
            text => serde_json::from_str(text)
                .map_err(|e| Error::invalid(format!("the tokenizer's configuration: {e}")))?,
        };
        Ok(Self {
            overrides,
            tokenizer_config: read_object(dir, "tokenizer_config.json")?,
            special_tokens_map: read_object(dir, "special_tokens_map.json")?,
            generation_config: read_object(dir, "generation_config.json")?,
            config: read_object(dir, "config.json")?,
            added_tokens: read_object(dir, "added_tokens.json")?,
            dir: dir.to_owned(),
        })
    }

    /// The text of `bos_token`, `eos_token`, ...: a string or `{"content": ...}` in
    /// tokenizer_config.json, else in special_tokens_map.json. An explicit null means "none".
    pub fn special_token(&self, key: &str) -> Option<String> {
        match self.overrides.get(key) {
            Some(value) => token_text(value),
            None => self.own_special_token(key),
        }
    }

    /// As `special_token`, whatever the operator says.
    pub fn own_special_token(&self, key: &str) -> Option<String> {
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

    /// A further file of the folder, as text.
    pub fn text_file(&self, name: &str) -> Result<String> {
        let path = self.dir.join(name);
        read_optional(&path, MAX_JSON_BYTES)?.ok_or_else(|| {
            let message = format!("{} does not exist", path.display());
            Error::new(ErrorCode::NotFound, message)
        })
    }

    /// Whether the folder's tokenizer is of the Python class `class`, or its model of `model_type`.
    pub fn is_of(&self, class: &str, model_type: &str) -> bool {
        self.has_class(class)
            || self.config.get("model_type").and_then(Value::as_str) == Some(model_type)
    }

    pub fn has_class(&self, class: &str) -> bool {
        self.tokenizer_class() == Some(class)
    }

    /// The Python class of the tokenizer.
    pub fn tokenizer_class(&self) -> Option<&str> {
        self.tokenizer_config.get("tokenizer_class")?.as_str()
    }

    /// A value of config.json. An engine has the model's values in `pretrained_config`, and checkpoints of
    /// some families in `tandem_model`.
    pub fn config(&self, key: &str) -> Option<&Value> {
        let engine = self
            .config
            .get("pretrained_config")
            .and_then(Value::as_object);
        let places = [Some(&self.config), engine].into_iter().flatten();
        let mut values = places.flat_map(|place| {
            let model = place.get("tandem_model");
            [place.get(key), model.and_then(|model| model.get(key))]
        });
        values.find_map(|value| value)
    }

    pub fn has_file(&self, name: &str) -> bool {
        self.dir.join(name).exists()
    }

    /// The name of the repository, where a file gives it.
    pub fn repository(&self) -> Option<&str> {
        let name = self.config.get("_name_or_path");
        let name = name.or_else(|| self.tokenizer_config.get("name_or_path"));
        name?.as_str()
    }

    /// A flag of tokenizer_config.json.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.tokenizer_config.get(key).and_then(Value::as_bool)
    }

    /// Whether tokenizer_config.json says that there is no such token.
    pub fn denies(&self, key: &str) -> bool {
        let value = self.overrides.get(key);
        value
            .or_else(|| self.tokenizer_config.get(key))
            .is_some_and(Value::is_null)
    }

    /// An operator's value instead of tokenizer_config.json's.
    pub fn overridden(&self, key: &str) -> Option<&Value> {
        self.overrides.get(key)
    }

    /// The texts of all special tokens that tokenizer_config.json and special_tokens_map.json name.
    pub fn special_token_names(&self) -> Vec<String> {
        let files = [&self.tokenizer_config, &self.special_tokens_map];
        let lists = files
            .into_iter()
            .filter_map(|file| file.get("additional_special_tokens"));
        let listed = lists
            .filter_map(Value::as_array)
            .flatten()
            .filter_map(token_text);
        let keys = SPECIAL_TOKEN_KEYS.into_iter();
        keys.filter_map(|key| self.special_token(key))
            .chain(listed)
            .collect()
    }

    /// Tokens of tokenizer_config.json's `added_tokens_decoder`, by id.
    pub fn added_tokens_decoder(&self) -> Vec<ListedToken> {
        let Some(Value::Object(map)) = self.tokenizer_config.get("added_tokens_decoder") else {
            return Vec::new();
        };
        let file = "added_tokens_decoder of tokenizer_config.json";
        let listed = map.iter().filter_map(|(id, token)| {
            let flag = |key: &str| token.get(key).and_then(Value::as_bool).unwrap_or(false);
            let token = AddedToken::from(token_text(token)?, flag("special"))
                .single_word(flag("single_word"))
                .lstrip(flag("lstrip"))
                .rstrip(flag("rstrip"));
            let id = id.parse().ok()?;
            Some(ListedToken { id, token, file })
        });
        by_id(listed.collect())
    }

    /// Tokens of added_tokens.json, by id. They are special if another file says so.
    pub fn added_tokens_json(&self) -> std::result::Result<Vec<ListedToken>, String> {
        let special = self.special_token_names();
        let listed = self.added_tokens.iter().map(|(content, id)| {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| format!("added_tokens.json: {content:?} has no id"))?;
            Ok(ListedToken {
                id,
                token: AddedToken::from(content.clone(), special.contains(content)),
                file: "added_tokens.json",
            })
        });
        listed.collect::<std::result::Result<_, _>>().map(by_id)
    }
}

fn by_id(mut tokens: Vec<ListedToken>) -> Vec<ListedToken> {
    tokens.sort_by_key(|token| token.id);
    tokens
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
