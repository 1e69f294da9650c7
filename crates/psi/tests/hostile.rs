//! Files that were damaged or made up: an error or the right pixels, never a crash, never other pixels.

mod pictures;

use std::time::{Duration, Instant};

use penstock_psi::{
    decode, decode_region, encode, info, Backend, DecodeOptions, Error, Level, Options, Region, Scratch, Strides,
};
use pictures::{make, Content, Picture, CONTENTS, TYPES};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 29)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn samples() -> Vec<(Picture, Vec<u8>)> {
    let mut out = Vec::new();
    for (index, sample) in TYPES.into_iter().enumerate() {
        for (level, content) in
            [Level::Fast, Level::Dense, Level::Max].into_iter().zip(CONTENTS.into_iter().cycle().skip(index))
        {
            for (shape, channels) in [((70, 41, 1), 3), ((150, 130, 2), 1), ((5, 3, 1), 6)] {
                let picture = make(content, sample, shape, channels, index as u64);
                let file = encode(&picture.image(), &Options { level, metadata: b"x".to_vec(), ..Options::default() })
                    .unwrap();
                out.push((picture, file));
            }
        }
    }
    // Tiles of runs.
    for (sample, level) in [(TYPES[0], Level::Dense), (TYPES[2], Level::Max)] {
        let picture = make(Content::Labels, sample, (150, 140, 1), 1, 3);
        let file = encode(&picture.image(), &Options { level, ..Options::default() }).unwrap();
        out.push((picture, file));
    }
    out
}

fn mutate(random: &mut Random, file: &[u8]) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..1 + random.below(4) {
        let length = bytes.len();
        if length == 0 {
            break;
        }
        // Half of the changes go to the header and its sections, where they do most.
        let at = if random.below(2) == 0 { random.below(length.min(160)) } else { random.below(length) };
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = (at + 1 + random.below(40)).min(length);
                let with = [0x00, 0xFF][random.below(2)];
                bytes[at..end].fill(with);
            }
            4 => {
                let from = random.below(length);
                let count = random.below(64).min(length - from.max(at));
                bytes.copy_within(from..from + count, at);
            }
            _ => bytes.insert(at, random.next() as u8),
        }
    }
    bytes
}

/// Decodes with and without checks. With checks, the pixels are right or there is an error.
fn attack(picture: &Picture, bytes: &[u8]) {
    let Ok(found) = info(bytes) else { return };
    let options = DecodeOptions { max_bytes: 1 << 22, ..DecodeOptions::default() };
    if let Ok(pixels) = decode(bytes, &options) {
        assert!(pixels == picture.data, "other pixels under a matching checksum");
    }
    for backend in [Backend::Plain, Backend::Auto] {
        let unverified = DecodeOptions { verify: false, backend, ..options };
        let _ = decode(bytes, &unverified);
        let region = Region { x: found.width / 2, y: found.height / 3, z: 0, width: 1, height: 1, depth: 1 };
        let strides = Strides::interleaved(1, 1, found.channels, found.sample_type);
        let mut out = vec![0; usize::from(found.channels) * found.sample_type.bytes()];
        let _ = decode_region(bytes, region, &mut out, strides, &mut Scratch::default(), &unverified);
    }
}

/// `PSI_FUZZ_SECONDS=600 PSI_FUZZ_SEED=1 cargo test --release -p penstock-psi --test hostile changed` is the long form.
#[test]
fn changed_files_give_errors_or_the_right_pixels() {
    let seconds = std::env::var("PSI_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let start = Instant::now();
    let seed = std::env::var("PSI_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut random = Random(seed);
    let samples = samples();
    let mut cases = 0u64;
    while start.elapsed() < Duration::from_secs(seconds) {
        let (picture, file) = &samples[random.below(samples.len())];
        let bytes = mutate(&mut random, file);
        attack(picture, &bytes);
        cases += 1;
    }
    println!("{cases} changed files in {seconds} s");
    assert!(cases > 100);
}

/// Damage behind a matching checksum: what a made-up file would have.
#[test]
fn forged_tiles_never_crash_the_decoder() {
    let mut random = Random(7);
    let samples = samples();
    for _ in 0..4000 {
        let (_, file) = &samples[random.below(samples.len())];
        let mut bytes = file.clone();
        for _ in 0..1 + random.below(6) {
            let at = 52 + random.below(bytes.len() - 52);
            bytes[at] = random.next() as u8;
        }
        penstock_psi::testing::reseal(&mut bytes);
        for backend in [Backend::Plain, Backend::Avx2, Backend::Avx512] {
            let _ = decode(&bytes, &DecodeOptions { max_bytes: 1 << 22, backend, ..DecodeOptions::default() });
        }
    }
}

#[test]
fn every_prefix_is_an_error_that_says_so() {
    let picture = make(Content::Smooth, TYPES[0], (90, 33, 1), 3, 4);
    let file = encode(&picture.image(), &Options::default()).unwrap();
    for end in 0..file.len() {
        let error = decode(&file[..end], &DecodeOptions::default()).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "at {end}: {error}");
    }
    assert!(matches!(decode(b"\x89PNG\r\n\x1a\n", &DecodeOptions::default()), Err(Error::Malformed(_))));
}

#[test]
fn sizes_are_checked_before_memory_is_taken() {
    let picture = make(Content::Smooth, TYPES[0], (90, 33, 1), 3, 4);
    let file = encode(&picture.image(), &Options::default()).unwrap();
    let options = DecodeOptions { max_bytes: 90 * 33 * 3 - 1, ..DecodeOptions::default() };
    assert!(matches!(decode(&file, &options), Err(Error::TooLarge(_))));
    let mut huge = file;
    huge[8..12].copy_from_slice(&0x7FFF_FFFFu32.to_le_bytes());
    penstock_psi::testing::reseal(&mut huge);
    assert!(decode(&huge, &DecodeOptions::default()).is_err());
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let picture = make(Content::Smooth, TYPES[0], (90, 33, 1), 3, 4);
    let file = encode(&picture.image(), &Options::default()).unwrap();
    let whole = Region { x: 0, y: 0, z: 0, width: 90, height: 33, depth: 1 };
    let strides = picture.strides();
    let mut out = vec![0; picture.data.len()];
    let mut refused = |region, strides, length: usize| {
        let result = decode_region(
            &file,
            region,
            &mut out[..length],
            strides,
            &mut Scratch::default(),
            &DecodeOptions::default(),
        );
        assert!(matches!(result, Err(Error::Request(_))), "{region:?}");
    };
    refused(Region { x: 1, ..whole }, strides, 90 * 33 * 3);
    refused(Region { width: 0, ..whole }, strides, 90 * 33 * 3);
    refused(whole, strides, 90 * 33 * 3 - 1);
    refused(whole, Strides { row: usize::MAX, ..strides }, 90 * 33 * 3);
}

#[test]
fn a_device_can_check_any_file() {
    for (picture, file) in samples() {
        let whole = Region { x: 0, y: 0, z: 0, width: picture.width, height: picture.height, depth: picture.depth };
        penstock_psi::device::verify(&file, whole).unwrap();
        let mut damaged = file.clone();
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        assert!(penstock_psi::device::verify(&damaged, whole).is_err());
    }
    // Stored as it is: one tile, whatever the size.
    let picture = make(Content::Noise, TYPES[0], (3, 5, 400), 1, 5);
    let file = encode(&picture.image(), &Options::default()).unwrap();
    let whole = Region { x: 0, y: 0, z: 0, width: 3, height: 5, depth: 400 };
    penstock_psi::device::verify(&file, whole).unwrap();
}
