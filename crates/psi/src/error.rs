//! What can be wrong with a PSI file or with a request.

use std::fmt;

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a file cannot be read, or an image not be written. The text says what and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The file ends before what its header promises.
    Truncated { needed: u64, have: u64 },
    /// The bytes are not what the format says.
    Malformed(String),
    /// A later version, or something that this version cannot hold.
    Unsupported(String),
    /// A size is over a limit that was set.
    TooLarge(String),
    /// A checksum does not match: the bytes are not those that were written.
    Checksum(String),
    /// The caller's request does not fit the image: region, buffer or strides.
    Request(String),
}

impl Error {
    pub(crate) fn malformed(text: impl Into<String>) -> Self {
        Error::Malformed(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Truncated { needed, have } => write!(f, "PSI file ends after {have} of at least {needed} bytes"),
            Error::Malformed(text) => write!(f, "not a well-formed PSI file: {text}"),
            Error::Unsupported(text) => write!(f, "PSI: {text}"),
            Error::TooLarge(text) => write!(f, "PSI: {text}"),
            Error::Checksum(text) => write!(f, "PSI checksum: {text}"),
            Error::Request(text) => write!(f, "PSI request: {text}"),
        }
    }
}

impl std::error::Error for Error {}
