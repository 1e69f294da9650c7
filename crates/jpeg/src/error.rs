//! What can go wrong with a picture, in words that a person can act on.
#![forbid(unsafe_code)]

use std::fmt;

/// What sort of thing is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes end before the picture does.
    Truncated,
    /// The bytes are not a JPEG, or contradict themselves.
    Malformed,
    /// A JPEG, but of a kind that this decoder does not read.
    Unsupported,
    /// More pixels, or more work, than the limits allow.
    TooLarge,
    /// The caller asked for pixels outside the picture, or gave too small a buffer.
    BadRegion,
}

/// Why a picture could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cold]
pub(crate) fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

#[cold]
pub(crate) fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

/// The bytes end inside a header.
#[cold]
pub(crate) fn ends_in(length: usize, what: &str) -> Error {
    Error::new(
        ErrorKind::Truncated,
        format!("JPEG ends after {length} bytes, in {what}"),
    )
}
