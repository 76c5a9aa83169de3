//! Models of the Hugging Face Hub by name: the files that Rein reads, in the cache that the Hub's own tools use, so
//! that each finds what the other has downloaded. It does not know what the files mean, but for the index that names
//! the files of the weights.
//!
//! The layout of the cache and the variables: <https://huggingface.co/docs/huggingface_hub/guides/manage-cache> and
//! <https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables>.

mod cache;
mod client;
mod download;
mod error;
mod id;
pub mod limits;
mod listing;
mod pull;
mod settings;
#[cfg(test)]
mod tests;

pub use cache::name_of;
pub use error::HubError;
pub use id::ModelId;
pub use pull::{DownloadProgress, Freshness, Hub, Wanted};
pub use settings::HubSettings;
