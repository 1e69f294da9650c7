//! From samples to a file.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::choose::{self, Planes, PITCH};
use crate::color;
use crate::error::{Error, Result};
use crate::header::{header_hash, tile_hash, Grid, Info, Place, SampleType, COLUMNS, FIXED, LANES, MAGIC, VERSION};
use crate::image::{gather, Image};
use crate::mapping::Mapping;
use crate::plan::{again, model_of, Colours, Plan, Planned};
use crate::simd;
use crate::word::Word;
use crate::write::{self, Coding};

/// Speed against size. Every level is read by the same decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Bit packing: largest, fastest to write and to read.
    Fast,
    /// Tokens by rANS.
    #[default]
    Dense,
    /// As dense, in taller tiles and after a longer search.
    Max,
}

/// How to encode.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub level: Level,
    /// Threads to use at most; 0 and 1 encode in the caller's.
    pub threads: usize,
    /// Kept as it is and given back by [`crate::metadata`].
    pub metadata: Vec<u8>,
    /// Rows of a tile; 0 takes the level's own: 128, for `Max` 512.
    pub tile_height: u32,
}

/// Encodes an image. The result is a whole file.
///
/// # Errors
/// [`Error::Request`] where sizes or strides do not fit the data, [`Error::TooLarge`] where the file would not fit its
/// own offsets (16 GiB).
pub fn encode(image: &Image, options: &Options) -> Result<Vec<u8>> {
    image.check()?;
    let file = encode_at(image, options)?;
    // Coding tables weigh on a small image: packing may win.
    if options.level != Level::Fast && file.len() < 1 << 14 {
        let packed = encode_at(image, &Options { level: Level::Fast, ..options.clone() })?;
        if packed.len() < file.len() {
            return Ok(packed);
        }
    }
    Ok(file)
}

fn encode_at(image: &Image, options: &Options) -> Result<Vec<u8>> {
    let mapping = Mapping::find(image);
    let file = match mapping.coded_bits {
        8 => typed::<u8>(image, &mapping, options),
        16 => typed::<u16>(image, &mapping, options),
        _ => typed::<u32>(image, &mapping, options),
    }?;
    // Tiny tiles of noise: their heads and offsets would cost more than half a percent.
    let samples = u64::from(image.width) * u64::from(image.height) * u64::from(image.depth) * u64::from(image.channels);
    let bytes = samples * image.sample_type.bytes() as u64;
    if file.len() as u64 > options.metadata.len() as u64 + bytes + bytes / 200 + 100 {
        return stored(image, options);
    }
    Ok(file)
}

/// The image as it is, behind a header.
fn stored(image: &Image, options: &Options) -> Result<Vec<u8>> {
    let mut mapping = Mapping::none(image.sample_type);
    mapping.stored = true;
    let info = Info { tiles: 1, ..info_of(image, &mapping, options.level, (LANES * COLUMNS) as u32, 128) };
    let mut body = write::RAW_HEAD.to_vec();
    image.samples(|bits| {
        body.extend_from_slice(&bits.to_le_bytes()[..image.sample_type.bytes()]);
        true
    });
    body.resize(body.len().div_ceil(4) * 4, 0);
    assemble(&info, &mapping, &options.metadata, &[], &[body])
}

/// Runs `work` for each index below `count` on up to `threads` threads; results in order.
pub(crate) fn parallel<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    if threads <= 1 || count <= 1 {
        return (0..count).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            scope.spawn(|| loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = results.get(index) else { break };
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(work(index));
            });
        }
    });
    results.into_iter().filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// What the header says, but for the number of tiles.
fn info_of(image: &Image, mapping: &Mapping, level: Level, tile_width: u32, tile_height: u32) -> Info {
    Info {
        sample_type: image.sample_type,
        width: image.width,
        height: image.height,
        depth: image.depth,
        channels: image.channels,
        volume: image.volume || image.depth > 1,
        significant_bits: mapping.significant as u8,
        level: level as u8,
        palette: (mapping.palette.len() / (usize::from(image.channels) * image.sample_type.bytes())) as u16,
        tile_width,
        tile_height,
        tiles: 0,
    }
}

/// Rows of a tile that the choice of the colour transform looks at.
const STRIP: usize = 16;

fn typed<W: Word>(image: &Image, mapping: &Mapping, options: &Options) -> Result<Vec<u8>> {
    let tile_height = match (options.tile_height, options.level) {
        (0, Level::Max) => 512,
        (0, _) => 128,
        (height, _) => height.clamp(8, 4096),
    };
    // A small image gets tiles of its own size: the height in the header is then its own.
    let tile_height = tile_height.min(image.height);
    let tile_width = (LANES * COLUMNS) as u32;
    let tile_width = if image.width < tile_width { image.width.div_ceil(4) * 4 } else { tile_width };
    let coded_channels = if mapping.palette.is_empty() { usize::from(image.channels) } else { 1 };
    let mut info = info_of(image, mapping, options.level, tile_width, tile_height);
    let grid = Grid::new(&info, coded_channels);
    let tiles = u32::try_from(grid.across as u128 * grid.down as u128 * grid.groups as u128 * u128::from(image.depth))
        .map_err(|_| Error::TooLarge("the image has over 2³² tiles".into()))?;
    info.tiles = tiles;
    let tiles = tiles as usize;
    let place = |index: usize| {
        let (rest, column) = (index / grid.across, index % grid.across);
        let (rest, row) = (rest / grid.down, rest % grid.down);
        grid.place(rest / grid.groups, rest % grid.groups, row, column)
    };
    let threads = options.threads.max(1);
    let backend = simd::best();
    let transform = {
        // A strip of some tiles is enough to tell.
        let step = tiles.div_ceil(12).max(1);
        let strip = |index: usize| {
            let place = place(index);
            let skip = (place.height.saturating_sub(STRIP) / 2) & !7;
            load(image, mapping, &Place { y: place.y + skip, height: (place.height - skip).min(STRIP), ..place })
        };
        let colours = (3..=4).contains(&coded_channels);
        let sampled: Vec<Planes<W>> = if colours { (0..tiles).step_by(step).map(strip).collect() } else { Vec::new() };
        let mut found = color::NONE;
        simd::run(backend, Colours { tiles: &sampled, found: &mut found })?;
        found
    };
    let planned: Result<Vec<_>> = parallel(threads, tiles, |index| {
        let planes = load::<W>(image, mapping, &place(index));
        let mut planned = Planned::Done(Vec::new());
        let work = Plan { planes: &planes, transform, level: options.level, planned: &mut planned };
        simd::run(backend, work).map(|()| planned)
    })
    .into_iter()
    .collect();
    let mut planned = planned?;
    let mut model = model_of(&planned, coded_channels, threads);
    if options.level == Level::Max {
        for _ in 0..3 {
            let Some(current) = &model else { break };
            let lengths = choose::lengths(current);
            planned = parallel(threads, tiles, |index| match &planned[index] {
                Planned::Done(bytes) => Planned::Done(bytes.clone()),
                Planned::Dense { residuals, other } => {
                    let planes = load::<W>(image, mapping, &place(index)).transformed(residuals.head.transform);
                    Planned::Dense { residuals: again(&planes, residuals, current, &lengths), other: other.clone() }
                }
            });
            model = model_of(&planned, coded_channels, threads);
        }
    }
    let coding = model.as_ref().map(Coding::new);
    let mut bodies = parallel(threads, tiles, |index| match (&planned[index], &coding) {
        (Planned::Done(bytes), _) => bytes.clone(),
        (Planned::Dense { residuals, .. }, Some(coding)) => write::dense(residuals, coding),
        (Planned::Dense { .. }, None) => Vec::new(),
    });
    let mut tables = model.map(|model| model.write()).unwrap_or_default();
    let uncoded_size = |index: usize| match &planned[index] {
        Planned::Dense { other: Some(bytes), .. } => bytes.len(),
        _ => write::size_of_raw::<W>(place(index).channels, place(index).width, place(index).height),
    };
    let coded = |index: usize| matches!(planned[index], Planned::Dense { .. });
    let saved: usize = (0..tiles)
        .filter(|&index| coded(index))
        .map(|index| uncoded_size(index).saturating_sub(bodies[index].len()))
        .sum();
    // Where all tables cost more than they win, no tile is coded: a very small image, or noise.
    let worth = saved > tables.len();
    if !worth {
        tables = Vec::new();
    }
    for (index, body) in bodies.iter_mut().enumerate().filter(|&(index, _)| coded(index)) {
        if !worth || body.len() >= uncoded_size(index) {
            *body = match &planned[index] {
                Planned::Dense { other: Some(bytes), .. } => bytes.clone(),
                _ => write::raw(&load::<W>(image, mapping, &place(index))),
            };
        }
    }
    assemble(&info, mapping, &options.metadata, &tables, &bodies)
}

/// The words of one tile.
fn load<W: Word>(image: &Image, mapping: &Mapping, place: &Place) -> Planes<W> {
    let mut words = vec![W::default(); place.channels * place.height * PITCH];
    if !mapping.palette.is_empty() {
        let (mut colour, mut last, mut index) = (Vec::new(), Vec::new(), 0);
        for y in 0..place.height {
            for x in 0..place.width {
                gather(image, place.x + x, place.y + y, place.slice, &mut colour);
                if colour != last {
                    index = mapping.index.get(&colour).copied().unwrap_or(0);
                    last.clone_from(&colour);
                }
                words[y * PITCH + x] = W::of(u32::from(index));
            }
        }
        return Planes { words, channels: 1, width: place.width, height: place.height };
    }
    let plain = image.sample_type == SampleType::U8;
    for channel in 0..place.channels {
        for y in 0..place.height {
            let start = place.slice * image.strides.slice
                + (place.y + y) * image.strides.row
                + place.x * image.strides.column
                + (place.first_channel + channel) * image.strides.channel;
            let row = &mut words[(channel * place.height + y) * PITCH..][..place.width];
            if plain {
                for (word, &byte) in row.iter_mut().zip(image.data[start..].iter().step_by(image.strides.column.max(1)))
                {
                    *word = W::of(u32::from(byte));
                }
                continue;
            }
            for (x, word) in row.iter_mut().enumerate() {
                let ordered = mapping.order.to_ordered(image.bits(start + x * image.strides.column));
                *word = W::of((ordered.wrapping_sub(mapping.offset)) >> mapping.shift);
            }
        }
    }
    Planes { words, channels: place.channels, width: place.width, height: place.height }
}

fn assemble(info: &Info, mapping: &Mapping, metadata: &[u8], tables: &[u8], bodies: &[Vec<u8>]) -> Result<Vec<u8>> {
    let too_large = || Error::TooLarge("the file would be larger than its offsets can say (16 GiB)".into());
    let mut out =
        Vec::with_capacity(FIXED + metadata.len() + bodies.iter().map(Vec::len).sum::<usize>() + 8 * bodies.len() + 64);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[
        VERSION,
        info.sample_type.code(),
        mapping.coded_bits as u8,
        u8::from(info.volume) | u8::from(mapping.stored) << 1,
    ]);
    for side in [info.width, info.height, info.depth] {
        out.extend_from_slice(&side.to_le_bytes());
    }
    out.extend_from_slice(&info.channels.to_le_bytes());
    out.extend_from_slice(&info.palette.to_le_bytes());
    out.extend_from_slice(&mapping.offset.to_le_bytes());
    out.push(mapping.shift as u8);
    out.push((info.tile_width / COLUMNS as u32) as u8);
    out.extend_from_slice(&(info.tile_height as u16).to_le_bytes());
    out.extend_from_slice(&u32::try_from(metadata.len()).map_err(|_| too_large())?.to_le_bytes());
    out.extend_from_slice(&(tables.len() as u32).to_le_bytes());
    out.extend_from_slice(&info.tiles.to_le_bytes());
    out.extend_from_slice(&[info.level, info.significant_bits, mapping.order.decimal, 0]);
    out.extend_from_slice(&[0; 4]);
    for section in [metadata, &mapping.palette, tables] {
        out.extend_from_slice(section);
        out.resize(out.len().div_ceil(4) * 4, 0);
    }
    let hash = header_hash(&out[..48], &out[FIXED..]);
    out[48..52].copy_from_slice(&hash.to_le_bytes());
    let mut offset = 0u32;
    out.extend_from_slice(&offset.to_le_bytes());
    for body in bodies {
        let words = u32::try_from(body.len() / 4).map_err(|_| too_large())?;
        offset = offset.checked_add(words).ok_or_else(too_large)?;
        out.extend_from_slice(&offset.to_le_bytes());
    }
    for (tile, body) in bodies.iter().enumerate() {
        out.extend_from_slice(&tile_hash(tile, body).to_le_bytes());
    }
    bodies.iter().for_each(|body| out.extend_from_slice(body));
    Ok(out)
}
