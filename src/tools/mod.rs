//! Commands that work on model directories and formats without a server. They use only rein-text and rein-grammar.

pub mod accept;
pub mod check;
pub mod formats;
mod lines;
pub mod parse;
pub mod render;
