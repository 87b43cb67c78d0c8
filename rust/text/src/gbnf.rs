//! Grammars in llama.cpp's notation (GBNF, which xgrammar calls EBNF) rewritten in llguidance's Lark.
//!
//! Each rule stays a rule, each string and each class of characters becomes a terminal. What a rule
//! means is the same up to llguidance's lexer, which prefers the longest terminal.

use std::collections::HashMap;
use std::fmt::Write;

use crate::error::{Error, Result};

/// Whether the text is GBNF: its first rule has `::=`.
pub fn is_gbnf(text: &str) -> bool {
    let mut lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""));
    let first = lines.find(|line| !line.trim().is_empty()).unwrap_or("");
    let (name, rest) = first.split_at(first.find("::=").unwrap_or(0));
    let name = name.trim();
    !rest.is_empty() && !name.is_empty() && name.chars().all(is_name)
}

pub fn to_lark(text: &str) -> Result<String> {
    let mut reader = Reader {
        chars: text.chars().collect(),
        at: 0,
        names: HashMap::new(),
    };
    reader.names.insert("root".to_owned(), "start".to_owned());
    let mut lark = String::new();
    let mut has_root = false;
    reader.skip_space(true);
    while reader.peek().is_some() {
        let name = reader.name()?;
        reader.skip_space(true);
        if !reader.take_text("::=") {
            return Err(reader.wrong("\"::=\" after the name of a rule"));
        }
        has_root |= name == "root";
        let rule = reader.lark_name(&name);
        write!(lark, "{rule}:").expect("a String");
        reader.alternatives(&mut lark, 0)?;
        lark.push('\n');
        reader.skip_space(true);
    }
    match has_root {
        true => Ok(lark),
        false => Err(Error::invalid("the grammar has no rule named \"root\"")),
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    /// Lark's names of rules, which are in small letters.
    names: HashMap<String, String>,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Result<char> {
        let c = self.peek().ok_or_else(|| self.wrong("more text"))?;
        self.at += 1;
        Ok(c)
    }

    fn take(&mut self, wanted: char) -> bool {
        let is_next = self.peek() == Some(wanted);
        self.at += usize::from(is_next);
        is_next
    }

    fn take_text(&mut self, wanted: &str) -> bool {
        let chars: Vec<char> = wanted.chars().collect();
        let is_next = self.chars[self.at..].starts_with(&chars);
        self.at += if is_next { chars.len() } else { 0 };
        is_next
    }

    fn wrong(&self, wanted: &str) -> Error {
        let end = self.at.min(self.chars.len());
        let line = 1 + self.chars[..end].iter().filter(|c| **c == '\n').count();
        Error::invalid(format!("line {line} of the grammar: expected {wanted}"))
    }

    fn skip_space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '\n' if !lines => return,
                c if c.is_whitespace() => self.at += 1,
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String> {
        let start = self.at;
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        match start == self.at {
            true => Err(self.wrong("the name of a rule")),
            false => Ok(self.chars[start..self.at].iter().collect()),
        }
    }

    fn lark_name(&mut self, name: &str) -> String {
        let next = format!("rule_{}", self.names.len());
        self.names.entry(name.to_owned()).or_insert(next).clone()
    }

    /// Up to the end of the rule or of the brackets: a rule goes on after a line's end inside brackets
    /// and where an alternative begins or has begun.
    fn alternatives(&mut self, lark: &mut String, depth: usize) -> Result<()> {
        let mut is_empty = true;
        loop {
            self.skip_space(depth > 0 || is_empty);
            match self.peek() {
                None => break,
                Some('|') => {
                    self.at += 1;
                    lark.push_str(" |");
                    is_empty = true;
                }
                Some('\n') => {
                    let line = self.at;
                    self.skip_space(true);
                    if self.peek() != Some('|') {
                        self.at = line;
                        return Ok(());
                    }
                }
                Some(')') if depth > 0 => break,
                // An empty alternative at the end of a rule: the next line is another rule.
                Some(c) if is_empty && depth == 0 && is_name(c) && self.begins_rule() => break,
                Some(_) => {
                    self.item(lark, depth)?;
                    self.repeats(lark)?;
                    is_empty = false;
                }
            }
        }
        Ok(())
    }

    fn begins_rule(&mut self) -> bool {
        let start = self.at;
        let begins = self.name().is_ok() && {
            self.skip_space(true);
            self.take_text("::=")
        };
        self.at = start;
        begins
    }

    fn item(&mut self, lark: &mut String, depth: usize) -> Result<()> {
        lark.push(' ');
        match self.peek() {
            Some('"') => self.string(lark),
            Some('[') => self.class(lark),
            Some('.') => {
                self.at += 1;
                lark.push_str("/(?s:.)/");
                Ok(())
            }
            Some('(') => {
                self.at += 1;
                lark.push('(');
                self.alternatives(lark, depth + 1)?;
                lark.push(')');
                match self.take(')') {
                    true => Ok(()),
                    false => Err(self.wrong("\")\"")),
                }
            }
            Some(c) if is_name(c) => {
                let name = self.name()?;
                let rule = self.lark_name(&name);
                lark.push_str(&rule);
                Ok(())
            }
            _ => Err(self.wrong("a string, a class, a rule or a bracket")),
        }
    }

    /// Lark has the same signs.
    fn repeats(&mut self, lark: &mut String) -> Result<()> {
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.at += 1;
                lark.push(c);
            }
            Some('{') => loop {
                let c = self.next()?;
                match c {
                    '{' | '}' | ',' | '0'..='9' => lark.push(c),
                    ' ' => {}
                    _ => return Err(self.wrong("numbers in braces")),
                }
                if c == '}' {
                    break;
                }
            },
            _ => {}
        }
        Ok(())
    }

    fn string(&mut self, lark: &mut String) -> Result<()> {
        self.at += 1;
        let mut text = String::new();
        while !self.take('"') {
            text.push(self.character()?);
        }
        lark.push_str(&serde_json::Value::from(text).to_string());
        Ok(())
    }

    fn class(&mut self, lark: &mut String) -> Result<()> {
        self.at += 1;
        lark.push_str("/[");
        if self.take('^') {
            lark.push('^');
        }
        while !self.take(']') {
            let c = match self.take('-') {
                true => {
                    let is_range = self.peek() != Some(']') && !lark.ends_with(['[', '^']);
                    if is_range {
                        lark.push('-');
                        continue;
                    }
                    '-'
                }
                false => self.character()?,
            };
            write!(lark, "\\x{{{:X}}}", c as u32).expect("a String");
        }
        lark.push_str("]/");
        Ok(())
    }

    /// Of a string or class, with GBNF's escapes.
    fn character(&mut self) -> Result<char> {
        match self.next()? {
            '\n' => Err(self.wrong("the end of a string or class on its line")),
            '\\' => match self.next()? {
                'n' => Ok('\n'),
                'r' => Ok('\r'),
                't' => Ok('\t'),
                'x' => self.number(2),
                'u' => self.number(4),
                'U' => self.number(8),
                c => Ok(c),
            },
            c => Ok(c),
        }
    }

    fn number(&mut self, digits: usize) -> Result<char> {
        let mut code = 0;
        for _ in 0..digits {
            let digit = self.next()?.to_digit(16);
            code = code * 16 + digit.ok_or_else(|| self.wrong("a hexadecimal digit"))?;
        }
        char::from_u32(code).ok_or_else(|| self.wrong("a character's number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_told_from_lark() {
        assert!(is_gbnf("root ::= \"a\""));
        assert!(is_gbnf("# json\n\n  root-1   ::= x"));
        assert!(!is_gbnf("start: \"::=\""));
        assert!(!is_gbnf("start: A\nA: \"x ::= y\""));
        assert!(!is_gbnf(""));
    }

    #[test]
    fn every_form_is_rewritten() {
        let gbnf =
            "# a comment\nroot ::= item (\",\" ws item){1,2} # here\n  | \"\\\"\\x41\\n\" | \n\
                    ws ::= [ \\t]* [^a-z\\]-]+\nitem::=\n  ws? .";
        let lark = to_lark(gbnf).unwrap();
        let lines: Vec<&str> = lark.lines().collect();
        assert_eq!(
            lines,
            [
                r#"start: rule_1 ( "," rule_2 rule_1){1,2} | "\"A\n" |"#,
                r"rule_2: /[\x{20}\x{9}]/* /[^\x{61}-\x{7A}\x{5D}\x{2D}]/+",
                "rule_1: rule_2? /(?s:.)/",
            ]
        );
    }

    #[test]
    fn mistakes_have_a_line() {
        for (gbnf, wanted) in [
            ("x ::= \"a\"", "no rule named \"root\""),
            (
                "root ::= \"a\"\nx y",
                "line 2 of the grammar: expected \"::=\"",
            ),
            ("root ::= (\"a\"", "line 1 of the grammar: expected \")\""),
            ("root ::= \"a", "expected more text"),
            ("root ::= [a", "expected more text"),
            ("root ::= \"\\u12G4\"", "expected a hexadecimal digit"),
            ("root ::= %", "expected a string, a class"),
            ("root ::= a{x}", "expected numbers in braces"),
        ] {
            let message = to_lark(gbnf).unwrap_err().message;
            assert!(message.contains(wanted), "{gbnf}: {message}");
        }
    }
}
