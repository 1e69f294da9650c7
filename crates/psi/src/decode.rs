//! From a file to samples: the whole image or a region, on one thread or several.

use std::marker::PhantomData;

use crate::error::{Error, Result};
use crate::header::{Grid, Header, Info, Place, GROUP};
use crate::predict::Row;
use crate::simd::{self, Engine};
use crate::store::{Region, Strides, Target};
use crate::tables::Model;
use crate::tile;
use crate::word::Word;

/// How to decode.
#[derive(Debug, Clone, Copy)]
pub struct DecodeOptions {
    /// Threads to use at most; 1 decodes in the caller's.
    pub threads: usize,
    /// Check each tile's checksum before it is decoded.
    pub verify: bool,
    /// Most bytes that the decoded region may have.
    pub max_bytes: u64,
    /// Which instructions to use; `Auto` takes the best that the machine has.
    pub backend: Backend,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        DecodeOptions { threads: 1, verify: true, max_bytes: 1 << 40, backend: Backend::Auto }
    }
}

/// Instructions for the entropy decoder. All give the same samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Auto,
    Plain,
    Avx2,
    Avx512,
}

impl Backend {
    /// The one that runs here: a wish that the machine cannot fulfil becomes the best that it can.
    fn resolve(self) -> Backend {
        let best = simd::best();
        match (self, best) {
            (Backend::Plain, _) => Backend::Plain,
            (Backend::Avx2, Backend::Avx512 | Backend::Avx2) => Backend::Avx2,
            _ => best,
        }
    }
}

/// Memory that decoding needs besides the output. Keep one for each thread: it is reused from image to image.
#[derive(Debug, Default)]
pub struct Scratch {
    slots: Vec<u32>,
    of_context: Vec<u8>,
}

/// Reads what a file holds from its header.
pub fn info(file: &[u8]) -> Result<Info> {
    Ok(Header::parse(file)?.info)
}

/// The metadata section as it was given to [`crate::encode`].
pub fn metadata(file: &[u8]) -> Result<&[u8]> {
    Ok(Header::parse(file)?.metadata)
}

impl Region {
    /// All of an image.
    pub fn whole(info: &Info) -> Self {
        Region { x: 0, y: 0, z: 0, width: info.width, height: info.height, depth: info.depth }
    }

    pub(crate) fn check(&self, info: &Info) -> Result<()> {
        for (what, start, size, side) in [
            ("x", self.x, self.width, info.width),
            ("y", self.y, self.height, info.height),
            ("z", self.z, self.depth, info.depth),
        ] {
            if size == 0 || u64::from(start) + u64::from(size) > u64::from(side) {
                return Err(Error::Request(format!(
                    "the region takes {size} from {what} = {start}, and the image has {side}"
                )));
            }
        }
        Ok(())
    }
}

/// Decodes `region` into `out`, where the sample at (slice, row, column, channel) of the region starts at byte
/// `slice * strides.slice + row * strides.row + …`. Only the tiles that the region touches are read.
///
/// # Errors
/// Whatever [`Error`] says; `out` then holds unspecified samples.
pub fn decode_region(
    file: &[u8],
    region: Region,
    out: &mut [u8],
    strides: Strides,
    scratch: &mut Scratch,
    options: &DecodeOptions,
) -> Result<()> {
    let header = Header::parse(file)?;
    region.check(&header.info)?;
    let channels = usize::from(header.info.channels);
    let sample = header.info.sample_type.bytes();
    let bytes =
        u128::from(region.width) * u128::from(region.height) * u128::from(region.depth) * (channels * sample) as u128;
    if bytes > u128::from(options.max_bytes) {
        return Err(Error::TooLarge(format!(
            "the region decodes to {bytes} bytes, and the limit is {}",
            options.max_bytes
        )));
    }
    strides.check(&region, channels, sample, out.len())?;
    if header.stored {
        return stored(&header, &region, out, strides, options.verify);
    }
    match header.coded_bits {
        8 => typed::<u8>(&header, region, out, strides, scratch, options),
        16 => typed::<u16>(&header, region, out, strides, scratch, options),
        _ => typed::<u32>(&header, region, out, strides, scratch, options),
    }
}

/// Copies a region of samples that are stored as they are.
fn stored(header: &Header, region: &Region, out: &mut [u8], strides: Strides, verify: bool) -> Result<()> {
    let info = &header.info;
    let body = &header.tile(0, verify)?[tile::HEAD..];
    if (body.len() as u64) < info.bytes() {
        return Err(Error::malformed(format!("{} stored bytes where the size needs {}", body.len(), info.bytes())));
    }
    let (size, channels) = (info.sample_type.bytes(), usize::from(info.channels));
    let own = Strides::interleaved(info.width, info.height, info.channels, info.sample_type);
    for z in 0..region.depth as usize {
        for y in 0..region.height as usize {
            let from = (region.z as usize + z) * own.slice
                + (region.y as usize + y) * own.row
                + region.x as usize * own.column;
            let row = &body[from..from + region.width as usize * own.column];
            for (index, sample) in row.chunks_exact(size).enumerate() {
                let (x, channel) = (index / channels, index % channels);
                let to = z * strides.slice + y * strides.row + x * strides.column + channel * strides.channel;
                out[to..to + size].copy_from_slice(sample);
            }
        }
    }
    Ok(())
}

/// Decodes a whole image, channels last, into a new buffer.
pub fn decode(file: &[u8], options: &DecodeOptions) -> Result<Vec<u8>> {
    let info = info(file)?;
    let bytes = info.bytes();
    if bytes > options.max_bytes {
        return Err(Error::TooLarge(format!(
            "the image decodes to {bytes} bytes, and the limit is {}",
            options.max_bytes
        )));
    }
    let mut out = vec![0; usize::try_from(bytes).map_err(|_| Error::TooLarge(format!("{bytes} bytes")))?];
    let strides = Strides::interleaved(info.width, info.height, info.channels, info.sample_type);
    decode_region(file, Region::whole(&info), &mut out, strides, &mut Scratch::default(), options)?;
    Ok(out)
}

/// The tables of an image, ready for use.
struct Coding<'a> {
    slots: &'a [u32],
    of_context: &'a [u8],
}

fn typed<W: Word>(
    header: &Header,
    region: Region,
    out: &mut [u8],
    strides: Strides,
    scratch: &mut Scratch,
    options: &DecodeOptions,
) -> Result<()> {
    scratch.slots.clear();
    scratch.of_context.clear();
    if !header.tables.is_empty() {
        let model = Model::parse::<W>(header.tables, header.coded_channels())?;
        model.slots::<W>(&mut scratch.slots);
        scratch.of_context = model.of_context;
    }
    let coding = Coding { slots: &scratch.slots, of_context: &scratch.of_context };
    let grid = header.grid();
    let backend = options.backend.resolve();
    let bands = bands(&grid, &region);
    let threads = options.threads.clamp(1, bands.len().max(1));
    // Threads share the output by cutting it at rows of tiles; that needs rows to follow each other in memory.
    let row_bytes = (region.width as usize - 1) * strides.column
        + (usize::from(header.info.channels) - 1) * strides.channel
        + header.info.sample_type.bytes();
    let ordered =
        row_bytes <= strides.row && (region.depth == 1 || strides.slice >= strides.row * region.height as usize);
    if threads == 1 || !ordered {
        let mut target = Target::new(out, strides, region, header);
        return bands
            .iter()
            .try_for_each(|band| run_band::<W>(header, &grid, band, &mut target, &coding, options, backend));
    }
    let mut pieces = Vec::with_capacity(bands.len());
    let mut rest = out;
    let mut from = 0;
    for band in &bands {
        let first = band.slice - region.z as usize;
        let top = (band.row * grid.tile_height).max(region.y as usize);
        let bottom = ((band.row + 1) * grid.tile_height).min((region.y + region.height) as usize);
        let start = first * strides.slice + (top - region.y as usize) * strides.row;
        let end = start + (bottom - top - 1) * strides.row + row_bytes;
        let (_, after) = rest.split_at_mut(start - from);
        let (piece, after) = after.split_at_mut(end - start);
        (rest, from) = (after, end);
        let local = Region { y: top as u32, height: (bottom - top) as u32, z: band.slice as u32, depth: 1, ..region };
        pieces.push(std::sync::Mutex::new(Some((band, piece, local))));
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(piece) = pieces.get(index) else { break };
                let taken = piece.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
                let Some((band, piece, local)) = taken else { break };
                let mut target = Target::new(piece, strides, local, header);
                if let Err(error) = run_band::<W>(header, &grid, band, &mut target, &coding, options, backend) {
                    *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                    next.store(pieces.len(), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// One row of tiles of one slice.
#[derive(Debug, Clone, Copy)]
struct Band {
    slice: usize,
    row: usize,
}

fn bands(grid: &Grid, region: &Region) -> Vec<Band> {
    let rows =
        region.y as usize / grid.tile_height..(region.y + region.height).div_ceil(grid.tile_height as u32) as usize;
    (region.z..region.z + region.depth)
        .flat_map(|slice| rows.clone().map(move |row| Band { slice: slice as usize, row }))
        .collect()
}

fn run_band<W: Word>(
    header: &Header,
    grid: &Grid,
    band: &Band,
    target: &mut Target,
    coding: &Coding,
    options: &DecodeOptions,
    backend: Backend,
) -> Result<()> {
    let region = target.region;
    let columns =
        region.x as usize / grid.tile_width..(region.x + region.width).div_ceil(grid.tile_width as u32) as usize;
    for group in 0..grid.groups {
        for column in columns.clone() {
            let place = grid.place(band.slice, group, band.row, column);
            let rows = place.height.min((region.y + region.height) as usize - place.y);
            let verify = options.verify;
            let work = Tile { header, verify, place: &place, coding, rows, target, word: PhantomData::<W> };
            simd::run(backend, work).map_err(|error| within(error, &place))?;
        }
    }
    Ok(())
}

fn within(error: Error, place: &Place) -> Error {
    match error {
        Error::Malformed(text) => Error::Malformed(format!(
            "tile {} (at {}, {} of slice {}): {text}",
            place.index, place.x, place.y, place.slice
        )),
        other => other,
    }
}

/// The work on one tile, for [`simd::run`] to compile once for each set of instructions.
struct Tile<'a, 'b, W> {
    header: &'a Header<'a>,
    verify: bool,
    place: &'a Place,
    coding: &'a Coding<'a>,
    rows: usize,
    target: &'a mut Target<'b>,
    word: PhantomData<W>,
}

impl<W: Word> simd::Work for Tile<'_, '_, W> {
    #[inline(always)]
    fn run<E: Engine>(mut self) -> Result<()> {
        let bytes = self.header.tile(self.place.index, self.verify)?;
        let (place, rows, coding) = (self.place, self.rows, self.coding);
        tile::decode::<W, E>(bytes, place, coding.slots, coding.of_context, rows, &mut self)
    }
}

impl<W: Word> tile::Sink<W> for Tile<'_, '_, W> {
    #[inline(always)]
    fn row<E: Engine>(&mut self, y: usize, rows: &[Row<W>; GROUP]) {
        self.target.store::<W, E>(self.place, y, rows);
    }
}
