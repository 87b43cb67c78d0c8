//! JSON5, the format of configuration files written by hand, as plain JSON.
//!
//! Read here because the crates for it either need a newer Rust than 1.85 or misread signs of
//! hexadecimal numbers, continued lines and surrogate pairs.

use serde_json::{Map, Number, Value};

use crate::error::{Error, Result};

/// Brackets inside each other: reading recurses over them.
const MAX_DEPTH: usize = 64;

/// The same value as JSON text. A name that an object has twice is an error, as are NaN and
/// infinities, which JSON cannot say.
pub fn to_json(text: &str) -> Result<String> {
    let mut reader = Reader { text, at: 0 };
    let read = (|| {
        let value = reader.value(0)?;
        reader.skip_blanks()?;
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err("something follows the value".to_owned()),
        }
    })();
    read.map(|value| value.to_string())
        .map_err(|problem| Error::invalid(format!("{}: {problem}", reader.place())))
}

/// Why the text is no JSON5; the place is where the reader stands.
type Read<T> = std::result::Result<T, String>;

struct Reader<'a> {
    text: &'a str,
    at: usize, // in bytes
}

fn is_blank(c: char) -> bool {
    c.is_whitespace() || c == '\u{feff}'
}

fn is_name_start(c: char) -> bool {
    c.is_alphabetic() || c == '_' || c == '$'
}

fn is_name_part(c: char) -> bool {
    is_name_start(c) || c.is_numeric() || c == '\u{200c}' || c == '\u{200d}'
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{2028}' | '\u{2029}')
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn place(&self) -> String {
        let before = &self.text[..self.at];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        format!("line {line} column {}", before[start..].chars().count() + 1)
    }

    fn skip_blanks(&mut self) -> Read<()> {
        loop {
            self.take_while(is_blank);
            if self.take("//") {
                self.take_while(|c| !is_line_end(c));
            } else if self.rest().starts_with("/*") {
                let end = self.rest()[2..]
                    .find("*/")
                    .ok_or("the comment has no end")?;
                self.at += end + 4;
            } else {
                return Ok(());
            }
        }
    }

    fn value(&mut self, depth: usize) -> Read<Value> {
        if depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} brackets inside each other"));
        }
        self.skip_blanks()?;
        match self.peek().ok_or("a value is missing")? {
            '{' => self.object(depth),
            '[' => self.array(depth),
            '"' | '\'' => self.string().map(Value::String),
            c if is_name_start(c) => self.word(),
            _ => self.number().map(Value::Number),
        }
    }

    /// After a member or an element: true when another one may follow.
    fn goes_on(&mut self, end: char) -> Read<bool> {
        self.skip_blanks()?;
        match self.peek() {
            Some(',') => {
                self.next();
                Ok(true)
            }
            Some(c) if c == end => Ok(false),
            _ => Err(format!("a comma or '{end}' is missing")),
        }
    }

    fn ends(&mut self, end: char) -> Read<bool> {
        self.skip_blanks()?;
        Ok(self.peek() == Some(end))
    }

    fn object(&mut self, depth: usize) -> Read<Value> {
        self.next();
        let mut members = Map::new();
        while !self.ends('}')? {
            let start = self.at;
            let name = self.name()?;
            if members.contains_key(&name) {
                self.at = start;
                return Err(format!("there are two members {name:?}"));
            }
            self.skip_blanks()?;
            if !self.take(":") {
                return Err(format!("a colon is missing after {name:?}"));
            }
            members.insert(name, self.value(depth + 1)?);
            if !self.goes_on('}')? {
                break;
            }
        }
        self.next();
        Ok(Value::Object(members))
    }

    fn name(&mut self) -> Read<String> {
        match self.peek() {
            Some('"' | '\'') => self.string(),
            Some(c) if is_name_start(c) => Ok(self.take_while(is_name_part).to_owned()),
            _ => Err("a name is missing".to_owned()),
        }
    }

    fn array(&mut self, depth: usize) -> Read<Value> {
        self.next();
        let mut elements = Vec::new();
        while !self.ends(']')? {
            elements.push(self.value(depth + 1)?);
            if !self.goes_on(']')? {
                break;
            }
        }
        self.next();
        Ok(Value::Array(elements))
    }

    fn word(&mut self) -> Read<Value> {
        let start = self.at;
        match self.take_while(is_name_part) {
            "null" => Ok(Value::Null),
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            word => {
                self.at = start;
                Err(format!("{word} is no value; texts stand in quotes"))
            }
        }
    }

    fn number(&mut self) -> Read<Number> {
        let start = self.at;
        let is_negative = self.take("-");
        if !is_negative {
            self.take("+");
        }
        let is_hex = self.take("0x") || self.take("0X");
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.';
        let digits_start = self.at;
        while let Some(c) = self.peek() {
            let after_e = self.text[digits_start..self.at].ends_with(['e', 'E']);
            if !is_part(c) && !(after_e && !is_hex && (c == '+' || c == '-')) {
                break;
            }
            self.next();
        }
        let digits = &self.text[digits_start..self.at];
        let number = match is_hex {
            true => hex_number(is_negative, digits),
            false => decimal_number(is_negative, digits),
        };
        number.ok_or_else(|| {
            let word = &self.text[start..self.at];
            self.at = start;
            match word {
                "" => "a value is missing".to_owned(),
                _ => format!("{word} is no number that JSON can say"),
            }
        })
    }

    fn string(&mut self) -> Read<String> {
        let start = self.at;
        let quote = self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n' | '\r') => {
                    self.at = start;
                    return Err("the text has no end on its line".to_owned());
                }
                c if c == quote => return Ok(text),
                Some('\\') => self.escape(&mut text)?,
                Some(c) => text.push(c),
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Read<()> {
        let c = self.next().ok_or("the text has no end")?;
        text.push(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            '0' => '\0',
            'x' => char::from(self.hex_digits(2)? as u8),
            'u' => self.unicode_escape()?,
            '\r' => {
                self.take("\n");
                return Ok(()); // the line goes on
            }
            c if is_line_end(c) => return Ok(()),
            c => c,
        });
        Ok(())
    }

    fn unicode_escape(&mut self) -> Read<char> {
        let mut unit = self.hex_digits(4)?;
        if (0xd800..0xdc00).contains(&unit) && self.take("\\u") {
            let low = self.hex_digits(4)?;
            unit = match low {
                0xdc00..0xe000 => 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00),
                _ => 0xd800, // which is no character
            };
        }
        char::from_u32(unit).ok_or_else(|| "half of a surrogate pair is no character".to_owned())
    }

    fn hex_digits(&mut self, count: usize) -> Read<u32> {
        let digits = self.rest().get(..count).unwrap_or("");
        let is_hex = digits.len() == count && digits.chars().all(|c| c.is_ascii_hexdigit());
        if !is_hex {
            return Err(format!("{count} hexadecimal digits are missing"));
        }
        self.at += count;
        u32::from_str_radix(digits, 16).map_err(|e| e.to_string())
    }
}

fn hex_number(is_negative: bool, digits: &str) -> Option<Number> {
    let value = i64::from_str_radix(digits, 16).ok()?;
    Some(Number::from(if is_negative { -value } else { value }))
}

/// `5.` and `.5` are numbers too; leading zeros are not.
fn decimal_number(is_negative: bool, digits: &str) -> Option<Number> {
    let whole = digits.split(['.', 'e', 'E']).next().unwrap_or("");
    let has_zeros = whole.len() > 1 && whole.starts_with('0');
    if has_zeros || !digits.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let signed = format!("{}{digits}", if is_negative { "-" } else { "" });
    if let Ok(value) = signed.parse::<i64>() {
        return Some(Number::from(value));
    }
    if let Ok(value) = signed.parse::<u64>() {
        return Some(Number::from(value));
    }
    Number::from_f64(signed.parse().ok()?)
}
