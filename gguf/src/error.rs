//! Why a GGUF file cannot be used. It knows no field.

/// An error names the field or tensor, says what is wrong and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("cannot read {what}: {source}")]
    Read { what: String, source: std::io::Error },
    /// The file contradicts the format or itself.
    #[error("{field}: {what}")]
    Invalid { field: String, what: String },
    /// The file is valid, but this is not implemented.
    #[error("{field}: {what}")]
    Unsupported { field: String, what: String },
}

impl GgufError {
    pub(crate) fn invalid(field: impl Into<String>, what: impl Into<String>) -> Self {
        GgufError::Invalid { field: field.into(), what: what.into() }
    }

    pub(crate) fn unsupported(field: impl Into<String>, what: impl Into<String>) -> Self {
        GgufError::Unsupported { field: field.into(), what: what.into() }
    }
}
