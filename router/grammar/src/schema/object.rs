//! Objects and arrays. A rule's parameter holds one bit per property that has come (llguidance's parametric rules).

use serde_json::Value;

use super::{Compiler, Schema};
use crate::lark::{blanks, either};
use crate::limits::{MAX_ANY_ORDER, MAX_FREE_DEPTH};
use crate::rules::RuleError;

/// The members of an object that its schema names, and all names that it uses.
type Declared = (Vec<Member>, Vec<String>);

/// A member that may come once.
pub(super) struct Member {
    pub rule: String,
    pub required: bool,
}

/// How members stand in their object.
pub(super) struct Layout {
    pub comma: String,
    /// After the last; empty where nothing is.
    pub close: String,
    pub min: usize,
    pub max: usize,
    /// Members beside the declared ones, as often as they like.
    pub other: Option<String>,
}

impl Compiler<'_, '_, '_> {
    fn punctuation(&mut self, before: bool, text: &str, after: bool) -> String {
        let blanks = |on: bool| if on { blanks() } else { String::new() };
        let regex = format!("{}{}{}", blanks(before), crate::lark::escape(text), blanks(after));
        self.w().regex(&regex)
    }

    pub(super) fn comma(&mut self) -> String {
        self.punctuation(true, ",", true)
    }

    pub(super) fn colon(&mut self) -> String {
        self.punctuation(true, ":", true)
    }

    pub(super) fn open(&mut self) -> String {
        self.punctuation(false, "{", true)
    }

    pub(super) fn close(&mut self) -> String {
        self.punctuation(true, "}", false)
    }

    pub(super) fn closed_empty(&mut self) -> String {
        let (open, close) = (self.open(), self.close());
        self.w().rule(&format!("{open} {close}"))
    }

    /// Any value, of bounded depth.
    pub(super) fn any(&mut self) -> String {
        let value = self.free().0;
        self.w().rule(&format!("{value}::0x0"))
    }

    /// Any object, of bounded depth.
    pub(super) fn any_object(&mut self) -> String {
        let (_, pair, _) = self.free();
        let (open, close, comma) = (self.open(), self.close(), self.comma());
        self.w().rule(&format!("{open} ({pair}::0x0 ({comma} {pair}::0x0)*)? {close}"))
    }

    /// Any array, of bounded depth.
    pub(super) fn any_array(&mut self) -> String {
        let (value, ..) = self.free();
        let (start, end) = (self.punctuation(false, "[", true), self.punctuation(true, "]", false));
        let comma = self.comma();
        self.w().rule(&format!("{start} ({value}::0x0 ({comma} {value}::0x0)*)? {end}"))
    }

    /// Rules for any value and for a member of any object; the parameter is the depth. It grows where a value becomes an
    /// object or an array and nowhere else: llguidance cannot take a rule that is being defined with another parameter
    /// than its own.
    fn free(&mut self) -> (String, String, String) {
        let (string, number, comma, colon) = (self.any_string(), self.any_number(), self.comma(), self.colon());
        let words = format!("{}|{}|{}", self.word("true"), self.word("false"), self.word("null"));
        let words = self.w().regex(&words);
        let (open, close) = (self.open(), self.close());
        let (start, end) = (self.punctuation(false, "[", true), self.punctuation(true, "]", false));
        let w = self.w();
        let key = format!("any of {string} {words}");
        if let Some(names) = w.shared(&key) {
            return names;
        }
        let (value, object, array, pair) = (w.reserve(), w.reserve(), w.reserve(), w.reserve());
        let nested = |name: &str| format!("{name}::incr(_) %if lt(_, {MAX_FREE_DEPTH})");
        w.define_parametric(&value, &[string.clone(), number, words, nested(&object), nested(&array)]);
        w.define_parametric(&pair, &[format!("{string} {colon} {value}::_")]);
        w.define_parametric(
            &object,
            &[format!("{open} {close}"), format!("{open} {pair}::_ ({comma} {pair}::_)* {close}")],
        );
        w.define_parametric(
            &array,
            &[format!("{start} {end}"), format!("{start} {value}::_ ({comma} {value}::_)* {end}")],
        );
        let names = (value, pair, array);
        w.share(&key, names.clone());
        names
    }

    pub(super) fn object(&mut self, flat: &Schema, path: &str) -> Result<Option<String>, RuleError> {
        let Some((members, names)) = self.members(flat, path)? else { return Ok(None) };
        let declared = flat.get("properties").is_some();
        let required = members.iter().filter(|m| m.required).count();
        let (min, max) =
            (count(flat, "minProperties").unwrap_or(0), count(flat, "maxProperties").unwrap_or(usize::MAX));
        let patterns = !declared && flat.contains_key("patternProperties");
        let other = match flat.get("additionalProperties") {
            Some(Value::Bool(false)) if !patterns => None,
            None if declared => None,
            other => {
                let path = format!("{path}/additionalProperties");
                self.others(flat, other.unwrap_or(&Value::Bool(true)), &names, declared, &path)?
            }
        };
        if other.is_some() && members.is_empty() && min == 0 && max == usize::MAX && self.is_free(flat) {
            return Ok(Some(self.any_object()));
        }
        if min > members.len() && other.is_none() || required > max {
            return Ok(None);
        }
        if other.is_some() {
            for (keyword, set) in [("minProperties", min > required), ("maxProperties", max < usize::MAX)] {
                if set {
                    self.relax(path, keyword);
                }
            }
        }
        let (open, close, comma) = (self.open(), self.close(), self.comma());
        let (min, max) = if other.is_some() { (0, usize::MAX) } else { (min, max) };
        let inner = self.sequence(members, Layout { comma, close, min, max, other });
        Ok(Some(self.w().rule(&format!("{open} {inner}"))))
    }

    /// Whether an object's schema says nothing beyond its type.
    fn is_free(&self, flat: &Schema) -> bool {
        flat.keys().all(|k| {
            super::flat::is_annotation(k)
                || k == "type"
                || k == "properties"
                || (k == "additionalProperties" && flat.get(k) == Some(&Value::Bool(true)))
                || k == "required"
        })
    }

    /// The declared properties that can be satisfied; none if a required one cannot.
    fn members(&mut self, flat: &Schema, path: &str) -> Result<Option<Declared>, RuleError> {
        let colon = self.colon();
        let mut members = Vec::new();
        let mut names = Vec::new();
        for (name, schema, required) in declared(flat) {
            names.push(name.clone());
            match self.value(schema, &format!("{path}/properties/{name}"))? {
                Some(value) => {
                    let key = self.key(&name);
                    members.push(Member { rule: format!("{key} {colon} {value}"), required });
                }
                None if required => return Ok(None),
                None => {}
            }
        }
        Ok(Some((members, names)))
    }

    /// Members that the schema does not name.
    fn others(
        &mut self,
        flat: &Schema,
        schema: &Value,
        taken: &[String],
        declared: bool,
        path: &str,
    ) -> Result<Option<String>, RuleError> {
        let colon = self.colon();
        if let Some(patterns) = flat.get("patternProperties").and_then(Value::as_object).filter(|_| !declared) {
            let mut all = Vec::new();
            for (pattern, schema) in patterns {
                let key = serde_json::json!({"type": "string", "pattern": pattern});
                if let (Some(key), Some(value)) = (self.value(&key, path)?, self.value(schema, path)?) {
                    all.push(format!("{key} {colon} {value}"));
                }
            }
            return Ok((!all.is_empty()).then(|| either(&all)));
        }
        if flat.contains_key("patternProperties") {
            self.relax(path, "patternProperties");
        }
        let key = match flat.get("propertyNames") {
            Some(names) if taken.is_empty() => {
                let names = serde_json::json!({"type": "string", "allOf": [names]});
                self.value(&names, path)?
            }
            Some(_) => return Ok(None),
            None => Some(self.other_key(taken)),
        };
        let (Some(key), Some(value)) = (key, self.value(schema, path)?) else { return Ok(None) };
        Ok(Some(format!("{key} {colon} {value}")))
    }

    /// Members in any order, each at most once, then `layout.close`.
    pub(super) fn sequence(&mut self, mut members: Vec<Member>, layout: Layout) -> String {
        let Layout { comma, close, min, max, other } = layout;
        if members.is_empty() {
            return match other {
                Some(other) => format!("({close} | {other} ({comma} {other})* {close})"),
                None => close,
            };
        }
        if members.len() > MAX_ANY_ORDER {
            return self.in_order(&members, &comma, &close, other.as_deref());
        }
        // The required ones have the lowest bits, so that one condition covers them.
        members.sort_by_key(|m| !m.required);
        let required = members.iter().filter(|m| m.required).count();
        let mut done = Vec::new();
        if required > 0 {
            done.push(format!("is_ones([0:{required}])"));
        }
        if min > required {
            done.push(format!("bit_count_ge(_, {min})"));
        }
        let room = (max < members.len()).then(|| format!("bit_count_lt(_, {max})"));
        // No comma without anything that may follow it.
        let more_may_come = match other {
            Some(_) => String::new(),
            None => format!(" %if bit_count_lt(_, {})", max.min(members.len())),
        };
        let w = self.w();
        let key = format!(
            "{comma} {close} {done:?} {room:?} {other:?} {}",
            members.iter().map(|m| m.rule.as_str()).collect::<Vec<_>>().join("\n")
        );
        if let Some((first, ..)) = w.shared(&key) {
            return first;
        }
        let (next, more) = (w.reserve(), w.reserve());
        let mut alternatives: Vec<String> = members
            .iter()
            .enumerate()
            .map(|(i, m)| {
                let free = format!("bit_clear({i})");
                let condition = room.as_ref().map_or(free.clone(), |room| format!("and({free}, {room})"));
                format!("{} {next}::set_bit({i}) %if {condition}", m.rule)
            })
            .collect();
        alternatives.extend(other.map(|other| format!("{other} {next}::_")));
        w.define_parametric(&more, &alternatives);
        let done = match done.as_slice() {
            [] => String::new(),
            [one] => format!(" %if {one}"),
            [a, b, ..] => format!(" %if and({a}, {b})"),
        };
        let end = if close.is_empty() { "\"\"" } else { close.as_str() };
        w.define_parametric(&next, &[format!("{end}{done}"), format!("{comma} {more}::_{more_may_come}")]);
        // Before the first member no bit is set, so the conditions are decided.
        let first = match (done.is_empty(), max > 0) {
            (true, true) => w.rule(&format!("{end} | {more}::0x0")),
            (true, false) => end.to_owned(),
            (false, _) => format!("{more}::0x0"),
        };
        w.share(&key, (first.clone(), next, more));
        first
    }

    /// Members in the order of the schema: more than fit into a rule's parameter.
    fn in_order(&mut self, members: &[Member], comma: &str, close: &str, other: Option<&str>) -> String {
        let end = if close.is_empty() { "\"\"" } else { close };
        // After a member, and before the first.
        let mut tail = match other {
            Some(other) => format!("({comma} {other})* {end}"),
            None => end.to_owned(),
        };
        let mut head = match other {
            Some(other) => format!("({end} | {other} ({comma} {other})* {end})"),
            None => end.to_owned(),
        };
        for member in members.iter().rev() {
            let w = self.work.writer as &mut crate::lark::Writer;
            let rest = w.rule(&tail);
            let skipped = w.rule(&head);
            let m = &member.rule;
            tail = if member.required { format!("{comma} {m} {rest}") } else { format!("{comma} {m} {rest} | {rest}") };
            head = if member.required { format!("{m} {rest}") } else { format!("{m} {rest} | {skipped}") };
        }
        self.w().rule(&head)
    }

    pub(super) fn array(&mut self, flat: &Schema, path: &str) -> Result<Option<String>, RuleError> {
        let (min, max) = (count(flat, "minItems").unwrap_or(0), count(flat, "maxItems").unwrap_or(usize::MAX));
        if min > max {
            return Ok(None);
        }
        let (start, end) = (self.punctuation(false, "[", true), self.punctuation(true, "]", false));
        let comma = self.comma();
        let (prefix, items) = match (flat.get("prefixItems"), flat.get("items"), flat.get("additionalItems")) {
            (Some(Value::Array(prefix)), items, _) => (prefix.as_slice(), items),
            (_, Some(Value::Array(prefix)), rest) => (prefix.as_slice(), rest),
            (_, items, _) => (&[][..], Some(items.unwrap_or(&Value::Bool(true)))),
        };
        let mut first = Vec::new();
        for (i, schema) in prefix.iter().enumerate().take(max) {
            match self.value(schema, &format!("{path}/prefixItems/{i}"))? {
                Some(item) => first.push(item),
                None => break,
            }
        }
        let whole = first.len() == prefix.len();
        let unique = flat.get("uniqueItems") == Some(&Value::Bool(true));
        if let Some(items) = items.filter(|_| unique && prefix.is_empty())
            && let Some(rule) = self.unique(items, min, max, path)?
        {
            return Ok(Some(self.w().rule(&format!("{start} {rule}"))));
        }
        if unique && max > 1 {
            self.relax(path, "uniqueItems");
        }
        let item = match items.filter(|_| whole && max > first.len()) {
            Some(items) => self.value(items, &format!("{path}/items"))?,
            None => None,
        };
        if first.len() < min && item.is_none() {
            return Ok(None);
        }
        // From the last place to the first: what may stand from there on.
        let rest_min = min.saturating_sub(first.len());
        let rest_max = max.saturating_sub(first.len());
        let mut tail = match (&item, first.is_empty()) {
            (None, _) => end.clone(),
            (Some(item), false) => format!("{} {end}", times(&format!("({comma} {item})"), rest_min, rest_max)),
            (Some(item), true) => {
                let more = times(&format!("({comma} {item})"), min.saturating_sub(1), max - 1);
                let some = format!("{item} {more} {end}");
                if min == 0 { format!("({end} | {some})") } else { some }
            }
        };
        for (i, place) in first.iter().enumerate().rev() {
            let rest = self.w().rule(&tail);
            let here = if i == 0 { format!("{place} {rest}") } else { format!("{comma} {place} {rest}") };
            tail = if i >= min { format!("{end} | {here}") } else { here };
        }
        let tail = self.w().rule(&tail);
        Ok(Some(self.w().rule(&format!("{start} {tail}"))))
    }

    /// Items from a list of constants, each at most once; none if there are others, or too many.
    fn unique(&mut self, items: &Value, min: usize, max: usize, path: &str) -> Result<Option<String>, RuleError> {
        let Some(values) = items.as_object().and_then(super::flat::values) else { return Ok(None) };
        if values.len() > MAX_ANY_ORDER || min > values.len() {
            return Ok(None);
        }
        let mut members = Vec::new();
        for value in &values {
            let rules = self.constants(std::slice::from_ref(value), path)?;
            members.push(Member { rule: either(&rules), required: false });
        }
        let (comma, close) = (self.comma(), self.punctuation(true, "]", false));
        Ok(Some(self.sequence(members, Layout { comma, close, min, max, other: None })))
    }
}

/// The properties of an object: those it declares and those it requires.
pub(super) fn declared(flat: &Schema) -> Vec<(String, &Value, bool)> {
    const ANY: &Value = &Value::Bool(true);
    let required: Vec<&str> =
        flat.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = flat.get("properties").and_then(Value::as_object);
    let named = properties.into_iter().flatten().map(|(k, v)| (k.clone(), v, required.contains(&k.as_str())));
    let unnamed = required.iter().filter(|r| !properties.is_some_and(|p| p.contains_key(**r)));
    let mut all: Vec<_> = named.chain(unnamed.map(|r| ((*r).to_owned(), ANY, true))).collect();
    let mut seen = std::collections::HashSet::new();
    all.retain(|(name, ..)| seen.insert(name.clone()));
    all
}

fn count(flat: &Schema, key: &str) -> Option<usize> {
    flat.get(key).and_then(|v| v.as_u64().or_else(|| v.as_f64().map(|f| f as u64))).map(|n| n as usize)
}

/// An expression so many times.
fn times(group: &str, min: usize, max: usize) -> String {
    const MOST: usize = i32::MAX as usize;
    match (min.min(MOST), max) {
        (_, 0) => String::new(),
        (0, max) if max >= MOST => format!("{group}*"),
        (min, max) if max >= MOST => format!("{group}{{{min},}}"),
        (min, max) => format!("{group}{{{min},{max}}}"),
    }
}
