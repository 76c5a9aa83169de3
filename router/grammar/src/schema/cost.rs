//! The cost of expanding a schema. A part that costs too much is relaxed and reported.

use std::borrow::Cow;

use serde_json::Value;

use super::{Compiler, Schema};
use crate::limits::{MAX_PART_WORK, MAX_ROW_MEMBERS};
use crate::rules::RuleError;

/// What is omitted from a part that costs too much: first what must be rewritten, then everything that combines.
const STAGES: [&[&str]; 2] = [
    &["not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"],
    &["allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"],
];

impl Compiler<'_, '_, '_> {
    /// The schema as a union of schemas without combinators, within a part's share of the budget.
    pub(super) fn ways(&mut self, map: &Schema, path: &str) -> Result<Vec<Schema>, RuleError> {
        let mut map = Cow::Borrowed(map);
        let (depth, known) = (self.depth, self.work.relaxations.len());
        for stage in [None, Some(STAGES[0]), Some(STAGES[1])] {
            if let Some(keywords) = stage
                && !self.leave_out(map.to_mut(), keywords, path)
            {
                continue;
            }
            self.part_end = self.work.budget.spent().saturating_add(MAX_PART_WORK);
            let before = self.work.relaxations.len();
            match self.flatten(&map, path) {
                Ok(flats) if fits(&flats) => return Ok(flats),
                Ok(_) | Err(RuleError::TooLarge { .. }) => {}
                Err(error) => return Err(error),
            }
            self.depth = depth;
            // Forgets the relaxations of the alternative that was too costly.
            self.work.relaxations.truncate(before);
        }
        self.work.relaxations.truncate(known);
        self.relax_costly(path, costly_keyword(&map));
        map.to_mut().retain(|keyword, _| keyword == "type");
        Ok(vec![map.into_owned()])
    }

    /// Whether the schema had any of the keywords.
    fn leave_out(&mut self, map: &mut Schema, keywords: &[&str], path: &str) -> bool {
        let mut any = false;
        for keyword in keywords {
            if map.remove(*keyword).is_some() {
                any = true;
                if !matches!(*keyword, "then" | "else") {
                    self.relax_costly(path, keyword);
                }
            }
        }
        if any {
            // The omitted parts may have declared properties and items of their own.
            for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
                if map.remove(keyword).is_some() {
                    self.relax_costly(path, keyword);
                }
            }
            if map.contains_key("properties") {
                map.entry("additionalProperties").or_insert(Value::Bool(true));
            }
        }
        any
    }

    /// Any value of the schema's type, for a part that the budget does not reach.
    pub(super) fn free_of(&mut self, schema: &Value, path: &str) -> String {
        let nothing = Schema::new();
        let map = schema.as_object().unwrap_or(&nothing);
        self.relax_costly(path, costly_keyword(map));
        match map.get("type").and_then(Value::as_str) {
            Some("object") => self.any_object(),
            Some("array") => self.any_array(),
            Some("string") => self.any_string(),
            Some("number") => self.any_number(),
            _ => self.any(),
        }
    }

    /// Takes steps of a comparison. False: none are left.
    pub(super) fn step(&self, steps: u64) -> bool {
        let left = self.steps.get().saturating_sub(steps);
        self.steps.set(left);
        left > 0
    }

    /// Takes steps of comparing or copying. An error: the part has used its share.
    pub(super) fn pay(&mut self, steps: u64, path: &str) -> Result<(), RuleError> {
        self.work.budget.spend(steps)?;
        if self.work.budget.left() == 0 || self.work.budget.spent() > self.part_end {
            return Err(self.too_large(path, "the work of combining the schema's parts", MAX_PART_WORK as usize));
        }
        Ok(())
    }
}

/// The keyword by which a part that costs too much is reported.
fn costly_keyword(map: &Schema) -> &str {
    let named = STAGES[1].iter().chain(STAGES[0]).chain(&["properties", "patternProperties", "items", "enum"]);
    let found = named.copied().find(|keyword| map.contains_key(*keyword));
    found.or_else(|| map.keys().map(String::as_str).find(|keyword| *keyword != "type")).unwrap_or("type")
}

/// Whether the parser can track all ways at once.
fn fits(flats: &[Schema]) -> bool {
    let members = |flat: &Schema| flat.get("properties").and_then(Value::as_object).map_or(0, serde_json::Map::len);
    flats.len() == 1 || flats.iter().map(|flat| members(flat) + 1).sum::<usize>() <= MAX_ROW_MEMBERS
}
