//! The order of an epoch: a permutation that depends on (seed, epoch, n) and nothing else.
//!
//! The generator and the shuffle are written out here, so that a saved state means the same order on every
//! machine and in every later version.

/// SplitMix64: a counter with a strong mixing function.
struct Mixer(u64);

impl Mixer {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Uniform in `0..bound`, without bias (multiply and reject).
    fn below(&mut self, bound: u64) -> u64 {
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let wide = u128::from(self.next()) * u128::from(bound);
            if wide as u64 >= threshold {
                return (wide >> 64) as u64;
            }
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The rows `0..n` in the order of `epoch` under `seed`.
pub fn permutation(seed: u64, epoch: u64, n: u64) -> Vec<u64> {
    let mut mixer = Mixer(mix(seed ^ mix(epoch.wrapping_add(0x5EED_0F0E_90C4))));
    let mut rows: Vec<u64> = (0..n).collect();
    for last in (1..rows.len()).rev() {
        let other = mixer.below(last as u64 + 1) as usize;
        rows.swap(last, other);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_exactly_once(seed: u64, epoch: u64, n in 0_u64..2_000) {
            let mut rows = permutation(seed, epoch, n);
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        assert_ne!(permutation(1, 0, 100), permutation(1, 1, 100));
        assert_ne!(permutation(1, 0, 100), permutation(2, 0, 100));
        assert_eq!(permutation(1, 0, 100), permutation(1, 0, 100));
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        assert_eq!(permutation(7, 3, 8), FROZEN);
    }

    const FROZEN: [u64; 8] = [2, 1, 4, 6, 0, 3, 5, 7];

    #[test]
    fn every_position_is_equally_likely() {
        // 8 rows, 8,000 epochs: each (row, position) cell expects 1,000 with a deviation of about 30.
        let mut counts = [[0_u32; 8]; 8];
        for epoch in 0..8_000 {
            for (position, row) in permutation(42, epoch, 8).into_iter().enumerate() {
                counts[row as usize][position] += 1;
            }
        }
        assert!(
            counts.iter().flatten().all(|&c| (850..1_150).contains(&c)),
            "{counts:?}"
        );
    }
}
