//! The parts of a SentencePiece `ModelProto` that encoding and decoding need, read from its protobuf bytes.

/// What a piece is; numbers as in sentencepiece_model.proto.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    pub text: String,
    pub score: f32,
    pub kind: PieceType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Unigram,
    Bpe,
}

#[derive(Debug, Clone)]
pub struct ModelProto {
    pub pieces: Vec<Piece>,
    pub algorithm: Algorithm,
    pub byte_fallback: bool,
    pub whitespace_is_suffix: bool,
    /// Texts of the begin, end and padding tokens.
    pub bos: String,
    pub eos: String,
    pub pad: String,
    pub charsmap: Vec<u8>,
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

type Parsed<T> = Result<T, String>;

/// One field of a message.
enum Value<'a> {
    Number(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
    /// A 64-bit number; no field that is read here has this type.
    Fixed64,
}

/// The fields of one message, in order.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Parsed<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self
                .rest
                .split_first()
                .ok_or("it ends in the middle of a number")?;
            self.rest = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number has more than 64 bits".into())
    }

    fn take(&mut self, len: u64) -> Parsed<&'a [u8]> {
        match usize::try_from(len) {
            Ok(len) if len <= self.rest.len() => {
                let (taken, rest) = self.rest.split_at(len);
                self.rest = rest;
                Ok(taken)
            }
            _ => Err(format!(
                "a field of {len} bytes is longer than the {} bytes that are left",
                self.rest.len()
            )),
        }
    }

    fn next(&mut self) -> Parsed<Option<(u64, Value<'a>)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Fixed32(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
            }
            other => return Err(format!("a field has the wire type {other}")),
        };
        Ok(Some((tag >> 3, value)))
    }
}

fn text(bytes: &[u8]) -> Parsed<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a text in it is not UTF-8".into())
}

impl ModelProto {
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        // The defaults of sentencepiece_model.proto.
        let mut model = Self {
            pieces: Vec::new(),
            algorithm: Algorithm::Unigram,
            byte_fallback: false,
            whitespace_is_suffix: false,
            bos: "<s>".into(),
            eos: "</s>".into(),
            pad: "<pad>".into(),
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        let mut fields = Fields { rest: bytes };
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(piece)) => model.pieces.push(parse_piece(piece)?),
                (2, Value::Bytes(spec)) => model.read_trainer_spec(spec)?,
                (3, Value::Bytes(spec)) => model.read_normalizer_spec(spec)?,
                (5, Value::Bytes(spec)) => refuse_denormalizer(spec)?,
                _ => {}
            }
        }
        Ok(model)
    }

    fn read_trainer_spec(&mut self, bytes: &[u8]) -> Parsed<()> {
        let mut fields = Fields { rest: bytes };
        while let Some(field) = fields.next()? {
            match field {
                (3, Value::Number(1)) => self.algorithm = Algorithm::Unigram,
                (3, Value::Number(2)) => self.algorithm = Algorithm::Bpe,
                (3, Value::Number(3)) => return Err("models of whole words are not read".into()),
                (3, Value::Number(4)) => return Err("models of characters are not read".into()),
                (3, Value::Number(other)) => return Err(format!("its model_type is {other}")),
                (24, Value::Number(flag)) => self.whitespace_is_suffix = flag != 0,
                (35, Value::Number(flag)) => self.byte_fallback = flag != 0,
                (46, Value::Bytes(name)) => self.bos = text(name)?,
                (47, Value::Bytes(name)) => self.eos = text(name)?,
                (48, Value::Bytes(name)) => self.pad = text(name)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer_spec(&mut self, bytes: &[u8]) -> Parsed<()> {
        let mut fields = Fields { rest: bytes };
        while let Some(field) = fields.next()? {
            match field {
                (2, Value::Bytes(map)) => self.charsmap = map.to_vec(),
                (3, Value::Number(flag)) => self.add_dummy_prefix = flag != 0,
                (4, Value::Number(flag)) => self.remove_extra_whitespaces = flag != 0,
                (5, Value::Number(flag)) => self.escape_whitespaces = flag != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

fn parse_piece(bytes: &[u8]) -> Parsed<Piece> {
    let mut piece = Piece {
        text: String::new(),
        score: 0.0,
        kind: PieceType::Normal,
    };
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(bytes)) => piece.text = text(bytes)?,
            (2, Value::Fixed32(bits)) => piece.score = f32::from_bits(bits),
            (3, Value::Number(kind)) => {
                piece.kind = match kind {
                    1 => PieceType::Normal,
                    2 => PieceType::Unknown,
                    3 => PieceType::Control,
                    4 => PieceType::UserDefined,
                    5 => PieceType::Unused,
                    6 => PieceType::Byte,
                    other => return Err(format!("a piece has the type {other}")),
                }
            }
            _ => {}
        }
    }
    Ok(piece)
}

/// A rule for decoded text; no known model has one.
fn refuse_denormalizer(bytes: &[u8]) -> Parsed<()> {
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        if matches!(field, (2, Value::Bytes(map)) if !map.is_empty()) {
            return Err(
                "models that change the decoded text (denormalizer_spec) are not read".into(),
            );
        }
    }
    Ok(())
}
