//! The OpenAI Responses API's JSON: decodes requests into chat jobs, and turns a chat's events into items and events of
//! this API. It must not know status codes, engines or I/O.
//!
//! `request` decodes a body, `tools` and `items` convert its tools and input, `origins` gives errors the names of this
//! API's fields. `builder` turns events into output items; the stream, the final object and what is stored are all
//! written from those items.

mod builder;
mod choice;
mod custom_input;
mod items;
mod origins;
mod output;
mod request;
mod stored;
mod tools;

pub use builder::{ReasoningSealer, ResponseBuilder, ResponseFrame, ResponseParameters, deleted, input_tokens};
pub use origins::Origins;
#[cfg(test)]
pub(crate) use request::REFUSED;
#[cfg(test)]
pub use request::asked;
pub use request::{ResponseRequest, request};
pub use stored::{Page, StoredItems, input_items, page, referenced};
pub use tools::ConvertedTools;

#[cfg(test)]
mod tests;
