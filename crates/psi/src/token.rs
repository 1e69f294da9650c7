//! Residuals as tokens, and the context that a token is coded in.

use crate::header::{COLUMNS, GROUP, LANES};
use crate::word::Word;

/// Contexts of one channel: 32 levels of what lies above × 8 levels of what other channels have.
pub(crate) const CONTEXTS: usize = 256;

/// Token of an unsigned residual: itself below 16, then exponent and one bit of mantissa.
#[inline(always)]
pub(crate) fn token(value: u32) -> u32 {
    if value < 16 {
        value
    } else {
        let exponent = 31 - value.leading_zeros();
        2 * exponent + 8 + ((value >> (exponent - 1)) & 1)
    }
}

/// Raw bits that follow a token.
#[inline(always)]
pub(crate) fn raw_bits(token: u32) -> u32 {
    // NOTE from the lead, 21:15: direct tokens 12–15 used to carry 1–2 raw bits that were always zero: a bug of the format (about
    // 0.1–0.2 bpp on Kodak). The kernels do it this way. Please keep (SIMD, docs/psi.md, tests too) and drop this note.
    if token < 16 {
        0
    } else {
        (token >> 1) - 5
    }
}

/// Smallest value of a token.
#[inline(always)]
pub(crate) fn base(token: u32) -> u32 {
    if token < 16 {
        token
    } else {
        (2 | (token & 1)) << raw_bits(token)
    }
}

/// Half-octave level of an energy.
#[inline(always)]
pub(crate) fn level(energy: u32) -> u32 {
    if energy < 4 {
        energy
    } else {
        let exponent = 31 - energy.leading_zeros();
        (2 * exponent + ((energy >> (exponent - 1)) & 1)).min(31)
    }
}

/// Energies of the residuals of one tile: sums over a lane's four columns, for the two rows above and for the channels
/// of the current row that are already known. Channels that the tile does not have count as 0.
pub(crate) struct Energies {
    above: [[u32; LANES]; GROUP],
    above2: [[u32; LANES]; GROUP],
    current: [[u32; LANES]; GROUP],
    lanes: usize,
}

impl Energies {
    pub fn new<W: Word>(lanes: usize, channels: usize) -> Self {
        let mut above = [[0; LANES]; GROUP];
        above[..channels].fill([4 << (W::BITS.min(16) / 4 + 1); LANES]);
        Energies { above, above2: above, current: [[0; LANES]; GROUP], lanes }
    }

    /// Contexts of all lanes for `channel` of the row that comes next.
    #[inline(always)]
    pub fn contexts<W: Word>(&self, channel: usize, out: &mut [u8; LANES]) {
        let above = &self.above[channel];
        let above2 = &self.above2[channel];
        let mut padded = [0u32; LANES + 2];
        padded[1..=LANES].copy_from_slice(above);
        padded[0] = above[0];
        padded[self.lanes + 1] = above[self.lanes - 1];
        let drop = if W::BITS == 8 { 0 } else { 4 };
        for lane in 0..LANES {
            let energy = 3 * above[lane] + padded[lane] + padded[lane + 2] + above2[lane];
            let before = match channel {
                0 => (self.above[1][lane] + self.above[2][lane]) >> 1,
                2 => (self.current[0][lane] + 3 * self.current[1][lane]) >> 2,
                _ => self.current[0][lane],
            };
            let second = (32 - (before >> drop).leading_zeros()).min(7);
            out[lane] = (level(energy) * 8 + second) as u8;
        }
    }

    /// Takes the unsigned residuals of `channel`, lane by lane in four columns.
    #[inline(always)]
    pub fn take<W: Word>(&mut self, channel: usize, residuals: &[[W; LANES]; COLUMNS]) {
        for lane in 0..LANES {
            let sum: u32 = residuals.iter().map(|column| energy(column[lane])).sum();
            self.current[channel][lane] = sum;
        }
    }

    /// Ends the row.
    #[inline(always)]
    pub fn next_row(&mut self, channels: usize) {
        for channel in 0..channels {
            self.above2[channel] = self.above[channel];
            self.above[channel] = self.current[channel];
        }
    }
}

#[inline(always)]
fn energy<W: Word>(residual: W) -> u32 {
    if W::BITS == 32 {
        residual.get() >> 16
    } else {
        residual.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_and_its_raw_bits_give_the_value_back() {
        for value in (0..100_000u32).chain((0..32).map(|bit| u32::MAX >> bit)).chain((0..32).map(|bit| 1 << bit)) {
            let code = token(value);
            assert!(value >= base(code));
            assert!((value - base(code)) < 1u32.checked_shl(raw_bits(code)).unwrap_or(0), "{value}");
        }
        assert_eq!(token(u32::MAX) as usize + 1, <u32 as Word>::TOKENS);
        assert_eq!(token(255) as usize + 1, <u8 as Word>::TOKENS);
        assert_eq!(token(65535) as usize + 1, <u16 as Word>::TOKENS);
    }

    #[test]
    fn levels_rise_with_the_energy() {
        assert!((0..2_000_000).zip(1..).all(|(low, high)| level(low) <= level(high)));
    }
}
