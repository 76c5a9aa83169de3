//! Names of groups: the model's name and a number, such as `demo-1`.
//!
//! This module does not know what a group consists of.

use std::collections::BTreeMap;

use crate::{limits, view::ClusterView};

/// The highest number in use, per model name. A name is reused only if the controller was replaced and neither the
/// store nor any worker mentions the old group. The epochs of the two groups differ even then.
#[derive(Debug, Default)]
pub struct GroupNames {
    highest: BTreeMap<String, u64>,
}

impl GroupNames {
    /// Records all groups that the store knows, or that workers claim to be in.
    pub fn observe(&mut self, view: &ClusterView) {
        let seats = view.seats.values().chain(view.workers.values().map(|worker| &worker.seat));
        let groups = view.groups.keys().chain(seats.filter_map(|seat| seat.group.as_ref()));
        for (prefix, number) in groups.filter_map(|name| split(name)) {
            let highest = self.highest.entry(prefix.to_owned()).or_default();
            *highest = number.max(*highest);
        }
    }

    pub fn next(&mut self, model: &str) -> String {
        let prefix = prefix(model);
        let highest = self.highest.entry(prefix.clone()).or_default();
        *highest += 1;
        format!("{prefix}-{highest}")
    }
}

/// None: a name of an earlier release, whose number is a time in milliseconds.
fn split(name: &str) -> Option<(&str, u64)> {
    let (prefix, number) = name.rsplit_once('-')?;
    let number = number.parse().ok()?;
    (number < limits::GROUP_NUMBERS).then_some((prefix, number))
}

/// The model's name, with `-` for characters that are not allowed in keys.
fn prefix(model: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    model.chars().map(allowed).take(limits::GROUP_NAME).collect()
}
