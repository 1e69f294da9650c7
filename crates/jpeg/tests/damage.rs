//! Damaged files: whatever the bytes are, an answer comes back, soon and without a panic.

use std::path::Path;
use std::time::{Duration, Instant};

use penstock_jpeg::{decode_region, info, Limits, Output, Region, Scratch};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

fn files() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "jpg"))
        .collect();
    paths.sort();
    paths.iter().map(|p| std::fs::read(p).unwrap()).collect()
}

/// Changes a few bytes, cuts, doubles or moves a piece.
fn damage(data: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(data.len());
        let length = random.below(40).min(data.len() - at);
        match random.below(9) {
            0..=2 => data[at] = random.below(256) as u8,
            3 => data[at] ^= 1 << random.below(8),
            // the headers are short, and their bytes matter most
            4 => {
                let at = random.below(data.len().min(700));
                data[at] = [0, 1, 0x11, 0x7F, 0xFF, random.below(256) as u8][random.below(6)];
            }
            5 => drop(data.drain(at..at + length)),
            6 => {
                let piece = data[at..at + length].to_vec();
                data.splice(at..at, piece);
            }
            7 => {
                let from = random.below(other.len());
                let piece = &other[from..(from + length).min(other.len())];
                data.splice(at..at, piece.iter().copied());
            }
            _ => data.truncate(at.max(2)),
        }
        if data.is_empty() {
            data.push(0xFF);
        }
    }
    // a file without its end is answered early: most should get further
    if random.below(4) > 0 {
        data.extend([0xFF, 0xD9]);
    }
}

/// Decodes damaged files; gives how many were decoded all the same.
fn attack(cases: usize, seed: u64) -> usize {
    let files = files();
    let mut random = Random(seed);
    let mut scratch = Scratch::default();
    // what the headers may be made to say: enough for all fixtures, little enough to be quick
    let limits = Limits {
        max_pixels: 1 << 18,
    };
    let mut decoded = 0;
    for case in 0..cases {
        let mut data = files[random.below(files.len())].clone();
        let other = &files[random.below(files.len())];
        damage(&mut data, other, &mut random);
        let Ok(found) = info(&data) else { continue };
        let (x, y) = (
            random.below(found.width as usize),
            random.below(found.height as usize),
        );
        let region = Region {
            x: x as u32,
            y: y as u32,
            width: 1 + random.below((found.width as usize - x).min(2000)) as u32,
            height: 1 + random.below((found.height as usize - y).min(2000)) as u32,
        };
        let (output, pixel) = match random.below(2) {
            0 => (Output::Grey, 1),
            _ => (Output::Rgb, 3),
        };
        let stride = pixel * region.width as usize;
        let mut out = vec![0; stride * region.height as usize];
        let start = Instant::now();
        let result = decode_region(
            &data,
            region,
            output,
            &mut out,
            stride,
            &mut scratch,
            &limits,
        );
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(5), "case {case} took {taken:?}");
        match result {
            Ok(()) => decoded += 1,
            Err(error) => assert!(!error.message.is_empty()),
        }
    }
    decoded
}

#[test]
fn damaged_files_are_answered() {
    let decoded = attack(6000, 11);
    assert!(
        decoded > 300,
        "only {decoded} got to the end: the damage is too great to test much"
    );
}

/// cargo test --release -p penstock-jpeg --test damage -- --ignored
#[test]
#[ignore = "minutes"]
fn many_damaged_files_are_answered() {
    for seed in 0..200 {
        attack(20_000, seed);
    }
}
