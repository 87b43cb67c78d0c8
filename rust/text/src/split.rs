//! Pre-tokenization that fails loudly.
//!
//! The crate's own `Split` and `ByteLevel` stop at the first error of the regex engine and take the
//! rest of the text as one piece: the ids then differ from the reference's, without any error. Here
//! the same patterns run with a limit that megabytes of text do not reach, and an error is
//! reported.

use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    Offsets, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Result, SplitDelimiterBehavior,
};

/// ByteLevel's fixed pattern (GPT-2).
const GPT2_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The end of nearly every pattern since GPT-2: "white space, but leave its last character to the
/// word after it". It is the only part that needs look-ahead, and look-ahead needs a backtracking
/// engine.
const LAST_SPACE_TAIL: &str = r"|\s+(?!\S)|\s+";
/// With this alternative before it, the tail never sees a run that ends in a line break.
const LINE_BREAKS: &str = r"|\s*[\r\n]+";

/// Steps back within one match, for a pattern that does backtrack: about a second of work.
const BACKTRACK_LIMIT: usize = 50_000_000;

/// A pattern whose tail is removed and handled by our code, so that the rest runs in linear time.
struct Splitter {
    regex: fancy_regex::Regex,
    gives_back_last_space: bool,
    line_breaks_apart: bool,
}

impl Splitter {
    fn new(pattern: &str) -> Result<Self> {
        let head = pattern.strip_suffix(LAST_SPACE_TAIL);
        let linear = head.map(|head| format!(r"{head}|\s+"));
        let regex = fancy_regex::RegexBuilder::new(linear.as_deref().unwrap_or(pattern))
            .backtrack_limit(BACKTRACK_LIMIT)
            .build()?;
        Ok(Self {
            regex,
            gives_back_last_space: head.is_some(),
            line_breaks_apart: head.is_some_and(|head| head.ends_with(LINE_BREAKS)),
        })
    }

    /// The end of a match of white space once its last character is left to the word after it.
    fn end_of(&self, text: &str, start: usize, end: usize) -> usize {
        let found = &text[start..end];
        let Some(last) = found.chars().next_back() else {
            return end;
        };
        let only_char = last.len_utf8() == found.len();
        let line_break = self.line_breaks_apart && matches!(last, '\r' | '\n');
        if end == text.len() || only_char || line_break || !found.chars().all(char::is_whitespace) {
            return end;
        }
        end - last.len_utf8()
    }
}

impl Pattern for &Splitter {
    fn find_matches(&self, inside: &str) -> Result<Vec<(Offsets, bool)>> {
        if !self.gives_back_last_space {
            return (&self.regex).find_matches(inside);
        }
        let mut pieces = Vec::new();
        let mut done = 0;
        while let Some(found) = self.regex.find_from_pos(inside, done)? {
            let end = self.end_of(inside, found.start(), found.end());
            if found.start() > done {
                pieces.push(((done, found.start()), false));
            }
            if end == found.start() {
                // A pattern of this form has no empty match; without progress the rest is one
                // piece.
                break;
            }
            pieces.push(((found.start(), end), true));
            done = end;
        }
        if done < inside.len() || inside.is_empty() {
            pieces.push(((done, inside.len()), false));
        }
        Ok(pieces)
    }
}

pub struct SafePreTokenizer {
    steps: Vec<Step>,
}

enum Step {
    Split {
        splitter: Box<Splitter>,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    /// Adds ByteLevel's prefix space, before its split.
    PrefixSpace,
    /// Adds a space at the start of a text, unless a special token is there.
    SpaceAtStart,
    Other(Box<PreTokenizerWrapper>),
}

impl SafePreTokenizer {
    pub fn new(wrapper: &PreTokenizerWrapper) -> Result<Self> {
        let mut steps = Vec::new();
        push_steps(wrapper, &mut steps)?;
        Ok(Self { steps })
    }

    pub fn space_at_start() -> Self {
        Self {
            steps: vec![Step::SpaceAtStart],
        }
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
            steps.push(Step::Split {
                splitter: Box::new(Splitter::new(GPT2_PATTERN)?),
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
    let splitter = match &split.pattern {
        SplitPattern::String(text) => Splitter::new(&fancy_regex::escape(text))?,
        SplitPattern::Regex(pattern) => Splitter::new(pattern)?,
    };
    Ok(Step::Split {
        splitter: Box::new(splitter),
        behavior: split.behavior,
        invert: split.invert,
    })
}

impl PreTokenizer for SafePreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        for step in &self.steps {
            match step {
                Step::Split {
                    splitter,
                    behavior,
                    invert,
                } => text.split(|_, piece| match invert {
                    true => piece.split(Invert(splitter.as_ref()), *behavior),
                    false => piece.split(splitter.as_ref(), *behavior),
                })?,
                Step::PrefixSpace => text.split(|_, mut piece| {
                    if !piece.get().starts_with(' ') {
                        piece.prepend(" ");
                    }
                    Ok(vec![piece])
                })?,
                Step::SpaceAtStart => text.split(|_, mut piece| {
                    if piece.offsets_original().0 == 0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    /// Every string over a small alphabet, compared with the original pattern.
    #[test]
    fn the_tail_by_hand_equals_the_look_ahead() {
        let alphabet = ["a", "1", "!", " ", "\t", "\n", "\r", "\u{3000}", "'s"];
        for pattern in [GPT2_PATTERN, LLAMA3] {
            let splitter = Splitter::new(pattern).unwrap();
            assert!(splitter.gives_back_last_space);
            let reference = fancy_regex::Regex::new(pattern).unwrap();
            for code in 0..alphabet.len().pow(5) {
                let mut rest = code;
                let mut text = String::new();
                while rest > 0 {
                    text.push_str(alphabet[rest % alphabet.len()]);
                    rest /= alphabet.len();
                }
                assert_eq!(
                    (&splitter).find_matches(&text).unwrap(),
                    (&reference).find_matches(&text).unwrap(),
                    "{text:?}"
                );
            }
        }
    }

    #[test]
    fn running_into_the_bound_is_an_error() {
        let splitter = Splitter::new(r"(?=(a+))\1b|(a|a)*(?!a)c").unwrap();
        assert!((&splitter).find_matches(&"a".repeat(5000)).is_err());
    }
}
