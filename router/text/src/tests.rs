//! What the tests share.

pub mod model_dir;
