//! What the code of some models' repositories knows and their files do not say: special tokens, the tokens
//! around a text, the split of a rank file, the chat template and the tokens that end an answer.

use crate::model_folder::ModelFolder;

/// How text is prepared for a rank file.
pub struct RankSplit {
    pub pattern: &'static str,
    /// Whether the text is put into Unicode's form NFC first.
    pub is_nfc: bool,
}

pub struct Family {
    pub name: &'static str,
    /// Whether a folder is of this family; the first row counts.
    is: fn(&ModelFolder) -> bool,
    /// Control tokens that follow those of the vocabulary file. One that is spelled like a word (`sop`) is
    /// not recognised in a text.
    pub appended: fn() -> Vec<String>,
    /// Tokens of the vocabulary file that are special although it does not say so.
    pub special: &'static [&'static str],
    /// Tokens around a text, when special tokens are asked for.
    pub before: &'static [&'static str],
    pub after: &'static [&'static str],
    pub split: Option<RankSplit>,
    /// The id of the vocabulary file's first token.
    pub first_id: fn(&ModelFolder) -> u32,
    /// For folders without a template of their own.
    pub chat_template: Option<&'static str>,
    /// Tokens that end an answer, besides those of the folder's files.
    pub stops: &'static [&'static str],
}

const NONE: Family = Family {
    name: "",
    is: |_| false,
    appended: Vec::new,
    special: &[],
    before: &[],
    after: &[],
    split: None,
    first_id: |_| 0,
    chat_template: None,
    stops: &[],
};

const CL100K_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Each digit is a word.
pub const QWEN_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Larger vocabularies are GLM-4's.
const CHATGLM3_VOCABULARY: u64 = 65_024;

static FAMILIES: [Family; 9] = [
    Family {
        name: "ChatGLM-6B",
        is: |folder| {
            let is_2d = folder.config("position_encoding_2d").is_some();
            is_chatglm(folder) && (is_2d || folder.has_file("ice_text.model"))
        },
        special: &["[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"],
        after: &["[gMASK]", "<sop>"],
        // In the first revisions ids of images came before those of text.
        first_id: |folder| match folder.tokenizer_config.get("num_image_tokens") {
            Some(count) => count
                .as_u64()
                .map_or(0, |count| count.min(u32::MAX.into()) as u32),
            None => 20_000,
        },
        chat_template: Some(include_str!("template/families/chatglm.jinja")),
        stops: &["<eop>"],
        ..NONE
    },
    Family {
        name: "GLM-4",
        is: is_glm4,
        before: &["[gMASK]", "<sop>"],
        split: Some(RankSplit {
            pattern: CL100K_PATTERN,
            is_nfc: false,
        }),
        chat_template: Some(include_str!("template/families/glm4.jinja")),
        stops: &["<|endoftext|>", "<|user|>", "<|observation|>"],
        ..NONE
    },
    Family {
        name: "ChatGLM2",
        is: |folder| is_chatglm(folder) && names_chatglm2(folder),
        appended: || names(&["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"]),
        before: &["[gMASK]", "sop"],
        chat_template: Some(include_str!("template/families/chatglm2.jinja")),
        ..NONE
    },
    Family {
        name: "ChatGLM3",
        is: is_chatglm,
        appended: || {
            names(&[
                "[MASK]",
                "[gMASK]",
                "[sMASK]",
                "sop",
                "eop",
                "<|system|>",
                "<|user|>",
                "<|assistant|>",
                "<|observation|>",
            ])
        },
        before: &["[gMASK]", "sop"],
        chat_template: Some(include_str!("template/families/chatglm3.jinja")),
        stops: &["<|user|>", "<|observation|>"],
        ..NONE
    },
    Family {
        name: "GLM-10B",
        is: |folder| folder.has_class("GLMGPT2Tokenizer"),
        before: &["[CLS]"],
        after: &["<|endoftext|>", "<|startofpiece|>"],
        stops: &["<|endofpiece|>"],
        ..NONE
    },
    Family {
        name: "Baichuan 2",
        is: |folder| is_baichuan(folder) && vocabulary(folder) > 100_000,
        special: &["<reserved_106>", "<reserved_107>"],
        chat_template: Some(include_str!("template/families/baichuan2.jinja")),
        stops: &["<reserved_106>"],
        ..NONE
    },
    Family {
        name: "Baichuan",
        is: is_baichuan,
        special: &["<reserved_102>", "<reserved_103>"],
        chat_template: Some(include_str!("template/families/baichuan.jinja")),
        stops: &["<reserved_102>"],
        ..NONE
    },
    Family {
        name: "InternLM",
        is: |folder| folder.is_of("InternLMTokenizer", "internlm"),
        special: &["<eoh>", "<eoa>"],
        chat_template: Some(include_str!("template/families/internlm.jinja")),
        stops: &["<eoa>"],
        ..NONE
    },
    Family {
        name: "Qwen",
        is: |folder| folder.is_of("QWenTokenizer", "qwen"),
        appended: || {
            let extra = (0..205).map(|i| format!("<|extra_{i}|>"));
            let named = names(&["<|endoftext|>", "<|im_start|>", "<|im_end|>"]);
            named.into_iter().chain(extra).collect()
        },
        split: Some(RankSplit {
            pattern: QWEN_PATTERN,
            is_nfc: true,
        }),
        chat_template: Some(include_str!("template/families/qwen.jinja")),
        stops: &["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
        ..NONE
    },
];

/// The family of a folder; a row without particulars for most.
pub fn family_of(folder: &ModelFolder) -> &'static Family {
    static OTHER: Family = NONE;
    FAMILIES
        .iter()
        .find(|family| (family.is)(folder))
        .unwrap_or(&OTHER)
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn is_chatglm(folder: &ModelFolder) -> bool {
    folder.is_of("ChatGLMTokenizer", "chatglm")
}

fn is_glm4(folder: &ModelFolder) -> bool {
    folder.has_class("ChatGLM4Tokenizer")
        || is_chatglm(folder) && vocabulary(folder) > CHATGLM3_VOCABULARY
}

/// Tokens of the model, 0 if config.json does not say.
fn vocabulary(folder: &ModelFolder) -> u64 {
    let size = |key| folder.config(key).and_then(|size| size.as_u64());
    size("padded_vocab_size")
        .or_else(|| size("vocab_size"))
        .unwrap_or(0)
}

/// The files of ChatGLM2 and 3 are the same but for the name.
fn names_chatglm2(folder: &ModelFolder) -> bool {
    let name = folder.repository().map(str::to_lowercase);
    name.is_some_and(|name| name.contains("chatglm2"))
}

fn is_baichuan(folder: &ModelFolder) -> bool {
    folder.is_of("BaichuanTokenizer", "baichuan") || folder.has_class("BaiChuanTokenizer")
}
