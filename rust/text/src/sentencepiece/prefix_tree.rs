//! All keys of a set that a text starts with.

use std::ops::Range;

/// A byte trie; the children of a node lie side by side, sorted by their byte.
#[derive(Debug, Clone, Default)]
pub struct PrefixTree {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone)]
struct Node {
    byte: u8,
    value: Option<u32>,
    children: Range<u32>,
}

impl PrefixTree {
    /// Of two equal keys the first counts.
    pub fn new<'a>(keys: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut keys: Vec<(&[u8], u32)> =
            keys.map(|(key, value)| (key.as_bytes(), value)).collect();
        keys.sort_by_key(|(key, _)| *key);
        keys.dedup_by_key(|(key, _)| *key);
        let mut nodes = vec![Node {
            byte: 0,
            value: None,
            children: 0..0,
        }];
        // Level by level: each node with the range of keys below it.
        let mut level = vec![(0, 0..keys.len())];
        let mut depth = 0;
        while !level.is_empty() {
            let mut next = Vec::new();
            for (node, mut range) in level {
                if range.start < range.end && keys[range.start].0.len() == depth {
                    nodes[node].value = Some(keys[range.start].1);
                    range.start += 1;
                }
                let first = nodes.len();
                while range.start < range.end {
                    let byte = keys[range.start].0[depth];
                    let below = keys[range.clone()].partition_point(|(key, _)| key[depth] == byte);
                    next.push((nodes.len(), range.start..range.start + below));
                    nodes.push(Node {
                        byte,
                        value: None,
                        children: 0..0,
                    });
                    range.start += below;
                }
                nodes[node].children = first as u32..nodes.len() as u32;
            }
            level = next;
            depth += 1;
        }
        Self { nodes }
    }

    /// Length and value of each key that `text` starts with, shortest first.
    pub fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = self.nodes.first();
        let mut depth = 0;
        std::iter::from_fn(move || loop {
            let children = node?.children.clone();
            let children = &self.nodes[children.start as usize..children.end as usize];
            let byte = text.get(depth)?;
            let found = children.binary_search_by_key(byte, |child| child.byte);
            node = found.ok().map(|at| &children[at]);
            depth += 1;
            if let Some(value) = node?.value {
                return Some((depth, value));
            }
        })
    }

    pub fn longest(&self, text: &[u8]) -> Option<usize> {
        self.prefixes(text).last().map(|(len, _)| len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_key_that_starts_the_text() {
        let keys = ["a", "abc", "ab", "b", "ü", "abc"];
        let tree = PrefixTree::new(keys.into_iter().zip(0..));
        let found = |text: &str| tree.prefixes(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(found("abcd"), [(1, 0), (2, 2), (3, 1)]);
        assert_eq!(found("ü"), [(2, 4)]);
        assert_eq!(found("x"), []);
        assert_eq!(found(""), []);
        assert_eq!(tree.longest(b"abd"), Some(2));
        assert_eq!(PrefixTree::new(std::iter::empty()).longest(b"a"), None);
    }
}
