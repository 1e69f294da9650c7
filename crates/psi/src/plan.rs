//! The encoder's passes over a tile: how it is coded, and what its residuals are.

use crate::choose::{self, Histograms, Planes, PITCH};
use crate::color;
use crate::encode::{parallel, Level};
use crate::error::Result;
use crate::header::{COLUMNS, GROUP, LANES};
use crate::simd::{self, Engine};
use crate::tables::Model;
use crate::tile::{Head, Mode};
use crate::token::{energy, token, Energies, CONTEXTS};
use crate::word::Word;
use crate::write::{self, Residuals};

/// A tile after the first pass.
pub(crate) enum Planned<W> {
    Done(Vec<u8>),
    /// `other` is what stands for the tile where its words by rANS take more; None: the words as they are.
    Dense {
        residuals: Residuals<W>,
        other: Option<Vec<u8>>,
    },
}

/// The choice of a colour transform, compiled for each set of instructions.
pub(crate) struct Colours<'a, W> {
    pub tiles: &'a [Planes<W>],
    pub found: &'a mut u8,
}

impl<W: Word> simd::Work for Colours<'_, W> {
    #[inline(always)]
    fn run<E: Engine>(self) -> Result<()> {
        *self.found = choose::transform(self.tiles);
        Ok(())
    }
}

/// [`plan`], compiled for each set of instructions.
pub(crate) struct Plan<'a, W> {
    pub planes: &'a Planes<W>,
    pub transform: u8,
    pub level: Level,
    pub planned: &'a mut Planned<W>,
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
pub(crate) fn again<W: Word>(
    coded: &Planes<W>,
    before: &Residuals<W>,
    model: &Model,
    lengths: &[Vec<u32>],
) -> Residuals<W> {
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

pub(crate) fn model_of<W: Word>(planned: &[Planned<W>], channels: usize, threads: usize) -> Option<Model> {
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
