//! WebP, lossy and lossless, with or without alpha; of an animation the first frame.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::ImageCodec;
use crate::dtype::DType;
use crate::error::{malformed, too_large, truncated, CodecError, Result};
use crate::image::{cut, ends_early, exif_orientation, ImageHeader, Pixel, Rect, Want};
use crate::scratch::{Buffer, Limits};

fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<WebPDecoder<Cursor<&'a [u8]>>> {
    // The container says how long it is: bytes that are cut off are found before any are decoded.
    let promised = bytes.get(4..8).map_or(0, |size| {
        u64::from(u32::from_le_bytes([size[0], size[1], size[2], size[3]])) + 8
    });
    if (bytes.len() as u64) < promised {
        return Err(truncated(format!(
            "a WebP that ends after {} of {promised} bytes",
            bytes.len()
        )));
    }
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(error)?;
    decoder.set_memory_limit(usize::try_from(limits.max_bytes).unwrap_or(usize::MAX));
    Ok(decoder)
}

pub(crate) fn header(bytes: &[u8], limits: &Limits) -> Result<ImageHeader> {
    let mut decoder = open(bytes, limits)?;
    let (width, height) = decoder.dimensions();
    let orientation = match decoder.exif_metadata() {
        Ok(Some(exif)) => exif_orientation(&exif),
        _ => 1,
    };
    Ok(ImageHeader {
        codec: ImageCodec::Webp,
        width: width as usize,
        height: height as usize,
        stored: Pixel {
            dtype: DType::U8,
            channels: if decoder.has_alpha() { 4 } else { 3 },
        },
        values: None,
        orientation,
    })
}

/// Decodes the whole and cuts the region out.
pub(crate) fn decode(
    bytes: &[u8],
    header: &ImageHeader,
    want: Want,
    region: Rect,
    out: &mut [u8],
    whole: &mut Buffer,
    limits: &Limits,
) -> Result<()> {
    let mut decoder = open(bytes, limits)?;
    let size = decoder
        .output_buffer_size()
        .filter(|&size| size == header.width * header.height * header.stored.channels)
        .ok_or_else(|| malformed("a WebP whose frames contradict its header"))?;
    let direct = region == Rect::whole(header.width, header.height)
        && header.pixel(want)?.channels == header.stored.channels;
    if direct {
        return decoder.read_image(out).map_err(error);
    }
    decoder.read_image(whole.take(size)).map_err(error)?;
    cut(
        whole.get(size),
        header.width,
        header.stored,
        want,
        region,
        out,
    );
    Ok(())
}

#[cold]
fn error(error: DecodingError) -> CodecError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            ends_early("WebP", error)
        }
        DecodingError::ImageTooLarge | DecodingError::MemoryLimitExceeded => {
            too_large("a WebP that takes more memory to decode than is allowed")
        }
        other => malformed(format!("a broken WebP: {other}")),
    }
}
