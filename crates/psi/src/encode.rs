//! From samples to a file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::choose::{self, Histograms, Planes, PITCH};
use crate::color;
use crate::error::{Error, Result};
use crate::header::{
    header_hash, tile_hash, Grid, Info, Order, Place, SampleType, COLUMNS, FIXED, GROUP, LANES, MAGIC, MOST_DECIMAL,
    VERSION,
};
use crate::simd::{self, Engine};
use crate::store::{Region, Strides};
use crate::tables::Model;
use crate::tile::{Head, Mode};
use crate::token::{energy, token, Energies, CONTEXTS};
use crate::word::Word;
use crate::write::{self, Coding, Residuals};

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

/// An image in the caller's memory.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    pub data: &'a [u8],
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub channels: u16,
    pub volume: bool,
    pub sample_type: SampleType,
    pub strides: Strides,
}

impl<'a> Image<'a> {
    /// A picture whose channels lie together, without gaps.
    pub fn interleaved(data: &'a [u8], width: u32, height: u32, channels: u16, sample_type: SampleType) -> Self {
        let strides = Strides::interleaved(width, height, channels, sample_type);
        Image { data, width, height, depth: 1, channels, volume: false, sample_type, strides }
    }

    fn check(&self) -> Result<()> {
        for (what, side) in [("width", self.width), ("height", self.height), ("depth", self.depth)] {
            if side == 0 || side > i32::MAX as u32 {
                return Err(Error::Request(format!("{what} of {side}; it can be 1 to {}", i32::MAX)));
            }
        }
        if self.channels == 0 {
            return Err(Error::Request("an image without channels".into()));
        }
        let region = Region { x: 0, y: 0, z: 0, width: self.width, height: self.height, depth: self.depth };
        self.strides.check(&region, usize::from(self.channels), self.sample_type.bytes(), self.data.len())
    }

    #[inline(always)]
    fn bits(&self, at: usize) -> u32 {
        match self.sample_type.bytes() {
            1 => u32::from(self.data[at]),
            2 => u32::from(u16::from_le_bytes([self.data[at], self.data[at + 1]])),
            _ => u32::from_le_bytes([self.data[at], self.data[at + 1], self.data[at + 2], self.data[at + 3]]),
        }
    }

    /// Calls `each` with the bits of every sample, until it says stop.
    fn samples(&self, mut each: impl FnMut(u32) -> bool) {
        for z in 0..self.depth as usize {
            for y in 0..self.height as usize {
                for x in 0..self.width as usize {
                    for channel in 0..usize::from(self.channels) {
                        let at = z * self.strides.slice
                            + y * self.strides.row
                            + x * self.strides.column
                            + channel * self.strides.channel;
                        if !each(self.bits(at)) {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// How samples become coded words.
struct Mapping {
    order: Order,
    coded_bits: u32,
    offset: u32,
    shift: u32,
    significant: u32,
    /// Samples go into the file as they are, not in tiles.
    stored: bool,
    /// Colours as they stand in the file, and the index of each.
    palette: Vec<u8>,
    index: HashMap<Vec<u8>, u8>,
}

impl Mapping {
    /// Samples as they are.
    fn none(sample: SampleType) -> Self {
        let bits = 8 * sample.bytes() as u32;
        Mapping {
            order: Order { sample, decimal: 0 },
            coded_bits: bits,
            offset: 0,
            shift: 0,
            significant: bits,
            stored: false,
            palette: Vec::new(),
            index: HashMap::new(),
        }
    }

    fn find(image: &Image) -> Self {
        let container = 8 * image.sample_type.bytes() as u32;
        let order = Order { sample: image.sample_type, decimal: decimal(image) };
        let (mut low, mut high) = (u32::MAX, 0);
        if image.sample_type == SampleType::U8 {
            (low, high) = (0, 255);
        } else {
            image.samples(|bits| {
                let value = order.to_ordered(bits);
                (low, high) = (low.min(value), high.max(value));
                true
            });
        }
        let mut any = 0u32;
        if container > 8 {
            image.samples(|bits| {
                any |= order.to_ordered(bits) - low;
                any & 1 == 0
            });
        } else {
            any = 1;
        }
        let shift = if any == 0 { 0 } else { any.trailing_zeros() };
        let significant = (32 - ((high - low) >> shift).leading_zeros()).max(1);
        let coded_bits = match significant {
            0..=8 => 8,
            9..=16 => 16,
            _ => 32,
        };
        // An 8-bit image is not moved: mapping costs time and wins nothing.
        let (offset, shift) =
            if container == 8 { (if image.sample_type == SampleType::U8 { 0 } else { low }, 0) } else { (low, shift) };
        let mut mapping = Mapping { order, coded_bits, offset, shift, significant, ..Mapping::none(image.sample_type) };
        mapping.find_palette(image);
        mapping
    }

    /// A palette where there are few colours: then one index stands for all channels of a pixel.
    fn find_palette(&mut self, image: &Image) {
        let most = if usize::from(image.channels) > 1 || self.coded_bits > 8 { 256 } else { return };
        let size = image.sample_type.bytes();
        let mut colours: HashMap<Vec<u8>, ()> = HashMap::new();
        let mut colour = Vec::with_capacity(usize::from(image.channels) * size);
        for z in 0..image.depth as usize {
            for y in 0..image.height as usize {
                let mut last: Vec<u8> = Vec::new();
                for x in 0..image.width as usize {
                    gather(image, x, y, z, &mut colour);
                    if colour != last {
                        if !colours.contains_key(&colour) {
                            if colours.len() == most {
                                return;
                            }
                            colours.insert(colour.clone(), ());
                        }
                        last.clone_from(&colour);
                    }
                }
            }
        }
        let pixels = u64::from(image.width) * u64::from(image.height) * u64::from(image.depth);
        if (colours.len() * colour.len()) as u64 * 2 > pixels * u64::from(self.coded_bits) / 8 {
            return;
        }
        let mut sorted: Vec<Vec<u8>> = colours.into_keys().collect();
        sorted.sort_by_key(|colour| {
            colour
                .chunks_exact(size)
                .map(|sample| {
                    let mut four = [0; 4];
                    four[..size].copy_from_slice(sample);
                    image.sample_type.to_ordered(u32::from_le_bytes(four))
                })
                .collect::<Vec<_>>()
        });
        self.palette = sorted.concat();
        self.index = sorted.into_iter().enumerate().map(|(index, colour)| (colour, index as u8)).collect();
        (self.coded_bits, self.offset, self.shift) = (8, 0, 0);
        self.order.decimal = 0;
    }
}

/// The fewest decimal places that hold every sample of a float32 image exactly, as [`Order::decimal`] says it.
fn decimal(image: &Image) -> u8 {
    if image.sample_type != SampleType::F32 {
        return 0;
    }
    // The first samples rule out nearly all.
    (1..=MOST_DECIMAL)
        .find(|&decimal| {
            let order = Order { sample: image.sample_type, decimal };
            let mut kept = true;
            image.samples(|bits| {
                kept = order.keeps(bits);
                kept
            });
            kept
        })
        .unwrap_or(0)
}

fn gather(image: &Image, x: usize, y: usize, z: usize, colour: &mut Vec<u8>) {
    let size = image.sample_type.bytes();
    let start = z * image.strides.slice + y * image.strides.row + x * image.strides.column;
    colour.clear();
    for channel in 0..usize::from(image.channels) {
        let at = start + channel * image.strides.channel;
        colour.extend_from_slice(&image.data[at..at + size]);
    }
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
    let info = Info {
        sample_type: image.sample_type,
        width: image.width,
        height: image.height,
        depth: image.depth,
        channels: image.channels,
        volume: image.volume || image.depth > 1,
        significant_bits: mapping.significant as u8,
        level: options.level as u8,
        palette: 0,
        tile_width: (LANES * COLUMNS) as u32,
        tile_height: 128,
        tiles: 1,
    };
    let mut body = write::RAW_HEAD.to_vec();
    image.samples(|bits| {
        body.extend_from_slice(&bits.to_le_bytes()[..image.sample_type.bytes()]);
        true
    });
    body.resize(body.len().div_ceil(4) * 4, 0);
    assemble(&info, &mapping, &options.metadata, &[], &[body])
}

/// Runs `work` for each index below `count` on up to `threads` threads; results in order.
fn parallel<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
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

/// Rows of a tile that the choice of the colour transform looks at.
const STRIP: usize = 16;

/// A tile after the first pass.
enum Planned<W> {
    Done(Vec<u8>),
    /// `other` is what stands for the tile where its words by rANS take more; None: the words as they are.
    Dense {
        residuals: Residuals<W>,
        other: Option<Vec<u8>>,
    },
}

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
    let mut info = Info {
        sample_type: image.sample_type,
        width: image.width,
        height: image.height,
        depth: image.depth,
        channels: image.channels,
        volume: image.volume || image.depth > 1,
        significant_bits: mapping.significant as u8,
        level: options.level as u8,
        palette: (mapping.palette.len() / (usize::from(image.channels) * image.sample_type.bytes())) as u16,
        tile_width,
        tile_height,
        tiles: 0,
    };
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

/// The choice of a colour transform, compiled for each set of instructions.
struct Colours<'a, W> {
    tiles: &'a [Planes<W>],
    found: &'a mut u8,
}

impl<W: Word> simd::Work for Colours<'_, W> {
    #[inline(always)]
    fn run<E: Engine>(self) -> Result<()> {
        *self.found = choose::transform(self.tiles);
        Ok(())
    }
}

/// [`plan`], compiled for each set of instructions.
struct Plan<'a, W> {
    planes: &'a Planes<W>,
    transform: u8,
    level: Level,
    planned: &'a mut Planned<W>,
}

impl<W: Word> simd::Work for Plan<'_, W> {
    #[inline(always)]
    fn run<E: Engine>(self) -> Result<()> {
        *self.planned = plan(self.planes, self.transform, self.level);
        Ok(())
    }
}

/// First pass over a tile: the mode, the predictors, the residuals and their contexts.
#[inline(always)]
fn plan<W: Word>(planes: &Planes<W>, transform: u8, level: Level) -> Planned<W> {
    if let Some(bytes) = write::constant(planes) {
        return Planned::Done(bytes);
    }
    let raw = write::size_of_raw::<W>(planes.channels, planes.width, planes.height);
    let runs = write::runs(planes);
    let transform = match (planes.channels, level) {
        (0..3, _) => color::NONE,
        (_, Level::Max) => choose::transform(std::slice::from_ref(planes)),
        _ => transform,
    };
    let block = (3, 3);
    let coded = planes.transformed(transform);
    let mode = if level == Level::Fast { Mode::Packed } else { Mode::Dense };
    let head = Head { mode, transform, block, planes: planes.channels };
    let mut maps = Vec::with_capacity(planes.channels);
    let mut sixteenths = 0;
    for channel in 0..planes.channels {
        let costs = if mode == Mode::Packed {
            choose::packed_costs(&coded, channel, block)
        } else {
            choose::fixed_costs(&coded, channel, block)
        };
        sixteenths += costs.iter().map(|four| four.iter().copied().min().unwrap_or(0) as usize).sum::<usize>();
        maps.push(choose::cheapest(&costs));
    }
    // What coding takes at least, by the same estimate.
    let states = planes.width.div_ceil(COLUMNS) * 4;
    let runs = match runs {
        Some(runs) if mode == Mode::Dense && runs.len() <= states + sixteenths / (16 * 8) => {
            return Planned::Done(runs);
        }
        runs => runs,
    };
    let residuals = residuals(&coded, head, maps);
    if mode == Mode::Dense {
        return Planned::Dense { residuals, other: runs };
    }
    let bytes = write::packed(&residuals);
    let most = runs.as_ref().map_or(raw, |runs| runs.len().min(raw));
    Planned::Done(if bytes.len() < most { bytes } else { runs.unwrap_or_else(|| write::raw(planes)) })
}

#[inline(always)]
fn residuals<W: Word>(coded: &Planes<W>, head: Head, maps: Vec<Vec<u8>>) -> Residuals<W> {
    let mut words = vec![W::default(); coded.words.len()];
    let size = coded.height * PITCH;
    for channel in 0..coded.channels {
        let map = if maps.len() == 1 { &maps[0] } else { &maps[channel] };
        choose::chosen(coded, channel, head.block, map, &mut words[channel * size..][..size]);
    }
    let contexts = if head.mode == Mode::Dense { contexts(&words, coded) } else { Vec::new() };
    Residuals { words, maps, head, contexts, channels: coded.channels, width: coded.width, height: coded.height }
}

/// The contexts in which a decoder will meet the residuals.
#[inline(always)]
fn contexts<W: Word>(words: &[W], tile: &Planes<W>) -> Vec<u8> {
    let mut out = vec![0u8; tile.height * tile.channels * LANES];
    let mut energies = Energies::new::<W>(tile.width.div_ceil(COLUMNS), tile.channels);
    for y in 0..tile.height {
        for channel in 0..tile.channels {
            if let Ok(to) = (&mut out[(y * tile.channels + channel) * LANES..][..LANES]).try_into() {
                energies.contexts::<W>(channel, to);
            }
            let row = &words[(channel * tile.height + y) * PITCH..][..PITCH];
            let mut sums = [0; LANES];
            for (sum, four) in sums.iter_mut().zip(row.chunks_exact(COLUMNS)) {
                *sum = four.iter().map(|&word| energy(word)).sum();
            }
            energies.take(channel, &sums);
        }
    }
    out
}

/// Chooses predictors again, by what a residual takes in the tables of the pass before, and the blocks that share one.
fn again<W: Word>(coded: &Planes<W>, before: &Residuals<W>, model: &Model, lengths: &[Vec<u32>]) -> Residuals<W> {
    let costs: Vec<Vec<[u32; 4]>> = (0..coded.channels)
        .map(|channel| {
            let map = &model.of_context[channel * CONTEXTS..][..CONTEXTS];
            choose::block_costs(coded, channel, choose::FINEST, |x, y, z| {
                let context = before.contexts[(y * coded.channels + channel) * LANES + x / COLUMNS];
                choose::length(&lengths[usize::from(map[usize::from(context)])], z)
            })
        })
        .collect();
    let (block, maps) = choose::blocks(&costs, coded.width, coded.height);
    residuals(coded, Head { block, planes: maps.len(), ..before.head }, maps)
}

fn model_of<W: Word>(planned: &[Planned<W>], channels: usize, threads: usize) -> Option<Model> {
    let parts = parallel(threads, threads, |part| {
        let mut histograms = Histograms::new::<W>();
        let mut any = false;
        for tile in planned.iter().skip(part).step_by(threads) {
            let Planned::Dense { residuals: tile, .. } = tile else { continue };
            any = true;
            for y in 0..tile.height {
                for channel in 0..tile.channels {
                    let row = &tile.words[(channel * tile.height + y) * PITCH..][..tile.width];
                    let contexts = &tile.contexts[(y * tile.channels + channel) * LANES..][..LANES];
                    for (four, &context) in row.chunks(COLUMNS).zip(contexts) {
                        let counts = &mut histograms.counts[(channel * CONTEXTS + usize::from(context)) * W::TOKENS..]
                            [..W::TOKENS];
                        for &word in four {
                            counts[token(word.get()) as usize] += 1;
                        }
                    }
                }
            }
        }
        any.then_some(histograms)
    });
    let mut parts = parts.into_iter().flatten();
    let mut all = parts.next()?;
    parts.for_each(|part| all.add(&part));
    Some(all.model(channels.min(GROUP)))
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
