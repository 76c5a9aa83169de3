//! Commands that measure servers: `rein bench`, `rein verify` and live checks, and the client that they share. They see
//! a server as its clients do. No server needs them, so they are compiled beside it.

pub mod bench;
pub mod client;
pub mod live;
pub mod option_values;
pub mod progress;
mod quantiles;
pub mod terminal;
pub mod verify;
