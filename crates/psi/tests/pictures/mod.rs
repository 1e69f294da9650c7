//! Pictures for the tests: every type, several kinds of content, any size.
#![allow(dead_code)] // each test file uses a part of this

use penstock_psi::{Image, SampleType, Strides};
use proptest::prelude::*;

pub const TYPES: [SampleType; 8] = [
    SampleType::U8,
    SampleType::I8,
    SampleType::U16,
    SampleType::I16,
    SampleType::F16,
    SampleType::F32,
    SampleType::U32,
    SampleType::I32,
];

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Content {
    Noise,
    Constant,
    Gradient,
    Smooth,
    Text,
    Labels,
    /// Bits that floats treat specially: NaN payloads, infinities, ±0, denormals.
    Special,
    FewBits,
    /// Values of two decimal places where the type is a float, ±0 among them.
    Decimal,
}

pub const CONTENTS: [Content; 9] = [
    Content::Noise,
    Content::Constant,
    Content::Gradient,
    Content::Smooth,
    Content::Text,
    Content::Labels,
    Content::Special,
    Content::FewBits,
    Content::Decimal,
];

#[derive(Clone)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub channels: u16,
    pub sample: SampleType,
    pub data: Vec<u8>,
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Picture { width, height, depth, channels, sample, data } = self;
        write!(f, "{width}×{height}×{depth}×{channels} {sample:?}, starts {:?}", &data[..data.len().min(16)])
    }
}

impl Picture {
    pub fn image(&self) -> Image<'_> {
        let mut image = Image::interleaved(&self.data, self.width, self.height, self.channels, self.sample);
        image.depth = self.depth;
        image.strides = self.strides();
        image
    }

    pub fn strides(&self) -> Strides {
        Strides::interleaved(self.width, self.height, self.channels, self.sample)
    }
}

fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

pub fn make(
    content: Content,
    sample: SampleType,
    (width, height, depth): (u32, u32, u32),
    channels: u16,
    seed: u64,
) -> Picture {
    let bytes = sample.bytes();
    let mut data = Vec::with_capacity((width * height * depth) as usize * usize::from(channels) * bytes);
    let special16 = [0x7E01u32, 0xFE55, 0x7C00, 0xFC00, 0x0000, 0x8000, 0x0001, 0x8001, 0x3C00];
    let special32 = [
        0x7FC0_0001u32,
        0xFFC1_2345,
        0x7F80_0000,
        0xFF80_0000,
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x3F80_0000,
        0x7F80_0001,
    ];
    for z in 0..depth {
        for y in 0..height {
            for x in 0..width {
                for c in 0..u32::from(channels) {
                    let random =
                        mix(seed ^ mix(u64::from(x) << 40 ^ u64::from(y) << 20 ^ u64::from(z) << 8 ^ u64::from(c)));
                    let smooth = 100.0
                        + 60.0 * (f64::from(x) / 17.0 + f64::from(c)).sin()
                        + 40.0 * (f64::from(y + 3 * z) / 11.0).cos();
                    let value = match content {
                        Content::Noise => random as u32,
                        Content::Constant => seed as u32 ^ (c * 77),
                        Content::Gradient => x.wrapping_mul(3) + y.wrapping_mul(2) + c * 50 + z,
                        Content::Smooth => match sample {
                            SampleType::F32 => (smooth as f32 / 3.0).to_bits(),
                            _ => (smooth as u32) + (random as u32 & 7),
                        },
                        Content::Text => {
                            if mix(seed ^ u64::from(x / 3) << 16 ^ u64::from(y / 5)) % 4 == 0 {
                                0
                            } else {
                                u32::MAX
                            }
                        }
                        Content::Labels => {
                            (mix(seed ^ u64::from(x / 23) << 16 ^ u64::from((y + x / 4) / 19)) % 9) as u32 * 31
                        }
                        Content::Special => {
                            if bytes == 4 {
                                special32[random as usize % special32.len()]
                            } else {
                                special16[random as usize % special16.len()]
                            }
                        }
                        Content::Decimal => match sample {
                            SampleType::F32 => {
                                let hundredths = (smooth - 100.0) * 3.0 + (random % 5) as f64;
                                ((hundredths.round() / 100.0) as f32).to_bits()
                            }
                            _ => smooth as u32 / 10 * 10,
                        },
                        Content::FewBits => ((random as u32) & 0xFFF) << 4,
                    };
                    data.extend_from_slice(&value.to_le_bytes()[..bytes]);
                }
            }
        }
    }
    Picture { width, height, depth, channels, sample, data }
}

pub fn any_picture() -> impl Strategy<Value = Picture> {
    let side = prop_oneof![4 => 1u32..40, 3 => 100u32..150, 1 => 250u32..300];
    let shape = (side.clone(), side, prop_oneof![4 => Just(1u32), 1 => 2u32..4, 1 => 4u32..20]);
    let channels = prop_oneof![3 => Just(1u16), 1 => Just(2), 4 => Just(3), 2 => Just(4), 1 => 5u16..10];
    (proptest::sample::select(&CONTENTS[..]), proptest::sample::select(&TYPES[..]), shape, channels, any::<u64>())
        .prop_map(|(content, sample, shape, channels, seed)| make(content, sample, shape, channels, seed))
}
