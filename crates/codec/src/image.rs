//! What all image codecs share: headers, regions, pixel types, conversion between them.

use crate::dtype::DType;
use crate::error::{malformed, too_large, truncated, unsupported, Result};
use crate::formats::{jpeg, png, psi, webp, ImageCodec};
use crate::scratch::{Buffer, Codecs, Limits};

/// A rectangle in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Rect {
    pub x: usize,
    pub y: usize,
    pub w: usize,
    pub h: usize,
}

impl Rect {
    pub fn whole(w: usize, h: usize) -> Rect {
        Rect { x: 0, y: 0, w, h }
    }
}

/// What an element of an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pixel {
    pub dtype: DType,
    pub channels: usize,
}

impl Pixel {
    pub fn size(self) -> usize {
        self.dtype.size() * self.channels
    }
}

/// How pixels are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// uint8, three channels.
    Rgb,
    /// uint8, one channel: luminance.
    Grey,
    /// Channels and depth as stored, palettes applied.
    Unchanged,
    /// The stored number of each pixel: palette index or grey value.
    Values,
}

/// What an image says of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageHeader {
    pub codec: ImageCodec,
    pub width: usize,
    pub height: usize,
    /// What `Want::Unchanged` gives.
    pub stored: Pixel,
    /// What `Want::Values` gives; None for pictures in colour.
    pub values: Option<DType>,
    /// EXIF orientation, 1 to 8.
    pub orientation: u8,
}

impl ImageHeader {
    /// Reads the header of whichever format the bytes begin with, and checks it against the limits.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<ImageHeader> {
        let header = match ImageCodec::sniff(bytes)? {
            ImageCodec::Jpeg => jpeg::header(bytes)?,
            ImageCodec::Png => png::header(bytes)?,
            ImageCodec::Webp => webp::header(bytes, limits)?,
            ImageCodec::Psi => psi::header(bytes)?,
        };
        if header.width == 0 || header.height == 0 {
            return Err(malformed(format!(
                "an image of {}×{} pixels",
                header.width, header.height
            )));
        }
        let pixels = header.width as u64 * header.height as u64;
        if pixels > limits.max_pixels {
            return Err(too_large(format!(
                "an image of {}×{} pixels: {pixels}, {} are allowed",
                header.width, header.height, limits.max_pixels
            )));
        }
        let bytes = pixels.saturating_mul(header.stored.size() as u64);
        if bytes > limits.max_bytes {
            return Err(too_large(format!(
                "an image of {}×{} pixels and {bytes} bytes; {} are allowed",
                header.width, header.height, limits.max_bytes
            )));
        }
        Ok(header)
    }

    pub fn pixel(&self, want: Want) -> Result<Pixel> {
        Ok(match want {
            Want::Rgb => Pixel {
                dtype: DType::U8,
                channels: 3,
            },
            Want::Grey => Pixel {
                dtype: DType::U8,
                channels: 1,
            },
            Want::Unchanged => self.stored,
            Want::Values => Pixel {
                dtype: self.values.ok_or_else(|| {
                    unsupported(format!(
                        "a mask of {} channels; a label map has one number a pixel",
                        self.stored.channels
                    ))
                })?,
                channels: 1,
            },
        })
    }

    /// Decodes `region` into `out`, whose rows follow each other without gaps.
    #[allow(clippy::too_many_arguments)]
    pub fn decode(
        &self,
        bytes: &[u8],
        want: Want,
        region: Rect,
        out: &mut [u8],
        whole: &mut Buffer,
        codecs: &mut Codecs,
        limits: &Limits,
    ) -> Result<()> {
        match self.codec {
            ImageCodec::Jpeg => {
                jpeg::decode(bytes, self, want, region, out, &mut codecs.jpeg, limits)
            }
            ImageCodec::Png => png::decode(bytes, self, want, region, out, whole),
            ImageCodec::Webp => webp::decode(bytes, self, want, region, out, whole, limits),
            ImageCodec::Psi => psi::decode(bytes, self, want, region, out, whole, &mut codecs.psi),
        }
    }
}

/// Copies `region` out of a whole picture, converting 8-bit pixels of `channels` on the way.
pub(crate) fn cut(
    whole: &[u8],
    width: usize,
    from: Pixel,
    want: Want,
    region: Rect,
    out: &mut [u8],
) {
    let to = match want {
        Want::Rgb => 3,
        Want::Grey | Want::Values => 1,
        Want::Unchanged => from.channels,
    };
    let narrow = want != Want::Unchanged && want != Want::Values;
    let wide = from.dtype.size() == 2;
    let out_size = if narrow { to } else { to * from.dtype.size() };
    for (line, row) in out.chunks_exact_mut(region.w * out_size).enumerate() {
        let at = ((region.y + line) * width + region.x) * from.size();
        let source = &whole[at..at + region.w * from.size()];
        if !narrow && to == from.channels {
            row.copy_from_slice(source);
        } else if wide {
            // The high byte of little-endian pairs, as libpng and Pillow narrow 16 bits.
            convert(
                source.chunks_exact(from.size()),
                from.channels,
                row,
                to,
                |pixel, channel| pixel[2 * channel + 1],
            );
        } else {
            convert(
                source.chunks_exact(from.channels),
                from.channels,
                row,
                to,
                |pixel, channel| pixel[channel],
            );
        }
    }
}

fn convert<'a>(
    pixels: impl Iterator<Item = &'a [u8]>,
    from: usize,
    row: &mut [u8],
    to: usize,
    channel: impl Fn(&[u8], usize) -> u8,
) {
    for (pixel, out) in pixels.zip(row.chunks_exact_mut(to)) {
        match (from, to) {
            (1 | 2, _) => out.fill(channel(pixel, 0)),
            (_, 1) => out[0] = luminance(channel(pixel, 0), channel(pixel, 1), channel(pixel, 2)),
            _ => {
                for (index, value) in out.iter_mut().enumerate() {
                    *value = channel(pixel, index);
                }
            }
        }
    }
}

/// ITU-R 601 luminance in 16-bit fixed point: Pillow's "L".
#[inline]
pub(crate) fn luminance(r: u8, g: u8, b: u8) -> u8 {
    ((u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000) >> 16) as u8
}

/// The orientation in an EXIF block (from its TIFF header on), 1 where it says none.
pub(crate) fn exif_orientation(exif: &[u8]) -> u8 {
    fn read(exif: &[u8]) -> Option<u8> {
        let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
        let big = match exif.get(..4)? {
            [b'I', b'I', 42, 0] => false,
            [b'M', b'M', 0, 42] => true,
            _ => return None,
        };
        let u16_at = |at: usize| -> Option<u16> {
            let pair = exif.get(at..at.checked_add(2)?)?;
            let pair = [pair[0], pair[1]];
            Some(if big {
                u16::from_be_bytes(pair)
            } else {
                u16::from_le_bytes(pair)
            })
        };
        let offset = exif.get(4..8)?;
        let offset = [offset[0], offset[1], offset[2], offset[3]];
        let directory = if big {
            u32::from_be_bytes(offset)
        } else {
            u32::from_le_bytes(offset)
        } as usize;
        let count = usize::from(u16_at(directory)?);
        // Entries of 12 bytes, sorted by tag: 0x0112 is the orientation, a short.
        (0..count)
            .find_map(|entry| {
                let at = directory.checked_add(2 + entry * 12)?;
                (u16_at(at)? == 0x0112).then(|| u16_at(at + 8)).flatten()
            })
            .and_then(|value| u8::try_from(value).ok())
            .filter(|value| (1..=8).contains(value))
    }
    read(exif).unwrap_or(1)
}

#[cold]
pub(crate) fn ends_early(format: &str, detail: impl std::fmt::Display) -> crate::CodecError {
    truncated(format!("a {format} that ends early: {detail}"))
}
