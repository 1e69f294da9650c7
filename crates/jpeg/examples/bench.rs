//! How many pictures a second one core decodes.
//!
//!     cargo run --release -p penstock-jpeg --example bench -- FOLDER [SECONDS]
//!
//! Takes the JPEGs of a folder into memory and decodes them round and round: whole, and a random-resized-crop
//! region of each (area 0.08..1, aspect 3/4..4/3, log-uniform, as torchvision draws them; regions are the same
//! in each run, and those of a round are different from the last round's). Prints pictures a second.

use std::time::{Duration, Instant};

use penstock_jpeg::{decode_region, info, Limits, Output, Region, Scratch};

struct Random(u64);

impl Random {
    /// In 0..1.
    fn uniform(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.uniform() * f64::from(n)) as u32
    }

    fn crop(&mut self, width: u32, height: u32) -> Region {
        let area = f64::from(width) * f64::from(height);
        for _ in 0..10 {
            let target = area * (0.08 + 0.92 * self.uniform());
            let (low, high) = ((3f64 / 4.0).ln(), (4f64 / 3.0).ln());
            let ratio = (low + (high - low) * self.uniform()).exp();
            let w = (target * ratio).sqrt().round() as u32;
            let h = (target / ratio).sqrt().round() as u32;
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                return Region {
                    x: self.below(width - w + 1),
                    y: self.below(height - h + 1),
                    width: w,
                    height: h,
                };
            }
        }
        let side = width.min(height);
        Region {
            x: (width - side) / 2,
            y: (height - side) / 2,
            width: side,
            height: side,
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("a folder of JPEGs");
    let seconds: f64 = arguments
        .next()
        .map_or(3.0, |s| s.parse().expect("seconds"));
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("a folder of JPEGs")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|p| p.extension().is_some_and(|e| e == "jpg" || e == "jpeg"))
        .collect();
    paths.sort();
    let files: Vec<_> = paths
        .iter()
        .map(|p| std::fs::read(p).expect("a readable file"))
        .collect();
    assert!(!files.is_empty(), "no JPEG in {folder}");
    let bytes: usize = files.iter().map(Vec::len).sum();
    println!(
        "{} files, {} bytes each on average",
        files.len(),
        bytes / files.len()
    );
    let sizes: Vec<_> = files.iter().map(|f| info(f).expect("a JPEG")).collect();
    for (name, crops) in [("whole", false), ("region", true)] {
        let mut random = Random(7);
        let mut scratch = Scratch::default();
        let mut out = Vec::new();
        let mut round = || {
            for (file, size) in files.iter().zip(&sizes) {
                let mut region = random.crop(size.width, size.height);
                if !crops {
                    region = Region {
                        x: 0,
                        y: 0,
                        width: size.width,
                        height: size.height,
                    };
                }
                let stride = 3 * region.width as usize;
                out.resize(stride * region.height as usize, 0);
                let limits = Limits::default();
                decode_region(
                    file,
                    region,
                    Output::Rgb,
                    &mut out,
                    stride,
                    &mut scratch,
                    &limits,
                )
                .expect("a sound JPEG");
                std::hint::black_box(&out);
            }
        };
        round();
        let (start, mut rounds, mut best) = (Instant::now(), 0, f64::MAX);
        while start.elapsed() < Duration::from_secs_f64(seconds) {
            let before = Instant::now();
            round();
            best = best.min(before.elapsed().as_secs_f64());
            rounds += 1;
        }
        let each = start.elapsed().as_secs_f64() / (rounds * files.len()) as f64;
        println!(
            "{name:7} {:7.0} pictures/s  {:6.1} us each  (in the best round {:.0}/s)",
            1.0 / each,
            each * 1e6,
            files.len() as f64 / best
        );
    }
}
