//! Chat templates as transformers renders them, and hostile ones that must end quickly.

use std::time::Duration;

use tandem_text::{ErrorCode, TemplateSet};

const NOW: i64 = 1_735_603_200; // 2024-12-31

fn render_with(source: &str, messages: &str, extra: &str) -> Result<String, tandem_text::Error> {
    let tokens = r#"{"bos_token": "<s>", "eos_token": "</s>"}"#;
    TemplateSet::compile_one(source, tokens)?.render(
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
fn namespaces_macros_and_captures_survive_the_guards() {
    let source = "{% macro twice(x, sep='-') %}{% if x %}{{ x }}{{ sep }}{{ x }}{% endif %}{% endmacro %}\
        {% set ns = namespace(n=0, l=[]) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}\
        {% set ns.l = ns.l + [i] %}{% endfor %}{% set c %}[{{ ns.n }}]{% endset %}\
        {{ twice(c) }}{{ twice('y', sep='') }}{{ ns.l }}{% filter upper %}z{% endfilter %}\
        {% for x in [1, [2]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}\
        {{ 'a' if ns.n > 2 and not ns.l == [] else 'b' }}";
    assert_eq!(render(source), "[3]-[3]yy[0, 1, 2]Z12a");
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
fn variables_cannot_replace_what_the_server_sets() {
    for key in [
        "messages",
        "add_generation_prompt",
        "bos_token",
        "(settle)",
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
    assert!(fails("{% include 'x' %}").message.contains("stands alone"));
    assert!(render_with("x", "{}", "{}")
        .unwrap_err()
        .message
        .contains("array"));
    assert!(render_with("x", "[", "{}").is_err());
    assert!(render_with("x", "[]", "[]").is_err());
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    assert!(render_with("x", &deep, "{}").is_err());
}

/// What this thread has run so far: other than the time of day it does not depend on what else runs.
fn thread_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = stat.split_whitespace().next().unwrap();
    Duration::from_nanos(nanos.parse().unwrap())
}

/// Resident memory of this process at its highest, in bytes.
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

/// Ten thousand million times, if nobody stops it.
fn over_and_over(before: &str, body: &str) -> String {
    let (start, end) = ("{% for i in range(100000) %}", "{% endfor %}");
    format!("{before}{start}{start}{body}{end}{end}")
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
        "{{ 'x'|indent(1000000000) }}".into(),
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
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ x{} }}}}", "[0]".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(2400)),
        format!("{{{{ {}1 }}}}", "-".repeat(4_900)),
        format!("{{{{ {}1 }}}}", "not ".repeat(4_900)),
        format!("{{{{ x{} }}}}", "|abs".repeat(2400)),
        format!("{{{{ x{} }}}}", "[0]".repeat(1600)),
        format!("{{{{ {}1 }}}}", "1 if x else ".repeat(1200)),
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
        over_and_over("{% set l = [1] * 100000 %}", "{% set x = l[99999:] %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% if loop.changed(l) %}{% endif %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% set x = l|reject('odd') %}"),
        over_and_over("{% set l = [1] * 100000 %}", "{% for x in l %}{% break %}{% endfor %}"),
    ];
    // The stack of a server thread is smaller than that of main.
    let worker = move || {
        let harmless = render("ok");
        assert_eq!(harmless, "ok");
        let before = peak_bytes();
        let mut slowest = (Duration::ZERO, String::new());
        for template in &templates {
            let template: &String = template;
            let start = thread_time();
            let _ = render_with(template, r#"[{"role":"user","content":"Hi"}]"#, "{}");
            let took = thread_time() - start;
            if took > slowest.0 {
                slowest = (took, template.chars().take(100).collect());
            }
        }
        eprintln!(
            "slowest {slowest:?}, peak +{} MiB",
            (peak_bytes() - before) >> 20
        );
        assert!(slowest.0 < Duration::from_millis(200), "{slowest:?}");
        assert!(peak_bytes() - before < 64 << 20);
    };
    let thread = std::thread::Builder::new()
        .stack_size(512 << 10)
        .spawn(worker)
        .unwrap();
    thread.join().unwrap();
}
