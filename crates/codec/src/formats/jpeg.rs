//! JPEG: only the region that is asked for is decoded. Stand-in until `penstock-jpeg` has landed.

use zune_jpeg::zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};

use super::ImageCodec;
use crate::dtype::DType;
use crate::error::{malformed, Result};
use crate::image::{cut, ImageHeader, Pixel, Rect, Want};
use crate::scratch::Limits;

#[derive(Default)]
pub(crate) struct JpegScratch;

pub(crate) fn header(bytes: &[u8]) -> Result<ImageHeader> {
    let mut decoder = zune_jpeg::JpegDecoder::new(ZCursor::new(bytes));
    decoder
        .decode_headers()
        .map_err(|error| malformed(format!("a broken JPEG: {error:?}")))?;
    let info = decoder
        .info()
        .ok_or_else(|| malformed("a JPEG without a header"))?;
    let channels = if info.components == 1 { 1 } else { 3 };
    Ok(ImageHeader {
        codec: ImageCodec::Jpeg,
        width: info.width.into(),
        height: info.height.into(),
        stored: Pixel {
            dtype: DType::U8,
            channels,
        },
        values: (channels == 1).then_some(DType::U8),
        orientation: 1,
    })
}

pub(crate) fn decode(
    bytes: &[u8],
    header: &ImageHeader,
    want: Want,
    region: Rect,
    out: &mut [u8],
    _scratch: &mut JpegScratch,
    _limits: &Limits,
) -> Result<()> {
    let channels = header.pixel(want)?.channels;
    let space = if channels == 1 {
        ColorSpace::Luma
    } else {
        ColorSpace::RGB
    };
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(space)
        .set_strict_mode(true);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let whole = decoder
        .decode()
        .map_err(|error| malformed(format!("a broken JPEG: {error:?}")))?;
    cut(
        &whole,
        header.width,
        Pixel {
            dtype: DType::U8,
            channels,
        },
        Want::Unchanged,
        region,
        out,
    );
    Ok(())
}
