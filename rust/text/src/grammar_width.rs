//! How much of an automaton a regular expression makes, from its text alone.

/// Characters of a pattern that are counted at most.
const MAX_WIDTH: u64 = 1 << 20;

/// The characters of a regular expression, repeats written out: about the states of its automaton.
pub fn width(pattern: &str) -> u64 {
    let mut chars = pattern.chars().peekable();
    let mut open: Vec<u64> = Vec::new();
    let (mut total, mut last) = (0u64, 0u64);
    while let Some(c) = chars.next() {
        match c {
            '(' => {
                open.push(total);
                (total, last) = (0, 0);
            }
            ')' => {
                last = total;
                total += open.pop().unwrap_or(0);
            }
            '{' => {
                let repeat: String = std::iter::from_fn(|| chars.next_if(|c| *c != '}')).collect();
                let counts = repeat
                    .split(',')
                    .filter_map(|count| count.trim().parse::<u64>().ok());
                let repeated = last
                    .saturating_mul(counts.max().unwrap_or(1).max(1))
                    .min(MAX_WIDTH);
                total = total - last + repeated;
                last = repeated;
            }
            '}' | '*' | '+' | '?' | '^' | '$' => {}
            '|' => last = 0,
            _ => {
                if c == '\\' {
                    chars.next();
                }
                if c == '[' {
                    skip_class(&mut chars);
                }
                total += 1;
                last = 1;
            }
        }
        total = total.min(MAX_WIDTH);
        last = last.min(total);
    }
    open.iter()
        .fold(total, |sum, outer| sum + outer)
        .min(MAX_WIDTH)
}

/// Up to its end; the first character may be the bracket that else ends it.
fn skip_class(chars: &mut std::iter::Peekable<std::str::Chars>) {
    chars.next_if_eq(&'^');
    let mut depth = 1;
    let mut is_first = true;
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '[' => depth += 1,
            ']' if !is_first => depth -= 1,
            _ => {}
        }
        is_first = false;
        if depth == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_count_repeats() {
        for (pattern, wanted) in [
            ("", 0),
            ("^abc$", 3),
            (r"\d[^]a]x*", 3),
            ("a{3}", 3),
            ("(ab){2,5}c", 11),
            ("((a{9}){9}){9}", 729),
            ("a{3", 3),
            (r"\p{L}|b", 2),
        ] {
            assert_eq!(width(pattern), wanted, "{pattern}");
        }
        assert_eq!(width("((a{9999}){9999}){9999}"), MAX_WIDTH);
    }
}
