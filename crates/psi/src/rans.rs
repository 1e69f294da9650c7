//! The entropy coder: 32 interleaved states of 32 bits, renormalised by 16-bit words that lie in one stream.
//!
//! In a step, each active lane decodes one residual. Lanes whose state fell below 2¹⁶ then take the next words of the
//! stream, in lane order. 8-bit residuals need one renormalisation; wider ones renormalise after the token, after the low
//! 16 raw bits, and (32-bit words only) after the other raw bits, each time all lanes in order.

use crate::error::{Error, Result};
use crate::header::{COLUMNS, LANES};
use crate::tables::{SLOTS, SLOT_BITS, TABLES};
use crate::token::{base, raw_bits};
use crate::word::Word;

/// Lower bound of a state, and the state in which an encoder starts and a decoder must end.
pub(crate) const LOWEST: u32 = 1 << 16;

/// Zeros that must follow a stream in memory: more than the words of one row and the reach of one read.
pub(crate) const PADDING: usize = LANES * COLUMNS * 2 * 3 + 64;

/// The decoder's side of one tile's stream.
pub(crate) struct Coder<'a> {
    pub states: [u32; LANES],
    /// The words and then [`PADDING`] zeros.
    pub padded: &'a [u8],
    /// Bytes of the words.
    pub end: usize,
    /// Next byte; never past `end` between rows.
    pub at: usize,
    /// `TABLES * SLOTS` slot words; see [`crate::tables`].
    pub slots: &'a [u32; TABLES * SLOTS],
}

impl<'a> Coder<'a> {
    /// `stream` ends with [`PADDING`] zeros.
    pub fn new(stream: &'a [u8], lanes: usize, slots: &'a [u32]) -> Result<Self> {
        if stream.len() < lanes * 4 + PADDING {
            return Err(Error::malformed("a coded tile is shorter than its states"));
        }
        let mut states = [LOWEST; LANES];
        for (state, bytes) in states.iter_mut().zip(stream.chunks_exact(4)).take(lanes) {
            *state = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            if *state < LOWEST {
                return Err(Error::malformed("a coded tile starts with a state below 65536"));
            }
        }
        let slots =
            slots.try_into().map_err(|_| Error::malformed("a coded tile, but the file has no coding tables"))?;
        let padded = &stream[lanes * 4..];
        Ok(Coder { states, padded, end: padded.len() - PADDING, at: 0, slots })
    }

    #[inline(always)]
    fn refill(&mut self, lane: usize) -> Result<()> {
        if self.states[lane] < LOWEST {
            let word = self.padded[..self.end].get(self.at..self.at + 2).ok_or_else(exhausted)?;
            self.states[lane] = self.states[lane] << 16 | u32::from(u16::from_le_bytes([word[0], word[1]]));
            self.at += 2;
        }
        Ok(())
    }

    /// After the last step: every word was used and every state is back where the encoder started.
    pub fn finish(&self) -> Result<()> {
        let left = self.end - self.at;
        if self.states.iter().any(|&state| state != LOWEST) || left > 2 {
            return Err(Error::malformed("a coded tile does not end where it should"));
        }
        Ok(())
    }

    /// Decodes one residual in each of the lanes below `active`, one lane after the other; the other lanes give 0.
    /// The tables are their first slots, below `TABLES * SLOTS`.
    #[inline(always)]
    pub fn step<W: Word>(&mut self, tables: &[u32; LANES], active: usize, out: &mut [W; LANES]) -> Result<()> {
        let slot_mask = (1u32 << SLOT_BITS) - 1;
        *out = [W::default(); LANES];
        if W::BITS == 8 {
            for lane in 0..active {
                let state = self.states[lane];
                let slot = self.slots[(tables[lane] + (state & slot_mask)) as usize];
                let state = (slot & 0x7FF).wrapping_mul(state >> SLOT_BITS).wrapping_add(slot >> 11 & slot_mask);
                let raw = slot >> 21 & 7;
                out[lane] = W::of((slot >> 24) + (state & ((1 << raw) - 1)));
                self.states[lane] = state >> raw;
                self.refill(lane)?;
            }
            return Ok(());
        }
        let mut tokens = [0u32; LANES];
        for lane in 0..active {
            let state = self.states[lane];
            let slot = self.slots[(tables[lane] + (state & slot_mask)) as usize];
            self.states[lane] = (slot & 0x7FF).wrapping_mul(state >> SLOT_BITS).wrapping_add(slot >> 11 & slot_mask);
            tokens[lane] = slot >> 21;
            self.refill(lane)?;
        }
        for lane in 0..active {
            let raw = raw_bits(tokens[lane]).min(16);
            out[lane] = W::of(base(tokens[lane]) + (self.states[lane] & ((1 << raw) - 1)));
            self.states[lane] >>= raw;
            self.refill(lane)?;
        }
        if W::BITS == 32 {
            for lane in 0..active {
                let raw = raw_bits(tokens[lane]).saturating_sub(16);
                let high = (self.states[lane] & ((1 << raw) - 1)) << 16;
                out[lane] = W::of(out[lane].get() + high);
                self.states[lane] >>= raw;
                self.refill(lane)?;
            }
        }
        Ok(())
    }
}

#[cold]
pub(crate) fn exhausted() -> Error {
    Error::malformed("a coded tile's stream ends early")
}

/// One residual as the encoder's tables see it.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    pub entry: Entry,
    pub token: u32,
    pub residual: u32,
}

/// A token in a table: its slots, and ⌊2³² / frequency⌋ or, for 1, the nearest number that there is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Entry {
    pub frequency: u32,
    pub start: u32,
    pub inverse: u32,
}

/// The encoder's side: symbols go in backwards.
pub(crate) struct Backwards {
    pub states: [u32; LANES],
    words: Vec<u16>,
    length: usize,
}

impl Backwards {
    /// For at most `steps` steps.
    pub fn new<W: Word>(steps: usize) -> Self {
        let most = steps * LANES * W::BITS.div_ceil(8).min(3) as usize;
        Backwards { states: [LOWEST; LANES], words: vec![0; most + 1], length: 0 }
    }

    /// Words in the reverse of the order in which the decoder takes them.
    pub fn words(&self) -> &[u16] {
        &self.words[..self.length]
    }

    /// Makes room so that the state, after taking `bits` more bits' worth, stays below 2³². No branch: it cannot be foretold.
    #[inline(always)]
    fn drain(&mut self, lane: usize, limit: u64) {
        let state = self.states[lane];
        let full = u64::from(state) >= limit;
        self.words[self.length] = state as u16;
        self.length += usize::from(full);
        self.states[lane] = state >> (16 * u32::from(full));
    }

    #[inline(always)]
    fn raw(&mut self, lane: usize, value: u32, bits: u32) {
        self.drain(lane, 1 << (32 - bits));
        self.states[lane] = self.states[lane] << bits | value;
    }

    #[inline(always)]
    fn token(&mut self, lane: usize, entry: Entry) {
        let state = self.states[lane];
        // The product with the inverse is the quotient or one less.
        let quotient = ((u64::from(state) * u64::from(entry.inverse)) >> 32) as u32;
        let rest = state - quotient * entry.frequency;
        let more = u32::from(rest >= entry.frequency);
        let (quotient, rest) = (quotient + more, rest - more * entry.frequency);
        self.states[lane] = (quotient << SLOT_BITS) + rest + entry.start;
    }

    /// One step: the inverse of [`Coder::step`] for the lanes that have a symbol.
    #[inline(always)]
    pub fn step<W: Word>(&mut self, symbols: &[Symbol]) {
        if W::BITS == 8 {
            for (lane, &symbol) in symbols.iter().enumerate().rev() {
                let bits = raw_bits(symbol.token);
                self.drain(lane, u64::from(symbol.entry.frequency) << (32 - SLOT_BITS - bits));
                self.states[lane] = self.states[lane] << bits | (symbol.residual - base(symbol.token));
                self.token(lane, symbol.entry);
            }
            return;
        }
        if W::BITS == 32 {
            for (lane, symbol) in symbols.iter().enumerate().rev() {
                let value = symbol.residual - base(symbol.token);
                self.raw(lane, value >> 16, raw_bits(symbol.token).saturating_sub(16));
            }
        }
        for (lane, symbol) in symbols.iter().enumerate().rev() {
            let bits = raw_bits(symbol.token).min(16);
            self.raw(lane, (symbol.residual - base(symbol.token)) & ((1 << bits) - 1), bits);
        }
        for (lane, &symbol) in symbols.iter().enumerate().rev() {
            self.drain(lane, u64::from(symbol.entry.frequency) << (32 - SLOT_BITS));
            self.token(lane, symbol.entry);
        }
    }
}
