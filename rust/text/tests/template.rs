//! Chat templates as transformers renders them, and hostile ones that must end quickly.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tandem_text::{ErrorCode, TemplateSet};

const TOKENS: &str = r#"{"bos_token": "<s>", "eos_token": "</s>"}"#;
const NOW: i64 = 1_735_603_200; // 2024-12-31

fn render_with(source: &str, messages: &str, extra: &str) -> Result<String, tandem_text::Error> {
    TemplateSet::compile_one(source, TOKENS)?.render(
        messages,
        extra,
        extra.contains("tools"),
        Some(NOW),
    )
}

fn render(source: &str) -> String {
    render_with(source, r#"[{"role": "user", "content": "Hi"}]"#, "{}").unwrap()
}

fn fails(source: &str) -> tandem_text::Error {
    render_with(source, r#"[{"role": "user", "content": "Hi"}]"#, "{}").unwrap_err()
}

#[test]
fn llama2_style_template() {
    let source = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != \
        (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}\
        {% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}\
        {% else %}{{ ' ' + message.content + ' ' + eos_token }}{% endif %}{% endfor %}";
    let messages = r#"[{"role":"user","content":" Hi "},{"role":"assistant","content":"Yo"}]"#;
    let text = render_with(source, messages, "{}").unwrap();
    assert_eq!(text, "<s>[INST] Hi [/INST] Yo </s>");

    let error = render_with(source, r#"[{"role":"assistant","content":"Yo"}]"#, "{}").unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert!(error.message.contains("Conversation roles must alternate"));
}

/// In the style of ChatML, Llama 3.1, Qwen 3, Mistral, Gemma and Hermes. chat_templates/render.py
/// writes the expected output with Jinja2 itself.
#[test]
fn templates_of_models_render_as_in_jinja2() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let conversations: Map<String, Value> =
        serde_json::from_str(&read("conversations.json")).unwrap();
    let expected: Map<String, Value> = serde_json::from_str(&read("expected.json")).unwrap();
    for (case, text) in &expected {
        let (template, conversation) = case.split_once(", ").unwrap();
        let mut variables = conversations[conversation].as_object().unwrap().clone();
        let messages = variables.remove("messages").unwrap().to_string();
        let rendered = TemplateSet::compile_one(&read(&format!("{template}.jinja")), TOKENS)
            .unwrap()
            .render(
                &messages,
                &Value::from(variables).to_string(),
                true,
                Some(NOW),
            );
        assert_eq!(rendered.as_deref().ok(), text.as_str(), "{case}");
    }
    assert_eq!(expected.len(), 6 * conversations.len());
}

#[test]
fn blocks_are_trimmed_as_transformers_does() {
    let source =
        "{% for m in messages %}\n    {% if true %}\nA\n    {% endif %}\n{% endfor %}\nend\n";
    assert_eq!(render(source), "A\nend");
}

#[test]
fn generation_prompt_tools_and_variables() {
    let source = "{% if tools is not none %}{{ tools | tojson }}{% endif %}\
        {% if add_generation_prompt %}<a>{% endif %}{{ style }}";
    assert_eq!(render(source), "");
    let extra = r#"{"tools":[{"z":1,"a":["é",true,null,1.0]}],"style":"x"}"#;
    let text = render_with(source, "[]", extra).unwrap();
    assert_eq!(text, r#"[{"z": 1, "a": ["é", true, null, 1.0]}]<a>x"#);
}

#[test]
fn tojson_is_json_dumps() {
    let extra = r#"{"x": {"b": [1, 2], "a": {}, "c": "<'&\">\n"}}"#;
    let text = render_with("{{ x | tojson(indent=2) }}", "[]", extra).unwrap();
    assert_eq!(
        text,
        "{\n  \"b\": [\n    1,\n    2\n  ],\n  \"a\": {},\n  \"c\": \"<'&\\\">\\n\"\n}"
    );
    let text = render_with("{{ x | tojson }}", "[]", extra).unwrap();
    assert_eq!(text, r#"{"b": [1, 2], "a": {}, "c": "<'&\">\n"}"#);
}

#[test]
fn values_print_as_in_python() {
    let extra =
        r#"{"x": [true, null, 1, 1.5, "it's", "q", {"k": false}], "f": 1e20, "g": 0.00001}"#;
    let text = render_with(
        "{{ x }} {{ x[0] }} {{ x[1] }} {{ f }} {{ g }} {{ y }}",
        "[]",
        extra,
    );
    assert_eq!(
        text.unwrap(),
        r#"[True, None, 1, 1.5, "it's", 'q', {'k': False}] True None 1e+20 1e-05 "#
    );
    assert_eq!(render("{{ 1 ~ true ~ 'a' }}{{ [1]|string }}"), "1Truea[1]");
    assert_eq!(
        render("{{ [true]|trim }}{{ none|upper }}{{ 1.0|e }}{{ '<'|e }}"),
        "[True]NONE1.0&lt;"
    );
    assert_eq!(
        render("{{ [1]|replace('1', '2') }}{{ '--x-'|trim('-') }}"),
        "[2]x"
    );
}

#[test]
fn python_idioms_work() {
    assert_eq!(render("{{ 'a,b'.split(',')[-1].upper() }}"), "B");
    assert_eq!(render("{{ messages[::-1][0].get('role', 'x') }}"), "user");
    assert_eq!(
        render("{{ '-' * 3 }}{{ 2 * 3 }}{{ 2 * 0.5 }}{{ ([1] * 2)|length }}"),
        "---61.02"
    );
    assert_eq!(
        render("{{ 'aXbX'.replace('X', '-', 1) }}{{ ', '.join(['a', 'b']) }}"),
        "a-bXa, b"
    );
    assert_eq!(
        render("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"),
        "a1"
    );
    assert_eq!(
        render("{{ ['x','y']|join('+') }}{{ 'a\nb'|indent(2) }}"),
        "x+ya\n  b"
    );
    assert_eq!(
        render("{{ messages|map(attribute='role')|list }}"),
        "['user']"
    );
    assert_eq!(
        render("{{ messages|selectattr('role','equalto','user')|list|length }}"),
        "1"
    );
    assert_eq!(
        render("{{ 'user' in messages[0].values()|list }}{{ 1 < 2 < 3 }}"),
        "TrueTrue"
    );
    assert_eq!(
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
        "01"
    );
    assert_eq!(render("{{ strftime_now('%d %b %Y') }}"), "31 Dec 2024");
}

#[test]
fn namespaces_macros_and_captures_work() {
    let source = "{% macro twice(x, sep='-') %}{% if x %}{{ x }}{{ sep }}{{ x }}{% endif %}{% endmacro %}\
        {% set ns = namespace(n=0, l=[]) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}\
        {% set ns.l = ns.l + [i] %}{% endfor %}{% set c %}[{{ ns.n }}]{% endset %}\
        {{ twice(c) }}{{ twice('y', sep='') }}{{ ns.l }}{% filter upper %}z{% endfilter %}\
        {% for x in [1, [2]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}\
        {{ 'a' if ns.n > 2 and not ns.l == [] else 'b' }}";
    assert_eq!(render(source), "[3]-[3]yy[0, 1, 2]Z12a");
}

#[test]
fn messages_suit_the_template() {
    let parts = r#"[{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#;
    let text = r#"[{"role": "developer", "content": "a"}]"#;
    let rendered = |source: &str, messages: &str| render_with(source, messages, "{}").unwrap();
    let whole = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
    assert_eq!(rendered(whole, parts), "system: a\nb");
    assert_eq!(rendered(whole, text), "system: a");
    let either = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
        {%- for part in m['content'] %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(rendered(either, parts), "<a><b>");
    assert_eq!(rendered(either, text), "a");
    let always = "{% for m in messages %}{% for part in m.content | list %}<{{ part['text'] }}>{% endfor %}{% endfor %}";
    assert_eq!(rendered(always, parts), "<a><b>");
    assert_eq!(rendered(always, text), "<a>");
    let knows = "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{% endfor %}";
    assert_eq!(rendered(knows, text), "D");
}

#[test]
fn generation_tags_are_transparent() {
    assert_eq!(render("a{%- generation -%} b {%- endgeneration %}c"), "abc");
}

#[test]
fn long_honest_conversations_fit() {
    let content = "word ".repeat(100);
    let message = format!(r#"{{"role":"user","content":"{content}"}}"#);
    let messages = format!("[{}]", vec![message; 4000].join(","));
    let source = "{% set ns = namespace(l=[]) %}{% for m in messages %}{% if m.role == 'user' %}\
        {{ '<u>' + m.content | trim + '</u>' }}{% endif %}{% endfor %}";
    let text = render_with(source, &messages, "{}").unwrap();
    assert_eq!(text.len(), 4000 * (499 + 7));
}

#[test]
fn steps_are_counted_however_quick_they_are() {
    let looped = |times: usize| format!("{{% for i in range({times}) %}}{{% endfor %}}");
    assert_eq!(render(&looped(10_000)), "");
    let error = fails(&looped(100_000));
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
    assert!(error.message.contains("fuel"), "{}", error.message);
}

#[test]
fn variables_cannot_replace_what_the_server_sets() {
    for key in [
        "messages",
        "add_generation_prompt",
        "bos_token",
        "(x)",
        "a b",
    ] {
        let extra = format!(r#"{{"{key}": 1}}"#);
        let error = render_with("x", "[]", &extra).unwrap_err();
        assert!(error.message.contains(key), "{}", error.message);
    }
}

#[test]
fn broken_input_is_explained() {
    assert!(fails("{% for %}").message.contains("chat_template:1"));
    assert!(fails("{{ nope() }}").message.contains("nope"));
    assert!(fails("{% include 'x' %}").message.contains("non-existing"));
    assert!(render_with("x", "{}", "{}")
        .unwrap_err()
        .message
        .contains("array"));
    assert!(render_with("x", "[", "{}").is_err());
    assert!(render_with("x", "[]", "[]").is_err());
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    assert!(render_with("x", &deep, "{}").is_err());
}

/// The processor time of this process so far: unlike the time of day it does not depend on other
/// load.
fn process_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The clock exists on every Linux, and the pointer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The highest resident memory of this process, in bytes.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// Ten thousand million iterations, unless something stops it.
fn over_and_over(before: &str, body: &str) -> String {
    let (start, end) = ("{% for i in range(100000) %}", "{% endfor %}");
    format!("{before}{start}{start}{body}{end}{end}")
}

/// Runs an ignored test of this file in a separate process, because a thread over its memory stays
/// for ever. Returns the text that the test prints after "result ".
fn in_a_process(test: &str, input: &str) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}: {input:.100}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines().filter_map(|l| l.split_once("result "));
    lines.next().unwrap().1.to_owned()
}

#[test]
#[ignore = "a child process; the template is its standard input"]
fn child_renders_a_hostile_template() {
    let mut template = String::new();
    std::io::stdin().read_to_string(&mut template).unwrap();
    assert_eq!(render("ok"), "ok");
    let (start, peak) = (process_time(), peak_bytes());
    let outcome = render_with(&template, r#"[{"role":"user","content":"Hi"}]"#, "{}");
    let outcome = match outcome {
        Ok(text) => format!("{} bytes", text.len()),
        Err(error) => format!("{:?}: {:.80}", error.code, error.message.replace('\n', " ")),
    };
    let time = (process_time() - start).as_millis();
    let peak = peak_bytes().saturating_sub(peak) >> 20;
    println!("result {time} {peak} {outcome}");
}

#[test]
fn threads_that_cannot_be_stopped_are_few_and_stop_their_template_alone() {
    // Memory is set aside while the template says so, but not touched.
    let source = "{% if evil %}{% set n = 100000000 %}{{ 'x' * n }}{% endif %}ok";
    let templates = TemplateSet::compile_one(source, TOKENS).unwrap();
    let render = |extra: &str| templates.render("[]", extra, false, Some(NOW));
    for strays in 0..4 {
        assert_eq!(templates.strays(), strays);
        assert!(!templates.stopped());
        assert_eq!(render("{}").unwrap(), "ok");
        let error = render(r#"{"evil": true}"#).unwrap_err();
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
    }
    assert!(templates.stopped());
    let error = render("{}").unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("started again"), "{}", error.message);

    let other = TemplateSet::compile_one(source, TOKENS).unwrap();
    assert!(!other.stopped());
    assert_eq!(other.render("[]", "{}", false, Some(NOW)).unwrap(), "ok");
}

/// Texts that a client may send within the limits of the server, to trouble an honest template.
fn troublesome_conversations(bytes: usize) -> Vec<(&'static str, String)> {
    let long = |unit: &str| {
        let content = unit.repeat(bytes / unit.len());
        serde_json::json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": content},
            {"role": "user", "content": "Hi"},
        ])
        .to_string()
    };
    let message = |i: usize, lines: usize| {
        let role = if i % 2 == 0 { "user" } else { "assistant" };
        let content = "</think> some words, and a line\n".repeat(lines);
        serde_json::json!({"role": role, "content": content})
    };
    vec![
        // Longer pieces than a value holds without a block.
        ("separators", long("</think>abcdefghijklmnopqrstuvwxyz")),
        ("lines", long("abcdefghijklmnopqrstuvwxyz012\n")),
        ("newlines", long("\n")),
        ("words", long("a ")),
        ("letters", long("'")),
        (
            "many messages",
            Value::from(
                (0..4095)
                    .map(|i| message(i, bytes / 4095 / 32))
                    .collect::<Vec<_>>(),
            )
            .to_string(),
        ),
        (
            "small messages",
            Value::from((0..4095).map(|i| message(i, 0)).collect::<Vec<_>>()).to_string(),
        ),
    ]
}

/// Renders every troublesome conversation: no thread may be left behind.
fn survives(name: &str, source: &str, conversations: &[(&str, String)]) {
    let templates = TemplateSet::compile_one(source, TOKENS).unwrap();
    let honest = r#"[{"role": "user", "content": "Hi"}]"#;
    let expected = templates.render(honest, "{}", true, Some(NOW)).unwrap();
    for (kind, messages) in conversations {
        let outcome = templates.render(messages, "{}", true, Some(NOW));
        let outcome = outcome.map(|text| text.len()).map_err(|e| e.message);
        println!("{name}, {kind}: {outcome:.150?}");
        // A thread over its time ends soon after.
        let patience = Instant::now() + Duration::from_secs(120);
        while templates.strays() > 0 && !templates.stopped() && Instant::now() < patience {
            std::thread::yield_now();
        }
        assert_eq!(templates.strays(), 0, "{name}, {kind}: {outcome:?}");
    }
    let after = templates.render(honest, "{}", true, Some(NOW));
    assert_eq!(after.unwrap(), expected, "{name}");
}

#[test]
fn no_message_stops_the_templates_of_models() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates");
    let conversations = troublesome_conversations(15 << 20);
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "jinja")
        {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            survives(
                &name,
                &std::fs::read_to_string(&path).unwrap(),
                &conversations,
            );
            count += 1;
        }
    }
    assert_eq!(count, 6);
}

#[test]
fn no_message_stops_a_template_that_takes_texts_apart() {
    let conversations = troublesome_conversations(5 << 20);
    for expression in [
        // DeepSeek-R1-Distill-Llama.
        "c.split('</think>')[-1]",
        "c.split('</think>', 1)[-1]",
        "c.split()[-1]",
        "c.split('\n')|join(' ')",
        "c|split('</think>')|map('trim')|join",
        "c|split('\n')|reject('equalto', '')|list|join('\n')",
        "c.splitlines()|length",
        "c.splitlines(true)|last",
        "c|lines|join('\n')",
        "c|list|length",
        "c|batch(2)|list|length",
        "c|unique|list|length",
        "c|sort|first",
        "c|map('upper')|join",
        "c|select|list|length",
        "c|reverse",
        "c[::-1]",
        "c|replace('\n', '\n                                                                ')",
        "c.replace('\n', '\n                                                                ')",
        "c|indent(100, true, true)",
        "c|escape|escape",
        "c|tojson|tojson|tojson",
        "[c]|string|upper",
        "[c]|pprint",
        "messages|map(attribute='content')|join('\n')",
        "messages|tojson(indent=4)",
    ] {
        let source = format!(
            "{{% for m in messages %}}{{% set c = m['content']|string %}}             {{% if m['role'] == 'assistant' and not loop.index0 > 40 %}}{{{{ {expression} }}}}             {{% else %}}{{{{ m['content'] }}}}{{% endif %}}{{% endfor %}}"
        );
        survives(expression, &source, &conversations);
    }
}

#[test]
fn no_message_stops_a_template_that_gathers_pieces() {
    let source = "{% set ns = namespace(system='', lines=[], kept='') %}\
        {% for m in messages %}{% set ns.system = ns.system + '\n\n' + m['content']|string %}{% endfor %}\
        {% for m in messages %}{% for line in (m['content']|string).split('\n') %}\
        {% if line %}{% set ns.lines = ns.lines + [line] %}{% set ns.kept = ns.kept + line + '\n' %}\
        {% endif %}{% endfor %}{% endfor %}{{ ns.system }}{{ ns.lines|length }}{{ ns.kept }}";
    survives("gathers", source, &troublesome_conversations(5 << 20));
}

#[test]
#[ignore = "a child process"]
fn child_has_no_room_for_a_thread() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // The pointer is ours.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &none) };
    println!("result {:?}", fails("ok"));
}

#[test]
fn a_refused_thread_is_an_error_of_its_own_kind() {
    let error = in_a_process("child_has_no_room_for_a_thread", "");
    assert!(error.contains("SystemLimit"), "{error}");
    assert!(error.contains("ulimit -u"), "{error}");
}

/// A loop that only adds texts reaches no check, so its work is bounded before it begins.
#[test]
fn conversations_too_long_to_gather_are_refused_and_others_leave_no_thread() {
    let source = "{% set ns = namespace(s='') %}{% for m in messages %}\
        {% set ns.s = ns.s + '\n\n' + m['content'] %}{% endfor %}{{ ns.s|length }}";
    let templates = TemplateSet::compile_one(source, TOKENS).unwrap();
    let conversation = |messages: usize, bytes: usize| {
        let mut texts = vec![r#"{"role": "system", "content": "x"}"#.to_owned(); messages];
        texts[0] = texts[0].replace("\"x\"", &format!("\"{}\"", "x".repeat(bytes)));
        format!("[{}]", texts.join(","))
    };
    for _ in 0..4 {
        let error = templates
            .render(&conversation(4095, 8 << 20), "{}", true, Some(NOW))
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
        assert!(error.to_string().contains("4095 messages"), "{error}");
    }
    let text = templates.render(&conversation(400, 8 << 20), "{}", true, Some(NOW));
    assert_eq!(text.unwrap(), ((8 << 20) + 399 + 800).to_string());
    assert_eq!(templates.strays(), 0);
}

#[test]
fn an_indent_of_any_width_is_refused_before_it_is_made() {
    for width in ["1000000000", "9000000000000000000", "18446744073709551615"] {
        let source = format!("{{{{ messages[0].content|indent({width}) }}}}");
        let templates = TemplateSet::compile_one(&source, TOKENS).unwrap();
        let messages = r#"[{"role": "user", "content": "a\nb\nc"}]"#;
        let error = templates
            .render(messages, "{}", true, Some(NOW))
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::ResourceExhausted, "{width}: {error}");
        assert_eq!(templates.strays(), 0, "{width}");
    }
}

/// A value built upon itself many times, then used.
fn nesting(times: usize, step: &str, end: &str) -> String {
    format!(
        "{{% set ns = namespace(l=[1]) %}}{{% for i in range({times}) %}}\
         {{% set ns.l = {step} %}}{{% endfor %}}{end}"
    )
}

#[test]
fn hostile_templates_end_quickly_in_little_memory() {
    let doubling = "{% set x = x ~ x %}".repeat(60);
    let nested = format!("{}1{}", "(".repeat(3000), ")".repeat(3000));
    let blocks = format!(
        "{}{}",
        "{% if 1 %}".repeat(3000),
        "{% endif %}".repeat(3000)
    );
    let list_doubling = "{% set l = [l, l] %}".repeat(60);
    let plus_doubling = "{% set l = l + l %}".repeat(60);
    let templates = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}".into(),
        "{{ range(1000000000)|list|length }}".into(),
        "{% for i in range(1000000000) %}x{% endfor %}".into(),
        "{{ 'x' * 1000000000 }}".into(),
        "{{ 'x' * 100000000 }}".into(),
        "{{ ('x' * 1000) * (1000 * 1000) }}".into(),
        "{% set n = 100000000 %}{{ 'x' * n }}".into(),
        "{% set n = 100000000 %}{{ [1] * n }}".into(),
        "{{ 9999999999 * 9999999999 * 9999999999 }}{% for i in range(100000) %}{{ messages }}{% endfor %}".into(),
        format!("{{% set x = 'abc' ~ messages[0].content %}}{doubling}{{{{ x }}}}"),
        format!("{{% set x = 'abc' %}}{}{{{{ x }}}}", "{% set x %}{{ x }}{{ x }}{% endset %}".repeat(60)),
        format!("{{% set x = 'abc' %}}{}{{{{ x }}}}", "{% set x = x|replace('a', 'aaaaaaaaaa') %}".repeat(60)),
        format!("{{% set x = 'abc' %}}{}{{{{ x }}}}", "{% set x = x.replace('', x) %}".repeat(60)),
        format!("{{% set x = 'abc' %}}{}{{{{ x }}}}", "{% set x = x.join([x, x, x]) %}".repeat(60)),
        format!("{{% set x = 'abc' %}}{}{{{{ x }}}}", "{% set x = [x, x]|join(x) %}".repeat(60)),
        format!("{{% set l = [1] %}}{list_doubling}{{{{ l }}}}"),
        format!("{{% set l = [1] %}}{list_doubling}{{{{ l|tojson }}}}"),
        format!("{{% set l = [1] %}}{list_doubling}{{{{ l == [l] }}}}"),
        format!("{{% set l = [messages[0]] %}}{plus_doubling}{{{{ l|length }}}}"),
        format!("{{% set l = {{}} %}}{}{{{{ l }}}}", "{% set l = {'a': l, 'b': l} %}".repeat(60)),
        "{% set ns = namespace(l=1) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}".into(),
        "{% set ns = namespace(l=1) %}{% for i in range(100000) %}{% set ns.l = namespace(l=ns.l) %}{% endfor %}".into(),
        "{% set ns = namespace(c=1) %}{% for i in range(100000) %}{% set n = namespace() %}{% set n.p = ns.c %}{% set ns.c = n %}{% endfor %}".into(),
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}{{ ns == ns }}{{ ns|tojson }}".into(),
        "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = ns.l|chain([1]) %}{% endfor %}{{ ns.l|list|length }}".into(),
        "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = ns.l|map('string') %}{% endfor %}".into(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(),
        "{% macro m(n) %}{{ n }}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into(),
        "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}".into(),
        nesting(31_000, "[ns.l]", "{{ ns.l == [ns.l] }}"),
        nesting(60_000, "[ns.l]", "{{ (ns.l ~ '')|length }}"),
        nesting(20_000, "{'a': ns.l}", "{{ ns.l ~ '' }}"),
        nesting(60_000, "[ns.l]", "{{ ns.l|tojson }}"),
        nesting(100_000, "ns.l[0:]", "{{ ns.l|list }}"),
        nesting(100_000, "ns.l * 1", "{{ ns.l|list }}"),
        nesting(100_000, "ns.l|chain([1])", "{{ ns.l|list }}"),
        "{{ 'x'|indent(1000000000) }}".into(),
        "{{ [1]|batch(1000000000, 'x')|list }}".into(),
        "{{ strftime_now('%Y' * 10000000) }}".into(),
        "{{ '%1000000000d'|format(1) }}".into(),
        "{{ '{:1000000000}'.format(1) }}".into(),
        "{{ 'aaa'.count('') }}{% for i in range(100000) %}{% for j in range(100000) %}{{ 'aaa'.count('') }}{% endfor %}{% endfor %}".into(),
        "{% for i in range(100000) %}{% for j in range(100000) %}{% set x %}0123456789012345678901234567890123456789{% endset %}{% endfor %}{% endfor %}".into(),
        "{{ [1,2,3]|tojson(indent=1000000000) }}".into(),
        "{{ (range(100000)|list)|map('tojson')|list|sort|unique|list|length }}{% for i in range(100000) %}{{ range(100000)|list|length }}{% endfor %}".into(),
        "{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{{ s|length }}{{ s is lower }}{{ s == s }}{{ 'y' in s }}{% endfor %}".into(),
        "{% set s = 'x' * 1000000 %}{{ ([s] * 1000)|map('upper')|join }}".into(),
        format!("{{{{ {nested} }}}}"),
        blocks,
        format!("{{{{ {} }}}}", vec!["'aaaaaaaaaaaaaaaa'"; 200].join(" ~ ")),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(2400)),
        format!("{{{{ x{} }}}}", "+1".repeat(30_000)),
        format!("{{{{ {}x }}}}", "x and ".repeat(40_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(60_000)),
        format!("{{{{ x{} }}}}", "|abs".repeat(60_000)),
        format!("{{{{ x{} }}}}", "[0]".repeat(80_000)),
        format!("{{{{ {}1 }}}}", "1 if x else ".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "'x' * 10000000 ~ ".repeat(1000)),
        format!("{{% if x %}}{}{{% endif %}}", "{%elif x%}".repeat(25_000)),
        over_and_over("", "{% set x = 1|abs %}"),
        over_and_over("", "{% if 1 is odd %}{% endif %}"),
        over_and_over("", "{% set x = strftime_now('%d %b %Y') %}"),
        over_and_over("", "{% set x = {'b': 1, 'a': 2}|dictsort %}"),
        over_and_over("", "{% set x = messages|tojson %}"),
        over_and_over("", "{% filter upper %}a{% endfilter %}"),
        over_and_over("{% macro m(a, b=2) %}{{ a }}{% endmacro %}", "{% set x = m(1) %}"),
        over_and_over("{% set s = 'x' * 1000000 %}", "{% if s[-1] %}{% endif %}"),
        over_and_over("{% set s = 'x' * 1000000 %}", "{% set x = s[999999:] %}"),
        over_and_over("{% set s = 'x' * 1000000 %}", "{% if loop.changed(s) %}{% endif %}"),
        over_and_over("{% set s = 'x' * 10000000 %}", "{% if s == s %}{% endif %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% set x = l[99999:] %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% if loop.changed(l) %}{% endif %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% set x = l|reject('odd') %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% for x in l %}{% break %}{% endfor %}"),
        over_and_over("", "{% set x = range(100)|list|reverse|list %}"),
        over_and_over("", "{% set x = 'a b c'.split() %}"),
        over_and_over("", "{% set x = 'abc'|replace('b', 'bb')|trim|title %}"),
        over_and_over("", "{% if {'a': [1, 2]} == {'a': [1, 2]} %}{% endif %}"),
        over_and_over("", "{% set x = raise_exception is defined %}"),
        over_and_over("{% set s = 'x' * 1000000 %}", "{% if 'y' in s %}{% endif %}"),
        over_and_over("{% set s = 'x' * 1000000 %}", "{% set x = s.startswith('y') %}"),
        over_and_over("{% set s = ' ' * 1000000 %}", "{% set x = s.strip() %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% if 2 in l %}{% endif %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% set x = l|sum %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% set x = l|join(',') %}"),
        "{% set ns = namespace(s='x') %}{% for i in range(100000) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".into(),
        "{% set ns = namespace(s='x') %}{% for i in range(100000) %}{% set ns.s = ns.s ~ 'x' %}{% endfor %}{{ ns.s }}".into(),
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}".into(),
        "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}".into(),
        "{% for a in range(100000) recursive %}{{ loop(range(100000)) }}{% endfor %}".into(),
        "{{ 'x'|center(1000000000) }}".into(),
        "{{ ('%s' * 100000)|format(*range(100000)) }}".into(),
        "{{ '{0:{1}}'.format('x', 1000000000) }}".into(),
        "{{ (range(100000)|list * 1000)|sort|length }}".into(),
        "{{ messages|map(attribute='content')|list|tojson(indent=100000000) }}".into(),
        "{{ 2 ** 1000000000 }}{{ 10 ** 10 ** 10 }}".into(),
        "{% include 'self' %}{% extends 'self' %}{% import 'self' as s %}".into(),
        "{{ 'a'.replace('', 'b' * 1000000)|replace('b', 'c' * 1000000) }}".into(),
        format!("{{{{ [{}] }}}}", "1,".repeat(100_000)),
        format!("{{{{ {{{}}} }}}}", (0..50_000).map(|i| format!("'{i}': 1,")).collect::<String>()),
        format!("{}{}", "{% for x in [1] %}".repeat(2000), "{% endfor %}".repeat(2000)),
        format!("{}x{}", "{% filter upper %}".repeat(2000), "{% endfilter %}".repeat(2000)),
    ];
    assert!(templates.len() >= 100);
    for template in &templates {
        let template: &String = template;
        let result = in_a_process("child_renders_a_hostile_template", template);
        let start: String = template.chars().take(100).collect();
        eprintln!("{result}: {start}");
        let mut words = result.split(' ').map(|word| word.parse::<u64>());
        let mut number = || words.next().unwrap().unwrap();
        assert!(number() < 500, "milliseconds of {start}");
        assert!(number() < 64, "MiB of {start}");
    }
}
