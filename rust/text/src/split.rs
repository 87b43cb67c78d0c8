//! Pre-tokenization that fails loudly.
//!
//! The crate's own `Split` and `ByteLevel` stop at the first error of the regex engine and take the
//! rest of the text for one piece: other ids than the reference's, and nobody hears of it. Here the
//! same patterns run with a bound that text of megabytes does not reach, and an error is an error.

use tokenizers::pattern::Invert;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Result, SplitDelimiterBehavior,
};

/// ByteLevel's fixed pattern (GPT-2).
const GPT2_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Steps back within one match: about a second of work, far above a mebibyte of spaces.
const BACKTRACK_LIMIT: usize = 50_000_000;

pub struct SafePreTokenizer {
    steps: Vec<Step>,
}

enum Step {
    Regex {
        regex: Box<fancy_regex::Regex>,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    /// The prefix space of ByteLevel, before its split.
    PrefixSpace,
    Other(Box<PreTokenizerWrapper>),
}

impl SafePreTokenizer {
    pub fn new(wrapper: &PreTokenizerWrapper) -> Result<Self> {
        let mut steps = Vec::new();
        push_steps(wrapper, &mut steps)?;
        Ok(Self { steps })
    }
}

fn push_steps(wrapper: &PreTokenizerWrapper, steps: &mut Vec<Step>) -> Result<()> {
    match wrapper {
        PreTokenizerWrapper::Sequence(sequence) => {
            for inner in sequence.as_ref() {
                push_steps(inner, steps)?;
            }
        }
        PreTokenizerWrapper::Split(split) => steps.push(split_step(split)?),
        PreTokenizerWrapper::ByteLevel(byte_level) if byte_level.use_regex => {
            if byte_level.add_prefix_space {
                steps.push(Step::PrefixSpace);
            }
            steps.push(Step::Regex {
                regex: Box::new(compile(GPT2_PATTERN)?),
                behavior: SplitDelimiterBehavior::Isolated,
                invert: false,
            });
            let bytes_only = ByteLevel::new(false, byte_level.trim_offsets, false);
            steps.push(Step::Other(Box::new(bytes_only.into())));
        }
        other => steps.push(Step::Other(Box::new(other.clone()))),
    }
    Ok(())
}

fn split_step(split: &Split) -> Result<Step> {
    let regex = match &split.pattern {
        SplitPattern::String(text) => compile(&fancy_regex::escape(text))?,
        SplitPattern::Regex(pattern) => compile(pattern)?,
    };
    Ok(Step::Regex {
        regex: Box::new(regex),
        behavior: split.behavior,
        invert: split.invert,
    })
}

fn compile(pattern: &str) -> Result<fancy_regex::Regex> {
    Ok(fancy_regex::RegexBuilder::new(pattern)
        .backtrack_limit(BACKTRACK_LIMIT)
        .build()?)
}

impl PreTokenizer for SafePreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        for step in &self.steps {
            match step {
                Step::Regex {
                    regex,
                    behavior,
                    invert,
                } => text.split(|_, piece| match invert {
                    true => piece.split(Invert(regex.as_ref()), *behavior),
                    false => piece.split(regex.as_ref(), *behavior),
                })?,
                Step::PrefixSpace => text.split(|_, mut piece| {
                    if !piece.get().starts_with(' ') {
                        piece.prepend(" ");
                    }
                    Ok(vec![piece])
                })?,
                Step::Other(wrapper) => wrapper.pre_tokenize(text)?,
            }
        }
        Ok(())
    }
}
