//! Remembers the tools that requests declare. Clients send the same tools in every turn.

use std::sync::Arc;

use rein_text::{fields::shared::SharedField, tools::ToolSet};

use super::{anthropic::DecodedTools, responses::ConvertedTools};
use crate::limits;

/// The tools of earlier requests, by the text of the field `tools` in each API.
pub struct KnownTools {
    pub chat: SharedField<ToolSet>,
    pub messages: SharedField<Arc<DecodedTools>>,
    pub responses: SharedField<Arc<ConvertedTools>>,
}

impl Default for KnownTools {
    fn default() -> Self {
        KnownTools {
            chat: SharedField::new(limits::KNOWN_TOOLS_BYTES),
            messages: SharedField::new(limits::KNOWN_TOOLS_BYTES),
            responses: SharedField::new(limits::KNOWN_TOOLS_BYTES),
        }
    }
}
