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

/// Half-octave level of an energy below 2³¹: itself below 4, then two for each power of two.
#[inline(always)]
pub(crate) fn level(energy: u32) -> u32 {
    // The exponent and the first bit of the mantissa of a float are just that, and floats come in vectors.
    let half_octaves = ((energy as i32 as f32).to_bits() >> 22) as i32 - 254;
    half_octaves.max(energy.min(1) as i32).min(31) as u32
}

/// Bits of a number below 2³¹, at most 7.
#[inline(always)]
fn few_bits(value: u32) -> u32 {
    (((value as i32 as f32).to_bits() >> 23) as i32 - 126).clamp(0, 7) as u32
}

/// Energies of the residuals of one tile: sums over a lane's four columns, for the two rows above and for the channels
/// of the current row that are already known. Channels that the tile does not have count as 0.
pub(crate) struct Energies {
    /// With the edge lanes repeated on both sides.
    above: [[u32; LANES + 2]; GROUP],
    above2: [[u32; LANES]; GROUP],
    current: [[u32; LANES]; GROUP],
    lanes: usize,
}

impl Energies {
    pub fn new<W: Word>(lanes: usize, channels: usize) -> Self {
        let start = 4 << (W::BITS.min(16) / 4 + 1);
        let (mut above, mut above2) = ([[0; LANES + 2]; GROUP], [[0; LANES]; GROUP]);
        above[..channels].fill([start; LANES + 2]);
        above2[..channels].fill([start; LANES]);
        Energies { above, above2, current: [[0; LANES]; GROUP], lanes }
    }

    /// Contexts of all lanes for `channel`; those of a row must be asked for in the channels' order.
    #[inline(always)]
    pub fn contexts<W: Word>(&self, channel: usize, out: &mut [u8; LANES]) {
        let (above, above2) = (&self.above[channel], &self.above2[channel]);
        let drop = if W::BITS == 8 { 0 } else { 4 };
        let mut before = self.current[0];
        if channel == 0 {
            for lane in 0..LANES {
                before[lane] = (self.above[1][lane + 1] + self.above[2][lane + 1]) >> 1;
            }
        } else if channel == 2 {
            for lane in 0..LANES {
                before[lane] = (before[lane] + 3 * self.current[1][lane]) >> 2;
            }
        }
        for lane in 0..LANES {
            let energy = 3 * above[lane + 1] + above[lane] + above[lane + 2] + above2[lane];
            out[lane] = (level(energy) * 8 + few_bits(before[lane] >> drop)) as u8;
        }
    }

    /// Takes the energies of `channel` lane by lane: the row above is then the current one.
    #[inline(always)]
    pub fn take(&mut self, channel: usize, energies: &[u32; LANES]) {
        let above = &mut self.above[channel];
        self.above2[channel].copy_from_slice(&above[1..=LANES]);
        above[1..=LANES].copy_from_slice(energies);
        above[0] = energies[0];
        above[self.lanes + 1] = energies[self.lanes - 1];
        self.current[channel] = *energies;
    }
}

/// What a lane's four residuals add to its energy.
#[inline(always)]
pub(crate) fn energies<W: Word>(residuals: &[[W; LANES]; COLUMNS]) -> [u32; LANES] {
    let mut out = [0; LANES];
    for column in residuals {
        for (sum, &residual) in out.iter_mut().zip(column) {
            *sum += energy(residual);
        }
    }
    out
}

/// What a residual adds to the energy of its lane.
#[inline(always)]
pub(crate) fn energy<W: Word>(residual: W) -> u32 {
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
    fn levels_are_half_octaves() {
        for energy in 4..3_000_000u32 {
            let exponent = 31 - energy.leading_zeros();
            assert_eq!(level(energy), (2 * exponent + ((energy >> (exponent - 1)) & 1)).min(31));
            assert_eq!(few_bits(energy), (32 - energy.leading_zeros()).min(7));
        }
        assert_eq!([0, 1, 2, 3].map(level), [0, 1, 2, 3]);
        assert_eq!([0, 1, 2, 3].map(few_bits), [0, 1, 2, 2]);
    }

    #[test]
    fn levels_rise_with_the_energy() {
        assert!((0..2_000_000).zip(1..).all(|(low, high)| level(low) <= level(high)));
    }
}
