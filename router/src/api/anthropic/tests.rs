//! The conversion by itself: requests to jobs, events to frames and bodies, names in errors.

mod answers;
mod requests;

use rein_text::fields::ParsedBody;
use serde_json::{Value, json};

use super::*;
use crate::{api::known_tools::KnownTools, error::Error, seal::Seal};

/// The key of every test's seal.
fn seal() -> ThinkingSeal {
    ThinkingSeal::new(&Seal::new(&[7; 32]), None)
}

fn read(more: Value) -> Result<ParsedBody<MessagesRequest>, Error> {
    let mut body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    messages(body.to_string().as_bytes(), &seal(), &KnownTools::default().messages)
}

fn job(more: Value) -> crate::request::job::ChatJob {
    read(more).unwrap_or_else(|error| panic!("{error}")).value.job
}

/// The field and the text of an error.
fn refused(more: Value) -> (String, String) {
    let error = read(more.clone()).err().unwrap_or_else(|| panic!("{more} is accepted"));
    (error.param.unwrap_or_default(), error.message)
}
