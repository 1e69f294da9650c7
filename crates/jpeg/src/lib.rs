//! A JPEG decoder that decodes only the region that is asked for.
//!
//! Pixels are those of libjpeg-turbo's default decode (accurate integer inverse DCT, triangle-filter
//! upsampling, its fixed-point colour tables), bit for bit, for the whole picture and for any region of it.
//!
//! ```no_run
//! use penstock_jpeg::{decode_region, info, Limits, Output, Region, Scratch};
//!
//! let data = std::fs::read("photo.jpg").unwrap();
//! let whole = info(&data).unwrap();
//! let region = Region { x: 0, y: 0, width: whole.width, height: whole.height };
//! let stride = 3 * whole.width as usize;
//! let mut pixels = vec![0; stride * whole.height as usize];
//! let mut scratch = Scratch::default();
//! decode_region(&data, region, Output::Rgb, &mut pixels, stride, &mut scratch, &Limits::default()).unwrap();
//! ```
//!
//! # What is an error
//!
//! A file without its end marker is [`ErrorKind::Truncated`], whatever region is asked for; bytes after the end
//! marker are ignored. Beyond that a sequential picture is read just to the last row of the region (and,
//! between restart markers, only where the region lies), so damage elsewhere is not seen. Where libjpeg
//! warns and guesses, this decoder gives an error.
//!
//! # What differs from libjpeg
//!
//! A progressive file that never sends some low-frequency coefficients to the last bit is decoded as it
//! is; libjpeg smooths such blocks.
#![deny(unsafe_code)]

mod bits;
mod error;
mod exif;
mod frame;
mod header;
mod huffman;
mod idct;
mod planes;
mod progressive;
mod render;
mod rows;
mod sequential;
#[allow(unsafe_code)]
mod simd;
mod usual_tables;

pub use error::{Error, ErrorKind};

use error::malformed;
use frame::Frame;
use header::{Headers, Scan};
use idct::{Group, Quantiser};
use planes::Plane;
use progressive::{Buffered, Coefficients};
use render::{Renderer, RowMemory};
use sequential::ScanMemory;
use simd::Level;

/// What the headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    pub width: u32,
    pub height: u32,
    /// 1 (grey), 3 or 4.
    pub components: u8,
    pub progressive: bool,
    /// EXIF orientation, 1..=8; 1 if there is none. Decoding does not apply it.
    pub orientation: u8,
}

/// A rectangle of the picture as it is stored, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

/// What is written for each pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// One byte: the picture's grey, or Pillow's `convert("L")` of its RGB.
    Grey,
    /// Three bytes. Grey is repeated; CMYK and YCCK become what Pillow's `convert("RGB")` makes of them.
    Rgb,
}

/// What a picture may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Width times height of the whole picture; checked before anything is allocated.
    pub max_pixels: u64,
}

impl Default for Limits {
    /// Pillow's bound against decompression bombs.
    fn default() -> Self {
        Self {
            max_pixels: 178_956_970,
        }
    }
}

/// Buffers that are worth keeping from picture to picture; one for each thread.
#[derive(Default)]
pub struct Scratch {
    tables: huffman::Tables,
    window: bits::Window,
    groups: Vec<Group>,
    planes: [Vec<u8>; 4],
    rows: RowMemory,
    coefficients: [Coefficients; 4],
}

/// Reads the headers up to the frame's, and no further.
pub fn info(data: &[u8]) -> Result<Info, Error> {
    let mut headers = Headers::new(data)?;
    let frame = headers.until_frame()?;
    let (width, height) = (frame.width as u32, frame.height as u32);
    let (components, progressive) = (frame.components.len() as u8, frame.progressive);
    Ok(Info {
        width,
        height,
        components,
        progressive,
        orientation: headers.orientation,
    })
}

/// Decodes `region` into `out`, whose rows begin `stride` bytes apart.
///
/// `out` needs room for `(height - 1) * stride + width * bytes per pixel`; bytes between the rows are left alone.
/// After an error the contents of `out` are unspecified.
pub fn decode_region(
    data: &[u8],
    region: Region,
    output: Output,
    out: &mut [u8],
    stride: usize,
    scratch: &mut Scratch,
    limits: &Limits,
) -> Result<(), Error> {
    decode_at(
        Level::best(),
        data,
        region,
        output,
        out,
        stride,
        scratch,
        limits,
    )
}

#[allow(clippy::too_many_arguments)]
fn decode_at(
    level: Level,
    data: &[u8],
    region: Region,
    output: Output,
    out: &mut [u8],
    stride: usize,
    scratch: &mut Scratch,
    limits: &Limits,
) -> Result<(), Error> {
    let mut headers = Headers::new(data)?;
    let frame = headers.until_frame()?.clone();
    check_size(&frame, limits)?;
    check_region(&frame, region, output, out.len(), stride)?;
    scratch.tables.reset();
    // tables may stand before the frame header too, where they were passed over: begin again
    let mut headers = Headers::new(data)?;
    let missing = || malformed("JPEG ends without a scan");
    let scan = headers
        .until_scan(&mut scratch.tables)?
        .ok_or_else(missing)?;
    let colour = headers.colour()?;
    let complete = has_end(data, scan.data);
    if !complete {
        return Err(truncated(level, data, headers, &frame, scan, scratch));
    }
    let Scratch {
        tables,
        window,
        groups,
        planes: memory,
        rows,
        coefficients,
    } = scratch;
    let mut planes: Vec<Plane> = frame
        .components
        .iter()
        .zip(memory.iter_mut())
        .map(|(c, memory)| Plane::new(&frame, c, &region, std::mem::take(memory)))
        .collect();
    let mut renderer = Renderer::new(level, &frame, colour, output, region, out, stride, rows);
    let result = if is_single_scan(&frame, &scan) {
        single_scan(
            level,
            data,
            &mut headers,
            &frame,
            &scan,
            tables,
            ScanMemory {
                window,
                groups,
                planes: &mut planes,
            },
            Some(&mut renderer),
        )
    } else {
        let kept = sequential::needed_mcus(&frame, &planes).1.to;
        let buffered = Buffered::new(data, level, &frame, coefficients, kept);
        several_scans(headers, scan, tables, window, buffered).and_then(|(buffered, quantisers)| {
            buffered.render(&mut planes, groups, &quantisers, &mut renderer)
        })
    };
    for (memory, plane) in memory.iter_mut().zip(planes) {
        *memory = plane.into_memory();
    }
    result
}

fn is_single_scan(frame: &Frame, scan: &Scan) -> bool {
    !frame.progressive && scan.components.len() == frame.components.len()
}

#[allow(clippy::too_many_arguments)]
fn single_scan(
    level: Level,
    data: &[u8],
    headers: &mut Headers,
    frame: &Frame,
    scan: &Scan,
    tables: &mut huffman::Tables,
    memory: ScanMemory,
    renderer: Option<&mut Renderer>,
) -> Result<(), Error> {
    tables.define_missing()?;
    let quantisers: Vec<Quantiser> = (0..frame.components.len())
        .map(|i| quantiser(headers, frame, i))
        .collect::<Result<_, _>>()?;
    let interval = headers.restart_interval;
    sequential::decode(
        level,
        data,
        frame,
        scan,
        tables,
        interval,
        &quantisers,
        memory,
        renderer,
    )
}

/// Decodes all scans; gives back the coefficients and each component's quantisers, as they were at its first scan.
fn several_scans<'a>(
    mut headers: Headers,
    first: Scan,
    tables: &mut huffman::Tables,
    window: &mut bits::Window,
    mut buffered: Buffered<'a>,
) -> Result<(Buffered<'a>, Vec<Quantiser>), Error> {
    let missing = || malformed("JPEG has no frame header");
    let frame = headers.frame.clone().ok_or_else(missing)?;
    let mut quantisers: [Option<Quantiser>; 4] = Default::default();
    let mut next = Some(first);
    while let Some(scan) = next {
        for c in &scan.components {
            if quantisers[c.index].is_none() {
                quantisers[c.index] = Some(quantiser(&headers, &frame, c.index)?);
            }
        }
        if !frame.progressive {
            tables.define_missing()?;
        }
        let end = buffered.scan(&scan, tables, headers.restart_interval, window)?;
        headers.resume(end);
        if !frame.progressive && buffered.is_complete() {
            break;
        }
        next = headers.until_scan(tables)?;
    }
    Ok((buffered, quantisers.into_iter().flatten().collect()))
}

fn quantiser(headers: &Headers, frame: &Frame, component: usize) -> Result<Quantiser, Error> {
    let table = frame.components[component].table;
    match &headers.quant[table] {
        Some(values) => Ok(Quantiser::new(values)),
        None => Err(malformed(format!(
            "quantisation table {table} is used but not defined"
        ))),
    }
}

fn check_size(frame: &Frame, limits: &Limits) -> Result<(), Error> {
    let pixels = frame.width as u64 * frame.height as u64;
    if pixels > limits.max_pixels {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "JPEG of {}x{} = {pixels} pixels; the limit is {}",
                frame.width, frame.height, limits.max_pixels
            ),
        ));
    }
    Ok(())
}

fn check_region(
    frame: &Frame,
    region: Region,
    output: Output,
    room: usize,
    stride: usize,
) -> Result<(), Error> {
    let bad = |message: String| Err(Error::new(ErrorKind::BadRegion, message));
    let Region {
        x,
        y,
        width,
        height,
    } = region;
    let right = u64::from(x) + u64::from(width);
    let bottom = u64::from(y) + u64::from(height);
    if width == 0 || height == 0 || right > frame.width as u64 || bottom > frame.height as u64 {
        return bad(format!(
            "region of {width}x{height} at ({x}, {y}) in a JPEG of {}x{}",
            frame.width, frame.height
        ));
    }
    let row = width as usize
        * match output {
            Output::Grey => 1,
            Output::Rgb => 3,
        };
    let needed = stride
        .checked_mul(height as usize - 1)
        .and_then(|n| n.checked_add(row));
    if stride < row || needed.is_none_or(|n| room < n) {
        return bad(format!(
            "{room} bytes with a stride of {stride} for {height} rows of {row} bytes"
        ));
    }
    Ok(())
}

/// Whether an end marker stands anywhere behind the start of the first scan. The common case looks at two bytes.
fn has_end(data: &[u8], scan: usize) -> bool {
    data.ends_with(&[0xFF, 0xD9])
        || data[scan.min(data.len())..]
            .windows(2)
            .rev()
            .any(|pair| pair == [0xFF, 0xD9])
}

/// The error of a file without its end marker: how far its rows go.
#[cold]
fn truncated(
    level: Level,
    data: &[u8],
    mut headers: Headers,
    frame: &Frame,
    scan: Scan,
    scratch: &mut Scratch,
) -> Error {
    let Scratch {
        tables,
        window,
        groups,
        ..
    } = scratch;
    if is_single_scan(frame, &scan) {
        let memory = ScanMemory {
            window,
            groups,
            planes: &mut [],
        };
        let walked = single_scan(
            level,
            data,
            &mut headers,
            frame,
            &scan,
            tables,
            memory,
            None,
        );
        if let Err(error) = walked {
            return error;
        }
    }
    Error::new(
        ErrorKind::Truncated,
        format!(
            "JPEG ends after {} bytes, without its end marker",
            data.len()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every fixture, whole and in part: the machine's best code against the plain code.
    #[test]
    fn vector_code_equals_plain_code() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "jpg") {
                continue;
            }
            seen += 1;
            let data = std::fs::read(&path).unwrap();
            let size = info(&data).unwrap();
            for part in 0..4 {
                let region = Region {
                    x: size.width * part / 7,
                    y: size.height * part / 5,
                    width: size.width - size.width * part / 4,
                    height: size.height - size.height * part / 3,
                };
                if region.width == 0
                    || region.height == 0
                    || region.x + region.width > size.width
                    || region.y + region.height > size.height
                {
                    continue;
                }
                let stride = 3 * region.width as usize;
                let pixels = |level| {
                    let mut out = vec![0; stride * region.height as usize];
                    decode_at(
                        level,
                        &data,
                        region,
                        Output::Rgb,
                        &mut out,
                        stride,
                        &mut Scratch::default(),
                        &Limits::default(),
                    )
                    .unwrap();
                    out
                };
                for level in Level::all() {
                    assert!(
                        pixels(level) == pixels(Level::PLAIN),
                        "{path:?} {region:?} {level:?}"
                    );
                }
            }
        }
        assert!(seen > 50);
    }
}
