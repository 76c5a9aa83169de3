use proptest::prelude::*;
use serde_json::json;

use super::python::JsonDumpsOptions;
use super::*;
use crate::template::{ChatTemplate, RenderInput, TemplateOptions, lossless};

fn json_values() -> impl Strategy<Value = Json> {
    let texts =
        prop_oneof![".{0,12}", Just("\u{F0002}1e400".to_owned()), Just("\u{F0002}12345678901234567890123".to_owned())];
    let scalars = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        texts.clone().prop_map(Json::from),
    ];
    scalars.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
            proptest::collection::vec((texts.clone(), inner), 0..6)
                .prop_map(|pairs| Json::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Lazy or not, `tojson` gives the same text with all of its arguments.
    #[test]
    fn lazy_values_print_as_converted_ones(
        items in proptest::collection::vec(json_values(), 0..4),
        ensure_ascii: bool,
        sort_keys: bool,
        indented: bool,
    ) {
        let dumps = JsonDumpsOptions { ensure_ascii, sort_keys, indent: indented.then(|| "  ".into()), ..JsonDumpsOptions::default() };
        let converted = Value::from(items.iter().map(python::from_json).collect::<Vec<_>>());
        let lazy = LazyJson::list(&items);
        prop_assert_eq!(dumps.dump(&lazy).expect("JSON"), dumps.dump(&converted).expect("JSON"));
        // The first options are remembered, with what they print.
        for dumps in [&dumps, &JsonDumpsOptions { sort_keys: !sort_keys, ..dumps.clone() }, &dumps] {
            let printed = LazyJson::printed(&lazy, dumps, || dumps.dump(&lazy)).expect("JSON");
            prop_assert_eq!(printed, Value::from(dumps.dump(&converted).expect("JSON")));
        }
        // The same after it was read, and for the parts.
        prop_assert_eq!(python::str_of(&lazy), python::str_of(&converted));
        prop_assert_eq!(lazy.len(), converted.len());
        for (a, b) in lazy.try_iter().expect("a list").zip(converted.try_iter().expect("a list")) {
            prop_assert_eq!(dumps.dump(&a).expect("JSON"), dumps.dump(&b).expect("JSON"));
            prop_assert_eq!(a.kind(), b.kind());
            prop_assert_eq!(a.is_true(), b.is_true());
        }
        prop_assert_eq!(&lazy, &converted);
        prop_assert_eq!(&converted, &lazy);
    }
}

/// What a template does with tools beside printing them. The same list as a variable of the template is not lazy.
#[test]
fn templates_read_lazy_tools_as_others() {
    let tools = lossless::from_str(
        r#"[{"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": {"type": "number", "minimum": 1e300, "maximum": 123456789012345678901234567890}}}}},
            {"type": "function", "items": 3, "function": {"name": "b"}}, "text", null, []]"#,
    )
    .expect("JSON");
    for read in [
        "{{ L }}",
        "{{ L|tojson(indent=2) }}",
        "{{ L[0] }} {{ L[-1] }} {{ L[1:3]|tojson }} {{ L|length }} {{ L[0]|length }}",
        "{% for t in L %}{{ loop.index }} {{ t|tojson }} {{ t is mapping }} {{ t is string }} {{ t is iterable }};{% endfor %}",
        "{% for t in L[:2] %}{{ t.function.name }} {{ t['function']|tojson }} {{ t.get('items') }} {{ t.items()|list }}{% endfor %}",
        "{% for k, v in L[0].items() %}{{ k }}={{ v|tojson }} {% endfor %}{{ L[0].keys()|list }} {{ 'type' in L[0] }}",
        "{% for k in L[0] %}{{ k }} {% endfor %}{{ L[0]|dictsort }} {{ L[0] == L[0] }} {{ L == [] }} {{ L + [1] }}",
        "{{ L|map(attribute='type')|list }} {{ L|selectattr('function', 'defined')|list|tojson }} {{ L|first }} {{ L|last }}",
        "{{ L|reverse|list }} {{ L is sequence }} {{ L is mapping }} {{ L is defined }} {{ L|string }} {{ L|join('; ') }}",
        "{{ L[0].function.parameters.properties.x.minimum }} {{ L[0].update is defined }} {{ L[0]|items|list }}",
    ] {
        let rendered = |list: &str, name: &str| {
            let template = ChatTemplate::from_source(&read.replace('L', list), TemplateOptions::default()).expect(read);
            let items = tools.as_array().cloned().expect("a list");
            let kwargs = [("given".to_owned(), tools.clone())].into_iter().collect();
            let input = RenderInput {
                messages: vec![json!({"role": "user", "content": ""})],
                tools: Some(items.into()),
                kwargs,
                raw: true,
                ..RenderInput::default()
            };
            template.render(&input).unwrap_or_else(|error| format!("{name}: {error}"))
        };
        assert_eq!(rendered("tools", ""), rendered("given", ""), "{read}");
    }
}
