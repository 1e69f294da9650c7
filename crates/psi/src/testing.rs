//! For tests of decoders: files with damage that no checksum shows.

use crate::header::{header_hash, padded, tile_hash, u16_at, u32_at, SampleType, FIXED};

/// Recomputes the checksums of a damaged file as far as its structure can still be followed, so that the damage
/// reaches the decoder.
pub fn reseal(file: &mut [u8]) {
    let have = file.len() as u64;
    if have < FIXED as u64 {
        return;
    }
    let Some(sample) = SampleType::from_code(file[5]) else { return };
    let palette = u64::from(u16_at(file, 22)) * u64::from(u16_at(file, 20)) * sample.bytes() as u64;
    let sections = padded(u64::from(u32_at(file, 32))) + padded(palette) + padded(u64::from(u32_at(file, 36)));
    let covered = FIXED as u64 + sections;
    if covered > have {
        return;
    }
    let hash = header_hash(&file[..48], &file[FIXED..covered as usize]);
    file[48..52].copy_from_slice(&hash.to_le_bytes());
    let tiles = u64::from(u32_at(file, 40));
    let payload = covered + (tiles + 1) * 4 + tiles * 4;
    if payload > have {
        return;
    }
    for tile in 0..tiles as usize {
        let offset = |file: &[u8], index: usize| payload + u64::from(u32_at(file, covered as usize + 4 * index)) * 4;
        let (start, end) = (offset(file, tile), offset(file, tile + 1));
        if start > end || end > have {
            continue;
        }
        let hash = tile_hash(tile, &file[start as usize..end as usize]);
        let at = covered as usize + (tiles as usize + 1) * 4 + 4 * tile;
        file[at..at + 4].copy_from_slice(&hash.to_le_bytes());
    }
}
