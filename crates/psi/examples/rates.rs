//! Sizes and single-core rates over PPM pictures: `cargo run --release --example rates -- [--level dense] FILE.ppm …`

use std::time::Instant;

use penstock_psi::{
    decode_region, encode, info, Backend, DecodeOptions, Image, Level, Options, Region, SampleType, Scratch, Strides,
};

fn ppm(path: &str) -> (Vec<u8>, u32, u32) {
    let file = std::fs::read(path).expect("a readable file");
    let mut fields = Vec::new();
    let mut at = 0;
    while fields.len() < 4 {
        let end = at + file[at..].iter().position(u8::is_ascii_whitespace).expect("a P6 header");
        fields.push(String::from_utf8_lossy(&file[at..end]).into_owned());
        at = end + 1;
    }
    assert!(fields[0] == "P6" && fields[3] == "255", "{path} is not an 8-bit P6 file");
    (file[at..].to_vec(), fields[1].parse().expect("a width"), fields[2].parse().expect("a height"))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let mut paths: Vec<String> = std::env::args().skip(1).collect();
    let mut levels = vec![("fast", Level::Fast), ("dense", Level::Dense), ("max", Level::Max)];
    if paths.first().is_some_and(|first| first == "--level") {
        levels.retain(|(name, _)| *name == paths[1]);
        paths.drain(..2);
    }
    let pictures: Vec<_> = paths.iter().map(|path| ppm(path)).collect();
    let bytes: usize = pictures.iter().map(|picture| picture.0.len()).sum();
    for (name, level) in levels {
        let options = Options { level, ..Options::default() };
        let mut files = Vec::new();
        let encoding = median(
            (0..3)
                .map(|_| {
                    let start = Instant::now();
                    files = pictures
                        .iter()
                        .map(|(data, width, height)| {
                            encode(&Image::interleaved(data, *width, *height, 3, SampleType::U8), &options)
                                .expect("encodes")
                        })
                        .collect();
                    start.elapsed().as_secs_f64()
                })
                .collect(),
        );
        let per_pixel: Vec<f64> = files
            .iter()
            .zip(&pictures)
            .map(|(file, (_, width, height))| 8.0 * file.len() as f64 / f64::from(width * height))
            .collect();
        print!(
            "{name:6} {:.4} bits/pixel  encode {:7.1} MB/s",
            per_pixel.iter().sum::<f64>() / per_pixel.len() as f64,
            bytes as f64 / encoding / 1e6
        );
        for backend in [Backend::Plain, Backend::Avx2, Backend::Avx512] {
            for verify in [true, false] {
                let options = DecodeOptions { backend, verify, ..DecodeOptions::default() };
                let mut scratch = Scratch::default();
                let mut outs: Vec<Vec<u8>> = pictures.iter().map(|picture| vec![0; picture.0.len()]).collect();
                let mut run = || {
                    let start = Instant::now();
                    for (file, out) in files.iter().zip(&mut outs) {
                        let info = info(file).expect("a header");
                        let strides = Strides::interleaved(info.width, info.height, 3, SampleType::U8);
                        decode_region(file, Region::whole(&info), out, strides, &mut scratch, &options)
                            .expect("decodes");
                    }
                    start.elapsed().as_secs_f64()
                };
                run();
                let time = median((0..7).map(|_| run()).collect());
                assert!(outs.iter().zip(&pictures).all(|(out, picture)| *out == picture.0), "not the same pixels");
                print!("  {backend:?}{} {:.0}", if verify { "" } else { " unverified" }, bytes as f64 / time / 1e6);
            }
        }
        println!(" MB/s");
    }
}
