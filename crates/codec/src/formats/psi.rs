//! PSI, penstock's own lossless images: regions decode alone, every sample type, volumes as arrays.

use penstock_psi::{self as psi, DecodeOptions, Error, Info, Region, SampleType, Strides};

use super::ImageCodec;
use crate::dtype::{DType, Spec};
use crate::error::{malformed, mismatch, too_large, truncated, unsupported, CodecError, Result};
use crate::image::{cut, exif_orientation, luminance, ImageHeader, Pixel, Rect, Want};
use crate::scratch::{Buffer, Limits};

/// What a PSI file begins with.
pub(crate) const SIGNATURE: &[u8] = b"\x8fPSI";

pub(crate) fn header(bytes: &[u8]) -> Result<ImageHeader> {
    let info = psi::info(bytes).map_err(error)?;
    if info.volume || info.depth > 1 {
        return Err(mismatch(format!(
            "a volume of {} slices as a picture; in a field named volume (x.volume.psi) it is an array",
            info.depth
        )));
    }
    let dtype = dtype(info.sample_type);
    let (channels, values) = match (palette(bytes, &info), info.channels) {
        (Some(colours), _) => (colours.channels(), Some(dtype)),
        // As of a PNG, the values of grey with transparency are the grey ones.
        (None, channels @ 1..=2) => (usize::from(channels), Some(dtype)),
        (None, channels) => (usize::from(channels), None),
    };
    Ok(ImageHeader {
        codec: ImageCodec::Psi,
        width: info.width as usize,
        height: info.height as usize,
        stored: Pixel { dtype, channels },
        values,
        orientation: chunk(bytes, b"EXIF").map_or(1, exif_orientation),
    })
}

/// Decodes the tiles that the region touches.
pub(crate) fn decode(
    bytes: &[u8],
    header: &ImageHeader,
    want: Want,
    region: Rect,
    out: &mut [u8],
    whole: &mut Buffer,
    scratch: &mut psi::Scratch,
) -> Result<()> {
    let info = psi::info(bytes).map_err(error)?;
    let from = Pixel {
        dtype: dtype(info.sample_type),
        channels: usize::from(info.channels),
    };
    let to = header.pixel(want)?;
    let colours = palette(bytes, &info).filter(|_| want != Want::Values);
    let area = Region {
        x: region.x as u32,
        y: region.y as u32,
        z: 0,
        width: region.w as u32,
        height: region.h as u32,
        depth: 1,
    };
    if colours.is_none() && from == to {
        return region_into(bytes, &info, area, out, scratch);
    }
    if colours.is_none() && (from.channels > 4 || !matches!(from.dtype, DType::U8 | DType::U16)) {
        return Err(unsupported(format!(
            "a picture of {} channels of {} as {}; mode=\"unchanged\" gives it as it is",
            from.channels,
            from.dtype.name(),
            if to.channels == 3 { "rgb" } else { "grey" }
        )));
    }
    let stored = whole.take(region.w * region.h * from.size());
    region_into(bytes, &info, area, stored, scratch)?;
    match colours {
        Some(colours) => colours.paint(stored, want, to.channels, out),
        None => cut(
            stored,
            region.w,
            from,
            want,
            Rect::whole(region.w, region.h),
            out,
        ),
    }
    Ok(())
}

/// Type and shape of a file that is taken as an array: `[slices, rows, columns, channels]`, without slices where it is
/// no volume and without channels where there is one.
pub(crate) fn array(bytes: &[u8], limits: &Limits) -> Result<Spec> {
    let info = psi::info(bytes).map_err(error)?;
    if info.bytes() > limits.max_bytes {
        return Err(too_large(format!(
            "an array of {} bytes; {} are allowed",
            info.bytes(),
            limits.max_bytes
        )));
    }
    let mut spec = Spec::scalar(dtype(info.sample_type));
    let sides = [
        (info.volume, info.depth as usize),
        (true, info.height as usize),
        (true, info.width as usize),
        (info.channels > 1, usize::from(info.channels)),
    ];
    for (_, length) in sides.into_iter().filter(|(there, _)| *there) {
        spec.push(length);
    }
    Ok(spec)
}

/// Decodes all of a file, in the order of [`array`].
pub(crate) fn decode_array(bytes: &[u8], out: &mut [u8], scratch: &mut psi::Scratch) -> Result<()> {
    let info = psi::info(bytes).map_err(error)?;
    region_into(bytes, &info, Region::whole(&info), out, scratch)
}

fn region_into(
    bytes: &[u8],
    info: &Info,
    area: Region,
    out: &mut [u8],
    scratch: &mut psi::Scratch,
) -> Result<()> {
    let strides = Strides::interleaved(area.width, area.height, info.channels, info.sample_type);
    let options = DecodeOptions {
        max_bytes: out.len() as u64,
        ..DecodeOptions::default()
    };
    psi::decode_region(bytes, area, out, strides, scratch, &options).map_err(error)
}

/// Colours of a picture whose pixels are numbers.
struct Colours<'a>(&'a [u8]);

impl Colours<'_> {
    fn channels(&self) -> usize {
        if self.0.chunks_exact(4).all(|colour| colour[3] == 255) {
            3
        } else {
            4
        }
    }

    fn paint(&self, numbers: &[u8], want: Want, channels: usize, out: &mut [u8]) {
        for (&number, pixel) in numbers.iter().zip(out.chunks_exact_mut(channels)) {
            let at = usize::from(number) * 4;
            let colour = self.0.get(at..at + 4).unwrap_or(&[0, 0, 0, 255]);
            if want == Want::Grey {
                pixel[0] = luminance(colour[0], colour[1], colour[2]);
            } else {
                pixel.copy_from_slice(&colour[..channels]);
            }
        }
    }
}

fn palette<'a>(bytes: &'a [u8], info: &Info) -> Option<Colours<'a>> {
    if info.channels != 1 || info.sample_type != SampleType::U8 {
        return None;
    }
    chunk(bytes, b"PLTE")
        .filter(|colours| !colours.is_empty() && colours.len() % 4 == 0)
        .map(Colours)
}

/// A chunk of the metadata. Metadata of another kind are nobody's business here.
fn chunk<'a>(bytes: &'a [u8], name: &[u8; 4]) -> Option<&'a [u8]> {
    let metadata = psi::metadata(bytes).ok()?;
    psi::chunk(metadata, name).ok().flatten()
}

fn dtype(sample: SampleType) -> DType {
    match sample {
        SampleType::U8 => DType::U8,
        SampleType::I8 => DType::I8,
        SampleType::U16 => DType::U16,
        SampleType::I16 => DType::I16,
        SampleType::F16 => DType::F16,
        SampleType::F32 => DType::F32,
        SampleType::U32 => DType::U32,
        SampleType::I32 => DType::I32,
    }
}

#[cold]
fn error(error: Error) -> CodecError {
    match error {
        Error::Truncated { .. } => truncated(error.to_string()),
        Error::Unsupported(_) => unsupported(error.to_string()),
        Error::TooLarge(_) => too_large(error.to_string()),
        Error::Malformed(_) | Error::Checksum(_) | Error::Request(_) => {
            malformed(error.to_string())
        }
    }
}
