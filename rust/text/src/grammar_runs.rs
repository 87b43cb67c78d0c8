//! Masks of states in which many bytes are alike.
//!
//! llguidance walks the trie of all tokens for a mask, byte by byte: up to 500,000 steps for "any seven
//! printable characters" over 128,000 tokens, which is milliseconds. Its slices are a shortcut for the
//! strings of JSON alone. Here a state's *run* over a class of bytes is found first: the states after
//! one byte of the class, after two, and so on, as long as it does not matter which byte of the class
//! came. Tokens of the class that are no longer than the run are allowed all at once. Other tokens are
//! walked from the place where they leave the run, and only those that leave it by a byte that the
//! state there admits.

use std::sync::Arc;

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use toktrie::{Recognizer, SimpleVob, TokTrie, TrieNode};

/// Of the slices that llguidance has for strings of JSON, the index of the one for tokens of up to ten
/// characters.
const SHORT_STRINGS: usize = 1;
const SHORT_STRING_LENGTH: usize = 10;

/// A run that allows less than 1/64 of the vocabulary saves no time.
const LEAST_SHARE: usize = 64;

/// Longer tokens are walked from the end of a run.
const LONGEST_RUN: usize = 32;

/// The classes, larger ones first.
const CLASSES: [fn(u8) -> bool; 6] = [
    |b| (b' '..=b'~').contains(&b),
    |b| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\',
    |b| b.is_ascii_alphanumeric() || b == b' ',
    |b| b.is_ascii_alphanumeric() || b == b'_',
    |b| b.is_ascii_alphabetic(),
    |b| b.is_ascii_lowercase(),
];

/// Computes masks; one for all matchers of a vocabulary. Any thread.
pub struct RunComputer {
    slices: Arc<SlicedBiasComputer>,
    nodes: Vec<Node>,
    classes: Vec<Class>,
}

/// A node of the trie, in the order of a walk: its subtree follows it.
struct Node {
    token: u32,
    size: u32, // of the subtree, with the node itself
    depth: u16,
    byte: u8,
}

const NO_TOKEN: u32 = u32::MAX;

struct Class {
    bytes: Vec<u8>,
    has: [bool; 256],
    /// `[i]`: the tokens of these bytes that are at most i bytes long, and their number.
    short: Vec<(SimpleVob, usize)>,
    /// Nodes whose ancestors all have bytes of the class, by depth and own byte; their own byte may
    /// lie outside it.
    below: Vec<u32>,
    /// `[depth - 1][byte]`: where they are in `below`, and the sizes of their subtrees.
    lists: Vec<Vec<(std::ops::Range<u32>, usize)>>,
}

struct Run<'a> {
    class: &'a Class,
    /// The state before the run, after one byte, ...
    states: Vec<StateID>,
}

impl Run<'_> {
    fn length(&self) -> usize {
        self.states.len() - 1
    }

    fn tokens(&self) -> &(SimpleVob, usize) {
        &self.class.short[self.length()]
    }
}

impl RunComputer {
    pub fn new(slices: Arc<SlicedBiasComputer>) -> Self {
        let mut nodes = Vec::new();
        let trie = slices.trie();
        copy_subtree(trie, trie.root(), 0, &mut nodes);
        let classes = CLASSES
            .iter()
            .map(|has| Class::new(has, trie, &nodes))
            .collect();
        Self {
            slices,
            nodes,
            classes,
        }
    }

    /// The mask by the longest run. None: the state has none that pays.
    fn by_run(&self, rec: &mut ParserRecognizer<'_>) -> Option<SimpleVob> {
        let start = rec.lexer_state();
        // Lexemes that end at their first chance may give bytes back, so those matter.
        if !rec.lexer_mut().subsume_possible(start) {
            return None;
        }
        let run = self.best_run(rec, start)?;
        // A slice knows all of Unicode.
        if run.length() >= SHORT_STRING_LENGTH
            && rec
                .lexer_mut()
                .check_subsume(start, SHORT_STRINGS, 1000)
                .ok()?
        {
            return None;
        }
        let lists = self.lists_beyond(rec, &run)?;
        let mut mask = self.trie().alloc_token_set();
        mask.or(&run.tokens().0);
        rec.trie_started("runs");
        let mut depth = 0;
        for (after, list) in lists {
            while depth < after {
                assert!(rec.try_push_byte(run.class.bytes[0]));
                depth += 1;
            }
            for node in &run.class.below[list.start as usize..list.end as usize] {
                self.walk(rec, *node as usize, &mut mask);
            }
        }
        rec.pop_bytes(depth);
        rec.trie_finished();
        Some(mask)
    }

    fn best_run(&self, rec: &mut ParserRecognizer<'_>, start: StateID) -> Option<Run<'_>> {
        let mut best: Option<Run> = None;
        for class in &self.classes {
            let most = best.as_ref().map_or(0, |run| run.tokens().1);
            if class.short.last().is_none_or(|(_, all)| *all <= most) {
                continue;
            }
            let run = Run {
                class,
                states: states_of(rec, class, start),
            };
            if run.tokens().1 > most {
                best = Some(run);
            }
        }
        best.filter(|run| run.tokens().1 > self.trie().vocab_size() / LEAST_SHARE)
    }

    /// What has to be walked beside the run: lists of `below`, with the number of bytes before each.
    /// None if the whole trie might as well be walked.
    fn lists_beyond(
        &self,
        rec: &mut ParserRecognizer<'_>,
        run: &Run,
    ) -> Option<Vec<(usize, std::ops::Range<u32>)>> {
        let mut beyond = Vec::new();
        let mut size = 0;
        for (depth, (state, lists)) in run.states.iter().zip(&run.class.lists).enumerate() {
            for (byte, (list, nodes)) in lists.iter().enumerate() {
                let in_run = depth < run.length() && run.class.has[byte];
                let taken = !in_run
                    && !list.is_empty()
                    && !rec
                        .lexer_mut()
                        .advance(*state, byte as u8, false)
                        .is_error();
                if taken {
                    size += nodes;
                    beyond.push((depth, list.clone()));
                }
            }
        }
        (size < self.nodes.len() / 2).then_some(beyond)
    }

    /// The tokens of a subtree, from the state before its first node.
    fn walk(&self, rec: &mut ParserRecognizer<'_>, first: usize, mask: &mut SimpleVob) {
        let base = self.nodes[first].depth;
        let end = first + self.nodes[first].size as usize;
        let mut pushed = 0;
        let mut at = first;
        while at < end {
            let node = &self.nodes[at];
            let above = usize::from(node.depth - base);
            rec.pop_bytes(pushed - above);
            pushed = above;
            if rec.try_push_byte(node.byte) {
                pushed += 1;
                if node.token != NO_TOKEN {
                    mask.allow_token(node.token);
                }
                at += 1;
            } else {
                at += node.size as usize;
            }
        }
        rec.pop_bytes(pushed);
    }
}

impl BiasComputer for RunComputer {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let run = start.is_empty().then(|| self.by_run(rec)).flatten();
        run.unwrap_or_else(|| self.slices.compute_bias(rec, start))
    }

    fn trie(&self) -> &TokTrie {
        self.slices.trie()
    }
}

impl Class {
    fn new(has: &fn(u8) -> bool, trie: &TokTrie, nodes: &[Node]) -> Self {
        let has: [bool; 256] = std::array::from_fn(|byte| has(byte as u8));
        let bytes = (0..=255u8).filter(|byte| has[usize::from(*byte)]).collect();
        let mut short: Vec<(SimpleVob, usize)> = vec![(trie.alloc_token_set(), 0)];
        let mut lists: Vec<Vec<Vec<u32>>> = Vec::new();
        let mut at = 1; // below the root
        while at < nodes.len() {
            let node = &nodes[at];
            let depth = usize::from(node.depth);
            if lists.len() < depth {
                lists.push(vec![Vec::new(); 256]);
            }
            lists[depth - 1][usize::from(node.byte)].push(at as u32);
            if !has[usize::from(node.byte)] || depth > LONGEST_RUN {
                at += node.size as usize;
                continue;
            }
            while short.len() <= depth {
                short.push((trie.alloc_token_set(), 0));
            }
            if node.token != NO_TOKEN {
                short[depth].0.allow_token(node.token);
                short[depth].1 += 1;
            }
            at += 1;
        }
        for depth in 1..short.len() {
            let (shorter, rest) = short.split_at_mut(depth);
            rest[0].0.or(&shorter[depth - 1].0);
            rest[0].1 += shorter[depth - 1].1;
        }
        let mut below = Vec::new();
        let mut place = |list: &Vec<u32>| {
            let first = below.len() as u32;
            below.extend(list);
            let size = list
                .iter()
                .map(|node| nodes[*node as usize].size as usize)
                .sum();
            (first..below.len() as u32, size)
        };
        let lists = lists
            .iter()
            .map(|row| row.iter().map(&mut place).collect())
            .collect();
        Self {
            bytes,
            has,
            short,
            below,
            lists,
        }
    }

    fn longest(&self) -> usize {
        self.short.len() - 1
    }
}

/// The states of the run from `start`, itself among them.
fn states_of(rec: &mut ParserRecognizer<'_>, class: &Class, start: StateID) -> Vec<StateID> {
    let mut states = vec![start];
    while states.len() <= class.longest() {
        let state = states[states.len() - 1];
        let lexer = rec.lexer_mut();
        let next = lexer.transition_start_state(state, Some(class.bytes[0]));
        let alike = !next.is_dead()
            && !next.has_lowest_match()
            && class.bytes[1..]
                .iter()
                .all(|byte| lexer.transition_start_state(state, Some(*byte)) == next);
        if !alike {
            break;
        }
        states.push(next);
    }
    states
}

fn copy_subtree(trie: &TokTrie, node: &TrieNode, depth: u16, nodes: &mut Vec<Node>) {
    let size = node.subtree_size() as u32;
    let token = node.token_id().unwrap_or(NO_TOKEN);
    nodes.push(Node {
        token,
        size,
        depth,
        byte: node.byte(),
    });
    for child in trie.node_children(node) {
        copy_subtree(trie, child, depth + 1, nodes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::{
        ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, INVALID_TOKEN,
    };
    use llguidance::{Matcher, ParserFactory};
    use serde_json::json;

    use super::*;

    /// Compares each mask by a run with llguidance's own.
    struct Compared {
        runs: RunComputer,
        by_run: AtomicUsize,
    }

    impl BiasComputer for Compared {
        fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
            let by_run = start.is_empty().then(|| self.runs.by_run(rec)).flatten();
            let walked = self.runs.slices.compute_bias(rec, start);
            if let Some(mask) = by_run {
                let differ = |id: &u32| mask.is_allowed(*id) != walked.is_allowed(*id);
                let trie = self.runs.trie();
                let wrong: Vec<_> = (0..trie.vocab_size() as u32).filter(differ).collect();
                assert!(wrong.is_empty(), "{}", trie.tokens_dbg(&wrong));
                self.by_run.fetch_add(1, Ordering::Relaxed);
            }
            walked
        }

        fn trie(&self) -> &TokTrie {
            self.runs.trie()
        }
    }

    fn next(random: &mut u64, below: usize) -> usize {
        *random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (*random >> 33) as usize % below
    }

    /// Every byte, words of all classes, words beyond ASCII, one longer than any run.
    fn vocabulary() -> Vec<Vec<u8>> {
        let letters = [
            "a", "e", "n", "st", "B", "Q", "7", "_", " ", "\"", "\\", "-", "\u{e9}", "\u{4e2d}",
            "\n",
        ];
        let mut words: Vec<_> = (0..255u8).map(|byte| vec![byte]).collect();
        let mut random = 7;
        for _ in 0..6000 {
            let length = 1 + next(&mut random, 7);
            let plain = if next(&mut random, 4) == 0 {
                letters.len()
            } else {
                6
            };
            words.push(
                (0..length)
                    .flat_map(|_| letters[next(&mut random, plain)].bytes())
                    .collect(),
            );
        }
        words.push(vec![b'a'; LONGEST_RUN + 5]);
        words.sort();
        words.dedup();
        words
    }

    /// Masks of outputs at random, and how many of them a run gave.
    fn masks_by_runs(grammar: TopLevelGrammar) -> usize {
        let words = vocabulary();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, INVALID_TOKEN), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).unwrap();
        let compared = Arc::new(Compared {
            runs: RunComputer::new(factory.slicer()),
            by_run: AtomicUsize::new(0),
        });
        let mut parser = factory.create_parser(grammar).unwrap();
        parser.bias_computer = compared.clone();
        let mut random = 1;
        for _ in 0..8 {
            let mut matcher = Matcher::new(Ok(parser.deep_clone()));
            for _ in 0..40 {
                if matcher.is_stopped() {
                    break;
                }
                let mask = matcher.compute_mask().unwrap();
                let allowed: Vec<u32> = mask.iter().collect();
                if allowed.is_empty() {
                    break;
                }
                matcher
                    .consume_token(allowed[next(&mut random, allowed.len())])
                    .unwrap();
            }
        }
        compared.by_run.load(Ordering::Relaxed)
    }

    #[test]
    fn a_run_gives_the_mask_that_a_walk_gives() {
        for regex in [
            r"[ -~]{7}(aest|Quen|7_7)[ -~]{3}x",
            r"[ -~]{200}",
            r"(a|e|[ -~]{5})n[^\n]{0,9}-",
            r"[a-z]{1,12}( [a-z]{1,12}){0,3}",
            r"[A-Za-z0-9_]{2,30}@[a-z]+\.com",
            r#""[^"]{0,20}""#,
            r"(.{4}|a.{2})n[a-zA-Z0-9 ]*",
        ] {
            assert!(
                masks_by_runs(TopLevelGrammar::from_regex(regex)) > 0,
                "{regex}"
            );
        }
    }

    #[test]
    fn strings_of_json_with_a_length_and_words_of_a_rule_have_runs() {
        let schema = json!({"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 6},
            "code": {"type": "string", "pattern": "^[a-z]{3,8}$"},
        }, "required": ["name", "code"], "additionalProperties": false});
        assert!(masks_by_runs(TopLevelGrammar::from_json_schema(schema)) > 0);
        let rules = "start: (WORD \" \")* NUMBER\nWORD: /[a-z]+/\nNUMBER: /[0-9]{1,4}/";
        assert!(masks_by_runs(TopLevelGrammar::from_lark(rules.to_owned())) > 0);
    }

    #[test]
    fn the_slice_of_short_strings_is_where_it_is_expected() {
        let slices = SlicedBiasComputer::general_slices();
        let length = format!("{{1,{SHORT_STRING_LENGTH}}}");
        assert!(slices[SHORT_STRINGS].ends_with(&length), "{slices:?}");
    }

    #[test]
    fn lexemes_that_end_at_their_first_chance_are_walked() {
        let rules = "start: body \"n\"\nbody[lazy]: /[ -~]{2,9}-/".to_owned();
        assert_eq!(masks_by_runs(TopLevelGrammar::from_lark(rules)), 0);
    }
}
