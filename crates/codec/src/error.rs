//! What can be wrong with a sample or a program.

use std::fmt;

/// The class of a [`CodecError`]; the bindings choose the Python exception by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecErrorKind {
    /// Fewer bytes than the header promises.
    Truncated,
    /// The bytes are not what the format says.
    Malformed,
    /// Well formed, but nothing that this build reads or that this program can be applied to.
    Unsupported,
    /// Larger than the [`Limits`](crate::Limits) allow; found before anything is allocated.
    TooLarge,
    /// The bytes are good but do not fit what was asked: a row of another size, a slot of another length,
    /// a picture smaller than its crop.
    Mismatch,
}

/// Why a sample cannot be decoded, or a program cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecError {
    /// The class.
    pub kind: CodecErrorKind,
    /// What is wrong, in words, with the figures; the engine adds which sample it is.
    pub message: String,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CodecError {}

pub(crate) type Result<T> = std::result::Result<T, CodecError>;

macro_rules! constructors {
    ($($name:ident => $kind:ident),*) => {
        $(#[cold]
        pub(crate) fn $name(message: impl Into<String>) -> CodecError {
            CodecError { kind: CodecErrorKind::$kind, message: message.into() }
        })*
    };
}

constructors!(
    truncated => Truncated,
    malformed => Malformed,
    unsupported => Unsupported,
    too_large => TooLarge,
    mismatch => Mismatch
);
