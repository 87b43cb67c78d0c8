//! Encoding a rendered chat so that only the template's own text becomes control tokens.

use std::collections::HashSet;
use std::ops::Range;

use tokenizers::normalizer::Range as Part;
use tokenizers::{
    AddedToken, AddedVocabulary, Model, NormalizedString, NormalizerWrapper, OffsetReferential,
    OffsetType, PreTokenizedString, PreTokenizer, Token,
};

use crate::error::{Error, Result};
use crate::model::Pipeline;

/// A rendered chat.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChatText {
    pub text: String,
    /// In bytes: the parts of control tokens' spellings that the template itself wrote.
    pub own: Vec<Range<usize>>,
}

/// Texts between two parts of a template's own that complete a control token, as in
/// `'<|' + message.role + '|>'`.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A model's control tokens in chats: those that the tokenizer marks special, and other added tokens
/// that the chat template writes (`<tool_call>`). Immutable.
pub struct ControlTokens {
    spellings: Vec<String>,
    ids: HashSet<u32>,
    /// The tokens that stay when control tokens are not recognised.
    plain: AddedVocabulary,
}

/// A control token at its place in a text, with the white space that belongs to it.
type Control = (Range<usize>, u32);
type Piece = (NormalizedString, Option<Vec<Token>>);

impl ControlTokens {
    /// `before`: how the tokens before every text are spelled; a template may write them.
    pub fn new(
        pipeline: &Pipeline,
        is_special: impl Fn(u32) -> bool,
        before: &str,
        template: &str,
    ) -> Result<Self> {
        let mut added: Vec<(u32, AddedToken)> =
            pipeline.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let is_control = |id: u32, token: &AddedToken| {
            let written = || !token.content.trim().is_empty() && template.contains(&token.content);
            token.special || is_special(id) || written()
        };
        let (controls, others): (Vec<_>, Vec<_>) = added
            .into_iter()
            .filter(|(_, token)| !token.content.is_empty())
            .partition(|(id, token)| is_control(*id, token));
        let mut plain = AddedVocabulary::new();
        let others = others.into_iter().map(|(_, token)| token);
        plain
            .add_tokens(others, pipeline.get_model(), None::<&NormalizerWrapper>)
            .map_err(|e| Error::data_loss(e.to_string()))?;
        let before = Some(before.to_owned()).filter(|text| !text.is_empty());
        let names = controls.iter().map(|(_, token)| token.content.clone());
        Ok(Self {
            spellings: names.chain(before).collect(),
            ids: controls.iter().map(|(id, _)| *id).collect(),
            plain,
        })
    }

    pub fn spellings(&self) -> &[String] {
        &self.spellings
    }

    /// Whether a text holds no control token and none can arise where it meets other texts.
    pub fn is_harmless(&self, text: &str) -> bool {
        self.spellings.iter().all(|spelling| {
            let mut cuts = spelling.char_indices().map(|(i, _)| i).skip(1);
            let meets = |cut: usize| {
                let (head, tail) = spelling.split_at(cut);
                text.ends_with(head) || text.starts_with(tail)
            };
            let is_inside = !text.is_empty() && spelling.contains(text);
            !(text.contains(spelling.as_str()) || is_inside || cuts.any(meets))
        })
    }

    /// The control tokens that a tokenizer would find in `text`.
    fn find(&self, pipeline: &Pipeline, text: &str) -> Vec<Control> {
        let vocabulary = pipeline.get_added_vocabulary();
        let splits = vocabulary.extract_and_normalize(pipeline.get_normalizer(), text);
        let splits = splits.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let found = splits.into_iter().filter_map(|(_, (start, end), tokens)| {
            let id = tokens.as_ref()?.first()?.id;
            self.ids.contains(&id).then_some((start..end, id))
        });
        found.collect()
    }

    /// The ids of a chat's text. None if all of its control tokens are the template's own, and it may
    /// be encoded as any other text.
    pub fn encode(
        &self,
        pipeline: &Pipeline,
        text: &str,
        own: &[Range<usize>],
    ) -> Result<Option<Vec<u32>>> {
        let found = self.find(pipeline, text);
        let owned = self.find(pipeline, &without_clients_text(text, own));
        if found == owned {
            return Ok(None);
        }
        // A client may forge as many as the template writes.
        let is_owned: HashSet<&Control> = owned.iter().collect();
        let forged: HashSet<u32> = found
            .iter()
            .filter(|control| !is_owned.contains(control))
            .map(|(_, id)| *id)
            .collect();
        let ids = self.encode_pieces(pipeline, text, &owned, false)?;
        let count = |ids: &[u32]| ids.iter().filter(|id| forged.contains(id)).count();
        let own_ids: Vec<u32> = owned.iter().map(|(_, id)| *id).collect();
        if count(&ids) == count(&own_ids) {
            return Ok(Some(ids));
        }
        // The model itself has a piece with this spelling: it gets the spelling in two parts.
        self.encode_pieces(pipeline, text, &owned, true).map(Some)
    }

    fn encode_pieces(
        &self,
        pipeline: &Pipeline,
        text: &str,
        controls: &[Control],
        cuts: bool,
    ) -> Result<Vec<u32>> {
        let tokenized = || -> tokenizers::Result<Vec<u32>> {
            let mut pieces = PreTokenizedString::from(text);
            pieces.split(|_, whole| Ok(self.pieces(&whole, controls, cuts)))?;
            pieces.split(|_, piece| Ok(self.plain_pieces(pipeline, &piece)))?;
            if let Some(normalizer) = pipeline.get_normalizer() {
                pieces.normalize(|piece| tokenizers::Normalizer::normalize(normalizer, piece))?;
            }
            if let Some(pre_tokenizer) = pipeline.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            pieces.tokenize(|piece| pipeline.get_model().tokenize(piece.get()))?;
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let tokens = splits.iter().filter_map(|(_, _, tokens)| tokens.as_ref());
            Ok(tokens.flatten().map(|token| token.id).collect())
        };
        tokenized().map_err(|e| Error::invalid(format!("the text could not be tokenized: {e}")))
    }

    /// The text between control tokens, and these with their ids.
    fn pieces(&self, whole: &NormalizedString, controls: &[Control], cuts: bool) -> Vec<Piece> {
        let text = whole.get();
        let slice = |range: Range<usize>| whole.slice(Part::Normalized(range));
        let mut pieces = Vec::new();
        let add_plain = |pieces: &mut Vec<Piece>, range: Range<usize>| {
            let mut ends = vec![range.end];
            if cuts {
                let inside = occurrences(&text[range.clone()], &self.spellings);
                ends.extend(inside.map(|(start, spelling)| {
                    let first = spelling.chars().next().map_or(0, char::len_utf8);
                    range.start + start + first
                }));
                ends.sort_unstable();
            }
            let mut start = range.start;
            for end in ends {
                pieces.extend(slice(start..end).map(|piece| (piece, None)));
                start = end;
            }
        };
        let mut at = 0;
        for (range, id) in controls {
            add_plain(&mut pieces, at..range.start);
            let token = Token::new(*id, text[range.clone()].to_owned(), (0, range.len()));
            pieces.extend(slice(range.clone()).map(|piece| (piece, Some(vec![token]))));
            at = range.end;
        }
        add_plain(&mut pieces, at..text.len());
        pieces
    }

    /// Cuts out the added tokens that are no control tokens.
    fn plain_pieces(&self, pipeline: &Pipeline, piece: &NormalizedString) -> Vec<Piece> {
        let found = self
            .plain
            .extract_and_normalize(None::<&NormalizerWrapper>, piece.get());
        let names = self.plain.get_added_tokens_decoder();
        let splits = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let piece_of = |(start, end): (usize, usize), tokens: &Option<Vec<Token>>| {
            let slice = piece.slice(Part::Normalized(start..end))?;
            // A vocabulary without the others counts ids of its own.
            let own = tokens
                .as_ref()
                .and_then(|tokens| names.get(&tokens.first()?.id));
            let id = own.and_then(|token| pipeline.token_to_id(&token.content));
            let token = id.map(|id| vec![Token::new(id, slice.get().to_owned(), (0, end - start))]);
            Some((slice, token))
        };
        splits
            .into_iter()
            .filter_map(|(_, range, tokens)| piece_of(range, tokens))
            .collect()
    }
}

/// The text with every character that is not the template's own replaced by one that no token
/// spells, of as many bytes. White space stays: tokens may take what is beside them.
fn without_clients_text(text: &str, own: &[Range<usize>]) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut at = 0;
    for range in own {
        let before = &text[at..range.start];
        match at > 0 && ROLES.contains(&before) {
            true => masked.push_str(before),
            false => masked.extend(before.chars().map(mask)),
        }
        masked.push_str(&text[range.clone()]);
        at = range.end;
    }
    masked.extend(text[at..].chars().map(mask));
    masked
}

fn mask(c: char) -> char {
    match c.len_utf8() {
        _ if c.is_whitespace() => c,
        1 => '\u{1}',
        2 => '\u{378}',
        3 => '\u{E000}',
        _ => '\u{FFFFD}',
    }
}

/// Every place where a spelling begins, overlapping ones too.
pub fn occurrences<'a>(
    text: &'a str,
    spellings: &'a [String],
) -> impl Iterator<Item = (usize, &'a str)> {
    spellings.iter().flat_map(move |spelling| {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = from + text.get(from..)?.find(spelling.as_str())?;
            from = start + text[start..].chars().next().map_or(1, char::len_utf8);
            Some((start, spelling.as_str()))
        })
    })
}
