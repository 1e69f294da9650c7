//! The checksum of headers and tiles: 32 interleaved 32-bit chains, so that a warp or a vector
//! unit computes it at the speed of memory. Each step is a bijection of the chain for a given
//! word and of the word for a given chain: a change in one word is always seen.

const MULTIPLIER: u32 = 0x9E37_79B1;

#[inline(always)]
fn step(chain: u32, word: u32) -> u32 {
    let mixed = (chain ^ word).wrapping_mul(MULTIPLIER);
    mixed ^ (mixed >> 15)
}

/// Hash of `bytes`, read as little-endian 32-bit words; a last partial word is padded with zeros.
#[inline(always)]
pub fn hash(bytes: &[u8]) -> u32 {
    let mut chains: [u32; 32] = std::array::from_fn(|lane| lane as u32 + 1);
    let mut rows = bytes.chunks_exact(128);
    for row in &mut rows {
        for (chain, word) in chains.iter_mut().zip(row.chunks_exact(4)) {
            *chain = step(*chain, u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    for (chain, word) in chains.iter_mut().zip(rows.remainder().chunks(4)) {
        let mut padded = [0u8; 4];
        padded[..word.len()].copy_from_slice(word);
        *chain = step(*chain, u32::from_le_bytes(padded));
    }
    chains.iter().fold(bytes.len() as u32, |all, &chain| step(all, chain))
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn any_changed_bit_and_any_length_changes_the_hash() {
        let data: Vec<u8> = (0..1000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let whole = hash(&data);
        for byte in 0..data.len() {
            for bit in 0..8 {
                let mut other = data.clone();
                other[byte] ^= 1 << bit;
                assert_ne!(hash(&other), whole, "byte {byte} bit {bit}");
            }
        }
        assert_ne!(hash(&data[..999]), whole);
        assert_ne!(hash(&[]), hash(&[0]));
    }
}
