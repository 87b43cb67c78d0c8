//! Grammars in llama.cpp's notation (GBNF, which xgrammar calls EBNF) rewritten in llguidance's Lark.
//!
//! Parts without recursion become terminals where that changes nothing (gbnf_terminals.rs); else each
//! rule stays a rule, and each string and each class of characters is a terminal of its own. What a
//! rule means is the same up to llguidance's lexer, which prefers the longest terminal.

use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

use crate::error::{Error, Result};
use crate::gbnf_terminals::{with_terminals, Node, Terminal};
use crate::sandbox;

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
    let rules = rules_of(text)?;
    let with_terminals = with_terminals(&rules);
    sandbox::check(0, 0)?;
    Ok(lark_of(&with_terminals.unwrap_or(rules)))
}

fn lark_of(rules: &[Option<Node>]) -> String {
    let mut lark = String::new();
    for (i, rule) in rules.iter().enumerate() {
        if let Some(rule) = rule {
            lark.push_str(&name_of(i));
            lark.push(':');
            write_alternatives(rule, &mut lark);
            lark.push('\n');
        }
    }
    lark
}

/// The first is `root`. A rule without a definition stays `None`.
fn rules_of(text: &str) -> Result<Vec<Option<Node>>> {
    let mut reader = Reader {
        chars: text.chars().collect(),
        at: 0,
        names: HashMap::from([("root".to_owned(), 0)]),
    };
    let mut rules: Vec<(usize, Node)> = Vec::new();
    reader.skip_space(true);
    while reader.peek().is_some() {
        let name = reader.name()?;
        reader.skip_space(true);
        if !reader.take_text("::=") {
            return Err(reader.wrong("\"::=\" after the name of a rule"));
        }
        let rule = reader.number_of(&name);
        if rules.iter().any(|(known, _)| *known == rule) {
            return Err(Error::invalid(format!(
                "the grammar has two rules named \"{name}\""
            )));
        }
        rules.push((rule, reader.alternatives(0)?));
        reader.skip_space(true);
    }
    let mut all = vec![None; reader.names.len()];
    for (rule, node) in rules {
        all[rule] = Some(node);
    }
    match all[0] {
        Some(_) => Ok(all),
        None => Err(Error::invalid("the grammar has no rule named \"root\"")),
    }
}

/// Lark's names of rules, which are in small letters.
fn name_of(rule: usize) -> String {
    match rule {
        0 => "start".to_owned(),
        _ => format!("rule_{rule}"),
    }
}

fn write_alternatives(node: &Node, lark: &mut String) {
    match node {
        Node::Alternatives(options) => {
            for (i, option) in options.iter().enumerate() {
                lark.push_str(if i > 0 { " |" } else { "" });
                write_sequence(option, lark);
            }
        }
        _ => write_sequence(node, lark),
    }
}

fn write_sequence(node: &Node, lark: &mut String) {
    match node {
        Node::Sequence(items) => items.iter().for_each(|item| write_sequence(item, lark)),
        _ => {
            lark.push(' ');
            write_item(node, lark);
        }
    }
}

fn write_item(node: &Node, lark: &mut String) {
    match node {
        Node::Text(text) => lark.push_str(&serde_json::Value::from(text.as_str()).to_string()),
        Node::Class(regex) | Node::Terminal(Terminal { regex, .. }) => {
            lark.push('/');
            lark.push_str(regex);
            lark.push('/');
        }
        Node::Rule(rule) => lark.push_str(&name_of(*rule)),
        Node::Repeat(node, times) => {
            write_item(node, lark);
            lark.push_str(times);
        }
        Node::Sequence(_) | Node::Alternatives(_) => {
            lark.push('(');
            write_alternatives(node, lark);
            lark.push(')');
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    /// The numbers of rules.
    names: HashMap<String, usize>,
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

    fn number_of(&mut self, name: &str) -> usize {
        let next = self.names.len();
        *self.names.entry(name.to_owned()).or_insert(next)
    }

    /// Up to the end of the rule or of the brackets: a rule goes on after a line's end inside brackets
    /// and where an alternative begins or has begun.
    fn alternatives(&mut self, depth: usize) -> Result<Node> {
        let mut options = Vec::new();
        let mut items = Vec::new();
        loop {
            self.skip_space(depth > 0 || items.is_empty());
            match self.peek() {
                None => break,
                Some('|') => {
                    self.at += 1;
                    options.push(Node::Sequence(std::mem::take(&mut items)));
                }
                Some('\n') => {
                    let line = self.at;
                    self.skip_space(true);
                    if self.peek() != Some('|') {
                        self.at = line;
                        break;
                    }
                }
                Some(')') if depth > 0 => break,
                // An empty alternative at the end of a rule: the next line is another rule.
                Some(c) if items.is_empty() && depth == 0 && is_name(c) && self.begins_rule() => {
                    break;
                }
                Some(_) => {
                    let item = self.item(depth)?;
                    items.push(self.repeated(item)?);
                }
            }
        }
        options.push(Node::Sequence(items));
        Ok(Node::Alternatives(options))
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

    fn item(&mut self, depth: usize) -> Result<Node> {
        match self.peek() {
            Some('"') => self.string(),
            Some('[') => self.class(),
            Some('.') => {
                self.at += 1;
                Ok(Node::Class(Rc::from("(?s:.)")))
            }
            Some('(') => {
                self.at += 1;
                let inner = self.alternatives(depth + 1)?;
                match self.take(')') {
                    true => Ok(inner),
                    false => Err(self.wrong("\")\"")),
                }
            }
            Some(c) if is_name(c) => {
                let name = self.name()?;
                Ok(Node::Rule(self.number_of(&name)))
            }
            _ => Err(self.wrong("a string, a class, a rule or a bracket")),
        }
    }

    /// Lark has the same signs.
    fn repeated(&mut self, item: Node) -> Result<Node> {
        let mut times = String::new();
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.at += 1;
                times.push(c);
            }
            Some('{') => loop {
                let c = self.next()?;
                match c {
                    '{' | '}' | ',' | '0'..='9' => times.push(c),
                    ' ' => {}
                    _ => return Err(self.wrong("numbers in braces")),
                }
                if c == '}' {
                    break;
                }
            },
            _ => return Ok(item),
        }
        Ok(Node::Repeat(Box::new(item), times))
    }

    fn string(&mut self) -> Result<Node> {
        self.at += 1;
        let mut text = String::new();
        while !self.take('"') {
            text.push(self.character()?);
        }
        Ok(Node::Text(text))
    }

    fn class(&mut self) -> Result<Node> {
        self.at += 1;
        let mut class = "[".to_owned();
        if self.take('^') {
            class.push('^');
        }
        while !self.take(']') {
            let c = match self.take('-') {
                true => {
                    let is_range = self.peek() != Some(']') && !class.ends_with(['[', '^']);
                    if is_range {
                        class.push('-');
                        continue;
                    }
                    '-'
                }
                false => self.character()?,
            };
            write!(class, "\\x{{{:X}}}", c as u32).expect("a String");
        }
        class.push(']');
        Ok(Node::Class(class.into()))
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
        let lark = lark_of(&rules_of(gbnf).unwrap());
        let lines: Vec<&str> = lark.lines().collect();
        assert_eq!(
            lines,
            [
                r#"start: rule_1 ( "," rule_2 rule_1){1,2} | "\"A\n" |"#,
                "rule_1: rule_2? /(?s:.)/",
                r"rule_2: /[\x{20}\x{9}]/* /[^\x{61}-\x{7A}\x{5D}\x{2D}]/+",
            ]
        );
    }

    /// Only what is recursive is left to the parser.
    #[test]
    fn json_keeps_few_rules() {
        let lark = to_lark(include_str!("../tests/json.gbnf")).unwrap();
        let rules: Vec<_> = lark
            .lines()
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(rules, ["start", "rule_1", "rule_2", "rule_3"], "{lark}");
    }

    #[test]
    fn a_terminal_that_would_take_too_much_is_not_made() {
        // `z` is recursive, so that `y` ends a terminal where `z` begins.
        let lark = |z: &str| to_lark(&format!("root ::= y z\ny ::= \"a\"+\nz ::= {z}")).unwrap();
        let merged = lark("\"b\" | \"(\" z \")\"");
        assert!(merged.starts_with("start: /"), "{merged}");
        for z in [
            "\"ab\" | \"(\" z \")\"",
            "[a-z] | \"(\" z \")\"",
            // Nothing tells the alternatives apart.
            "\"(\" z \")\" | \"(\" z \"]\" | \"b\"",
        ] {
            let apart = lark(z);
            assert!(apart.starts_with("start: rule_1 rule_2\n"), "{apart}");
        }
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
