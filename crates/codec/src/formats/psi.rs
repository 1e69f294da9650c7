//! PSI images: the place where `crates/psi` comes in.

use crate::error::{unsupported, Result};
use crate::image::ImageHeader;

/// What a PSI file begins with.
pub(crate) const SIGNATURE: &[u8] = b"\x8fPSI";

pub(crate) fn header(_bytes: &[u8]) -> Result<ImageHeader> {
    Err(unsupported("a PSI image: this build has no PSI decoder"))
}
