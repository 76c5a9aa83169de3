//! Detects templates and checkpoints that their publishers have since corrected.

use serde_json::json;

use super::{Outcome, Subject, calling, fine, result, user, warning};
use crate::sha256_hex;
use crate::template::RenderInput;

/// Outdated templates by the SHA-256 of their source.
const TEMPLATES: [(&str, &str); 2] = [
    // models/templates/moonshotai-Kimi-K2.jinja of llama.cpp.
    ("9fcc72b7c248a72020c81f70bb652f3094d18a750c93ca35dfcb3cf5fe23ff53", KIMI_K2),
    // Kimi-K2-Instruct-0905 as first published.
    ("ea808ba78acc2b82b2af40592dddef999c429048157945bab0dcf76f59ff9b84", KIMI_K2),
];

/// Outdated checkpoints by their revision on the Hub.
const CHECKPOINTS: [(&str, &str); 1] = [
    // Measured in https://blog.vllm.ai/2025/10/28/Kimi-K2-Accuracy.html, before the template was corrected.
    ("09d5f937b41ae72c90d7155c9a901e2b5831dfaf", KIMI_K2),
];

/// Both commits are named in https://blog.vllm.ai/2025/10/28/Kimi-K2-Accuracy.html.
const KIMI_K2: &str = "the chat template is older than Moonshot's corrections; use that of Kimi-K2-Instruct from commit \
    0102674b179db4ca5a28cd9a4fb446f87f0c1454, or that of Kimi-K2-Instruct-0905 from 94a4053eb8863059dd8afc00937f054e1365abbd";

pub fn check(subject: &Subject<'_>) -> Outcome {
    let hash = sha256_hex(subject.template.tool_source().as_bytes());
    let known =
        |table: &[(&str, &'static str)], key: &str| table.iter().find(|(known, _)| *known == key).map(|(_, why)| *why);
    if let Some(why) = known(&TEMPLATES, &hash) {
        return warning(format!("{why} (detected by the SHA-256 of the template)"));
    }
    if let Some(why) = subject.text.revision.as_deref().and_then(|revision| known(&CHECKPOINTS, revision)) {
        return warning(format!("{why} (detected by the revision in the directory's name)"));
    }
    if subject.format.name == "kimi_k2" && prints_parts(subject) {
        return warning(format!(
            "{KIMI_K2} (detected by its behaviour: it prints the content parts of a message with calls as Python objects)"
        ));
    }
    fine("not a known outdated revision")
}

/// Whether a list of content parts is printed as its Python repr, which Moonshot's correction fixed. Requests are not
/// affected, because the parts of a request are joined to one string.
fn prints_parts(subject: &Subject<'_>) -> bool {
    let mut call = calling(&[json!({})]);
    call["content"] = json!([{"type": "text", "text": "x"}]);
    let input = subject.input(vec![user(), call, result(0)], false);
    subject.render(&RenderInput { raw: true, ..input }).is_ok_and(|prompt| prompt.contains("'type': 'text'"))
}
