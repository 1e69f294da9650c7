//! One module a format: from bytes to header, from header to values.

pub(crate) mod cls;
pub(crate) mod deflate;
pub(crate) mod jpeg;
pub(crate) mod npy;
pub(crate) mod png;
pub(crate) mod psi;
pub(crate) mod webp;

use crate::error::{malformed, truncated, CodecError, Result};

/// The image codecs, told apart by what the bytes begin with and not by a file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageCodec {
    Jpeg,
    Png,
    Webp,
    Psi,
}

impl ImageCodec {
    pub fn sniff(bytes: &[u8]) -> Result<ImageCodec> {
        if bytes.starts_with(&[0xff, 0xd8, 0xff]) {
            Ok(ImageCodec::Jpeg)
        } else if bytes.starts_with(&png::SIGNATURE) {
            Ok(ImageCodec::Png)
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Ok(ImageCodec::Webp)
        } else if bytes.starts_with(psi::SIGNATURE) {
            Ok(ImageCodec::Psi)
        } else {
            Err(unknown(bytes))
        }
    }
}

#[cold]
fn unknown(bytes: &[u8]) -> CodecError {
    if bytes.is_empty() {
        return truncated("an image of 0 bytes");
    }
    let head = &bytes[..bytes.len().min(12)];
    let could_be = |magic: &[u8]| bytes.len() < magic.len() && magic.starts_with(bytes);
    if could_be(&[0xff, 0xd8, 0xff])
        || could_be(&png::SIGNATURE)
        || could_be(b"RIFF")
        || (bytes.len() < 12 && bytes.starts_with(b"RIFF"))
    {
        return truncated(format!("an image that ends after {} bytes", bytes.len()));
    }
    malformed(format!(
        "begins as no image does (\"{}\"); JPEG, PNG, WebP and PSI are known",
        head.escape_ascii()
    ))
}
