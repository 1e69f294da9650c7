//! What a field of a sample is.

use crate::dtype::TensorSpec;

/// How a field is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Pixels: geometry, colour, normalisation and layout apply.
    Image,
    /// A label map `[H, W]`: geometry with nearest resampling, never a change of value.
    Mask,
    /// Pixels, but decoded elsewhere: a record of the geometry, then the file (see [`crate::RECORD`]).
    Encoded,
    /// An array: given as stored, or cast.
    Array,
    /// Anything: given byte by byte, whatever its format.
    Bytes,
    /// One number.
    Scalar,
}

impl Kind {
    /// The kind of that name (`image`, `mask`, `encoded`, `array`, `bytes`, `scalar`).
    pub fn from_name(name: &str) -> Option<Kind> {
        Some(match name {
            "image" => Kind::Image,
            "mask" => Kind::Mask,
            "encoded" => Kind::Encoded,
            "array" => Kind::Array,
            "bytes" => Kind::Bytes,
            "scalar" => Kind::Scalar,
            _ => return None,
        })
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Image => "image",
            Kind::Mask => "mask",
            Kind::Encoded => "encoded",
            Kind::Array => "array",
            Kind::Bytes => "bytes",
            Kind::Scalar => "scalar",
        }
    }
}

/// A field as the catalog describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldSpec {
    /// Its name in a batch.
    pub name: String,
    /// How it is treated.
    pub kind: Kind,
    /// Type and shape of its rows when they are stored raw; None for formats that say it themselves.
    pub raw: Option<TensorSpec>,
}
