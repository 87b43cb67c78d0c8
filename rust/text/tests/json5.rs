//! JSON5 as plain JSON.

use tandem_text::to_json;

#[test]
fn comments_bare_names_and_trailing_commas_are_read() {
    let text = "// first\n{ /* { */ runtime: { max_batch_size: 0x40, 'a b': [+1, .5, 1e3,], }, }";
    assert_eq!(
        to_json(text).unwrap(),
        r#"{"runtime":{"max_batch_size":64,"a b":[1,0.5,1000.0]}}"#
    );
}

#[test]
fn strings_keep_their_lines_and_quotes() {
    let text = "{chat_template: 'a \\\n\"b\" {% // [[ %}'}";
    assert_eq!(
        to_json(text).unwrap(),
        r#"{"chat_template":"a \"b\" {% // [[ %}"}"#
    );
}

#[test]
fn names_keep_their_order_and_stand_once() {
    assert_eq!(
        to_json("{z: 1, $a_1: 2, 'b c': 3}").unwrap(),
        r#"{"z":1,"$a_1":2,"b c":3}"#
    );
    let message = to_json("{\n a: 1,\n a: 2}").unwrap_err().message;
    assert_eq!(message, "line 3 column 2: there are two members \"a\"");
}

#[test]
fn numbers_have_signs_bases_and_bare_points() {
    assert_eq!(
        to_json("[-0x10, 0XfF, 5., .25, -1, +2, 1e-2, 12345678901234567890, 0]").unwrap(),
        "[-16,255,5.0,0.25,-1,2,0.01,12345678901234567890,0]"
    );
    for text in [
        "NaN",
        "-Infinity",
        "Infinity",
        "01",
        "0x",
        ".",
        "-",
        "1e999",
        "1_000",
        "1.2.3",
    ] {
        assert!(to_json(text).is_err(), "{text}");
    }
}

#[test]
fn escapes_are_those_of_json_and_javascript() {
    assert_eq!(
        to_json(
            r#"['\x41\u00e9\ud83d\ude00\'\"\q\n', "\
x"]"#
        )
        .unwrap(),
        "[\"A\u{e9}\u{1f600}'\\\"q\\n\",\"x\"]"
    );
    for text in [
        r"'\ud83d'",
        r"'\ud83d\u0041'",
        r"'\udc00'",
        r"'\u12'",
        r"'\x'",
        r"'\",
    ] {
        assert!(to_json(text).is_err(), "{text}");
    }
}

#[test]
fn an_error_tells_the_place() {
    let message = |text: &str| to_json(text).unwrap_err().message;
    assert_eq!(
        message("{\n  a: 1\n  b: 2\n}"),
        "line 3 column 3: a comma or '}' is missing"
    );
    assert_eq!(
        message("{a: yes}"),
        "line 1 column 5: yes is no value; texts stand in quotes"
    );
    assert_eq!(message("[1 /* "), "line 1 column 4: the comment has no end");
    for text in [
        "", "{", "[", "{a: }", "{a: 1} x", "{a: 'b}", "{,}", "[,]", "{1: 2}", "{a 1}",
    ] {
        assert!(to_json(text).is_err(), "{text}");
    }
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(to_json(&nested(64)).is_ok());
    assert!(to_json(&nested(66)).is_err());
    assert!(to_json(&"[".repeat(1 << 20)).is_err());
    assert!(to_json(&"{a:".repeat(1 << 20)).is_err());
}
