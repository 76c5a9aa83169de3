//! Grammars of arrays.

use serde_json::{Value, json};

use super::constants::{same, values};
use super::members::{Layout, MemberRule, Punctuation, times};
use super::{Compiler, Schema};
use crate::json_schema::count;
use crate::limits::MAX_ANY_ORDER;
use crate::rules::RuleError;

impl Compiler<'_, '_, '_> {
    pub(super) fn array(&mut self, flat: &Schema, path: &str) -> Result<Option<String>, RuleError> {
        let (min, max) = (count(flat, "minItems").unwrap_or(0), count(flat, "maxItems").unwrap_or(usize::MAX));
        if min > max {
            return Ok(None);
        }
        let (start, end) = (self.punctuation(Punctuation::ArrayStart), self.punctuation(Punctuation::ArrayEnd));
        let comma = self.comma();
        let prefix = flat.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let any = Value::Bool(self.is_open() || prefix.is_empty());
        let unevaluated = flat.get("unevaluatedItems").filter(|_| !flat.contains_key("items"));
        if unevaluated.is_some() && flat.contains_key("contains") {
            self.relax(path, "unevaluatedItems");
        }
        let unevaluated = unevaluated.filter(|_| !flat.contains_key("contains"));
        let items = flat.get("items").or(unevaluated).unwrap_or(&any);
        let mut first = Vec::new();
        for (i, schema) in prefix.iter().enumerate().take(max) {
            match self.value(schema, &format!("{path}/prefixItems/{i}"))? {
                Some(item) => first.push(self.item(&item)),
                None => break,
            }
        }
        let whole = first.len() == prefix.len();
        if flat.get("uniqueItems") == Some(&Value::Bool(true)) && max > 1 {
            if prefix.is_empty()
                && !flat.contains_key("contains")
                && let Some(rule) = self.unique(items, min, max, path)?
            {
                return Ok(Some(self.w().rule(&format!("{start} {rule}"))));
            }
            self.relax(path, "uniqueItems");
        }
        let item = if whole && max > first.len() { self.value(items, &format!("{path}/items"))? } else { None };
        let item = item.map(|item| self.item(&item));
        if let Some(wanted) = flat.get("contains").filter(|_| count(flat, "minContains") != Some(0)) {
            let sole = prefix.is_empty() && min <= 1 && max == usize::MAX;
            if sole && !flat.contains_key("minContains") && !flat.contains_key("maxContains") {
                let hit = self.value(&json!({"allOf": [items, wanted]}), &format!("{path}/contains"))?;
                let (Some(hit), Some(item)) = (hit, item) else { return Ok(None) };
                let hit = self.item(&hit);
                let body = format!("{start} ({item} {comma})* {hit} ({comma} {item})* {end}");
                return Ok(Some(self.w().rule(&body)));
            }
            self.relax(path, "contains");
        } else if flat.contains_key("contains") && flat.contains_key("maxContains") {
            self.relax(path, "maxContains");
        }
        if first.len() < min && item.is_none() {
            return Ok(None);
        }
        // Built from the last place to the first: `tail` is what follows the previous place.
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

    /// Items from a list of constants, each at most once. None: there are others, or too many.
    fn unique(&mut self, items: &Value, min: usize, max: usize, path: &str) -> Result<Option<String>, RuleError> {
        let Some(listed) = items.as_object().and_then(values) else { return Ok(None) };
        let mut distinct: Vec<Value> = Vec::new();
        for value in listed {
            if !distinct.iter().any(|known| same(known, &value)) {
                distinct.push(value);
            }
        }
        if distinct.len() > MAX_ANY_ORDER || min > distinct.len() {
            return Ok(None);
        }
        let mut members = Vec::new();
        for value in &distinct {
            let rules = self.value(&json!({"const": value}), path)?;
            let rule = rules.map(|rule| self.item(&rule)).unwrap_or_default();
            members.push(MemberRule { rule, required: false });
        }
        let (comma, close) = (self.comma(), self.punctuation(Punctuation::ArrayEnd));
        Ok(Some(self.sequence(members, Layout { comma, close, min, max, other: None, others: 0, in_order: false })))
    }
}
