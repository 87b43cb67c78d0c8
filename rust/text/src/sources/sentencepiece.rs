//! A SentencePiece model (tokenizer.model, ice_text.model) as a tokenizer.

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::normalizers::Replace;
use tokenizers::{AddedToken, DecoderWrapper};

use super::{add, add_folders_tokens, is_word, pipeline, Parsed, Source};
use crate::families::Family;
use crate::model::{Pipeline, Segmenter};
use crate::model_folder::ModelFolder;
use crate::sentencepiece::{SentencePiece, SPACE};
use crate::split::SafePreTokenizer;

pub fn read(bytes: &[u8], folder: &ModelFolder, family: &Family) -> Parsed<Source> {
    let first_id = (family.first_id)(folder);
    let listed = folder.added_tokens_decoder().into_iter();
    let renamed = listed.filter_map(|t| Some((t.id.checked_sub(first_id)?, t.token.content)));
    let mut model = SentencePiece::parse(bytes, &(family.appended)(), renamed)?;
    // transformers' Llama classes without `legacy`: only a whole text begins with a space.
    let marks_start = folder.flag("legacy") == Some(false) && model.adds_leading_space();
    let decoder = decoder(&model)?;
    if marks_start {
        model.without_dummy_prefix();
    }
    let kind = format!("SentencePiece {}", model.algorithm_name());
    let model = Segmenter::SentencePiece {
        model: Box::new(model),
        first_id,
    };
    let mut pipeline = pipeline(model, decoder)?;
    if marks_start {
        pipeline.with_pre_tokenizer(Some(SafePreTokenizer::space_at_start()));
    }
    let controls = pipeline.get_model().controls().into_iter();
    let controls = controls.filter(|name| !is_word(name));
    let controls: Vec<_> = controls.map(|name| AddedToken::from(name, true)).collect();
    add(&mut pipeline, controls)?;
    add_folders_tokens(&mut pipeline, folder, family)?;
    Ok(Source {
        kind,
        pipeline,
        frames: false,
        adds_bos: true,
        named: |pipeline: &Pipeline, key: &str| match pipeline.get_model() {
            Segmenter::SentencePiece { model, .. } => model.named(key).map(str::to_owned),
            Segmenter::Crate(_) => None,
        },
    })
}

fn decoder(model: &SentencePiece) -> Parsed<DecoderWrapper> {
    let spaces = Replace::new(SPACE, " ").map_err(|e| e.to_string())?;
    let mut steps = vec![
        spaces.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if model.adds_leading_space() {
        steps.push(Strip::new(' ', 1, 0).into());
    }
    Ok(Sequence::new(steps).into())
}
