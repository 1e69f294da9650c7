//! The encoder's last step: residuals to the bytes of a tile.

use crate::choose::{Planes, PITCH};
use crate::header::{COLUMNS, LANES};
use crate::rans::{Backwards, Symbol};
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

/// Tables in the encoder's form: `[table][token]` to (frequency, start).
pub(crate) struct Coding {
    entries: Vec<Vec<(u32, u32)>>,
    of_context: Vec<u8>,
}

impl Coding {
    pub fn new(model: &Model) -> Self {
        let entries = model
            .tables
            .iter()
            .map(|frequencies| {
                let mut start = 0;
                frequencies
                    .iter()
                    .map(|&frequency| {
                        let entry = (u32::from(frequency), start);
                        start += u32::from(frequency);
                        entry
                    })
                    .collect()
            })
            .collect();
        Coding { entries, of_context: model.of_context.clone() }
    }
}

pub(crate) fn dense<W: Word>(tile: &Residuals<W>, coding: &Coding) -> Vec<u8> {
    let lanes = tile.width.div_ceil(COLUMNS);
    let mut coder = Backwards::new(Vec::with_capacity(tile.width * tile.height * tile.channels / 2));
    let mut symbols = [Symbol { frequency: 1, start: 0, token: 0, residual: 0 }; LANES];
    for y in (0..tile.height).rev() {
        for channel in (0..tile.channels).rev() {
            let row = &tile.words[(channel * tile.height + y) * PITCH..][..PITCH];
            let contexts = &tile.contexts[(y * tile.channels + channel) * LANES..][..LANES];
            let map = &coding.of_context[channel * CONTEXTS..][..CONTEXTS];
            for column in (0..COLUMNS).rev() {
                let active = (tile.width + COLUMNS - 1 - column) / COLUMNS;
                for lane in 0..active {
                    let residual = row[lane * COLUMNS + column].get();
                    let code = token(residual);
                    let (frequency, start) =
                        coding.entries[usize::from(map[usize::from(contexts[lane])])][code as usize];
                    symbols[lane] = Symbol { frequency, start, token: code, residual };
                }
                coder.step::<W>(&symbols[..active]);
            }
        }
    }
    let mut out = head_and_maps(tile);
    for state in &coder.states[..lanes] {
        out.extend_from_slice(&state.to_le_bytes());
    }
    for word in coder.words.iter().rev() {
        out.extend_from_slice(&word.to_le_bytes());
    }
    pad(&mut out);
    out
}

pub(crate) fn packed<W: Word>(tile: &Residuals<W>) -> Vec<u8> {
    let lanes = tile.width.div_ceil(COLUMNS);
    let mut out = head_and_maps(tile);
    let mut codes = Vec::with_capacity(tile.height.div_ceil(BAND) * tile.channels * lanes);
    let mut data = Vec::with_capacity(tile.width * tile.height * tile.channels * W::BYTES);
    for top in (0..tile.height).step_by(BAND) {
        for channel in 0..tile.channels {
            for lane in 0..lanes {
                let mut unit = [0u32; UNIT];
                for y in top..(top + BAND).min(tile.height) {
                    let row = &tile.words[(channel * tile.height + y) * PITCH + lane * COLUMNS..][..COLUMNS];
                    for (to, word) in unit[(y - top) * COLUMNS..].iter_mut().zip(row) {
                        *to = word.get();
                    }
                }
                let any = unit.iter().fold(0, |any, &value| any | value);
                let code = packed_code::<W>(32 - any.leading_zeros());
                let bits = packed_bits::<W>(code);
                codes.push(code);
                let (mut window, mut held) = (0u64, 0);
                for value in unit {
                    window |= u64::from(value) << held;
                    held += bits;
                    if held >= 32 {
                        data.extend_from_slice(&(window as u32).to_le_bytes());
                        window >>= 32;
                        held -= 32;
                    }
                }
                data.extend_from_slice(&window.to_le_bytes()[..held as usize / 8]);
            }
        }
    }
    for eight in codes.chunks(8) {
        let word = eight.iter().enumerate().fold(0u32, |word, (place, &code)| word | u32::from(code) << (4 * place));
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&data);
    pad(&mut out);
    out
}
