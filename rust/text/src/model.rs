//! What splits a piece of text into tokens: a model of the `tokenizers` crate, or SentencePiece's own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokenizers::models::bpe::BpeTrainer;
use tokenizers::models::TrainerWrapper;
use tokenizers::{
    DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, Result, Token,
    TokenizerImpl,
};

use crate::sentencepiece::{PieceType, SentencePiece};
use crate::split::SafePreTokenizer;

/// The crate's pipeline around either model.
pub type Pipeline = TokenizerImpl<
    Segmenter,
    NormalizerWrapper,
    SafePreTokenizer,
    PostProcessorWrapper,
    DecoderWrapper,
>;

pub enum Segmenter {
    Crate(Box<ModelWrapper>),
    SentencePiece {
        model: Box<SentencePiece>,
        /// The id of the first piece.
        first_id: u32,
    },
}

impl Segmenter {
    /// Names of tokens that are special although they may be spelled like ordinary text.
    pub fn controls(&self) -> Vec<String> {
        match self {
            Self::Crate(_) => Vec::new(),
            Self::SentencePiece { model, .. } => {
                let controls = model
                    .pieces()
                    .filter(|(_, kind)| *kind == PieceType::Control);
                controls.map(|(name, _)| name.to_owned()).collect()
            }
        }
    }
}

impl Model for Segmenter {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        match self {
            Self::Crate(model) => model.tokenize(text),
            // Neither text nor offsets of a token are used.
            Self::SentencePiece { model, first_id } => {
                let ids = model.encode(text).into_iter();
                let token = |id| Token::new(id + first_id, String::new(), (0, 0));
                Ok(ids.map(token).collect())
            }
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Crate(model) => model.token_to_id(token),
            Self::SentencePiece { model, first_id } => model.id(token).map(|id| id + first_id),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Crate(model) => model.id_to_token(id),
            Self::SentencePiece { model, first_id } => {
                let piece = model.piece(id.checked_sub(*first_id)?)?;
                Some(piece.to_owned())
            }
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Self::Crate(model) => model.get_vocab(),
            Self::SentencePiece { model, first_id } => {
                let ids = *first_id..;
                let pieces = model.pieces().zip(ids);
                pieces
                    .map(|((piece, _), id)| (piece.to_owned(), id))
                    .collect()
            }
        }
    }

    /// The first id that an added token gets.
    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Crate(model) => model.get_vocab_size(),
            Self::SentencePiece { model, first_id } => *first_id as usize + model.len(),
        }
    }

    fn save(&self, _: &Path, _: Option<&str>) -> Result<Vec<PathBuf>> {
        Err("tokenizers are only read".into())
    }

    /// Nothing is trained; the trait wants one.
    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            Self::Crate(model) => model.get_trainer(),
            Self::SentencePiece { .. } => BpeTrainer::default().into(),
        }
    }
}
