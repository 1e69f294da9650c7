//! Times the stages of a sample on one core:
//! `cargo run --release -p penstock-codec --example bench -- [PHOTO.jpg …]`
//!
//! Without arguments the photo cases are made from noise of a photo's size, stored as PNG.

use std::time::Instant;

use penstock_codec::{DType, Draw, FieldSpec, Format, Kind, Limits, Program, Scratch, TensorSpec};

const TRAIN: &str = r#"{"version":1,"mode":"rgb","layout":null,"ops":[
    {"op":"random_resized_crop","size":[224,224],"scale":[0.08,1.0],"ratio":[0.75,1.3333333333333333],"interpolation":"bilinear"},
    {"op":"flip","p":0.5,"axis":"horizontal"},
    {"op":"normalize","mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}]}"#;
const WHOLE: &str = r#"{"version":1,"mode":"rgb","layout":null,"ops":[
    {"op":"resize","size":[224,224],"interpolation":"bilinear"},
    {"op":"flip","p":0.5,"axis":"horizontal"},
    {"op":"normalize","mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}]}"#;
const RESIZED: &str = r#"{"version":1,"mode":"rgb","layout":null,"ops":[
    {"op":"resize","size":[224,224],"interpolation":"bilinear"}]}"#;
const NORMALIZED: &str = r#"{"version":1,"mode":"rgb","layout":null,"ops":[
    {"op":"flip","p":0.5,"axis":"horizontal"},
    {"op":"normalize","mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}]}"#;
const FLIPPED: &str =
    r#"{"version":1,"mode":"rgb","layout":null,"ops":[{"op":"flip","p":0.5,"axis":"horizontal"}]}"#;
const CIFAR: &str = r#"{"version":1,"mode":"rgb","layout":null,"ops":[
    {"op":"random_crop","size":[32,32],"padding":[4,4,4,4],"fill":0,"mask_fill":0},
    {"op":"flip","p":0.5,"axis":"horizontal"},
    {"op":"normalize","mean":[0.5],"std":[0.25]}]}"#;
const JITTER: &str = r#"{"version":1,"mode":"rgb","layout":null,"ops":[
    {"op":"color_jitter","brightness":[0.6,1.4],"contrast":[0.6,1.4],"saturation":[0.6,1.4],"hue":[-0.1,0.1]}]}"#;
const NOTHING: &str = r#"{"version":1,"mode":"rgb","layout":null,"ops":[]}"#;

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// Median nanoseconds of one run.
fn time(name: &str, program: &str, field: &FieldSpec, format: Format, samples: &[Vec<u8>]) {
    let program = Program::from_json(program).expect("a good program");
    let limits = Limits::default();
    let mut scratch = Scratch::default();
    let draw = |id: usize| Draw::new(7, 0, id as u64);
    let spec = program
        .output(field, format, &samples[0], &draw(0), &limits)
        .expect("a good sample");
    let mut out = vec![0u8; spec.bytes().expect("a small sample")];
    let mut once = |id: usize| {
        let other = program
            .run_expecting(
                field,
                format,
                &samples[id % samples.len()],
                &draw(id),
                &spec,
                &mut out,
                &mut scratch,
                &limits,
            )
            .expect("a good sample");
        assert!(other.is_none());
        std::hint::black_box(&out);
    };
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed().as_millis() < 100 {
        once(count);
        count += 1;
    }
    let mut rounds: Vec<f64> = (0..9)
        .map(|round| {
            let begin = Instant::now();
            for id in 0..count {
                once(round * count + id);
            }
            begin.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "{name:<52} {:>12.0} ns   {:>9.0} /s",
        rounds[4],
        1e9 / rounds[4]
    );
}

fn field(kind: Kind, raw: Option<TensorSpec>) -> FieldSpec {
    FieldSpec {
        name: "x".into(),
        kind,
        raw,
    }
}

fn npy(shape: &str, data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((text.len() as u16).to_le_bytes());
    file.extend(text.as_bytes());
    file.extend(data);
    file
}

fn main() {
    let photo = noise(500 * 375 * 3);
    let photo_field = field(Kind::Image, Some(TensorSpec::new(DType::U8, [375, 500, 3])));
    let photos = [photo.clone()];
    time(
        "decoded 500x375 -> resize 224, flip, normalise f32",
        WHOLE,
        &photo_field,
        Format::Raw,
        &photos,
    );
    time(
        "decoded 500x375 -> resize 224",
        RESIZED,
        &photo_field,
        Format::Raw,
        &photos,
    );
    time(
        "decoded 500x375 -> RRC 224, flip, normalise f32",
        TRAIN,
        &photo_field,
        Format::Raw,
        &photos,
    );
    let small_field = field(Kind::Image, Some(TensorSpec::new(DType::U8, [224, 224, 3])));
    let small = [noise(224 * 224 * 3)];
    time(
        "decoded 224x224 -> flip, normalise f32",
        NORMALIZED,
        &small_field,
        Format::Raw,
        &small,
    );
    time(
        "decoded 224x224 -> flip uint8",
        FLIPPED,
        &small_field,
        Format::Raw,
        &small,
    );
    time(
        "decoded 224x224 -> colour jitter",
        JITTER,
        &small_field,
        Format::Raw,
        &small,
    );
    let tiny = noise(3072);
    let tiny_field = field(Kind::Image, Some(TensorSpec::new(DType::U8, [32, 32, 3])));
    time(
        "raw 32x32x3, nothing",
        NOTHING,
        &tiny_field,
        Format::Raw,
        std::slice::from_ref(&tiny),
    );
    time(
        "npy 32x32x3, nothing",
        NOTHING,
        &field(Kind::Array, None),
        Format::Npy,
        &[npy("(32, 32, 3)", &tiny)],
    );
    time(
        "raw 32x32x3 -> pad, crop, flip, normalise f32",
        CIFAR,
        &tiny_field,
        Format::Raw,
        &[tiny],
    );
    let large = noise(190_000);
    time(
        "npy 190 KB, nothing",
        NOTHING,
        &field(Kind::Array, None),
        Format::Npy,
        &[npy("(190000,)", &large)],
    );

    let files: Vec<Vec<u8>> = std::env::args()
        .skip(1)
        .map(|path| std::fs::read(path).expect("a photo"))
        .collect();
    if !files.is_empty() {
        let image = field(Kind::Image, None);
        time(
            "files -> RRC 224, flip, normalise f32",
            TRAIN,
            &image,
            Format::Jpeg,
            &files,
        );
        time(
            "files -> resize 224, flip, normalise f32",
            WHOLE,
            &image,
            Format::Jpeg,
            &files,
        );
    }
}
