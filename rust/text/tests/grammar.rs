//! Grammars over real vocabularies: what each kind accepts, that masks and tokens agree, and grammars
//! made to cost too much.

use std::path::PathBuf;

use serde_json::json;
use tandem_text::GrammarKind::{self, *};
use tandem_text::{Error, GrammarCompiler, GrammarLimits, GrammarMatcher, TextTokenizer};

mod hostile_to_checks;

struct Fixture {
    tokenizer: TextTokenizer,
    compiler: GrammarCompiler,
    end: u32,
}

fn fixture(name: &str) -> Fixture {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tokenizers");
    let tokenizer = TextTokenizer::load(&folder.join(name)).unwrap();
    let vocab = tokenizer.vocab_size();
    let compiler = GrammarCompiler::new(&tokenizer, vocab, GrammarLimits::default());
    let end = tokenizer.eos()[0];
    Fixture {
        tokenizer,
        compiler,
        end,
    }
}

impl Fixture {
    fn compile(&self, kind: GrammarKind, text: &str) -> GrammarMatcher {
        self.compiler.compile(kind, text).unwrap()
    }

    fn refusal(&self, kind: GrammarKind, text: &str) -> Error {
        match self.compiler.compile(kind, text) {
            Ok(_) => panic!("accepted: {}", &text[..text.len().min(200)]),
            Err(error) => error,
        }
    }

    /// The longest token at each place: encoders of some tokenizers put a space before a text.
    fn encode(&self, text: &str) -> Vec<u32> {
        let ordinary = |id: &u32| !self.tokenizer.is_special(*id);
        let mut rest = text.as_bytes();
        let mut tokens = Vec::new();
        while !rest.is_empty() {
            let fits = (0..self.tokenizer.vocab_size() as u32)
                .filter(ordinary)
                .filter(|id| rest.starts_with(self.tokenizer.token_bytes(*id)));
            let token = fits
                .max_by_key(|id| self.tokenizer.token_bytes(*id).len())
                .unwrap();
            rest = &rest[self.tokenizer.token_bytes(token).len()..];
            tokens.push(token);
        }
        tokens
    }

    fn mask(&self, matcher: &mut GrammarMatcher) -> Vec<u32> {
        let mut words = vec![u32::MAX; self.tokenizer.vocab_size().div_ceil(32)];
        matcher.fill_mask(&mut words, &[self.end]).unwrap();
        words
    }

    /// Walks the text token by token; the masks must agree with what is taken.
    fn accepts(&self, start: &GrammarMatcher, text: &str) -> bool {
        let mut matcher = start.deep_clone();
        for token in self.encode(text) {
            let allowed = has(&self.mask(&mut matcher), token);
            assert_eq!(matcher.advance(&[token]).unwrap() == 1, allowed, "{text:?}");
            if !allowed {
                return false;
            }
        }
        let ends = matcher.is_accepting();
        assert_eq!(has(&self.mask(&mut matcher), self.end), ends, "{text:?}");
        ends
    }

    fn check(&self, kind: GrammarKind, grammar: &str, yes: &[&str], no: &[&str]) {
        let matcher = self.compile(kind, grammar);
        for text in yes {
            assert!(self.accepts(&matcher, text), "{grammar} refused {text:?}");
        }
        for text in no {
            assert!(!self.accepts(&matcher, text), "{grammar} took {text:?}");
        }
    }
}

fn has(mask: &[u32], token: u32) -> bool {
    mask[(token / 32) as usize] >> (token % 32) & 1 != 0
}

#[test]
fn each_kind_accepts_its_own() {
    for name in ["byte_level", "metaspace_bytes"] {
        let fixture = fixture(name);
        fixture.check(
            JsonObject,
            "",
            &["{}", r#"{"a": [1, null, "x"]}"#],
            &["", "[]", "1", "{"],
        );
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}},
                            "required": ["n"], "additionalProperties": false});
        fixture.check(
            JsonSchema,
            &schema.to_string(),
            &[r#"{"n": 12}"#, r#"{"n":-3}"#],
            &["{}", r#"{"n": "12"}"#, r#"{"n": 1, "m": 2}"#],
        );
        fixture.check(
            Regex,
            r"[0-9]{3}-[a-z]+/\d",
            &["123-abc/4"],
            &["12-abc/4", "123-abc/45"],
        );
        fixture.check(
            Choice,
            r##"["yes", "no", "a/b (c) \"d\"\n", "yes, é", "^$.*+?{2}[x]|\\<>#&-~ ;:@`'_="]"##,
            &[
                "yes",
                "no",
                "a/b (c) \"d\"\n",
                "yes, é",
                "^$.*+?{2}[x]|\\<>#&-~ ;:@`'_=",
            ],
            &["y", "maybe", "yesno", ""],
        );
        fixture.check(
            Lark,
            "start: \"<\" word (\",\" word)* \">\"\nword: /[a-z]+/",
            &["<a>", "<ab,c>"],
            &["<>", "<a", "<a,>"],
        );
        fixture.check(
            Lark,
            "root ::= expr\nexpr ::= term ([-+] term)*\nterm ::= num | \"(\" expr \")\"\nnum ::= [0-9]+",
            &["1", "1+22", "(1-2)+3"],
            &["", "1+", "(1", "a"],
        );
        fixture.check(
            Guidance,
            r#"{"grammars": [{"lark_grammar": "start: \"x\" @sub"},
                             {"name": "sub", "json_schema": {"type": "null"}}]}"#,
            &["xnull"],
            &["x", "null"],
        );
    }
}

#[test]
fn tokens_taken_can_be_taken_back() {
    let fixture = fixture("byte_level");
    let mut matcher = fixture.compile(Regex, "abc|abd|xyz");
    let start = fixture.mask(&mut matcher);
    let tokens = fixture.encode("abd");
    for kept in 0..=tokens.len() {
        assert_eq!(matcher.advance(&tokens).unwrap(), tokens.len());
        assert!(matcher.is_complete());
        matcher.roll_back(tokens.len() - kept).unwrap();
        assert_eq!(matcher.is_complete(), kept == tokens.len());
        matcher.roll_back(kept).unwrap();
        assert_eq!(fixture.mask(&mut matcher), start);
    }
}

#[test]
fn tokens_that_do_not_fit_are_left() {
    let fixture = fixture("byte_level");
    let mut matcher = fixture.compile(Regex, "abcabc");
    let before = fixture.mask(&mut matcher);
    assert_eq!(matcher.advance(&fixture.encode("?")).unwrap(), 0);
    assert_eq!(fixture.mask(&mut matcher), before, "unchanged");
}

#[test]
fn after_a_whole_output_only_end_tokens_are_left() {
    let fixture = fixture("byte_level");
    let mut matcher = fixture.compile(Choice, r#"["ab"]"#);
    assert!(!has(&fixture.mask(&mut matcher), fixture.end));
    matcher.advance(&fixture.encode("ab")).unwrap();
    let mask = fixture.mask(&mut matcher);
    let left: Vec<u32> = (0..fixture.tokenizer.vocab_size() as u32)
        .filter(|id| has(&mask, *id))
        .collect();
    assert_eq!(left, [fixture.end]);
    // A constraint before this one may have barred it.
    let mut words = vec![0; mask.len()];
    matcher.fill_mask(&mut words, &[fixture.end]).unwrap();
    assert!(words.iter().all(|word| *word == 0));
}

#[test]
fn tokens_beyond_the_model_are_barred() {
    let fixture = fixture("byte_level");
    let small = GrammarCompiler::new(&fixture.tokenizer, 40, GrammarLimits::default());
    let mut matcher = small.compile(Regex, "(?s:.*)").unwrap();
    let mut words = vec![u32::MAX; 16];
    matcher.fill_mask(&mut words, &[]).unwrap();
    assert!(words[0] != 0);
    assert_eq!(words[1] >> 8, 0);
    assert!(words[2..].iter().all(|word| *word == 0));
}

#[test]
fn blanks_in_json_come_to_an_end() {
    let fixture = fixture("byte_level");
    let mut matcher = fixture.compile(JsonSchema, r#"{"const": [1, "  "]}"#);
    matcher.advance(&fixture.encode("[")).unwrap();
    let space = fixture.encode(" ")[0];
    let line = fixture.encode("\n")[0];
    let before = fixture.mask(&mut matcher);
    assert!(has(&before, space) && has(&before, line));
    for blank in [space, line].repeat(20) {
        assert!(has(&fixture.mask(&mut matcher), blank));
        matcher.advance(&[blank]).unwrap();
    }
    let mask = fixture.mask(&mut matcher);
    assert!(!has(&mask, space) && !has(&mask, line));
    assert!(has(&mask, fixture.encode("1")[0]));
    matcher.roll_back(1).unwrap();
    assert!(has(&fixture.mask(&mut matcher), space));
    // Where nothing else fits they go on.
    let mut matcher = fixture.compile(JsonSchema, &json!({"const": " ".repeat(60)}).to_string());
    matcher.advance(&fixture.encode("\"")).unwrap();
    for _ in 0..60 {
        assert!(has(&fixture.mask(&mut matcher), space));
        assert_eq!(matcher.advance(&[space]).unwrap(), 1);
    }
    assert_eq!(matcher.advance(&fixture.encode("\"")).unwrap(), 1);
    assert!(matcher.is_complete());
}

#[test]
fn without_end_ids_the_end_is_no_token() {
    let fixture = fixture("byte_level");
    let mut matcher = fixture.compile(Regex, "a*");
    let mut words = vec![u32::MAX; fixture.tokenizer.vocab_size().div_ceil(32)];
    matcher.fill_mask(&mut words, &[]).unwrap();
    assert!(matcher.is_accepting());
    assert!(!has(&words, fixture.end));
}

#[test]
fn a_grammar_may_name_special_tokens() {
    let fixture = fixture("byte_level");
    let end = fixture.end;
    let name = String::from_utf8_lossy(fixture.tokenizer.token_bytes(end)).into_owned();
    let other = (0..fixture.tokenizer.vocab_size() as u32)
        .find(|id| fixture.tokenizer.is_special(*id) && *id != end)
        .unwrap();
    let called = String::from_utf8_lossy(fixture.tokenizer.token_bytes(other)).into_owned();
    assert_ne!(name, called);
    let mut matcher = fixture.compile(Lark, &format!("start: \"a\" {called} \"b\""));
    matcher.advance(&fixture.encode("a")).unwrap();
    let mask = fixture.mask(&mut matcher);
    assert!(has(&mask, other) && !has(&mask, end));
    // As text it is not the token.
    let mut spelled = fixture.compile(Choice, &json!([called]).to_string());
    assert!(!has(&fixture.mask(&mut spelled), other));
}

#[test]
fn refusals_name_the_keyword() {
    let fixture = fixture("byte_level");
    let schema = json!({"type": "object", "not": {"required": ["a"]}, "if": true});
    let error = fixture.refusal(JsonSchema, &schema.to_string());
    assert_eq!(
        error.message,
        r#"the keywords "if", "not" of the JSON schema are not supported"#
    );
    // The same schema is taken where nothing strict was asked for.
    let loose = fixture.compile(LooseJsonSchema, &schema.to_string());
    assert!(fixture.accepts(&loose, r#"{"a": 1}"#));
    // Options of the client's own do not make it strict.
    let with_options =
        json!({"enum": ["a"], "if": true, "x-guidance": {"whitespace_flexible": false}});
    fixture.check(
        LooseJsonSchema,
        &with_options.to_string(),
        &["\"a\""],
        &["\"b\"", " \"a\""],
    );
    fixture.refusal(JsonSchema, &with_options.to_string());
    for (kind, text, wanted) in [
        (JsonSchema, "{", "the JSON schema cannot be read: EOF"),
        (JsonSchema, "[]", "the JSON schema must be an object"),
        (JsonSchema, r#"{"type": "tree"}"#, "Invalid type: tree"),
        (JsonSchema, r##"{"$ref": "#/$defs/x"}"##, "/$defs/x"),
        (
            JsonSchema,
            r#"{"$ref": "http://127.0.0.1:9/x"}"#,
            "127.0.0.1:9",
        ),
        (Regex, "(", "the regular expression is not supported"),
        (Regex, r"(a)\1", "the regular expression is not supported"),
        (Choice, "[]", "at least one string"),
        (Choice, r#"["a", 1]"#, "the list of choices cannot be read"),
        (Lark, "start: word", "word"),
        (Lark, "", "the grammar is not supported"),
        (Guidance, "{}", "grammars"),
    ] {
        let error = fixture.refusal(kind, text);
        assert!(error.message.contains(wanted), "{text}: {}", error.message);
        assert!(!error.message.contains("backtrace"), "{}", error.message);
        assert!(error.message.len() < 1000, "{}", error.message);
    }
}

/// A random token of a mask.
fn any_of(words: &[u32], seed: &mut u64) -> u32 {
    let count: u32 = words.iter().map(|word| word.count_ones()).sum();
    assert!(count > 0, "an empty mask without an error");
    *seed = seed
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    let wanted = (*seed >> 33) as u32 % count;
    (0..words.len() as u32 * 32)
        .filter(|id| has(words, *id))
        .nth(wanted as usize)
        .unwrap()
}

/// Random admitted tokens, until the end or a limit of the matcher.
fn walk(fixture: &Fixture, matcher: &mut GrammarMatcher, steps: usize, mut seed: u64) {
    for _ in 0..steps {
        let mut words = vec![u32::MAX; fixture.tokenizer.vocab_size().div_ceil(32)];
        if matcher.fill_mask(&mut words, &[fixture.end]).is_err() {
            break;
        }
        let token = any_of(&words, &mut seed);
        if token == fixture.end {
            break;
        }
        // The token may take the parser over a limit.
        match matcher.advance(&[token]) {
            Ok(taken) => assert_eq!(taken, 1),
            Err(_) => break,
        }
    }
}

/// Grammars that are deep, wide, ambiguous or endless.
fn hostile() -> Vec<(GrammarKind, &'static str, String)> {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    };
    let chain = |first: &str, line: &dyn Fn(usize) -> String, length: usize| {
        let lines: Vec<_> = (0..length).map(line).collect();
        format!("{first}\n{}", lines.join("\n"))
    };
    let words = |count: usize| -> Vec<String> {
        (0..count)
            .map(|i| format!("w{}", i * 7919 % 1_000_003))
            .collect()
    };
    let mut all = vec![
        (JsonSchema, "depth 100", nested(r#"{"items":"#, "{}", "}", 100)),
        (JsonSchema, "depth 10,000", nested(r#"{"items":"#, "{}", "}", 10_000)),
        (JsonSchema, "properties 100 deep", nested(r#"{"properties":{"a":"#, "{}", "}}", 60)),
        (JsonSchema, "anyOf 60 deep", nested(r#"{"anyOf":["#, "{}", r#",{"type":"null"}]}"#, 60)),
        (JsonSchema, "allOf 60 deep", nested(r#"{"allOf":["#, "{}", r#",{"minLength":2}]}"#, 60)),
        (JsonSchema, "enum of 25,000", json!({"enum": words(25_000)}).to_string()),
        (JsonSchema, "25,000 required", json!({"properties": {}, "required": words(25_000)}).to_string()),
        (JsonSchema, "2,000 properties", json!({"type": "object", "properties":
            words(2000).into_iter().map(|w| (w, json!({"type": "string"})))
                .collect::<serde_json::Map<_, _>>()}).to_string()),
        (JsonSchema, "minItems 1e9", json!({"type": "array", "minItems": 1_000_000_000}).to_string()),
        (JsonSchema, "maxItems 1e6", json!({"type": "array", "maxItems": 1_000_000}).to_string()),
        (JsonSchema, "minLength 1e9", json!({"type": "string", "minLength": 1_000_000_000}).to_string()),
        (JsonSchema, "maxLength 1e6", json!({"type": "string", "maxLength": 1_000_000}).to_string()),
        (JsonSchema, "maxProperties 1e6", json!({"type": "object", "maxProperties": 1_000_000}).to_string()),
        (JsonSchema, "minProperties 1e6", json!({"type": "object", "minProperties": 1_000_000}).to_string()),
        (JsonSchema, "multipleOf 1e-300", json!({"type": "number", "multipleOf": 1e-300}).to_string()),
        (JsonSchema, "multipleOf 999999999", json!({"type": "integer", "multipleOf": 999_999_999}).to_string()),
        (JsonSchema, "multipleOf 65,537", json!({"type": "integer", "multipleOf": 65_537}).to_string()),
        (JsonSchema, "bounds 1e308", json!({"type": "number", "minimum": -1e308, "maximum": 1e308}).to_string()),
        (JsonSchema, "ref to itself", r##"{"$ref": "#"}"##.into()),
        (JsonSchema, "refs in a ring", r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##.into()),
        (JsonSchema, "recursive tree", r##"{"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}}"##.into()),
        (JsonSchema, "pattern of 5,000^2", json!({"type": "string", "pattern": "^([a-z]{1,5000}){1,5000}$"}).to_string()),
        (JsonSchema, "nested repeats", json!({"type": "string", "pattern": "^(((a{1,99}){1,99}){1,99}){1,99}$"}).to_string()),
        (JsonSchema, "200 patterns", json!({"type": "object", "patternProperties":
            (0..200).map(|i| (format!("^a{i}[a-z]*b"), json!(true)))
                .collect::<serde_json::Map<_, _>>()}).to_string()),
        (JsonSchema, "non-ASCII at a cut", json!({"minimum": "é".repeat(200)}).to_string()),
        (JsonSchema, "minItems 1e9 and -1e18", json!({"properties": {"a": {"type": "array", "minItems": 1_000_000_000}},
            "default": {"minItems": -1e18}}).to_string()),
        (JsonSchema, "allOf of 59 patterns", json!({"allOf": (1..60)
            .map(|i| json!({"type": "string", "pattern": format!("^[a-z]*[a-m][a-z]{{{i}}}$")}))
            .collect::<Vec<_>>()}).to_string()),
        (JsonSchema, "two patterns 1,000 wide", json!({"allOf": [{"pattern": "^[a-z]*[a-m][a-z]{999}$"},
            {"pattern": "^[a-z]*[b-n][a-z]{999}$"}]}).to_string()),
        (Regex, "(a+)+b", "(a+)+b".into()),
        (Regex, "(a|aa)*b, alternatives", "(a|aa|aaa|aaaa)*b".into()),
        (Regex, "a{1000}{1000}", "((a{1000}){1000}){1000}".into()),
        (Regex, "subset blow-up", "(a|b)*a(a|b){300}".into()),
        (Regex, "unicode subset blow-up", r"\p{L}*[aé]\p{L}{60}x".into()),
        (Regex, "intersections", "[a-z]{1,99}[a-m]{1,99}[b-z]{1,99}[c-y]{1,99}x".into()),
        (Regex, "10,000 brackets", nested("(", "a", ")", 10_000)),
        (Regex, "190 brackets", nested("(a|", "b", ")*", 190)),
        (JsonSchema, "maxItems 10,000", json!({"type": "array", "maxItems": 10_000}).to_string()),
        (JsonSchema, "minItems 10,000", json!({"type": "array", "minItems": 10_000}).to_string()),
        (JsonSchema, "maxItems nested", json!({"maxItems": 9999, "items": {"maxItems": 9999, "items": {"maxItems": 9999}}}).to_string()),
        (JsonSchema, "many patterns", json!({"anyOf": (0..15).map(|_| json!({"pattern": "a*".repeat(8000)})).collect::<Vec<_>>()}).to_string()),
        (JsonSchema, "many maxItems", json!({"anyOf": (0..1000).map(|i| json!({"maxItems": 9000 + i, "items": {"const": i}})).collect::<Vec<_>>()}).to_string()),
        (JsonSchema, "12,000 required", json!({"properties": {}, "required": words(12_000)}).to_string()),
        (Regex, "8,000 stars", "a*".repeat(8_000)),
        (Lark, "16,000 stars", format!("start: /{}/", "a*".repeat(16_000))),
        (Lark, "terminal of stars", format!("start: T\nT: {}", "\"a\"*".repeat(8_000))),
        (Lark, "rule of stars", format!("start: {}", "\"a\"*".repeat(8_000))),
        (Lark, "regex of options", format!("start: /{}/", "(a?b)?".repeat(5_000))),
        (Lark, "maxItems in json", "start: %json {\"maxItems\": 1000000}".into()),
        (Regex, "2,700 options", "(a?b)?".repeat(2_700)),
        (Regex, "50,000 stars", "a*".repeat(50_000)),
        (Regex, "20,000 options", "(a?b)?".repeat(20_000)),
        (Choice, "20,000 choices", json!(words(20_000)).to_string()),
        (Choice, "one of 200,000 bytes", json!(["ab".repeat(100_000)]).to_string()),
        (Lark, "left recursion", "start: start \"a\" | start start | \"a\"".into()),
        (Lark, "ambiguous", "start: s\ns: s s s | s s | \"a\" | ".into()),
        (Lark, "empty for ever", "start: start | a\na: a a | ".into()),
        (Lark, "many lexemes", format!("start: ({})*", (0..2000).map(|i| format!("/a{{{i}}}[a-z]/")).collect::<Vec<_>>().join("|"))),
        (Lark, "10,000 brackets", format!("start: {}", nested("(", "\"a\"", ")", 10_000))),
        (Lark, "190 brackets", format!("start: {}", nested("(", "\"a\"", ")*", 190))),
        (Lark, "rule chain", chain("start: r0", &|i| format!("r{i}: \"a\" r{} | \"b\"", i + 1), 8000) + "\nr8000: \"c\""),
        (Lark, "terminal chain", chain("start: T0", &|i| format!("T{i}: \"a\" T{} | \"b\"", i + 1), 8000) + "\nT8000: \"c\""),
        (Lark, "terminal stars", chain("start: T0", &|i| format!("T{i}: (\"a\" T{})*", i + 1), 3000) + "\nT3000: \"c\""),
        (Lark, "doubling terminals", chain("start: T0", &|i| format!("T{i}: T{} T{}", i + 1, i + 1), 60) + "\nT60: \"c\""),
        (Lark, "doubling rules", chain("start: r0", &|i| format!("r{i}: r{} r{}", i + 1, i + 1), 60) + "\nr60: \"c\" | \"d\""),
        (Lark, "repeat 1e9", "start: (\"a\" \"b\"?){1,1000000000}".into()),
        (Lark, "repeat nested", "start: ((((\"a\"){1,999} \"b\"?){1,999} \"c\"?){1,999}){1,999}".into()),
        (Lark, "json inside", format!("start: %json {}", json!({"enum": words(5000)}))),
        (Guidance, "1,000 grammars", json!({"grammars": (0..1000)
            .map(|i| json!({"name": format!("g{i}"), "json_schema": {"type": "object"}}))
            .collect::<Vec<_>>()}).to_string()),
    ];
    all.extend(hostile_to_checks::grammars());
    all.retain(|(_, _, text)| text.len() <= 256 << 10);
    all
}

#[test]
fn hostile_grammars_end_only_their_request() {
    for (kind, name, text) in hostile() {
        // Its own: one that takes too long works on for a while.
        let fixture = fixture("byte_level");
        if let Ok(mut matcher) = fixture.compiler.compile(kind, &text) {
            walk(&fixture, &mut matcher, 64, 1);
        }
        assert_eq!(fixture.compiler.asleep(), 0, "{name}: leaks");
        assert!(fixture.compiler.compile(JsonObject, "").is_ok(), "{name}");
    }
}

#[test]
fn a_text_over_the_limit_is_refused() {
    let fixture = fixture("byte_level");
    let error = fixture.refusal(Regex, &"a".repeat((256 << 10) + 1));
    assert!(
        error.message.contains("at most 262144"),
        "{}",
        error.message
    );
}

#[test]
fn grammars_that_would_stop_the_compiler_leave_nothing_behind() {
    let fixture = fixture("byte_level");
    let patterns: Vec<_> = (1..60)
        .map(|i| json!({"type": "string", "pattern": format!("^[a-z]*[a-m][a-z]{{{i}}}$")}))
        .collect();
    let negative = json!({"properties": {"a": {"type": "array", "minItems": 1_000_000_000}},
                          "default": {"minItems": -1e18}});
    for schema in [json!({"allOf": patterns}), negative] {
        for _ in 0..8 {
            let error = fixture.refusal(LooseJsonSchema, &schema.to_string());
            assert!(
                !error.message.contains("takes too long"),
                "{}",
                error.message
            );
        }
    }
    assert!(!fixture.compiler.stopped());
    fixture.compile(JsonObject, "");
}

/// Each output makes megabytes of states of its own; a limit for each would let many take everything.
#[test]
fn all_outputs_share_one_limit_on_memory() {
    const LIMIT: usize = 16 << 20;
    const CROWD: usize = 8;
    let mut fixture = fixture("byte_level");
    fixture.compiler = fixture.compiler.with_memory(LIMIT);
    let start = fixture.compile(Regex, "([a-z ]*[a-m][a-z ]{24}q)*");
    let mut bystander = fixture.compile(Regex, "[0-9]*");
    let mut crowd: Vec<_> = (1..=CROWD as u64)
        .map(|seed| (Some(start.deep_clone()), seed))
        .collect();
    let mut peak = 0;
    let mut refusals = Vec::new();
    for _ in 0..400 {
        for (slot, seed) in &mut crowd {
            let Some(matcher) = slot else {
                continue;
            };
            let mut words = vec![u32::MAX; fixture.tokenizer.vocab_size().div_ceil(32)];
            // Without end tokens: the output goes on.
            let filled = matcher.fill_mask(&mut words, &[]);
            let taken = filled.and_then(|()| matcher.advance(&[any_of(&words, seed)]));
            peak = peak.max(fixture.compiler.bytes_in_use());
            if let Err(error) = taken {
                assert!(matcher.fill_mask(&mut words, &[]).is_err(), "it has ended");
                refusals.push(error.message);
                *slot = None;
            }
        }
    }
    let is_known = |message: &String| message.contains("needs too much memory");
    assert!(
        !refusals.is_empty() && refusals.iter().all(is_known),
        "{refusals:?}"
    );
    assert!(peak > LIMIT && peak < LIMIT + CROWD * (5 << 20), "{peak}");
    // A small one goes on.
    fixture.mask(&mut bystander);
    assert_eq!(bystander.advance(&fixture.encode("1")).unwrap(), 1);
    drop((crowd, start, bystander));
    assert_eq!(fixture.compiler.bytes_in_use() >> 10, 0);
    fixture.compile(JsonObject, "");
}

const JSON_GBNF: &str = include_str!("json.gbnf");

#[test]
fn gbnf_with_terminals_means_the_same() {
    let fixture = fixture("byte_level");
    fixture.check(
        Lark,
        JSON_GBNF,
        &[
            "{}",
            "{ }\n  ",
            r#"{"a": -1.5e+3, "b":[true ,null,{"c":"\\u00e9\\n x"}]}"#,
            "{\"a\": 0}",
        ],
        &[
            "",
            "[]",
            "{\"a\": 01}",
            "{\"a\":  1}",
            "{\"a\": tru}",
            "{\"a\": \"\t\"}",
            "{} {",
        ],
    );
    // What a terminal would take too much of stays as it is.
    fixture.check(
        Lark,
        "root ::= x \"ab\" | y\nx ::= \"a\"*\ny ::= \"(\" y \")\" | \"c\"",
        &["ab", "aab", "((c))"],
        &["a", "(ab)", "(c"],
    );
    fixture.check(
        Lark,
        "root ::= [a-z]* \"end\" x?\nx ::= \"(\" root \")\"",
        &["abcend", "end(xend)"],
        &["abc"],
    );
    fixture.check(
        Lark,
        "root ::= ([a-z]+ \"=\" num \";\")* \nnum ::= [0-9]+ | \"(\" num \")\"",
        &["", "a=1;", "ab=((12));c=3;"],
        &["a=;", "a=(1;", "1=1;"],
    );
}

/// Of memory, which does not depend on the machine: what the parser takes leaves rows and items behind.
#[test]
fn gbnf_costs_what_similar_lark_costs() {
    let fixture = fixture("byte_level");
    let lark = r#"start: "{" STRING ":" STRING "}"
STRING: /"([^"\\\x7F\x00-\x1F]|\\(["\\bfnrt]|u[0-9a-fA-F]{4}))*"( |\n[ \t]{0,20})?/"#;
    let grown = |grammar: &str| {
        let mut matcher = fixture.compile(Lark, grammar);
        matcher.advance(&fixture.encode("{\"a\":\"")).unwrap();
        fixture.mask(&mut matcher);
        let before = fixture.compiler.bytes_in_use();
        for _ in 0..500 {
            fixture.mask(&mut matcher);
            matcher.advance(&fixture.encode("x")).unwrap();
        }
        fixture.compiler.bytes_in_use() - before
    };
    let (gbnf, lark) = (grown(JSON_GBNF), grown(lark));
    assert!(gbnf <= lark + lark / 4 + 4096, "{gbnf} and {lark}");
}
