//! Generates parameter schemas of tools, each with an example that satisfies it. It knows no requests.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// A schema and a value that satisfies it.
pub type Field = (Value, Value);

/// A tool's parameters and an example. The schema is None for a tool without declared parameters.
pub type Parameters = (Option<Value>, Value);

/// A kind of schema: its tag and its generator.
pub type SchemaLevel = (&'static str, fn(&mut RandomSource) -> Parameters);

pub const LEVELS: &[SchemaLevel] = &[
    ("strings", |s| some(s.fields(&[RandomSource::string, RandomSource::string], 1))),
    ("scalars", |s| {
        some(s.fields(&[RandomSource::integer, RandomSource::number, RandomSource::boolean, RandomSource::string], 2))
    }),
    ("enums", |s| some(s.fields(&[RandomSource::choice, RandomSource::mixed_choice, RandomSource::constant], 2))),
    ("optional", |s| some(s.optional())),
    ("arrays", |s| some(s.fields(&[RandomSource::array, RandomSource::numbers, RandomSource::string], 2))),
    ("nested", |s| some(s.nested(3))),
    ("nested_arrays", |s| some(s.fields(&[RandomSource::records, RandomSource::matrix, RandomSource::array], 3))),
    ("unions", |s| {
        some(s.fields(&[RandomSource::any_of, RandomSource::one_of, RandomSource::nullable, RandomSource::all_of], 3))
    }),
    ("refs", |s| some(s.refs())),
    ("bounds", |s| {
        some(s.fields(&[RandomSource::pattern, RandomSource::format, RandomSource::multiple, RandomSource::bounded], 4))
    }),
    ("odd_keys", |s| some(s.odd_keys())),
    ("empty", RandomSource::empty),
    ("conditions", |s| some(s.conditions())),
    ("dialects", |s| some(s.dialect())),
    ("everything", |s| some(s.everything())),
];

const WORDS: &[&str] = &[
    "city", "order", "status", "amount", "target", "label", "query", "owner", "branch", "region", "device", "color",
    "priority", "summary", "channel", "unit", "price", "rating", "format", "version",
];
const TEXTS: &[&str] = &[
    "Paris",
    "blue",
    "two words",
    "Straße 7",
    "東京都",
    "naïve café",
    "she said \"yes\"",
    "a\\b",
    "line one\nline two",
    "{\"not\": \"an object\"}",
    "</tool_call>",
    "😀 ok",
    "Ελλάδα",
    "50 % & more",
];
const ODD_KEYS: &[&str] = &[
    "größe",
    "市区町村",
    "with space",
    "it's",
    "say \"hi\"",
    "back\\slash",
    "a.b[0]",
    "$ref",
    "😀",
    "x-y/z",
    "UPPER",
    "1st",
    "tab\there",
    "",
];

/// The random source of a sample. Equal seeds give equal samples.
pub struct RandomSource(StdRng);

fn some(field: Field) -> Parameters {
    (Some(field.0), field.1)
}

/// An object with named fields. The first `required` fields are required.
fn object(fields: Vec<(String, Field)>, required: usize) -> Field {
    let names: Vec<&String> = fields.iter().take(required).map(|(name, _)| name).collect();
    let mut schema = json!({ "type": "object", "properties": {}, "required": names });
    let properties: Map<String, Value> = fields.iter().map(|(name, f)| (name.clone(), f.0.clone())).collect();
    schema["properties"] = Value::Object(properties);
    let example: Map<String, Value> = fields.into_iter().map(|(name, f)| (name, f.1)).collect();
    (schema, Value::Object(example))
}

fn closed(mut field: Field) -> Field {
    field.0["additionalProperties"] = json!(false);
    field
}

impl RandomSource {
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n.max(1))
    }

    pub fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from.choose(&mut self.0).copied().unwrap_or_default()
    }

    pub fn word(&mut self) -> &'static str {
        self.pick(WORDS)
    }

    pub fn hex(&mut self, digits: usize) -> String {
        (0..digits).map(|_| char::from_digit(self.below(16) as u32, 16).unwrap_or('0')).collect()
    }

    /// `n` different words.
    fn names(&mut self, n: usize) -> Vec<String> {
        let start = self.below(WORDS.len());
        (0..n).map(|i| WORDS[(start + i * 3) % WORDS.len()].to_owned()).collect()
    }

    fn fields(&mut self, kinds: &[fn(&mut Self) -> Field], required: usize) -> Field {
        let names = self.names(kinds.len());
        object(names.into_iter().zip(kinds.iter().map(|kind| kind(self))).collect(), required)
    }

    fn string(&mut self) -> Field {
        (json!({ "type": "string", "description": format!("The {}", self.word()) }), json!(self.pick(TEXTS)))
    }

    fn integer(&mut self) -> Field {
        let high = 10 + self.below(1000);
        (json!({ "type": "integer", "minimum": 0, "maximum": high }), json!(self.below(high + 1)))
    }

    fn number(&mut self) -> Field {
        (json!({ "type": "number" }), json!(self.below(4000) as f64 / 4.0 - 300.0))
    }

    fn boolean(&mut self) -> Field {
        (json!({ "type": "boolean" }), json!(self.below(2) == 0))
    }

    fn choice(&mut self) -> Field {
        let all = self.names(4);
        let at = self.below(all.len());
        let example = json!(all[at]);
        (json!({ "type": "string", "enum": all }), example)
    }

    fn mixed_choice(&mut self) -> Field {
        let all = json!(["auto", 0, 1.5, true, null, "größer"]);
        let example = all[self.below(6)].clone();
        (json!({ "enum": all }), example)
    }

    fn constant(&mut self) -> Field {
        let value = json!(format!("v{}", self.below(9)));
        (json!({ "const": value }), value)
    }

    fn optional(&mut self) -> Field {
        let (mut schema, mut example) =
            self.fields(&[Self::string, Self::integer, Self::choice, Self::nullable, Self::boolean], 1);
        let last = schema["properties"].as_object().and_then(|p| p.keys().next_back().cloned()).unwrap_or_default();
        schema["properties"][&last]["default"] = json!(false);
        if self.below(2) == 0 {
            example.as_object_mut().and_then(|members| members.shift_remove(&last));
        }
        closed((schema, example))
    }

    fn nullable(&mut self) -> Field {
        let example = if self.below(2) == 0 { Value::Null } else { json!(self.pick(TEXTS)) };
        (json!({ "type": ["string", "null"] }), example)
    }

    fn array(&mut self) -> Field {
        let n = 1 + self.below(4);
        let example: Vec<&str> = (0..n).map(|_| self.pick(TEXTS)).collect();
        (json!({ "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 5 }), json!(example))
    }

    fn numbers(&mut self) -> Field {
        let start = self.below(50);
        let example: Vec<usize> = (0..3).map(|i| start + i).collect();
        (json!({ "type": "array", "items": { "type": "integer" }, "uniqueItems": true }), json!(example))
    }

    fn matrix(&mut self) -> Field {
        let cell = self.below(9);
        let row = json!({ "type": "array", "items": { "type": "number" }, "minItems": 2, "maxItems": 2 });
        (json!({ "type": "array", "items": row }), json!([[cell, 0.5], [-1, cell + 1]]))
    }

    fn nested(&mut self, depth: usize) -> Field {
        let mut fields: Vec<(String, Field)> = self.names(2).into_iter().zip([self.string(), self.integer()]).collect();
        if depth > 0 {
            fields.push(("inner".into(), self.nested(depth - 1)));
        }
        let n = fields.len();
        closed(object(fields, n))
    }

    fn records(&mut self) -> Field {
        let (schema, first) = closed(self.fields(&[Self::string, Self::choice, Self::array], 2));
        (json!({ "type": "array", "items": schema, "minItems": 1 }), json!([first]))
    }

    fn any_of(&mut self) -> Field {
        let (text, count, list) = (self.string(), self.integer(), self.array());
        let schema = json!({ "anyOf": [text.0, count.0, list.0] });
        (schema, [text.1, count.1, list.1][self.below(3)].clone())
    }

    fn one_of(&mut self) -> Field {
        let shape = |kind: &str, name: &str, inner: Value| {
            json!({ "type": "object", "properties": { "kind": { "const": kind }, name: inner },
                    "required": ["kind", name], "additionalProperties": false })
        };
        let schema = json!({ "oneOf": [
            shape("circle", "radius", json!({ "type": "number", "exclusiveMinimum": 0 })),
            shape("text", "value", json!({ "type": "string" })),
        ] });
        let examples =
            [json!({ "kind": "circle", "radius": 2.5 }), json!({ "kind": "text", "value": self.pick(TEXTS) })];
        (schema, examples[self.below(2)].clone())
    }

    fn all_of(&mut self) -> Field {
        let schema = json!({ "allOf": [
            { "type": "object", "properties": { "from": { "type": "integer" } }, "required": ["from"] },
            { "type": "object", "properties": { "to": { "type": "integer" } }, "required": ["to"] },
        ] });
        (schema, json!({ "from": self.below(10), "to": 10 + self.below(10) }))
    }

    fn refs(&mut self) -> Field {
        let leaf = self.pick(TEXTS);
        let node = json!({ "type": "object", "required": ["name"], "additionalProperties": false, "properties": {
            "name": { "type": "string" },
            "children": { "type": "array", "items": { "$ref": "#/$defs/node" } },
        } });
        let schema = json!({ "type": "object", "required": ["tree", "size"], "additionalProperties": false,
            "properties": {
                "tree": { "$ref": "#/$defs/node" },
                "size": { "$ref": "#/$defs/size" },
                "other size": { "$ref": "#/$defs/size", "description": "Like size" },
            },
            "$defs": { "node": node, "size": { "type": "integer", "minimum": 1 } } });
        let tree = json!({ "name": leaf, "children": [{ "name": "b", "children": [] }, { "name": "c" }] });
        (schema, json!({ "tree": tree, "size": 1 + self.below(9) }))
    }

    fn pattern(&mut self) -> Field {
        let digits = 1000 + self.below(9000);
        (json!({ "type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$" }), json!(format!("AB-{digits}")))
    }

    fn format(&mut self) -> Field {
        let (format, example) = [
            ("date", "2026-02-28"),
            ("date-time", "2026-02-28T23:59:00Z"),
            ("email", "a.b@example.org"),
            ("uri", "https://example.org/a?b=c"),
            ("uuid", "1b4e28ba-2fa1-41d2-883f-0016d3cca427"),
        ][self.below(5)];
        (json!({ "type": "string", "format": format }), json!(example))
    }

    fn multiple(&mut self) -> Field {
        (json!({ "type": "integer", "multipleOf": 5, "exclusiveMinimum": 0 }), json!(5 * (1 + self.below(20))))
    }

    fn bounded(&mut self) -> Field {
        let example = self.pick(&["abc", "four", "größe", "東京都"]);
        (json!({ "type": "string", "minLength": 3, "maxLength": 8 }), json!(example))
    }

    fn odd_keys(&mut self) -> Field {
        let start = self.below(ODD_KEYS.len());
        let names = (0..5).map(|i| ODD_KEYS[(start + i * 3) % ODD_KEYS.len()].to_owned());
        let fields =
            names.map(|name| (name, if self.below(2) == 0 { self.string() } else { self.integer() })).collect();
        closed(object(fields, 3))
    }

    /// Parameters with few or no constraints.
    fn empty(&mut self) -> Parameters {
        let word = self.word();
        match self.below(6) {
            0 => (None, json!({})),
            1 => (Some(json!({})), json!({})),
            2 => (Some(json!({ "type": "object", "properties": {} })), json!({})),
            3 => (Some(json!({ "type": "object", "properties": {}, "additionalProperties": false })), json!({})),
            4 => {
                let open = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
                (Some(open), json!({ word: self.below(9), "größe": 1 }))
            }
            _ => {
                let patterns = json!({ "type": "object", "patternProperties": { "^x_": { "type": "string" } },
                    "propertyNames": { "maxLength": 20 }, "additionalProperties": false, "minProperties": 1 });
                (Some(patterns), json!({ format!("x_{word}"): self.pick(TEXTS) }))
            }
        }
    }

    fn conditions(&mut self) -> Field {
        match self.below(3) {
            0 => {
                let schema = json!({ "type": "object", "required": ["method"],
                    "properties": { "method": { "enum": ["card", "cash"] }, "number": { "type": "string" } },
                    "if": { "properties": { "method": { "const": "card" } } },
                    "then": { "required": ["number"] }, "else": { "not": { "required": ["number"] } } });
                let card = json!({ "method": "card", "number": "4111" });
                (schema, if self.below(2) == 0 { card } else { json!({ "method": "cash" }) })
            }
            1 => {
                let schema = json!({ "type": "object", "dependentRequired": { "street": ["city"] },
                    "properties": { "street": { "type": "string" }, "city": { "type": "string" },
                        "tags": { "type": "array", "contains": { "const": "main" } } } });
                (schema, json!({ "street": self.pick(TEXTS), "city": self.pick(TEXTS), "tags": ["main", "x"] }))
            }
            _ => {
                let schema = json!({ "type": "object", "required": ["point"], "unevaluatedProperties": false,
                    "properties": { "point": { "type": "array", "minItems": 2, "items": false,
                        "prefixItems": [{ "type": "number" }, { "enum": ["km", "mi"] }] } } });
                (schema, json!({ "point": [self.below(100), "km"] }))
            }
        }
    }

    /// Schemas with `$schema` and the syntax of that draft.
    fn dialect(&mut self) -> Field {
        if self.below(2) == 0 {
            let schema = json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                "required": ["pair", "item"], "definitions": { "item": { "type": "string", "minLength": 1 } },
                "properties": { "item": { "$ref": "#/definitions/item" },
                    "pair": { "type": "array", "items": [{ "type": "integer" }, { "type": "string" }], "additionalItems": false } } });
            (schema, json!({ "item": self.pick(TEXTS), "pair": [self.below(9), "b"] }))
        } else {
            let schema = json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Args",
                "type": "object", "required": ["at"], "additionalProperties": false,
                "properties": { "at": { "title": "At", "anyOf": [{ "type": "integer" }, { "type": "null" }], "default": null } } });
            (schema, json!({ "at": self.below(100) }))
        }
    }

    fn everything(&mut self) -> Field {
        let kinds: [fn(&mut Self) -> Field; 12] = [
            Self::string,
            Self::mixed_choice,
            Self::records,
            Self::any_of,
            Self::pattern,
            Self::matrix,
            Self::one_of,
            Self::nullable,
            Self::odd_keys,
            Self::conditions,
            Self::number,
            Self::numbers,
        ];
        let names: Vec<String> = (0..kinds.len()).map(|i| format!("{}_{i}", self.word())).collect();
        closed(object(names.into_iter().zip(kinds.iter().map(|kind| kind(self))).collect(), 6))
    }
}
