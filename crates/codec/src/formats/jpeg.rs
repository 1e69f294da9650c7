//! JPEG: only the region that is asked for is decoded.

use penstock_jpeg::{decode_region, ErrorKind, Output, Region};

use super::ImageCodec;
use crate::dtype::DType;
use crate::error::{CodecError, CodecErrorKind, Result};
use crate::image::{ImageHeader, Pixel, Rect, Want};
use crate::scratch::Limits;

pub(crate) type JpegScratch = penstock_jpeg::Scratch;

pub(crate) fn header(bytes: &[u8]) -> Result<ImageHeader> {
    let info = penstock_jpeg::info(bytes).map_err(error)?;
    // CMYK comes out as RGB in every mode.
    let channels = if info.components == 1 { 1 } else { 3 };
    Ok(ImageHeader {
        codec: ImageCodec::Jpeg,
        width: info.width as usize,
        height: info.height as usize,
        stored: Pixel {
            dtype: DType::U8,
            channels,
        },
        values: (channels == 1).then_some(DType::U8),
        orientation: info.orientation,
    })
}

pub(crate) fn decode(
    bytes: &[u8],
    header: &ImageHeader,
    want: Want,
    region: Rect,
    out: &mut [u8],
    scratch: &mut JpegScratch,
    limits: &Limits,
) -> Result<()> {
    let channels = header.pixel(want)?.channels;
    let output = if channels == 1 {
        Output::Grey
    } else {
        Output::Rgb
    };
    // A JPEG's sides have 16 bits.
    let region = Region {
        x: region.x as u32,
        y: region.y as u32,
        width: region.w as u32,
        height: region.h as u32,
    };
    let limits = penstock_jpeg::Limits {
        max_pixels: limits.max_pixels,
    };
    let stride = region.width as usize * channels;
    decode_region(bytes, region, output, out, stride, scratch, &limits).map_err(error)
}

#[cold]
fn error(error: penstock_jpeg::Error) -> CodecError {
    let kind = match error.kind {
        ErrorKind::Truncated => CodecErrorKind::Truncated,
        ErrorKind::Unsupported => CodecErrorKind::Unsupported,
        ErrorKind::TooLarge => CodecErrorKind::TooLarge,
        ErrorKind::BadRegion => CodecErrorKind::Mismatch,
        _ => CodecErrorKind::Malformed,
    };
    CodecError {
        kind,
        message: error.message,
    }
}
