//! Terminals for the parts of a GBNF grammar that have no recursion. A character that the parser takes
//! costs a thousand times what one costs that the lexer takes.
//!
//! llguidance's lexer takes the longest terminal and never comes back. So the terminals are used only
//! if one character of lookahead always decides (LL(1)): the beginnings of alternatives differ, and no
//! terminal can go on with what may follow it.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use llguidance::derivre::{RegexAst, RegexBuilder};

use crate::sandbox;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Text(String),
    /// As a regular expression of one character.
    Class(Rc<str>),
    Rule(usize),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    /// The second as Lark and GBNF write it.
    Repeat(Box<Node>, String),
    /// Never of an empty text; only made here.
    Terminal(Terminal),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Terminal {
    pub regex: Rc<str>,
    first: Chars,
}

/// Regular expressions of one character each. Shared: a class may be long, and first in many rules.
type Chars = BTreeSet<Rc<str>>;
type Rules = [Option<Node>];

const MAX_TERMINAL_BYTES: usize = 4096;
const MAX_TERMINALS: usize = 500;
/// Rules written out in the place of their name.
const MAX_EXPANSIONS: usize = 20_000;
const MAX_PASSES: usize = 50;
/// Regex nodes of each comparison.
const FUEL: u64 = 20_000;

/// The same grammar with terminals, without the rules that are no longer used; `None` if it may not
/// have them.
pub fn with_terminals(rules: &Rules) -> Option<Vec<Option<Node>>> {
    let regular = regular_rules(rules);
    let mut grammar = Terminals {
        rules,
        nullable: nullable_rules(rules, &regular),
        regular,
        count: 0,
        expansions: Cell::new(0),
    };
    let mut made = vec![None; rules.len()];
    let mut open = vec![0];
    while let Some(rule) = open.pop() {
        if made[rule].is_none() {
            let node = grammar.rewrite(rules[rule].as_ref()?)?;
            rules_in(&node, &mut open);
            made[rule] = Some(node);
        }
    }
    Separation::check(&made)?;
    Some(made)
}

/// Those that lead to no rule that is defined by itself or missing.
fn regular_rules(rules: &Rules) -> Vec<bool> {
    let mut regular = vec![false; rules.len()];
    loop {
        let before = regular.clone();
        for (rule, node) in rules.iter().enumerate() {
            let mut used = Vec::new();
            if let Some(node) = node {
                rules_in(node, &mut used);
                regular[rule] = used.iter().all(|used| before[*used]);
            }
        }
        if regular == before {
            return regular;
        }
    }
}

/// Those of the regular rules that may be empty. The rules that a rule leads to are not walked for each
/// of its mentions: there are exponentially many ways through a grammar.
fn nullable_rules(rules: &Rules, regular: &[bool]) -> Vec<bool> {
    let mut nullable = vec![false; rules.len()];
    loop {
        let mut has_changed = false;
        for (rule, node) in rules.iter().enumerate() {
            let is_new = regular[rule] && !nullable[rule];
            if is_new
                && node
                    .as_ref()
                    .is_some_and(|node| may_be_empty(node, &nullable))
            {
                nullable[rule] = true;
                has_changed = true;
            }
        }
        if !has_changed {
            return nullable;
        }
    }
}

fn may_be_empty(node: &Node, nullable: &[bool]) -> bool {
    match node {
        Node::Text(text) => text.is_empty(),
        Node::Class(_) | Node::Terminal(_) => false,
        Node::Rule(rule) => nullable[*rule],
        Node::Sequence(parts) => parts.iter().all(|part| may_be_empty(part, nullable)),
        Node::Alternatives(parts) => parts.iter().any(|part| may_be_empty(part, nullable)),
        Node::Repeat(part, times) => is_optional(times) || may_be_empty(part, nullable),
    }
}

fn rules_in(node: &Node, found: &mut Vec<usize>) {
    match node {
        Node::Rule(rule) => found.push(*rule),
        Node::Sequence(parts) | Node::Alternatives(parts) => {
            parts.iter().for_each(|part| rules_in(part, found));
        }
        Node::Repeat(part, _) => rules_in(part, found),
        Node::Text(_) | Node::Class(_) | Node::Terminal(_) => {}
    }
}

fn is_optional(times: &str) -> bool {
    matches!(times, "*" | "?") || times.starts_with("{0,") || times == "{0}"
}

struct Terminals<'a> {
    rules: &'a Rules,
    regular: Vec<bool>,
    nullable: Vec<bool>,
    count: usize,
    expansions: Cell<usize>,
}

impl Terminals<'_> {
    fn is_regular(&self, node: &Node) -> bool {
        let mut used = Vec::new();
        rules_in(node, &mut used);
        used.iter().all(|rule| self.regular[*rule])
    }

    /// The same where it is written out in its place; `None` after too many of these: rules that
    /// double each other are short, and what they stand for is not.
    fn expand(&self, rule: usize) -> Option<&Node> {
        self.expansions.set(self.expansions.get() + 1);
        (self.expansions.get() <= MAX_EXPANSIONS).then(|| self.body(rule))
    }

    /// The body of a rule that is not recursive.
    fn body(&self, rule: usize) -> &Node {
        self.rules[rule]
            .as_ref()
            .expect("a regular rule is defined")
    }

    /// Of a regular node.
    fn is_nullable(&self, node: &Node) -> bool {
        may_be_empty(node, &self.nullable)
    }

    /// Of a regular node. `seen`: the rules that have been read for this set.
    fn first(&self, node: &Node, seen: &mut HashSet<usize>, chars: &mut Chars) {
        match node {
            Node::Text(text) => chars.extend(text.chars().next().map(literal)),
            Node::Class(class) => {
                chars.insert(Rc::clone(class));
            }
            Node::Terminal(terminal) => chars.extend(terminal.first.iter().cloned()),
            Node::Rule(rule) => {
                if seen.insert(*rule) {
                    self.first(self.body(*rule), seen, chars);
                }
            }
            Node::Sequence(parts) => {
                for part in parts {
                    self.first(part, seen, chars);
                    if !self.is_nullable(part) {
                        return;
                    }
                }
            }
            Node::Alternatives(parts) => {
                parts.iter().for_each(|part| self.first(part, seen, chars));
            }
            Node::Repeat(part, _) => self.first(part, seen, chars),
        }
    }

    /// Of a regular node; `None` if it is too long.
    fn regex(&self, node: &Node) -> Option<String> {
        let all = |parts: &[Node], sign: &str| -> Option<String> {
            let parts: Option<Vec<_>> = parts.iter().map(|part| self.regex(part)).collect();
            Some(parts?.join(sign))
        };
        let regex = match node {
            Node::Text(text) => spelled(text),
            Node::Class(regex) | Node::Terminal(Terminal { regex, .. }) => regex.to_string(),
            Node::Rule(rule) => self.regex(self.expand(*rule)?)?,
            Node::Sequence(parts) => all(parts, "")?,
            Node::Alternatives(parts) => format!("(?:{})", all(parts, "|")?),
            // A regular expression cannot say so.
            Node::Repeat(_, times) if times.starts_with("{,") => return None,
            Node::Repeat(part, times) => format!("(?:{}){times}", self.regex(part)?),
        };
        (regex.len() <= MAX_TERMINAL_BYTES).then_some(regex)
    }

    /// Of a regular node that is not nullable.
    fn terminal(&mut self, node: &Node) -> Option<Node> {
        self.count += 1;
        has_room()?;
        if self.count > MAX_TERMINALS {
            return None;
        }
        let mut first = Chars::new();
        self.first(node, &mut HashSet::new(), &mut first);
        let regex = self.regex(node)?.into();
        Some(Node::Terminal(Terminal { regex, first }))
    }

    fn rewrite(&mut self, node: &Node) -> Option<Node> {
        if self.is_regular(node) {
            return match self.is_nullable(node) {
                false => self.terminal(node),
                true => self.rewrite_nullable(node),
            };
        }
        match node {
            Node::Sequence(items) => self.rewrite_sequence(items),
            Node::Alternatives(options) => {
                let (known, others): (Vec<_>, Vec<_>) = options
                    .iter()
                    .cloned()
                    .partition(|option| self.is_regular(option) && !self.is_nullable(option));
                let mut made = Vec::new();
                for option in &others {
                    made.push(self.rewrite(option)?);
                }
                if !known.is_empty() {
                    made.push(self.terminal(&Node::Alternatives(known))?);
                }
                Some(Node::Alternatives(made))
            }
            Node::Repeat(part, times) => {
                Some(Node::Repeat(Box::new(self.rewrite(part)?), times.clone()))
            }
            _ => Some(node.clone()),
        }
    }

    /// Neighbours without recursion become one terminal.
    fn rewrite_sequence(&mut self, items: &[Node]) -> Option<Node> {
        let mut made = Vec::new();
        let mut rest = items;
        while let Some(item) = rest.first() {
            let count = rest.iter().take_while(|item| self.is_regular(item)).count();
            let is_nullable = rest[..count].iter().all(|item| self.is_nullable(item));
            match !is_nullable {
                true => {
                    made.push(self.terminal(&Node::Sequence(rest[..count].to_vec()))?);
                    rest = &rest[count..];
                }
                false => {
                    made.push(self.rewrite(item)?);
                    rest = &rest[1..];
                }
            }
        }
        Some(Node::Sequence(made))
    }

    /// An optional terminal, where the node has that form.
    fn rewrite_nullable(&mut self, node: &Node) -> Option<Node> {
        let optional = |terminal: Node| Node::Repeat(Box::new(terminal), "?".to_owned());
        match node {
            Node::Text(_) | Node::Class(_) | Node::Terminal(_) => Some(node.clone()),
            Node::Rule(rule) => {
                let body = self.expand(*rule)?.clone();
                self.rewrite_nullable(&body)
            }
            Node::Sequence(items) => {
                let made: Option<Vec<_>> = items.iter().map(|item| self.rewrite(item)).collect();
                Some(Node::Sequence(made?))
            }
            Node::Alternatives(options) => {
                let is_empty =
                    |node: &Node| matches!(node, Node::Sequence(items) if items.is_empty());
                let full: Vec<_> = options
                    .iter()
                    .filter(|node| !is_empty(node))
                    .cloned()
                    .collect();
                match full.as_slice() {
                    [] => Some(Node::Sequence(Vec::new())),
                    [one] if self.is_nullable(one) => self.rewrite(one),
                    _ if full.iter().any(|option| self.is_nullable(option)) => None,
                    _ => Some(optional(self.terminal(&Node::Alternatives(full))?)),
                }
            }
            Node::Repeat(part, _) if self.is_nullable(part) => None,
            Node::Repeat(part, times) => {
                let at_least_once = match times.as_str() {
                    "*" => "+".to_owned(),
                    "?" => return Some(optional(self.terminal(part)?)),
                    _ => times.replacen("{0,", "{1,", 1),
                };
                let repeated = Node::Repeat(part.clone(), at_least_once);
                Some(optional(self.terminal(&repeated)?))
            }
        }
    }
}

/// For this character alone.
fn literal(c: char) -> Rc<str> {
    format!("\\x{{{:X}}}", c as u32).into()
}

/// For this text alone.
fn spelled(text: &str) -> String {
    let mut regex = String::new();
    text.chars().for_each(|c| regex.push_str(&literal(c)));
    regex
}

/// Whether the sandbox has time and memory left for more: all this is only a gain in speed.
fn has_room() -> Option<()> {
    sandbox::check(0, 0).ok()
}

/// What may come first in each rule, and after it; the end of the output is in no set.
struct Separation<'a> {
    rules: &'a Rules,
    first: Vec<Chars>,
    nullable: Vec<bool>,
    follow: Vec<Chars>,
}

impl<'a> Separation<'a> {
    /// `None` if one character does not always tell what comes next.
    fn check(rules: &'a Rules) -> Option<()> {
        let mut all = Self {
            rules,
            first: vec![Chars::new(); rules.len()],
            nullable: vec![false; rules.len()],
            follow: vec![Chars::new(); rules.len()],
        };
        all.settle(Self::add_first)?;
        all.settle(Self::add_follow)?;
        for (rule, node) in rules.iter().enumerate() {
            if let Some(node) = node {
                all.is_separate(node, &all.follow[rule])?;
            }
        }
        Some(())
    }

    fn settle(&mut self, pass: fn(&mut Self, usize, &Node) -> Option<()>) -> Option<()> {
        for _ in 0..MAX_PASSES {
            let before = (
                self.first.clone(),
                self.nullable.clone(),
                self.follow.clone(),
            );
            let rules = self.rules;
            for (rule, node) in rules.iter().enumerate() {
                has_room()?;
                if let Some(node) = node {
                    pass(self, rule, node)?;
                }
            }
            if before
                == (
                    self.first.clone(),
                    self.nullable.clone(),
                    self.follow.clone(),
                )
            {
                return Some(());
            }
        }
        None
    }

    fn add_first(&mut self, rule: usize, node: &Node) -> Option<()> {
        let (chars, nullable) = self.first_of(node);
        self.first[rule].extend(chars);
        self.nullable[rule] |= nullable;
        Some(())
    }

    fn add_follow(&mut self, rule: usize, node: &Node) -> Option<()> {
        let follow = self.follow[rule].clone();
        self.hand_down(node, &follow)
    }

    /// What may come first, and whether the node may be empty.
    fn first_of(&self, node: &Node) -> (Chars, bool) {
        match node {
            Node::Text(text) => (
                text.chars().next().map(literal).into_iter().collect(),
                text.is_empty(),
            ),
            Node::Class(class) => (Chars::from([Rc::clone(class)]), false),
            Node::Terminal(terminal) => (terminal.first.clone(), false),
            Node::Rule(rule) => (self.first[*rule].clone(), self.nullable[*rule]),
            Node::Sequence(items) => self.first_after(items, &Chars::new(), true),
            Node::Alternatives(options) => {
                let mut all = (Chars::new(), false);
                for option in options {
                    let (chars, nullable) = self.first_of(option);
                    all.0.extend(chars);
                    all.1 |= nullable;
                }
                all
            }
            Node::Repeat(part, times) => {
                let (chars, nullable) = self.first_of(part);
                (chars, nullable || is_optional(times))
            }
        }
    }

    /// Of items before `follow`.
    fn first_after(&self, items: &[Node], follow: &Chars, nullable: bool) -> (Chars, bool) {
        let mut all = Chars::new();
        for item in items {
            let (chars, nullable) = self.first_of(item);
            all.extend(chars);
            if !nullable {
                return (all, false);
            }
        }
        all.extend(follow.iter().cloned());
        (all, nullable)
    }

    fn in_loop(&self, part: &Node, times: &str, follow: &Chars) -> Chars {
        let mut chars = follow.clone();
        if times != "?" {
            chars.extend(self.first_of(part).0);
        }
        chars
    }

    fn hand_down(&mut self, node: &Node, follow: &Chars) -> Option<()> {
        match node {
            Node::Rule(rule) => self.follow[*rule].extend(follow.iter().cloned()),
            Node::Sequence(items) => {
                for (i, item) in items.iter().enumerate() {
                    has_room()?;
                    let next = self.first_after(&items[i + 1..], follow, true).0;
                    self.hand_down(item, &next)?;
                }
            }
            Node::Alternatives(options) => {
                for option in options {
                    self.hand_down(option, follow)?;
                }
            }
            Node::Repeat(part, times) => {
                let next = self.in_loop(part, times, follow);
                self.hand_down(part, &next)?;
            }
            Node::Text(_) | Node::Class(_) | Node::Terminal(_) => {}
        }
        Some(())
    }

    fn is_separate(&self, node: &Node, follow: &Chars) -> Option<()> {
        match node {
            Node::Rule(_) => Some(()),
            Node::Text(text) if text.is_empty() => Some(()),
            Node::Text(text) => ends_before(&spelled(text), follow),
            Node::Class(class) => ends_before(class, follow),
            Node::Terminal(terminal) => ends_before(&terminal.regex, follow),
            Node::Sequence(items) => {
                for (i, item) in items.iter().enumerate() {
                    has_room()?;
                    self.is_separate(item, &self.first_after(&items[i + 1..], follow, true).0)?;
                }
                Some(())
            }
            Node::Alternatives(options) => {
                let mut known = Chars::new();
                let mut has_empty = false;
                for option in options {
                    let (mut chars, nullable) = self.first_of(option);
                    if nullable {
                        chars.extend(follow.iter().cloned());
                    }
                    if nullable && std::mem::replace(&mut has_empty, true) {
                        return None;
                    }
                    differ(&known, &chars)?;
                    known.extend(chars);
                    self.is_separate(option, follow)?;
                }
                Some(())
            }
            Node::Repeat(part, times) => {
                let (chars, nullable) = self.first_of(part);
                if nullable {
                    return None;
                }
                differ(&chars, follow)?;
                self.is_separate(part, &self.in_loop(part, times, follow))
            }
        }
    }
}

fn any_of(chars: &Chars) -> String {
    let chars: Vec<&str> = chars.iter().map(AsRef::as_ref).collect();
    format!("(?:{})", chars.join("|"))
}

fn differ(one: &Chars, other: &Chars) -> Option<()> {
    match one.is_empty() || other.is_empty() {
        true => Some(()),
        false => have_nothing_in_common(any_of(one), any_of(other)),
    }
}

/// Whether no text of the terminal is the beginning of a longer one that goes on with what may follow.
fn ends_before(regex: &str, follow: &Chars) -> Option<()> {
    match follow.is_empty() {
        true => Some(()),
        false => have_nothing_in_common(
            regex.to_owned(),
            format!("(?:{regex}){}(?s:.)*", any_of(follow)),
        ),
    }
}

fn have_nothing_in_common(one: String, other: String) -> Option<()> {
    has_room()?;
    let mut builder = RegexBuilder::new();
    let both = builder
        .mk(&RegexAst::And(vec![
            RegexAst::Regex(one),
            RegexAst::Regex(other),
        ]))
        .ok()?;
    let mut regex = builder.to_regex_limited(both, FUEL).ok()?;
    regex.always_empty().then_some(())
}
