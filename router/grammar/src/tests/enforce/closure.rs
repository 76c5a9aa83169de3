//! In every format, the grammar accepts what the renderer writes and rejects what breaks a rule.

use serde_json::{Value, json};

use super::{Bench, rules, tool};
use crate::tests::{Random, cases};
use crate::{Call, CallPosition, Codec, Format, Markers, Region, RenderOptions, Rules, Turn, formats, render};

pub fn tools() -> Rules {
    let weather = json!({"type": "object", "required": ["city", "unit"], "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "near": {"type": "array", "items": {"type": "string"}},
        "area": {"type": "object", "properties": {"lat": {"type": "number"}, "name": {"type": "string"}}, "required": ["lat"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }});
    rules(vec![
        tool("get_weather", weather),
        tool("get", json!({"type": "object", "properties": {}})),
        tool("get-time.now", json!({"type": "object", "properties": {"zone": {"type": "string"}}})),
        crate::Tool { name: "ping".into(), parameters: None, ..crate::Tool::default() },
    ])
}

const STRINGS: &[&str] = &[
    "Paris",
    "a \"b\" \\ c",
    "naïve 😀\nline",
    "",
    " x ",
    "it's",
    "1",
    "true",
    "null",
    "{\"a\": 1}",
    "</x> <y>",
    "[1]",
    "a, b",
    "tab\tand \u{1}",
    "日本",
];

fn string(random: &mut Random) -> Value {
    json!(*random.pick(STRINGS))
}

fn arguments(name: &str, random: &mut Random) -> Value {
    let mut members: Vec<(&str, Value)> = Vec::new();
    match name {
        "get_weather" => {
            members.push(("city", string(random)));
            members.push(("unit", json!(*random.pick(&["celsius", "fahrenheit"]))));
            if random.one_in(2) {
                members.push(("days", json!(random.below(400) as i64 - 30)));
            }
            if random.one_in(2) {
                members.push(("exact", json!(random.one_in(2))));
            }
            if random.one_in(2) {
                members.push(("near", (0..random.below(3)).map(|_| string(random)).collect()));
            }
            if random.one_in(2) {
                let area =
                    if random.one_in(2) { json!({"lat": 1.5}) } else { json!({"name": string(random), "lat": -3e-7}) };
                members.push(("area", area));
            }
            if random.one_in(2) {
                members.push(("note", if random.one_in(3) { Value::Null } else { string(random) }));
            }
        }
        "get-time.now" if random.one_in(2) => members.push(("zone", string(random))),
        _ => {}
    }
    for i in (1..members.len()).rev() {
        members.swap(i, random.below(i + 1));
    }
    Value::Object(members.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

/// A raw value cannot contain the marker that ends it, and text cannot contain a marker.
fn turn(format: &Format, random: &mut Random) -> Turn {
    let most = if format.many { 3 } else { 1 };
    let names = ["get_weather", "get", "get-time.now", "ping"];
    let calls: Vec<Call> = (0..random.below(most + 1))
        .map(|_| {
            let name = *random.pick(&names);
            Call { name: name.into(), arguments: arguments(name, random).to_string() }
        })
        .collect();
    let reasoning = (format.reasoning.is_some() && random.one_in(2)).then(|| "Let me see < what.\nSo.".to_owned());
    let text = if random.one_in(2) { "Here, a < b.".to_owned() } else { String::new() };
    Turn { reasoning, text, calls }
}

fn ways(format: &Format) -> &'static [bool] {
    if format.markers == Markers::Either { &[false, true] } else { &[false] }
}

#[test]
fn rendered_turns_are_accepted() {
    let mut failures = Vec::new();
    for format in formats().iter().filter(|f| f.has_calls()) {
        for &spelled in ways(format) {
            let b = Bench::new(format, spelled);
            let mut random = Random::new(7);
            let mut bad = 0;
            for round in 0..cases(60) {
                let turn = turn(format, &mut random);
                let start =
                    if format.reasoning.is_some() && random.one_in(3) { Region::Reasoning } else { Region::Text };
                let first_index = random.below(40);
                let r = Rules { start, calls_before: first_index, ..tools() };
                let pieces = render(format, &turn, RenderOptions { start, first_index, spelled });
                let ids = b.tokens.ids(&pieces);
                let (n, may_stop) = b.run(&mut b.matcher(&r), &ids);
                if (n < ids.len() || !may_stop) && bad < 2 {
                    bad += 1;
                    failures.push(format!(
                        "{} spelled={spelled} round {round}: {may_stop} after {:?} | {:?}",
                        format.name,
                        b.tokens.show(&ids[..n]),
                        b.tokens.show(&ids[n..])
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn broken_calls_are_rejected() {
    let good = json!({"city": "Paris", "unit": "celsius", "days": 3, "near": ["x"]});
    let with = |edit: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut map = good.as_object().expect("an object").clone();
        edit(&mut map);
        Value::Object(map).to_string()
    };
    let cases = [
        ("undeclared name", "rm", "{}".to_owned()),
        ("prefix of a name", "get_", "{}".to_owned()),
        ("missing required", "get_weather", with(&|m| drop(m.remove("city")))),
        ("wrong type", "get_weather", with(&|m| drop(m.insert("days".into(), json!("three"))))),
        // A number would be the text of a string where the schema alone tells them apart.
        ("wrong item", "get_weather", with(&|m| drop(m.insert("near".into(), json!([["x"]]))))),
        ("not of the enum", "get_weather", with(&|m| drop(m.insert("unit".into(), json!("kelvin"))))),
        ("extra key", "get_weather", with(&|m| drop(m.insert("country".into(), json!("x"))))),
        ("extra key, nested", "get_weather", with(&|m| drop(m.insert("area".into(), json!({"lat": 1, "x": 1}))))),
        ("missing, nested", "get_weather", with(&|m| drop(m.insert("area".into(), json!({"name": "x"}))))),
        ("arguments for none", "ping", r#"{"x": 1}"#.to_owned()),
    ];
    let mut failures = Vec::new();
    for format in formats().iter().filter(|f| f.has_calls()) {
        for &spelled in ways(format) {
            let b = Bench::new(format, spelled);
            let takes = |name: &str, arguments: &str| {
                let call = Call { name: name.into(), arguments: arguments.into() };
                let turn = Turn { reasoning: None, text: String::new(), calls: vec![call] };
                let ids = b.tokens.ids(&render(format, &turn, RenderOptions { spelled, ..RenderOptions::default() }));
                // Without a marker, what names no declared tool is text.
                let read = b.parse(&tools(), &ids).map_or(true, |calls| !calls.is_empty());
                read && b.run(&mut b.matcher(&tools()), &ids) == (ids.len(), true)
            };
            if !takes("get_weather", &good.to_string()) {
                failures.push(format!("{} {spelled}: the good call is refused", format.name));
            }
            for (what, name, arguments) in &cases {
                if takes(name, arguments) {
                    failures.push(format!("{} {spelled}: {what} is accepted", format.name));
                }
            }
            let twice = r#"{"city": "a", "unit": "celsius", "city": "b"}"#;
            if matches!(format.codec(), Codec::Json | Codec::Object { .. }) && takes("get_weather", twice) {
                failures.push(format!("{} {spelled}: a duplicate key is accepted", format.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_format_obeys_the_tool_choice() {
    use crate::ToolChoice;
    let mut failures = Vec::new();
    for format in formats().iter().filter(|f| f.has_calls()) {
        for &spelled in ways(format) {
            let b = Bench::new(format, spelled);
            let call = |name: &str| Call { name: name.into(), arguments: "{}".into() };
            let takes = |rules: &Rules, text: &str, calls: Vec<Call>| {
                let turn = Turn { reasoning: None, text: text.into(), calls };
                let ids = b.tokens.ids(&render(format, &turn, RenderOptions { spelled, ..RenderOptions::default() }));
                b.run(&mut b.matcher(rules), &ids) == (ids.len(), true)
            };
            let with = |choice: ToolChoice| Rules { choice, ..tools() };
            let mut check = |what: &str, got: bool, want: bool| {
                if got != want {
                    failures.push(format!("{} {spelled}: {what}: {got}", format.name));
                }
            };
            let named = with(ToolChoice::Named("get".into()));
            check("auto text", takes(&tools(), "hello", vec![]), true);
            check("auto call", takes(&tools(), "", vec![call("ping")]), true);
            check("none text", takes(&with(ToolChoice::None), "hello", vec![]), true);
            check("none call", takes(&with(ToolChoice::None), "", vec![call("ping")]), false);
            check("required text", takes(&with(ToolChoice::Required), "hello", vec![]), false);
            check("required call", takes(&with(ToolChoice::Required), "", vec![call("ping")]), true);
            check("named other", takes(&named, "", vec![call("ping")]), false);
            check("named", takes(&named, "", vec![call("get")]), true);
            let allowed = with(ToolChoice::Allowed { names: vec!["ping".into()], required: true });
            for (what, demand) in [("required", with(ToolChoice::Required)), ("allowed", allowed)] {
                let thinks = || format.reasoning.is_some().then(|| "so".to_owned());
                let ids = |reasoning: Option<String>, text: &str| {
                    let turn = Turn { reasoning, text: text.into(), calls: vec![call("ping")] };
                    b.tokens.ids(&render(format, &turn, RenderOptions { spelled, ..RenderOptions::default() }))
                };
                let after = format.calls == CallPosition::AfterText;
                for reasoning in [None, thinks()] {
                    check(what, b.takes_ids(&demand, &ids(reasoning.clone(), "")), true);
                    let (n, _) = b.run(&mut b.matcher(&demand), &ids(reasoning.clone(), "hello"));
                    let taken = b.tokens.show(&ids(reasoning, "hello")[..n]);
                    check(
                        &format!("{what}: text: {taken:?}"),
                        after && taken.contains('h') && taken.ends_with('h'),
                        false,
                    );
                    check(&format!("{what}: text: {taken:?}"), after && taken.contains("hello"), false);
                }
                let spaced = [b.tokens.encode(format.lead.as_bytes()), ids(None, "")].concat();
                check(&format!("{what}, after {:?}", format.lead), b.takes_ids(&demand, &spaced), true);
            }
            let single = Rules { parallel: false, ..tools() };
            check("single", takes(&single, "", vec![call("get")]), true);
            check("two for single", takes(&single, "", vec![call("get"), call("ping")]), false);
            check("two", takes(&tools(), "", vec![call("get"), call("ping")]), !format.ends_with_call());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A mask costs more with many tools, which it must not fail of.
#[test]
fn every_format_takes_many_tools() {
    let object = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let tools: Vec<_> = (0..250).map(|i| tool(&format!("tool_number_{i}_with_a_long_name"), object.clone())).collect();
    let rules = Rules { reasons: true, ..rules(tools) };
    for format in formats().iter().filter(|format| format.has_calls()) {
        for &spelled in ways(format) {
            let b = Bench::new(format, spelled);
            let reasoning = format.reasoning.as_ref().map(|_| "so".to_owned());
            let call = Call { name: "tool_number_17_with_a_long_name".into(), arguments: r#"{"a": "x"}"#.into() };
            let turn = Turn { reasoning, text: "Hi.".into(), calls: vec![call] };
            let ids = b.tokens.ids(&render(format, &turn, RenderOptions { spelled, ..RenderOptions::default() }));
            let mut matcher = b.matcher(&rules);
            for (n, id) in ids.iter().enumerate() {
                let seen = || format!("{} {spelled} {:?}", format.name, b.tokens.show(&ids[..n]));
                let mask = matcher.mask().unwrap_or_else(|error| panic!("{error}: {}", seen()));
                assert!(mask[*id as usize / 8] >> (id % 8) & 1 == 1, "{}", seen());
                assert_eq!(matcher.accept(*id), Ok(true), "{}", seen());
            }
        }
    }
}
