//! Grammars of objects. A rule's parameter has one bit per property that was written (llguidance's parametric rules).

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::array::times;
use super::names::{matches, steps};
use super::{Compiler, Schema};
use crate::lark::blanks;
use crate::limits::{MAX_ANY_ORDER, MAX_COMPILE_WORK, MAX_IN_ORDER, MAX_PATTERNS};
use crate::rules::RuleError;

/// The members of an object that its schema names, and all names that it uses.
type Declared = (Vec<Member>, Vec<String>);

/// A member that may occur once.
pub(super) struct Member {
    pub rule: String,
    pub required: bool,
}

/// Punctuation of JSON, with the blanks around it.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Comma,
    Colon,
    ObjectStart,
    ObjectEnd,
    ArrayStart,
    ArrayEnd,
}

impl Mark {
    pub const ALL: [Self; 6] =
        [Self::Comma, Self::Colon, Self::ObjectStart, Self::ObjectEnd, Self::ArrayStart, Self::ArrayEnd];

    pub fn regex(self) -> &'static str {
        static REGEXES: LazyLock<[String; Mark::ALL.len()]> = LazyLock::new(|| {
            Mark::ALL.map(|mark| match mark {
                Mark::Comma => format!("{0},{0}", blanks()),
                Mark::Colon => format!("{0}:{0}", blanks()),
                Mark::ObjectStart => format!(r"\{{{}", blanks()),
                Mark::ObjectEnd => format!(r"{}\}}", blanks()),
                Mark::ArrayStart => format!(r"\[{}", blanks()),
                Mark::ArrayEnd => format!(r"{}\]", blanks()),
            })
        });
        &REGEXES[self as usize]
    }
}

/// How members are written in their object.
pub(super) struct Layout {
    pub comma: String,
    /// After the last member; may be empty.
    pub close: String,
    pub min: usize,
    pub max: usize,
    /// Undeclared members, any number of them.
    pub other: Option<String>,
}

impl Compiler<'_, '_, '_> {
    pub(super) fn punctuation(&mut self, mark: Mark) -> String {
        self.w().regex(mark.regex())
    }

    pub(super) fn comma(&mut self) -> String {
        self.punctuation(Mark::Comma)
    }

    pub(super) fn colon(&mut self) -> String {
        self.punctuation(Mark::Colon)
    }

    pub(super) fn open(&mut self) -> String {
        self.punctuation(Mark::ObjectStart)
    }

    pub(super) fn close(&mut self) -> String {
        self.punctuation(Mark::ObjectEnd)
    }

    pub(super) fn closed_empty(&mut self) -> String {
        let (open, close) = (self.open(), self.close());
        self.w().rule(&format!("{open} {close}"))
    }

    pub(super) fn object(&mut self, flat: &Schema, path: &str) -> Result<Option<String>, RuleError> {
        let patterns = |flat: &Schema| flat.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
        if patterns(flat) > MAX_PATTERNS {
            self.relax_costly(path, "patternProperties");
            let mut flat = flat.clone();
            flat.remove("patternProperties");
            flat.insert("additionalProperties".into(), true.into());
            return self.object(&flat, path);
        }
        let Some((members, names)) = self.members(flat, path)? else { return Ok(None) };
        if members.len() > MAX_IN_ORDER {
            self.relax_costly(path, "properties");
            return Ok(Some(self.any_object()));
        }
        let required = members.iter().filter(|m| m.required).count();
        let (min, max) =
            (count(flat, "minProperties").unwrap_or(0), count(flat, "maxProperties").unwrap_or(usize::MAX));
        let narrow = !self.is_open() && (flat.contains_key("properties") || flat.contains_key("patternProperties"));
        let rest = flat.get("additionalProperties").or_else(|| flat.get("unevaluatedProperties"));
        let rest = rest.cloned().unwrap_or(Value::Bool(!narrow));
        let other = if rest == Value::Bool(false) && !flat.contains_key("patternProperties") {
            None
        } else if names.is_empty() && min == 0 && max == usize::MAX && rest == Value::Bool(true) && is_free(flat) {
            return Ok(Some(self.any_object()));
        } else {
            self.others(flat, &rest, &names, &format!("{path}/additionalProperties"))?
        };
        if min > members.len() && other.is_none() || required > max {
            return Ok(None);
        }
        // An undeclared name may occur twice, and counts once.
        let counted = other.is_none() || members.is_empty();
        let (fewest, most) = (other.is_none() || (counted && min <= 1), counted);
        for (keyword, set) in
            [("minProperties", min > required && !fewest), ("maxProperties", max < usize::MAX && !most)]
        {
            if set {
                self.relax(path, keyword);
            }
        }
        let (open, close, comma) = (self.open(), self.close(), self.comma());
        let min = if counted { min } else { 0 };
        let max = if most { max } else { usize::MAX };
        let inner = self.sequence(members, Layout { comma, close, min, max, other });
        Ok(Some(self.w().rule(&format!("{open} {inner}"))))
    }

    /// The declared properties that can be satisfied. None: a required one cannot.
    fn members(&mut self, flat: &Schema, path: &str) -> Result<Option<Declared>, RuleError> {
        let colon = self.colon();
        let patterns = flat.get("patternProperties").and_then(Value::as_object);
        let work = patterns.into_iter().flatten().map(|(pattern, _)| steps(pattern)).fold(0, u64::saturating_add);
        self.work.budget.spend(work)?;
        if self.work.budget.left() == 0 {
            return Err(self.too_large(
                path,
                "the work of compiling the patterns of its properties",
                MAX_COMPILE_WORK as usize,
            ));
        }
        let allowed = flat.get("propertyNames").map(|names| self.judge(names));
        if matches!(allowed, Some(None)) {
            self.relax(path, "propertyNames");
        }
        let allowed = allowed.flatten();
        let mut members = Vec::new();
        let mut names = Vec::new();
        for (name, schema, required) in declared(flat) {
            names.push(name.clone());
            let mut all = vec![schema];
            all.extend(patterns.into_iter().flatten().filter(|(p, _)| matches(p, &name)).map(|(_, schema)| schema));
            let allowed = allowed.as_ref().is_none_or(|names| names.is_valid(&name.as_str().into()));
            let path = format!("{path}/properties/{name}");
            let value = match all.as_slice() {
                _ if !allowed => None,
                [one] => self.value(one, &path)?,
                many => self.value(&json!({"allOf": many}), &path)?,
            };
            match value {
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

    /// Members in any order, each at most once, then `layout.close`.
    pub(super) fn sequence(&mut self, mut members: Vec<Member>, layout: Layout) -> String {
        let Layout { comma, close, min, max, other } = layout;
        if members.is_empty() {
            return match other {
                Some(other) if max > 0 => {
                    let more = times(&format!("({comma} {other})"), min.saturating_sub(1), max - 1);
                    let some = format!("{other} {more} {close}");
                    match (min, close.is_empty()) {
                        (0, true) => format!("({some})?"),
                        (0, false) => format!("({close} | {some})"),
                        _ => some,
                    }
                }
                _ => close,
            };
        }
        if members.len() > MAX_ANY_ORDER {
            return self.in_order(&members, &comma, &close, other.as_deref());
        }
        // Required members have the lowest bits, so that one condition covers them.
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
        // No comma unless something may follow it.
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
        // Before the first member no bit is set, so the conditions are known.
        let first = match (done.is_empty(), max > 0) {
            (true, true) => w.rule(&format!("{end} | {more}::0x0")),
            (true, false) => end.to_owned(),
            (false, _) => format!("{more}::0x0"),
        };
        w.share(&key, (first.clone(), next, more));
        first
    }

    /// Members in the order of the schema, if they are too many for a rule's parameter.
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
}

/// Whether an object's schema does not constrain undeclared names.
fn is_free(flat: &Schema) -> bool {
    !["patternProperties", "propertyNames"].iter().any(|k| flat.contains_key(*k))
}

/// The properties of an object: declared and required ones.
pub(super) fn declared(flat: &Schema) -> Vec<(String, &Value, bool)> {
    const ANY: &Value = &Value::Bool(true);
    let required: Vec<&str> =
        flat.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = flat.get("properties").and_then(Value::as_object);
    let patterns = flat.get("patternProperties").and_then(Value::as_object);
    let rest = flat.get("additionalProperties").or_else(|| flat.get("unevaluatedProperties")).unwrap_or(ANY);
    let other = |name: &str| if patterns.into_iter().flatten().any(|(p, _)| matches(p, name)) { ANY } else { rest };
    let named = properties.into_iter().flatten().map(|(k, v)| (k.clone(), v, required.contains(&k.as_str())));
    let unnamed = required.iter().filter(|r| !properties.is_some_and(|p| p.contains_key(**r)));
    let mut all: Vec<_> = named.chain(unnamed.map(|r| ((*r).to_owned(), other(r), true))).collect();
    let mut seen = std::collections::HashSet::new();
    all.retain(|(name, ..)| seen.insert(name.clone()));
    all
}

pub(super) fn count(flat: &Schema, key: &str) -> Option<usize> {
    flat.get(key).and_then(|v| v.as_u64().or_else(|| v.as_f64().map(|f| f as u64))).map(|n| n as usize)
}
