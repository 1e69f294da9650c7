//! Random numbers that depend on nothing but (seed, epoch, id, operation, position).

/// The source of a sample's random numbers, the same for every field of the sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    key: u64,
}

/// The increment of SplitMix64: 2^64 over the golden ratio, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64: a bijection in which each input bit flips each output bit half the time.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Takes `value` into `key` so that neither small counters nor their sums collide.
const fn absorb(key: u64, value: u64) -> u64 {
    mix(key.rotate_left(23).wrapping_add(STEP) ^ mix(value.wrapping_add(STEP)))
}

impl Draw {
    /// The draw of sample `id` in `epoch` under `seed`.
    pub const fn new(seed: u64, epoch: u64, id: u64) -> Draw {
        Draw {
            key: absorb(absorb(absorb(0, seed), epoch), id),
        }
    }

    /// The numbers of the operation at this place of the program.
    pub const fn stream(&self, op: u64) -> Stream {
        Stream {
            state: absorb(self.key, op),
        }
    }
}

/// A sequence of random numbers.
#[derive(Debug, Clone)]
pub struct Stream {
    state: u64,
}

impl Stream {
    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// Uniform in [0, 1).
    pub fn f32(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in [0, 1).
    pub fn f64(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.f64()
    }

    /// Uniform in 0..n. 0 when `n` is 0.
    pub fn range(&mut self, n: u64) -> u64 {
        self.place().range(n)
    }

    /// A random place on a line of any length.
    pub(crate) fn place(&mut self) -> Place {
        Place(self.bits())
    }
}

/// A place on a line: it is the same part of the way on lines of different lengths, so that fields of a
/// sample that differ in size get places that correspond.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place(u64);

impl Place {
    pub fn range(self, n: u64) -> u64 {
        ((u128::from(self.0) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_numbers_are_fixed_for_good() {
        // Changing these changes every user's augmentation: never do it without a version.
        let mut stream = Draw::new(7, 3, 81_233).stream(2);
        let first = [stream.bits(), stream.bits()];
        assert_eq!(first, [FIXED[0], FIXED[1]]);
    }

    const FIXED: [u64; 2] = [16_053_747_997_634_509_757, 8_781_172_413_633_835_292];

    #[test]
    fn neighbouring_keys_share_no_numbers() {
        let mut seen = HashSet::new();
        for seed in 0..8 {
            for epoch in 0..8 {
                for id in 0..64 {
                    for op in 0..4 {
                        assert!(seen.insert(Draw::new(seed, epoch, id).stream(op).bits()));
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_are_uniform_over_ids() {
        let n = 20_000;
        let mut histogram = [0u32; 10];
        for id in 0..n {
            histogram[Draw::new(0, 0, id).stream(0).range(10) as usize] += 1;
        }
        for count in histogram {
            // Five standard deviations of a binomial with p = 0.1.
            assert!(
                (f64::from(count) - 2000.0).abs() < 5.0 * 42.5,
                "{histogram:?}"
            );
        }
    }
}
