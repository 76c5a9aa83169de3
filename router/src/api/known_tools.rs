//! Remembers the tools that requests declare. Clients send the same tools in every turn.

use std::sync::Arc;

use rein_text::{fields::shared::SharedField, tools::ToolSet};

use super::{anthropic::DecodedTools, responses::ConvertedTools};

/// The tools of earlier requests, by the text of the field `tools` in each API.
pub struct KnownTools {
    pub chat: SharedField<ToolSet>,
    pub messages: SharedField<Arc<DecodedTools>>,
    pub responses: SharedField<Arc<ConvertedTools>>,
}

impl KnownTools {
    /// `bytes` are those of each API.
    pub fn new(bytes: usize) -> Self {
        KnownTools {
            chat: SharedField::new(bytes),
            messages: SharedField::new(bytes),
            responses: SharedField::new(bytes),
        }
    }
}

#[cfg(test)]
impl Default for KnownTools {
    fn default() -> Self {
        KnownTools::new(crate::limits::KNOWN_TOOLS_BYTES)
    }
}
