//! PNG, all depths and colour types, interlaced or not.

use std::io::Cursor;

use ::png::{ColorType, Decoder, DecodingError, Transformations};

use super::ImageCodec;
use crate::dtype::DType;
use crate::error::{malformed, too_large, truncated, CodecError, Result};
use crate::image::{cut, ends_early, exif_orientation, ImageHeader, Pixel, Rect, Want};
use crate::scratch::Buffer;

pub(crate) const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Walks the chunks up to the first image data: size, colour type, whether there is transparency, orientation.
pub(crate) fn header(bytes: &[u8]) -> Result<ImageHeader> {
    let mut at = SIGNATURE.len();
    let mut ihdr: Option<(u32, u32, u8, u8)> = None;
    let mut transparent = false;
    let mut orientation = 1;
    loop {
        let Some(head) = bytes.get(at..at + 8) else {
            return Err(truncated(format!(
                "a PNG that ends after {} bytes, before its image data",
                bytes.len()
            )));
        };
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = &head[4..8];
        if kind == b"IDAT" {
            break;
        }
        let Some(data) = bytes.get(at + 8..at + 8 + length) else {
            return Err(truncated(format!(
                "a PNG that ends after {} bytes, inside its {} chunk of {length}",
                bytes.len(),
                kind.escape_ascii()
            )));
        };
        match (kind, &ihdr) {
            (b"IHDR", None) if length == 13 => {
                let word = |at: usize| {
                    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
                };
                ihdr = Some((word(0), word(4), data[8], data[9]));
            }
            (b"tRNS", Some(_)) => transparent = true,
            (b"eXIf", Some(_)) => orientation = exif_orientation(data),
            (_, Some(_)) if kind != b"IEND" => {}
            _ => {
                return Err(malformed(format!(
                    "a PNG with the chunk {} where it may not be",
                    kind.escape_ascii()
                )))
            }
        }
        at += 12 + length;
    }
    let Some((width, height, depth, colour)) = ihdr else {
        return Err(malformed("a PNG without a header"));
    };
    let dtype = if depth == 16 { DType::U16 } else { DType::U8 };
    let alpha = usize::from(transparent);
    let (channels, values) = match (colour, depth) {
        (0, 1 | 2 | 4 | 8 | 16) => (1 + alpha, Some(dtype)),
        (2, 8 | 16) => (3 + alpha, None),
        (3, 1 | 2 | 4 | 8) => (3 + alpha, Some(DType::U8)),
        (4, 8 | 16) => (2, Some(dtype)),
        (6, 8 | 16) => (4, None),
        _ => {
            return Err(malformed(format!(
                "a PNG of colour type {colour} with {depth} bits"
            )))
        }
    };
    Ok(ImageHeader {
        codec: ImageCodec::Png,
        width: width as usize,
        height: height as usize,
        stored: Pixel { dtype, channels },
        values,
        orientation,
    })
}

/// Decodes the whole (only so is it known to be whole) and cuts the region out.
pub(crate) fn decode(
    bytes: &[u8],
    header: &ImageHeader,
    want: Want,
    region: Rect,
    out: &mut [u8],
    whole: &mut Buffer,
) -> Result<()> {
    let mut decoder = Decoder::new(Cursor::new(bytes));
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(match want {
        Want::Values => Transformations::IDENTITY,
        _ => Transformations::EXPAND,
    });
    let mut reader = decoder.read_info().map_err(error)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    let (colour, depth) = reader.output_color_type();
    let size = reader.output_buffer_size();
    let (true, Some(size)) = ((width, height) == (header.width, header.height), size) else {
        return Err(malformed("a PNG with two headers"));
    };
    let channels = match colour {
        ColorType::Grayscale | ColorType::Indexed => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb => 3,
        ColorType::Rgba => 4,
    };
    let bits = depth as usize;
    let from = Pixel {
        dtype: if bits == 16 { DType::U16 } else { DType::U8 },
        channels,
    };
    let to = header.pixel(want)?;
    if region == Rect::whole(width, height) && bits == 8 && to.channels == channels {
        reader.next_frame(out).map_err(error)?;
        return reader.finish().map_err(error);
    }
    let unpacked = width * height;
    let pixels = whole.take(size.max(unpacked * from.size()) + if bits < 8 { size } else { 0 });
    if bits < 8 {
        // Masks of 1, 2 or 4 bits: the packed rows stand behind the place where they are unpacked to.
        let (pixels, packed) = pixels.split_at_mut(size.max(unpacked));
        // Interlaced rows of less than 8 bits are put together by setting bits.
        packed[..size].fill(0);
        reader.next_frame(&mut packed[..size]).map_err(error)?;
        unpack(packed, width, bits, &mut pixels[..unpacked]);
    } else {
        reader.next_frame(&mut pixels[..size]).map_err(error)?;
        if bits == 16 {
            for pair in pixels[..size].chunks_exact_mut(2) {
                pair.swap(0, 1);
            }
        }
    }
    reader.finish().map_err(error)?;
    if want == Want::Values && channels == 2 {
        strip_alpha(whole.get(size), width, from.dtype.size(), region, out);
    } else {
        cut(
            whole.get(unpacked * from.size()),
            width,
            from,
            want,
            region,
            out,
        );
    }
    Ok(())
}

fn unpack(packed: &[u8], width: usize, bits: usize, pixels: &mut [u8]) {
    let stride = (width * bits).div_ceil(8);
    let mask = (1u8 << bits) - 1;
    for (row, line) in pixels
        .chunks_exact_mut(width)
        .zip(packed.chunks_exact(stride))
    {
        for (x, value) in row.iter_mut().enumerate() {
            let bit = x * bits;
            *value = (line[bit / 8] >> (8 - bits - bit % 8)) & mask;
        }
    }
}

/// The values of a grey picture with alpha.
fn strip_alpha(whole: &[u8], width: usize, size: usize, region: Rect, out: &mut [u8]) {
    for (line, row) in out.chunks_exact_mut(region.w * size).enumerate() {
        let at = ((region.y + line) * width + region.x) * 2 * size;
        let source = &whole[at..at + region.w * 2 * size];
        for (value, pair) in row
            .chunks_exact_mut(size)
            .zip(source.chunks_exact(2 * size))
        {
            value.copy_from_slice(&pair[..size]);
        }
    }
}

#[cold]
fn error(error: DecodingError) -> CodecError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            ends_early("PNG", error)
        }
        DecodingError::IoError(error) => malformed(format!("a PNG that cannot be read: {error}")),
        DecodingError::Format(error) => malformed(format!("a broken PNG: {error}")),
        DecodingError::Parameter(error) => {
            malformed(format!("a PNG with frames that do not fit it: {error}"))
        }
        DecodingError::LimitsExceeded => {
            too_large("a PNG that takes more memory to decode than is allowed")
        }
    }
}
