//! Tools on model directories and formats that need no server: they know text and grammar alone.

pub mod accept;
pub mod check;
pub mod formats;
mod lines;
pub mod parse;
pub mod render;
