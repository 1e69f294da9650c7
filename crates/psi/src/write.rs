//! The encoder's last step: residuals to the bytes of a tile.

use std::collections::HashMap;

use crate::choose::{Planes, PITCH};
use crate::header::{COLUMNS, LANES};
use crate::rans::{Backwards, Entry, Symbol};
use crate::runs::{self, LABELS};
use crate::simd::active;
use crate::tables::Model;
use crate::tile::{packed_bits, packed_code, Head, Mode, BAND, HEAD, UNIT};
use crate::token::{token, CONTEXTS};
use crate::word::Word;

/// Residuals of a tile under chosen predictors.
pub(crate) struct Residuals<W> {
    pub words: Vec<W>,
    /// Predictors by block, for each map.
    pub maps: Vec<Vec<u8>>,
    pub head: Head,
    /// Contexts `[row][channel][lane]`; empty for packed tiles.
    pub contexts: Vec<u8>,
    pub channels: usize,
    pub width: usize,
    pub height: usize,
}

fn put<W: Word>(out: &mut Vec<u8>, word: W) {
    out.extend_from_slice(&word.get().to_le_bytes()[..W::BYTES]);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().div_ceil(4) * 4, 0);
}

/// Bytes of a raw tile.
pub(crate) fn size_of_raw<W: Word>(channels: usize, width: usize, height: usize) -> usize {
    (channels * width * height * W::BYTES).div_ceil(4) * 4 + HEAD
}

/// The head of tiles that are words as they are.
pub(crate) const RAW_HEAD: [u8; HEAD] = [Mode::Raw as u8, 0, 0, 0];

pub(crate) fn raw<W: Word>(tile: &Planes<W>) -> Vec<u8> {
    let mut out = RAW_HEAD.to_vec();
    for channel in 0..tile.channels {
        for row in tile.plane(channel).chunks_exact(PITCH) {
            row[..tile.width].iter().for_each(|&word| put(&mut out, word));
        }
    }
    pad(&mut out);
    out
}

/// The tile as one word a channel, where that is all it is.
pub(crate) fn constant<W: Word>(tile: &Planes<W>) -> Option<Vec<u8>> {
    let mut out = Head { mode: Mode::Constant, transform: 0, block: (0, 0), planes: 0 }.write().to_vec();
    for channel in 0..tile.channels {
        let plane = tile.plane(channel);
        if plane.chunks_exact(PITCH).any(|row| row[..tile.width].iter().any(|&word| word != plane[0])) {
            return None;
        }
        put(&mut out, plane[0]);
    }
    pad(&mut out);
    Some(out)
}

/// The tile as runs of labels, where it has few and that takes less than a raw tile.
pub(crate) fn runs<W: Word>(tile: &Planes<W>) -> Option<Vec<u8>> {
    if tile.channels != 1 {
        return None;
    }
    let mut left = tile.width * tile.height / 4;
    let mut number_of: HashMap<u32, u8> = HashMap::new();
    let (mut words, mut labels) = (Vec::new(), Vec::with_capacity(tile.width * tile.height));
    let (mut last, mut label) = (None, 0);
    for row in tile.plane(0).chunks_exact(PITCH) {
        for &word in &row[..tile.width] {
            if last != Some(word) {
                left = left.checked_sub(1)?;
                last = Some(word);
                let next = words.len();
                label = *number_of.entry(word.get()).or_insert_with(|| {
                    words.push(word);
                    next as u8
                });
                if words.len() > LABELS {
                    return None;
                }
            }
            labels.push(label);
        }
    }
    let mut out = vec![Mode::Runs as u8, 0, (words.len() - 1) as u8, 0];
    words.into_iter().for_each(|word| put(&mut out, word));
    pad(&mut out);
    let most = size_of_raw::<W>(1, tile.width, tile.height).checked_sub(out.len() + 1)?;
    out.extend_from_slice(&runs::write(&labels, tile.width, usize::from(out[2]) + 1, most)?);
    Some(out)
}

fn head_and_maps<W: Word>(tile: &Residuals<W>) -> Vec<u8> {
    let mut out = tile.head.write().to_vec();
    for (index, &predictor) in tile.maps.iter().flatten().enumerate() {
        if index % 4 == 0 {
            out.push(0);
        }
        if let Some(last) = out.last_mut() {
            *last |= (predictor & 3) << (index % 4 * 2);
        }
    }
    out.resize(HEAD + tile.head.map_bytes(tile.width, tile.height), 0);
    out
}

/// Tables in the encoder's form.
pub(crate) struct Coding {
    /// `[table][token]`, flattened.
    entries: Vec<Entry>,
    tokens: usize,
    of_context: Vec<u8>,
}

impl Coding {
    pub fn new(model: &Model) -> Self {
        let tokens = model.tables.first().map_or(0, Vec::len);
        let mut entries = Vec::with_capacity(model.tables.len() * tokens);
        for frequencies in &model.tables {
            let mut start = 0;
            for frequency in frequencies.iter().map(|&frequency| u32::from(frequency)) {
                let inverse = ((1u64 << 32) / u64::from(frequency.max(1))).min(u64::from(u32::MAX)) as u32;
                entries.push(Entry { frequency, start, inverse });
                start += frequency;
            }
        }
        Coding { entries, tokens, of_context: model.of_context.clone() }
    }
}

#[inline(always)]
pub(crate) fn dense<W: Word>(tile: &Residuals<W>, coding: &Coding) -> Vec<u8> {
    let lanes = tile.width.div_ceil(COLUMNS);
    let mut coder = Backwards::new::<W>(tile.height * tile.channels * COLUMNS);
    let mut symbols = [Symbol { entry: Entry::default(), token: 0, residual: 0 }; LANES];
    for y in (0..tile.height).rev() {
        for channel in (0..tile.channels).rev() {
            let row = &tile.words[(channel * tile.height + y) * PITCH..][..PITCH];
            let contexts = &tile.contexts[(y * tile.channels + channel) * LANES..][..LANES];
            let map = &coding.of_context[channel * CONTEXTS..][..CONTEXTS];
            let mut entries = [&coding.entries[..]; LANES];
            for (entries, &context) in entries.iter_mut().zip(contexts) {
                *entries = &coding.entries[usize::from(map[usize::from(context)]) * coding.tokens..][..coding.tokens];
            }
            for column in (0..COLUMNS).rev() {
                let active = active(tile.width, column);
                for (lane, symbol) in symbols.iter_mut().enumerate().take(active) {
                    let residual = row[lane * COLUMNS + column].get();
                    let code = token(residual);
                    *symbol = Symbol { entry: entries[lane][code as usize], token: code, residual };
                }
                coder.step::<W>(&symbols[..active]);
            }
        }
    }
    let mut out = head_and_maps(tile);
    for state in &coder.states[..lanes] {
        out.extend_from_slice(&state.to_le_bytes());
    }
    let start = out.len();
    out.resize(start + 2 * coder.words().len(), 0);
    for (to, word) in out[start..].chunks_exact_mut(2).zip(coder.words().iter().rev()) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    pad(&mut out);
    out
}

/// Eight values of `bits` bits, one in each byte, moved together.
#[inline(always)]
fn squeeze(eight: u64, bits: u32) -> u64 {
    let pairs = (eight & 0x00FF_00FF_00FF_00FF) | (eight & 0xFF00_FF00_FF00_FF00) >> (8 - bits);
    let fours = (pairs & 0x0000_FFFF_0000_FFFF) | (pairs & 0xFFFF_0000_FFFF_0000) >> (16 - 2 * bits);
    (fours & 0xFFFF_FFFF) | (fours >> 32) << (4 * bits)
}

#[inline(always)]
pub(crate) fn packed<W: Word>(tile: &Residuals<W>) -> Vec<u8> {
    let lanes = tile.width.div_ceil(COLUMNS);
    let mut out = head_and_maps(tile);
    let units = tile.height.div_ceil(BAND) * tile.channels * lanes;
    let mut codes = Vec::with_capacity(units);
    let mut data = vec![0u8; units * UNIT * W::BYTES + 8];
    let mut at = 0;
    for top in (0..tile.height).step_by(BAND) {
        for channel in 0..tile.channels {
            // Rows past the tile's end are zeros.
            let mut band = [[W::default(); PITCH]; BAND];
            for (row, y) in band.iter_mut().zip(top..tile.height) {
                row.copy_from_slice(&tile.words[(channel * tile.height + y) * PITCH..][..PITCH]);
            }
            for lane in 0..lanes {
                let mut unit = [0u32; UNIT];
                for (to, row) in unit.chunks_exact_mut(COLUMNS).zip(&band) {
                    for (to, word) in to.iter_mut().zip(&row[lane * COLUMNS..][..COLUMNS]) {
                        *to = word.get();
                    }
                }
                let any = unit.iter().fold(0, |any, &value| any | value);
                let code = packed_code::<W>(32 - any.leading_zeros());
                let bits = packed_bits::<W>(code);
                codes.push(code);
                if W::BITS == 8 {
                    for eight in unit.chunks_exact(8) {
                        let bytes: [u8; 8] = std::array::from_fn(|index| eight[index] as u8);
                        let together = squeeze(u64::from_le_bytes(bytes), bits);
                        data[at..at + 8].copy_from_slice(&together.to_le_bytes());
                        at += bits as usize;
                    }
                    continue;
                }
                let (mut window, mut held) = (0u64, 0);
                for value in unit {
                    window |= u64::from(value) << held;
                    held += bits;
                    if held >= 32 {
                        data[at..at + 4].copy_from_slice(&(window as u32).to_le_bytes());
                        at += 4;
                        window >>= 32;
                        held -= 32;
                    }
                }
                let left = held as usize / 8;
                data[at..at + left].copy_from_slice(&window.to_le_bytes()[..left]);
                at += left;
            }
        }
    }
    for eight in codes.chunks(8) {
        let word = eight.iter().enumerate().fold(0u32, |word, (place, &code)| word | u32::from(code) << (4 * place));
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&data[..at]);
    pad(&mut out);
    out
}
