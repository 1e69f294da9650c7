//! Damaged files through every format and many programs: an answer comes back, soon, within the limits, the same each time,
//! and nothing is written outside of the slot.
//!
//! Case n is made from the number n alone. `PENSTOCK_FUZZ_SECONDS` says how long it goes on (3), `PENSTOCK_FUZZ_FIRST` with
//! which case it begins (0).

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_codec::{
    CodecError, DType, Draw, FieldSpec, Format, Kind, Limits, Program, Scratch, TensorSpec,
};
use penstock_psi::{encode, Image, Level, Options, SampleType};

/// Counts what is allocated, so that a decompression bomb shows.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; beside it only counters move.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one sample may be, and what taking it may cost.
const LIMITS: Limits = Limits {
    max_pixels: 1 << 18,
    max_bytes: 1 << 22,
};
const MOST_MEMORY: usize = 48 << 20;
const MOST_TIME: Duration = Duration::from_secs(5);
const CANARY: u8 = 0xA7;
const MARGIN: usize = 64;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 29)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

struct Seed {
    name: String,
    format: Format,
    bytes: Vec<u8>,
}

fn seeds() -> Vec<Seed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let jpegs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jpeg/tests/data");
    let mut seeds = Vec::new();
    for path in [folder, jpegs]
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
    {
        let extension = path
            .extension()
            .map(|e| e.to_string_lossy().into_owned())
            .unwrap_or_default();
        let Some(format) = Format::from_extension(&extension) else {
            continue;
        };
        let bytes = std::fs::read(&path).unwrap();
        if format == Format::Json || bytes.len() > 20_000 {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        seeds.push(Seed {
            name,
            format,
            bytes,
        });
    }
    for (channels, sample_type, level) in [
        (3, SampleType::U8, Level::Dense),
        (1, SampleType::U16, Level::Fast),
        (4, SampleType::U8, Level::Max),
        (1, SampleType::F32, Level::Dense),
    ] {
        let size = 37 * 29 * usize::from(channels) * sample_type.bytes();
        let smooth: Vec<u8> = (0..size).map(|at| (at / 7 % 253) as u8).collect();
        let image = Image::interleaved(&smooth, 37, 29, channels, sample_type);
        let options = Options {
            level,
            ..Options::default()
        };
        seeds.push(Seed {
            name: format!("{channels} × {sample_type:?}.psi"),
            format: Format::Psi,
            bytes: encode(&image, &options).unwrap(),
        });
    }
    seeds.sort_by(|a, b| a.name.cmp(&b.name));
    for text in ["3", "-17", "  42\n", "9223372036854775807"] {
        seeds.push(Seed {
            name: format!("class {text}"),
            format: Format::Cls,
            bytes: text.into(),
        });
    }
    assert!(seeds.len() > 60, "seeds are missing");
    seeds
}

fn programs() -> Vec<String> {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cases.json");
    let cases: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(cases).unwrap()).unwrap();
    let mut programs: Vec<String> = cases
        .as_array()
        .unwrap()
        .iter()
        .map(|case| case["program"].to_string())
        .collect();
    let ops = [
        r#"{"op":"orient"}"#,
        r#"{"op":"random_resized_crop","size":[23,31],"scale":[0.08,1.0],"ratio":[0.75,1.33],"interpolation":"bilinear"}"#,
        r#"{"op":"random_crop","size":[9,7],"padding":[3,2,5,1],"fill":1.5,"mask_fill":3}"#,
        r#"{"op":"resize","size":40,"interpolation":"bicubic"}"#,
        r#"{"op":"center_crop","size":[33,17]}"#,
        r#"{"op":"flip","p":0.5,"axis":"vertical"}"#,
        r#"{"op":"normalize","mean":[0.5],"std":[0.25]}"#,
        r#"{"op":"normalize","mean":[0.4,0.5,0.6],"std":[0.2,0.2,0.2]}"#,
        r#"{"op":"to_dtype","dtype":"float16","scale":true}"#,
    ];
    for mode in ["rgb", "grey", "unchanged"] {
        for layout in ["null", "\"NCHW\"", "\"NHWC\""] {
            for op in ops {
                programs.push(format!(
                    r#"{{"version":1,"mode":"{mode}","layout":{layout},"ops":[{op}]}}"#
                ));
            }
        }
    }
    programs.sort();
    programs.dedup();
    programs
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// Makes the checksums of a PNG's chunks right again, so that damage gets past them.
fn repair_png(bytes: &mut [u8]) {
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let end = at + 8 + length;
        if end + 4 > bytes.len() {
            return;
        }
        let crc = crc32(&bytes[at + 4..end]);
        bytes[end..end + 4].copy_from_slice(&crc.to_be_bytes());
        at = end + 4;
    }
}

fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..random.below(5) {
        if bytes.is_empty() {
            bytes.push(random.next() as u8);
        }
        // The heads are short, and their bytes matter most.
        let at = if random.below(2) == 0 {
            random.below(bytes.len().min(160))
        } else {
            random.below(bytes.len())
        };
        let length = random.below(48).min(bytes.len() - at);
        match random.below(9) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let value = *random.choose(&[0_u8, 1, 0x7F, 0x80, 0xFF]);
                bytes[at..at + length].fill(value);
            }
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..at + length)),
            5 => {
                let piece = bytes[at..at + length].to_vec();
                bytes.splice(at..at, piece);
            }
            6 => {
                let from = random.below(other.len());
                let piece = &other[from..(from + length).min(other.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
            // Sizes are numbers of two or four bytes.
            7 => {
                let value = *random.choose(&[0_u32, 1, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0xFFFF_FFFF]);
                let value = match random.below(2) {
                    0 => value.to_be_bytes(),
                    _ => value.to_le_bytes(),
                };
                let length = (2 + 2 * random.below(2)).min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&value[4 - length..]);
            }
            _ => {
                // Digits of a text: shapes, lengths.
                if let Some(digit) = bytes[at..].iter_mut().find(|b| b.is_ascii_digit()) {
                    *digit = *random.choose(b"0123456789-9");
                }
            }
        }
    }
}

struct Case {
    what: String,
    field: FieldSpec,
    format: Format,
    program: String,
    bytes: Vec<u8>,
    draw: Draw,
}

fn case(number: u64, seeds: &[Seed], programs: &[String]) -> Case {
    let mut random = Random(number);
    let seed = random.choose(seeds);
    let other = random.choose(seeds);
    let mut bytes = seed.bytes.clone();
    let mut format = seed.format;
    damage(&mut bytes, &other.bytes, &mut random);
    if format == Format::Png && random.below(4) > 0 && bytes.len() > 8 {
        repair_png(&mut bytes);
    }
    if format == Format::Npy && random.below(3) == 0 {
        let mut packed =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&bytes).unwrap();
        bytes = packed.finish().unwrap();
        format = Format::NpyDeflate;
        if random.below(2) == 0 {
            damage(&mut bytes, &other.bytes, &mut random);
        }
    }
    if random.below(16) == 0 {
        format = Format::from_code(random.below(10) as u8).unwrap();
    }
    let kind = match (format, random.below(8)) {
        (Format::Npy | Format::NpyDeflate | Format::Raw, 1..) => Kind::Array,
        (Format::Psi, 1) => Kind::Array,
        (Format::Cls, 1..) => Kind::Scalar,
        (_, 0) => *random.choose(&[Kind::Array, Kind::Bytes, Kind::Scalar, Kind::Mask]),
        (_, 1..=2) => Kind::Mask,
        _ => Kind::Image,
    };
    let raw = (format == Format::Raw || random.below(16) == 0).then(|| TensorSpec {
        dtype: DType::U8,
        shape: vec![random.below(100), random.below(5)],
    });
    let mut program = random.choose(programs).clone();
    if random.below(8) == 0 {
        let mut text = program.clone().into_bytes();
        damage(&mut text, b"1e308 -1 0.0 null [] \"NCHW\"", &mut random);
        program = String::from_utf8_lossy(&text).into_owned();
    }
    Case {
        what: format!("{} as {format:?} {kind:?}, {program}", seed.name),
        field: FieldSpec {
            name: "x".into(),
            kind,
            raw,
        },
        format,
        program,
        bytes,
        draw: Draw::new(random.next(), random.next() % 100, random.next()),
    }
}

/// The way that the engine goes: output, then run into a slot of that size.
fn decode(case: &Case, scratch: &mut Scratch) -> Result<(TensorSpec, Vec<u8>), CodecError> {
    let program = Program::from_json(&case.program)?;
    let spec = match program.fixed_output(&case.field) {
        Some(spec) => spec,
        None => program.output(&case.field, case.format, &case.bytes, &case.draw, &LIMITS)?,
    };
    let size = spec.bytes()?;
    let small = size as u64 <= LIMITS.max_bytes;
    let mut out = vec![CANARY; if small { size } else { 1 } + 2 * MARGIN];
    let end = out.len() - MARGIN;
    let result = program.run(
        &case.field,
        case.format,
        &case.bytes,
        &case.draw,
        &mut out[MARGIN..end],
        scratch,
        &LIMITS,
    );
    let intact = |margin: &[u8]| margin.iter().all(|&byte| byte == CANARY);
    assert!(
        intact(&out[..MARGIN]) && intact(&out[end..]),
        "it wrote outside of its slot"
    );
    result?;
    assert!(small, "a slot that is too small was taken for {size} bytes");
    Ok((spec, out[MARGIN..end].to_vec()))
}

fn attempt(case: &Case, used: &mut Scratch) -> bool {
    let (before, start) = (NOW.load(Ordering::Relaxed), Instant::now());
    PEAK.store(before, Ordering::Relaxed);
    let first = decode(case, used);
    let taken = start.elapsed();
    let memory = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(taken < MOST_TIME, "it took {taken:?}");
    assert!(memory < MOST_MEMORY, "it took {} MiB", memory >> 20);
    match (&first, decode(case, &mut Scratch::default())) {
        (Ok(one), Ok(two)) => assert!(*one == two, "twice gives two results"),
        (Err(one), Err(two)) => {
            assert!(!one.message.is_empty());
            assert_eq!(*one, two, "twice gives two errors");
        }
        (one, two) => panic!(
            "once {:?}, then {:?}",
            one.as_ref().map(|_| ()),
            two.map(|_| ())
        ),
    }
    first.is_ok()
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is {text:?}, no number"))
    })
}

#[test]
fn damaged_samples_are_answered() {
    let seconds = number("PENSTOCK_FUZZ_SECONDS", 3);
    let first = number("PENSTOCK_FUZZ_FIRST", 0);
    let (seeds, programs) = (seeds(), programs());
    let mut scratch = Scratch::default();
    let begun = Instant::now();
    let (mut cases, mut decoded) = (0_u64, 0_u64);
    while begun.elapsed() < Duration::from_secs(seconds) {
        let number = first + cases;
        let case = case(number, &seeds, &programs);
        match catch_unwind(AssertUnwindSafe(|| attempt(&case, &mut scratch))) {
            Ok(whole) => decoded += u64::from(whole),
            Err(_) => panic!(
                "case {number} (PENSTOCK_FUZZ_FIRST={number}): {}",
                case.what
            ),
        }
        cases += 1;
    }
    println!("{cases} cases, {decoded} of them decoded");
    assert!(
        decoded * 20 > cases,
        "{decoded} of {cases} were decoded: the damage is too great to test much"
    );
}
