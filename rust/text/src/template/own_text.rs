//! Which characters of a rendered chat are the template's own control tokens.
//!
//! A twin of the template has stand-ins for the characters of control tokens, wherever the source
//! writes them as text. Both are rendered: a character that is a stand-in in the twin's text was
//! written by the template, and all others may come from a client, whatever the template did with
//! them. Clients' texts are never changed, so `length`, slices, `in` and `split` see what was sent.

use std::ops::Range;

use crate::chat_text::occurrences;

/// The stand-in for `c` is `c` in this plane, which is for private use.
const PLANE: u32 = 0xF_0000;

fn stand_in(c: char) -> char {
    char::from_u32(PLANE + u32::from(c))
        .filter(|_| u32::from(c) < 0xFFFE)
        .unwrap_or(c)
}

/// The spellings of control tokens with stand-ins, for variables such as `bos_token`.
pub fn marked(text: &str) -> String {
    text.chars().map(stand_in).collect()
}

/// The source with stand-ins for the spellings of control tokens in text that it prints, also where
/// a role completes them (`<|{{ role }}|>`). Texts that it only compares or searches for stay.
pub fn mark_source(source: &str, spellings: &[String]) -> String {
    let mut marker = Marker {
        spellings,
        source,
        out: String::with_capacity(source.len() + 64),
    };
    marker.run();
    marker.out
}

struct Marker<'a> {
    spellings: &'a [String],
    source: &'a str,
    out: String,
}

impl Marker<'_> {
    fn run(&mut self) {
        let mut at = 0;
        while let Some(found) = find_tag(self.source, at) {
            self.copy_marked(at..found);
            at = match &self.source[found..found + 2] {
                "{#" => self.copy_until(found, "#}"),
                "{%" if is_raw(&self.source[found..]) => self.copy_raw(found),
                _ => self.copy_tag(found),
            };
        }
        self.copy_marked(at..self.source.len());
    }

    fn copy_until(&mut self, start: usize, close: &str) -> usize {
        let rest = &self.source[start..];
        let end = rest.find(close).map_or(rest.len(), |i| i + close.len());
        self.out.push_str(&rest[..end]);
        start + end
    }

    fn copy_raw(&mut self, start: usize) -> usize {
        let inner = self.copy_until(start, "%}");
        let rest = &self.source[inner..];
        let mut end = rest.len();
        let mut from = 0;
        while let Some(i) = rest[from..].find("{%") {
            let tag = rest[from + i + 2..].trim_start_matches(['-', '+', ' ', '\n', '\t']);
            if tag.starts_with("endraw") {
                end = from + i;
                break;
            }
            from += i + 2;
        }
        self.copy_marked(inner..inner + end);
        inner + end
    }

    /// A `{{` or `{%` tag to its end.
    fn copy_tag(&mut self, start: usize) -> usize {
        let bytes = self.source.as_bytes();
        let close: &[u8] = if bytes[start + 1] == b'{' {
            b"}}"
        } else {
            b"%}"
        };
        let mut at = start + 2;
        let mut copied = start;
        // Open brackets: whether texts in them are compared or searched for.
        let mut brackets: Vec<bool> = Vec::new();
        let mut before = Before::default();
        while at < bytes.len() {
            match bytes[at] {
                quote @ (b'\'' | b'"') => {
                    let end = string_end(bytes, at, quote);
                    let inside = brackets.last().copied().unwrap_or(false);
                    let compared = inside || before.compares || compares_next(&self.source[end..]);
                    if !compared {
                        self.out.push_str(&self.source[copied..at + 1]);
                        let last = end.max(at + 2) - 1;
                        self.copy_literal(at + 1..last);
                        copied = last;
                    }
                    before = Before::default();
                    at = end;
                }
                open @ (b'(' | b'[' | b'{') => {
                    let outer = brackets.last().copied().unwrap_or(false);
                    brackets.push(outer || before.compares || (open == b'(' && before.searches));
                    before = Before::default();
                    at += 1;
                }
                b')' | b']' | b'}' if !brackets.is_empty() => {
                    brackets.pop();
                    before = Before::default();
                    at += 1;
                }
                _ if brackets.is_empty() && bytes[at..].starts_with(close) => {
                    at += 2;
                    break;
                }
                c if c.is_ascii_alphabetic() || c == b'_' => {
                    let rest = &bytes[at..];
                    let word = |c: &u8| c.is_ascii_alphanumeric() || *c == b'_';
                    let length = rest.iter().take_while(|c| word(c)).count();
                    let name = &self.source[at..at + length];
                    before = Before {
                        compares: name == "in",
                        searches: SEARCHES.contains(&name),
                    };
                    at += length;
                }
                b'=' | b'!' | b'<' | b'>' => {
                    let two = bytes.get(at + 1) == Some(&b'=');
                    before = Before {
                        compares: two || matches!(bytes[at], b'<' | b'>'),
                        searches: false,
                    };
                    at += if two { 2 } else { 1 };
                }
                c if c.is_ascii_whitespace() => at += 1,
                _ => {
                    before = Before::default();
                    at += 1;
                }
            }
        }
        self.out.push_str(&self.source[copied..at]);
        at
    }

    /// The inside of a string literal; an escape ends what is matched.
    fn copy_literal(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while let Some(i) = self.source[at..range.end].find('\\') {
            self.copy_marked(at..at + i);
            let escaped = self.source[at + i + 1..].chars().next();
            let end = at + i + 1 + escaped.map_or(0, char::len_utf8);
            self.out.push_str(&self.source[at + i..end.min(range.end)]);
            at = end.min(range.end);
        }
        self.copy_marked(at..range.end);
    }

    fn copy_marked(&mut self, range: Range<usize>) {
        let text = &self.source[range];
        let mut own = vec![false; text.len()];
        for (start, spelling) in occurrences(text, self.spellings) {
            own[start..start + spelling.len()].fill(true);
        }
        for spelling in self.spellings {
            let cuts = spelling.char_indices().map(|(i, _)| i).skip(1);
            for cut in cuts {
                let (head, tail) = spelling.split_at(cut);
                if !head.starts_with(char::is_alphanumeric) && text.ends_with(head) {
                    own[text.len() - head.len()..].fill(true);
                }
                if !tail.ends_with(char::is_alphanumeric) && text.starts_with(tail) {
                    own[..tail.len()].fill(true);
                }
            }
        }
        for (i, c) in text.char_indices() {
            self.out.push(if own[i] { stand_in(c) } else { c });
        }
    }
}

/// What stands directly before a token inside a tag.
#[derive(Default)]
struct Before {
    compares: bool,
    searches: bool,
}

/// Methods and filters that search a text for their arguments.
const SEARCHES: &[&str] = &[
    "count",
    "endswith",
    "find",
    "index",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "startswith",
    "strip",
    "trim",
];

/// Whether the text is the left side of a comparison.
fn compares_next(rest: &str) -> bool {
    let rest = rest.trim_start();
    let word = |name: &str| {
        rest.strip_prefix(name)
            .is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    rest.starts_with("==") || rest.starts_with("!=") || word("in") || word("not")
}

fn find_tag(source: &str, from: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1))
        .find(|i| bytes[*i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
}

fn is_raw(tag: &str) -> bool {
    let name = tag[2..].trim_start_matches(['-', '+', ' ', '\n', '\t']);
    name.starts_with("raw")
        && name[3..]
            .trim_start_matches([' ', '\n', '\t', '-', '+'])
            .starts_with("%}")
}

/// One after the closing quote.
fn string_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// The ranges of `text` that are stand-ins in `twin`, in bytes. None when the two differ otherwise:
/// the template then does not treat its own text as text alone.
pub fn own_ranges(text: &str, twin: &str) -> Option<Vec<Range<usize>>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut twins = twin.chars();
    for (start, c) in text.char_indices() {
        let other = twins.next()?;
        if other == c {
            continue;
        }
        if other != stand_in(c) {
            return None;
        }
        let end = start + c.len_utf8();
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    twins.next().is_none().then_some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str) -> String {
        let spellings =
            ["<|im_end|>", "<|user|>", "<think>", "</think>", "</s>"].map(str::to_owned);
        let marked = mark_source(source, &spellings);
        // Stand-ins as upper case and brackets, to be read.
        marked
            .chars()
            .map(
                |c| match u32::from(c).checked_sub(PLANE).and_then(char::from_u32) {
                    Some('<') => '«',
                    Some('>') => '»',
                    Some(plain) => plain.to_ascii_uppercase(),
                    None => c,
                },
            )
            .collect()
    }

    #[test]
    fn printed_text_is_marked_and_compared_text_is_not() {
        for (source, expected) in [
            ("a<|im_end|>b", "a«|IM_END|»b"),
            ("{{ '<|im_end|>' + x }}", "{{ '«|IM_END|»' + x }}"),
            (
                "{% set x = \"\\n</think>\\n\" %}",
                "{% set x = \"\\n«/THINK»\\n\" %}",
            ),
            (
                "{{ x.split('</think>')[0] ~ '<think>' }}",
                "{{ x.split('</think>')[0] ~ '«THINK»' }}",
            ),
            ("{% if '</think>' in x %}", "{% if '</think>' in x %}"),
            (
                "{% if '</think>' not in x %}",
                "{% if '</think>' not in x %}",
            ),
            (
                "{% if x == '</think>' or '<think>' == x %}",
                "{% if x == '</think>' or '<think>' == x %}",
            ),
            (
                "{% if x in ['<think>', ('</s>')] %}",
                "{% if x in ['<think>', ('</s>')] %}",
            ),
            (
                "{{ x | replace('<think>', '</s>') }}",
                "{{ x | replace('<think>', '</s>') }}",
            ),
            ("{{ write('<think>') }}", "{{ write('«THINK»') }}"),
            ("<|{{ role }}|>", "«|{{ role }}|»"),
            ("{{ '<|' ~ role ~ '|>' }}", "{{ '«|' ~ role ~ '|»' }}"),
            ("{# <think> #}<think>", "{# <think> #}«THINK»"),
            (
                "{% raw %}{{ '<think>' }}{% endraw %}",
                "{% raw %}{{ '«THINK»' }}{% endraw %}",
            ),
            ("{{ 'it\\'s </s>' }}</s>", "{{ 'it\\'s «/S»' }}«/S»"),
            ("{{ {'a': '}}</s>'} }}", "{{ {'a': '}}«/S»'} }}"),
            ("{% set mode = 'user' %}", "{% set mode = 'user' %}"),
            ("{{ '", "{{ '"),
            ("{{ '\\", "{{ '\\"),
        ] {
            assert_eq!(shown(source), expected, "{source}");
        }
    }

    #[test]
    fn only_stand_ins_are_the_templates_own() {
        let twin = format!("{}a{}", marked("<s>"), marked("</s>"));
        assert_eq!(own_ranges("<s>a</s>", &twin), Some(vec![0..3, 4..8]));
        assert_eq!(own_ranges("<s>", "<s>"), Some(vec![]));
        // A client's own characters of that plane are equal in both texts.
        let sent = marked("<s>");
        assert_eq!(own_ranges(&sent, &sent), Some(vec![]));
        assert_eq!(own_ranges("ab", "b"), None);
        assert_eq!(own_ranges("a", "ab"), None);
        assert_eq!(own_ranges("a", "b"), None);
    }
}
