//! What goes in comes out: every type, content, shape and level, on every backend, whole or in parts.

mod pictures;

use penstock_psi::{
    decode, decode_region, encode, info, metadata, Backend, DecodeOptions, Level, Options, Region, Scratch, Strides,
};
use pictures::{any_picture, make, Content, Picture, CONTENTS, TYPES};
use proptest::prelude::*;

const LEVELS: [Level; 3] = [Level::Fast, Level::Dense, Level::Max];
const BACKENDS: [Backend; 3] = [Backend::Plain, Backend::Avx2, Backend::Avx512];

fn check(picture: &Picture, options: &Options) -> Vec<u8> {
    let file = encode(&picture.image(), options).unwrap();
    for backend in BACKENDS {
        let decoded = decode(&file, &DecodeOptions { backend, ..DecodeOptions::default() }).unwrap();
        assert!(decoded == picture.data, "{backend:?} {options:?} gives other samples");
    }
    // Worst-case growth, metadata aside.
    let limit = picture.data.len() as f64 * 1.005 + 128.0;
    assert!((file.len() - options.metadata.len()) as f64 <= limit, "{} of {} bytes", file.len(), picture.data.len());
    file
}

#[test]
fn every_type_and_content_at_every_level() {
    for sample in TYPES {
        for content in CONTENTS {
            for level in LEVELS {
                for channels in [1, 3, 4] {
                    let picture = make(content, sample, (131, 47, 1), channels, 99);
                    check(&picture, &Options { level, ..Options::default() });
                }
            }
        }
    }
}

#[test]
fn the_smallest_images_stay_small() {
    for sample in TYPES {
        for level in LEVELS {
            for shape in [(1, 1, 1), (1, 9, 1), (9, 1, 1), (3, 3, 2)] {
                check(&make(Content::Noise, sample, shape, 1, 5), &Options { level, ..Options::default() });
            }
        }
    }
}

#[test]
fn many_tiny_slices_and_channels_of_noise_do_not_grow() {
    check(&make(Content::Noise, TYPES[0], (3, 5, 400), 1, 5), &Options::default());
    check(&make(Content::Noise, TYPES[2], (2, 3, 2), 99, 5), &Options::default());
}

#[test]
fn metadata_is_kept_and_the_header_tells_the_shape() {
    let picture = make(Content::FewBits, pictures::TYPES[2], (200, 150, 3), 2, 1);
    let options = Options { metadata: b"{\"spacing\": 0.7}".to_vec(), ..Options::default() };
    let file = check(&picture, &options);
    assert_eq!(metadata(&file).unwrap(), options.metadata);
    let info = info(&file).unwrap();
    assert_eq!((info.width, info.height, info.depth, info.channels, info.volume), (200, 150, 3, 2, true));
    assert_eq!(info.significant_bits, 12);
}

#[test]
fn threads_change_nothing() {
    let picture = make(Content::Smooth, pictures::TYPES[0], (300, 700, 2), 3, 8);
    let one = check(&picture, &Options::default());
    let many = check(&picture, &Options { threads: 3, ..Options::default() });
    assert!(one == many, "the number of threads changed the file");
    let options = DecodeOptions { threads: 3, ..DecodeOptions::default() };
    assert!(decode(&one, &options).unwrap() == picture.data);
}

#[test]
fn decimal_floats_take_far_less_than_other_floats() {
    let decimal = check(&make(Content::Decimal, TYPES[5], (300, 200, 1), 1, 1), &Options::default());
    assert_eq!(decimal[46], 3, "two places");
    assert!(decimal.len() * 5 < 300 * 200 * 4, "{} bytes", decimal.len());
    let with_nan = make(Content::Special, TYPES[5], (30, 20, 1), 1, 1);
    assert_eq!(check(&with_nan, &Options::default())[46], 0);
}

fn crop(picture: &Picture, region: &Region) -> Vec<u8> {
    let strides = picture.strides();
    let mut out = Vec::new();
    for z in region.z..region.z + region.depth {
        for y in region.y..region.y + region.height {
            let start = z as usize * strides.slice + y as usize * strides.row + region.x as usize * strides.column;
            out.extend_from_slice(&picture.data[start..start + region.width as usize * strides.column]);
        }
    }
    out
}

proptest! {
    // `PROPTEST_CASES=100000 cargo test --release -p penstock-psi --test round_trip` runs the long form.
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150), ..ProptestConfig::default() })]

    #[test]
    fn any_picture_comes_back(picture in any_picture(), level in 0usize..3, threads in 1usize..3) {
        check(&picture, &Options { level: LEVELS[level], threads, ..Options::default() });
    }

    #[test]
    fn any_region_in_any_layout_is_the_crop(
        picture in any_picture(),
        level in 0usize..3,
        (a, b, c, d) in any::<(u32, u32, u32, u32)>(),
        planar in any::<bool>(),
        threads in 1usize..3,
    ) {
        let file = encode(&picture.image(), &Options { level: LEVELS[level], ..Options::default() }).unwrap();
        let (x, y) = (a % picture.width, b % picture.height);
        let region = Region {
            x,
            y,
            z: a % picture.depth,
            width: 1 + c % (picture.width - x),
            height: 1 + d % (picture.height - y),
            depth: 1,
        };
        let expected = crop(&picture, &region);
        let size = picture.sample.bytes();
        let strides = if planar { Strides::planar } else { Strides::interleaved };
        let strides = strides(region.width, region.height, picture.channels, picture.sample);
        let mut out = vec![0xA5; expected.len() + 16];
        let options = DecodeOptions { threads, ..DecodeOptions::default() };
        decode_region(&file, region, &mut out[..expected.len()], strides, &mut Scratch::default(), &options).unwrap();
        prop_assert!(out[expected.len()..].iter().all(|&byte| byte == 0xA5));
        if planar {
            let pixels = (region.width * region.height) as usize;
            let channels = usize::from(picture.channels);
            let mut turned = vec![0; expected.len()];
            for channel in 0..channels {
                for pixel in 0..pixels {
                    let (to, from) = ((pixel * channels + channel) * size, (channel * pixels + pixel) * size);
                    turned[to..to + size].copy_from_slice(&out[from..from + size]);
                }
            }
            prop_assert!(turned == expected);
        } else {
            prop_assert!(out[..expected.len()] == expected[..]);
        }
    }
}
