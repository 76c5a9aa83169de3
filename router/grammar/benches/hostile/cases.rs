//! Schemas and grammars that cost far more to compile or to match than their length suggests. The benchmark and the
//! test of budgets share them.

use serde_json::{Map, Value, json};

use super::{Response, Rules, Tool};

/// The expected result of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    Enforced,
    /// The part with this keyword is left to validation.
    Relaxed(&'static str),
    /// The error contains these words.
    Refused(&'static str),
    /// The output fails before its end, with an error that contains these words.
    Limited(&'static str),
}

use Outcome::{Enforced, Limited, Refused, Relaxed};

/// A request that a client could send.
pub struct Case {
    pub name: &'static str,
    pub rules: Rules,
    /// An output to match, if the grammar accepts any.
    pub text: String,
    pub outcome: Outcome,
}

fn tool(schema: Value, strict: bool) -> Rules {
    let tool = Tool { name: "f".into(), parameters: Some(schema), strict, ..Tool::default() };
    Rules { tools: vec![tool].into(), parallel: true, ..Rules::default() }
}

fn response(response: Response) -> Rules {
    Rules { response: Some(response), ..Rules::default() }
}

fn schema(schema: Value) -> Rules {
    response(Response::JsonSchema { schema, strict: false })
}

fn lark(text: impl Into<String>) -> Rules {
    response(Response::Lark(text.into()))
}

fn regex(text: impl Into<String>) -> Rules {
    response(Response::Regex(text.into()))
}

fn object(members: impl Iterator<Item = (String, Value)>) -> Value {
    Value::Object(members.collect::<Map<_, _>>())
}

/// Constraints that must be expanded against each other.
fn dependencies() -> Value {
    let name = |i: usize| format!("p{i}");
    let depends = object(
        (0..7)
            .map(|i| (name(i), json!({"anyOf": [{"required": [name(i + 1)]}, {"not": {"required": [name(i + 2)]}}]}))),
    );
    json!({"type": "object", "properties": object((0..9).map(|i| (name(i), json!({"type": "string"})))), "dependentSchemas": depends})
}

fn patterns(n: usize) -> Value {
    json!({"type": "object", "patternProperties": object((0..n).map(|i| (format!("^.*{i}.*$"), json!({"type": "integer"}))))})
}

/// Integers that are multiples of this number and of the following ones.
fn multiples(first: usize, n: usize) -> Value {
    let one = |i: usize| (format!("p{i}"), json!({"type": "integer", "multipleOf": first + i}));
    json!({"type": "object", "properties": object((0..n).map(one))})
}

/// Numbers between bounds with many digits, all different.
fn ranges(kind: &str, n: i64) -> Value {
    const FAR: i64 = 9_007_199_254_740_000;
    let bound = |at: i64| if kind == "integer" { json!(at) } else { json!(at as f64 / 1e15) };
    let one = |i: i64| (format!("p{i}"), json!({"type": kind, "minimum": bound(i - FAR), "maximum": bound(FAR - i)}));
    json!({"type": "object", "properties": object((0..n).map(one))})
}

/// Numbers between bounds that no integer lies between.
fn fractions(n: i64) -> Value {
    let bound = |at: i64| json!(0.5 + at as f64 / 1e15);
    let one = |i: i64| (format!("p{i}"), json!({"type": "number", "minimum": bound(i), "maximum": bound(i + 7)}));
    json!({"type": "object", "properties": object((0..n).map(one))})
}

fn string_grammar(body: &str) -> Value {
    object_of(json!({"type": "string", "x-rein-lark": format!("start: {body}")}))
}

fn object_of(string: Value) -> Value {
    json!({"type": "object", "properties": {"s": string}})
}

fn string_grammars(n: usize) -> Value {
    let one =
        |i: usize| (format!("s{i}"), json!({"type": "string", "x-rein-lark": format!("start: /[a-z]+/ \"{i}\"")}));
    json!({"type": "object", "properties": object((0..n).map(one))})
}

fn two_ways(n: usize) -> Value {
    let way = |i: usize| json!({"anyOf": [{"required": [format!("a{i}")]}, {"required": [format!("b{i}")]}]});
    let names = (0..n).flat_map(|i| [format!("a{i}"), format!("b{i}")]);
    json!({"type": "object", "properties": object(names.map(|name| (name, json!({"type": "string"})))), "allOf": (0..n).map(way).collect::<Vec<_>>()})
}

fn optional(n: usize) -> Value {
    json!({"type": "object", "properties": object((0..n).map(|i| (format!("property_{i}"), json!({"type": "string"}))))})
}

/// Conjuncts whose first letters overlap in every way.
fn overlapping(n: usize) -> String {
    let class = |from: usize| -> String {
        (0..8)
            .map(|i| format!("[{}-z]{{1,{}}}x.*", char::from(b'a' + ((from + i) % 20) as u8), i + 2))
            .collect::<Vec<_>>()
            .join("|")
    };
    (0..n).map(|i| format!("/{}/", class(i))).collect::<Vec<_>>().join(" & ")
}

/// References, each of which contains the next one twice.
fn doubling() -> Value {
    let one =
        |i: usize| json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]});
    let last = [("d30".to_owned(), json!({"required": ["a"]}))];
    let all = (0..30).map(|i| (format!("d{i}"), one(i))).chain(last);
    json!({"type": "object", "properties": {"a": {"type": "string"}}, "not": {"$ref": "#/$defs/d0"}, "$defs": object(all)})
}

/// Alternatives that are compared pairwise, several levels deep.
fn compared(n: usize) -> Value {
    let leaves: Vec<Value> = (0..n).map(|i| json!({"type": "number", "minimum": i})).collect();
    let below: Vec<Value> = (0..n).map(|_| json!({"anyOf": leaves})).collect();
    json!({"oneOf": [{"anyOf": below}, {"anyOf": below}]})
}

fn foreign_patterns(n: usize) -> String {
    let all: Vec<Value> =
        (0..n).map(|i| json!({"pattern": format!("[{}-z].*x", char::from(b'a' + i as u8))})).collect();
    format!("start: %json {}", json!({"type": "string", "allOf": all}))
}

/// Rules with up to `n` parts that are the rule itself: the parser combines its items with each other.
fn ambiguous(n: usize) -> String {
    let ways: Vec<String> = (2..=n).map(|parts| "e ".repeat(parts)).collect();
    format!("start: e\ne: {} | \"a\"", ways.join(" | "))
}

/// Rules that begin alike. The parser keeps the items of all accepted text.
fn alike(n: usize) -> String {
    let names: Vec<String> = (0..n).map(|i| format!("r{i}")).collect();
    let rules: String = (0..n).map(|i| format!("r{i}: \"a\" r{i} | \"b{i}\"\n")).collect();
    format!("start: {}\n{rules}", names.join(" | "))
}

fn nested(n: usize) -> Value {
    (0..n).fold(
        json!({"type": "string"}),
        |inner, _| json!({"anyOf": [inner.clone(), {"type": "array", "items": inner}]}),
    )
}

pub fn all() -> Vec<Case> {
    let words = "lorem ipsum dolor sit amet ".repeat(11);
    let quoted = |text: &str| Value::from(text.trim()).to_string();
    let string = |max: usize, pattern: &str| schema(json!({"type": "string", "maxLength": max, "pattern": pattern}));
    let case = |name, rules, text: &str, outcome| Case { name, rules, text: text.to_owned(), outcome };
    let nothing = "nothing can be generated";
    let kinds = |n: usize| (0..n).map(|i| format!("k{i}: \"x\"\n")).collect::<String>();
    let each = |n: usize| (0..n).map(|i| format!("\"k{i}\" k{i}")).collect::<Vec<_>>().join(" | ");
    vec![
        case("dependencies x anyOf x not", tool(dependencies(), false), r#"{"p0": "x"}"#, Relaxed("dependentSchemas")),
        case("the same, strict", tool(dependencies(), true), "", Refused("dependentSchemas")),
        case("100 patternProperties", tool(patterns(100), false), r#"{"p0": "x"}"#, Relaxed("patternProperties")),
        case("100 patternProperties, strict", tool(patterns(100), true), "", Refused("patternProperties")),
        case("12 patternProperties", schema(patterns(12)), r#"{"a1b": 1}"#, Relaxed("patternProperties")),
        case("3 patternProperties", schema(patterns(3)), r#"{"a1b": 1}"#, Relaxed("patternProperties")),
        case("allOf of 8 x 2 ways", tool(two_ways(8), false), "", Enforced),
        case("allOf of 16 x 2 ways", tool(two_ways(16), false), r#"{"a0": "x"}"#, Relaxed("allOf")),
        case("2,000 optional properties", tool(optional(2000), false), r#"{"property_7": "x"}"#, Enforced),
        case("4,000 optional properties", tool(optional(4000), false), r#"{"property_7": "x"}"#, Relaxed("properties")),
        case("anyOf nested 11 deep", schema(nested(11)), "\"x\"", Enforced),
        case("a not of references that double", tool(doubling(), false), "{}", Relaxed("not")),
        case("oneOf of anyOf of anyOf", schema(compared(60)), "1", Relaxed("oneOf")),
        case("words, counted twice", string(5000, r"^(\S+\s+){0,99}\S+$"), &quoted(&words), Relaxed("maxLength")),
        case("words of any alphabet", string(200, r"^(\p{L}{1,50} )*\p{L}+$"), &quoted("lorem ipsum"), Enforced),
        case("length of 100,000", schema(json!({"type": "string", "maxLength": 100_000})), &quoted(&words), Enforced),
        case("length and repeats", string(20_000, "^([a-z ]*[a-z ]*)*$"), &quoted(&words), Enforced),
        case("counted suffixes", regex("(.*a.{30})|(.*e.{31})|(.*o.{32})"), &words, Enforced),
        case("a of 1,000,000 as a rule", lark("start: \"a\"{1000000}"), "", Refused("Too many items")),
        case("a of 1,000,000 as an expression", lark("start: T\nT: /a{1000000}/"), "", Refused("too many expressions")),
        case("nested repeats", regex("((((a{0,100}){0,100}){0,100}){0,100}){0,100}"), "aaaa", Enforced),
        case("conjunction of 6", lark(format!("start: T\nT: {}", overlapping(6))), "", Refused("conjunctions")),
        case("conjunction of 12", lark(format!("start: T\nT: {}", overlapping(12))), "", Refused("conjunctions")),
        case("a schema with 9 patterns", lark(foreign_patterns(9)), "", Refused("%json")),
        case("start: start", lark("start: start"), "", Refused(nothing)),
        case("no character", regex(r"[^\s\S]"), "", Refused(nothing)),
        case("a and not a", lark("start: T\nT: /a+/ & ~/a+/"), "", Refused(nothing)),
        case("nothing after a", lark("start: \"a\" T\nT: /a+/ & ~/a+/"), "", Refused(nothing)),
        case("no Lark", lark("start ::= \"a\""), "", Refused("structured_outputs.grammar")),
        case("no expression", regex("(a"), "", Refused("structured_outputs.regex")),
        case("an unknown rule", lark("start: other"), "", Refused("other")),
        case("ambiguous", lark("start: a\na: a a | \"x\" | \"xx\" | a a a"), "xxxx", Enforced),
        case("ambiguous in 14 ways", lark(ambiguous(15)), &"a".repeat(2_000), Limited("one of its steps")),
        case("a list of 2,000", lark("start: \"a\" start | \"b\""), &("a".repeat(2_000) + "b"), Enforced),
        case("500 rules alike", lark(alike(500)), &"a".repeat(20_000), Limited("its state takes more than 64 MiB")),
        case("multiples of 999,983", tool(multiples(999_983, 1), false), r#"{"p0": 999983}"#, Relaxed("multipleOf")),
        case("multiples of 9,973", tool(multiples(9_973, 1), false), r#"{"p0": 19946}"#, Relaxed("multipleOf")),
        case("multiples of 397", tool(multiples(397, 1), false), r#"{"p0": 397397}"#, Enforced),
        case("multiples of 3,600", tool(multiples(3_600, 1), false), r#"{"p0": 86400}"#, Enforced),
        case("multiples of 300 numbers", tool(multiples(100, 300), false), r#"{"p0": 200}"#, Relaxed("multipleOf")),
        case(
            "multiples in a Lark grammar",
            lark(r#"start: %json {"type": "integer", "multiple\u004ff": 999983}"#),
            "",
            Refused("multipleOf"),
        ),
        case(
            "a string's grammar, one line",
            tool(string_grammar(&"a ".repeat(60_000)), false),
            "",
            Refused("x-rein-lark"),
        ),
        case(
            "a string's grammar of dots",
            tool(string_grammar(&format!("/{}/", ".".repeat(60_000))), false),
            "",
            Refused("x-rein-lark"),
        ),
        case(
            "a string's grammar of letters",
            tool(string_grammar(&format!("/{}/", r"\p{L}".repeat(2_500))), false),
            "",
            Refused("x-rein-lark"),
        ),
        case("2,000 ranges of integers", tool(ranges("integer", 2_000), false), r#"{"p7": 7}"#, Relaxed("maximum")),
        case("300 ranges of integers", tool(ranges("integer", 300), false), r#"{"p7": 7}"#, Enforced),
        case("2,000 ranges of numbers", tool(ranges("number", 2_000), false), r#"{"p7": 7}"#, Relaxed("maximum")),
        case(
            "2,000 ranges of fractions",
            tool(fractions(2_000), false),
            r#"{"p7": 0.50000000000001}"#,
            Relaxed("maximum"),
        ),
        case(
            "a pattern of dots in a string",
            tool(object_of(json!({"type": "string", "pattern": ".".repeat(60_000)})), false),
            "",
            Relaxed("pattern"),
        ),
        case(
            "a string that is not a long text",
            tool(object_of(json!({"type": "string", "not": {"enum": ["ab".repeat(100_000)]}})), false),
            "",
            Relaxed("not"),
        ),
        case("20 grammars of strings", tool(string_grammars(20), false), r#"{"s7": "ab7"}"#, Enforced),
        case("4,000 alternatives", lark(format!("start: {}\n{}", each(4000), kinds(4000))), "k1", Enforced),
    ]
}
