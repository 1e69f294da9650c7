//! Pixels against libjpeg-turbo's, as Pillow gave them (see make_fixtures.py), whole and in regions.

use std::path::Path;

use penstock_jpeg::{decode_region, info, ErrorKind, Limits, Output, Region, Scratch};

/// Name, file and pixels of each fixture.
fn fixtures() -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "jpg"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let pixels = std::fs::read(path.with_extension("rgb")).unwrap();
            (name, std::fs::read(&path).unwrap(), pixels)
        })
        .collect();
    found.sort();
    assert!(found.len() > 50, "only {} fixtures", found.len());
    found
}

fn fixture(name: &str) -> Vec<u8> {
    let found = fixtures().into_iter().find(|f| f.0 == name);
    found.unwrap_or_else(|| panic!("no fixture {name}")).1
}

fn whole(data: &[u8]) -> Region {
    let info = info(data).unwrap();
    Region {
        x: 0,
        y: 0,
        width: info.width,
        height: info.height,
    }
}

fn rgb(data: &[u8], region: Region, scratch: &mut Scratch) -> Vec<u8> {
    let stride = 3 * region.width as usize;
    let mut out = vec![0; stride * region.height as usize];
    decode_region(
        data,
        region,
        Output::Rgb,
        &mut out,
        stride,
        scratch,
        &Limits::default(),
    )
    .unwrap();
    out
}

fn kind(data: &[u8]) -> ErrorKind {
    error(data).kind
}

fn error(data: &[u8]) -> penstock_jpeg::Error {
    let region = Region {
        x: 0,
        y: 0,
        width: 1,
        height: 1,
    };
    decode_region(
        data,
        region,
        Output::Rgb,
        &mut [0; 3],
        3,
        &mut Scratch::default(),
        &Limits::default(),
    )
    .unwrap_err()
}

/// Numbers that look random and are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

#[test]
fn whole_pictures_equal_libjpeg_turbo() {
    let mut scratch = Scratch::default();
    let mut wrong = Vec::new();
    for (name, data, pixels) in fixtures() {
        let got = rgb(&data, whole(&data), &mut scratch);
        assert_eq!(got.len(), pixels.len(), "{name}");
        let different = got.iter().zip(&pixels).filter(|(a, b)| a != b).count();
        if different > 0 {
            wrong.push(format!("{name}: {different} of {} bytes", got.len()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn any_region_equals_the_crop_of_the_whole() {
    let mut scratch = Scratch::default();
    let mut random = Random(1);
    for (name, data, pixels) in fixtures() {
        let all = whole(&data);
        for _ in 0..60 {
            let (x, y) = (random.below(all.width), random.below(all.height));
            let region = Region {
                x,
                y,
                width: 1 + random.below(all.width - x),
                height: 1 + random.below(all.height - y),
            };
            let got = rgb(&data, region, &mut scratch);
            for (i, row) in got.chunks_exact(3 * region.width as usize).enumerate() {
                let at = 3 * ((region.y as usize + i) * all.width as usize + x as usize);
                assert_eq!(
                    row,
                    &pixels[at..at + row.len()],
                    "{name} {region:?} row {i}"
                );
            }
        }
    }
}

#[test]
fn grey_is_pillows_luminance_of_the_rgb() {
    let mut scratch = Scratch::default();
    for (name, data, pixels) in fixtures() {
        let region = whole(&data);
        let (width, height) = (region.width as usize, region.height as usize);
        // rows apart, so that what lies between can be seen to stay
        let stride = width + 5;
        let mut out = vec![77; stride * height];
        decode_region(
            &data,
            region,
            Output::Grey,
            &mut out,
            stride,
            &mut scratch,
            &Limits::default(),
        )
        .unwrap();
        for (row, expected) in out.chunks_exact(stride).zip(pixels.chunks_exact(3 * width)) {
            for (grey, rgb) in row.iter().zip(expected.chunks_exact(3)) {
                let [r, g, b] = [rgb[0], rgb[1], rgb[2]].map(u32::from);
                let luminance = (19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16;
                assert_eq!(u32::from(*grey), luminance, "{name}");
            }
            assert_eq!(row[width..], [77; 5], "{name}");
        }
    }
}

#[test]
fn info_reads_headers_alone() {
    let data = fixture("exif-6");
    let found = info(&data).unwrap();
    assert_eq!((found.width, found.height), (19, 13));
    assert_eq!((found.components, found.orientation), (3, 6));
    assert!(!found.progressive);
    assert!(info(&fixture("420-progressive")).unwrap().progressive);
    assert_eq!(info(&fixture("cmyk")).unwrap().components, 4);
    let grey = fixture("grey");
    let scan = grey.windows(2).position(|w| w == [0xFF, 0xDA]).unwrap();
    assert_eq!(info(&grey[..scan]).unwrap().components, 1);
}

#[test]
fn a_file_cut_anywhere_is_truncated() {
    for name in ["420-64x48", "420-progressive", "own-restart-9", "own-scans"] {
        let data = fixture(name);
        for length in 0..data.len() {
            let error = error(&data[..length]);
            assert_eq!(
                error.kind,
                ErrorKind::Truncated,
                "{name} at {length}: {error}"
            );
            assert!(
                error.message.contains(&format!("{length} bytes")),
                "{error}"
            );
        }
    }
}

#[test]
fn truncation_says_in_which_row() {
    let data = fixture("420-64x48");
    let scan = data.windows(2).position(|w| w == [0xFF, 0xDA]).unwrap() + 14;
    let message = |length: usize| error(&data[..length]).message;
    let text = format!("JPEG ends after {} bytes, in row 0 of 48", scan + 20);
    assert_eq!(message(scan + 20), text);
    let cut = data.len() - 30;
    assert_eq!(
        message(cut),
        format!("JPEG ends after {cut} bytes, in row 32 of 48")
    );
}

#[test]
fn a_scan_cut_short_by_a_marker_is_malformed() {
    let data = fixture("420-64x48");
    let mut cut = data[..data.len() * 3 / 4].to_vec();
    cut.extend([0xFF, 0xD9]);
    let region = whole(&cut);
    let mut out = vec![0; 3 * 64 * 48];
    let result = decode_region(
        &cut,
        region,
        Output::Rgb,
        &mut out,
        3 * 64,
        &mut Scratch::default(),
        &Limits::default(),
    );
    assert_eq!(result.unwrap_err().kind, ErrorKind::Malformed);
}

#[test]
fn what_is_not_read_is_said_to_be_unsupported() {
    let data = fixture("420-64x48");
    let frame = data.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    for marker in [0xC3u8, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCF] {
        let mut changed = data.clone();
        changed[frame + 1] = marker;
        assert_eq!(kind(&changed), ErrorKind::Unsupported, "{marker:02X}");
        assert_eq!(info(&changed).unwrap_err().kind, ErrorKind::Unsupported);
    }
    for (at, value) in [(4, 12), (9, 2), (9, 5)] {
        let mut changed = data.clone();
        changed[frame + at] = value;
        assert_eq!(kind(&changed), ErrorKind::Unsupported, "{at} {value}");
    }
    let mut changed = data.clone();
    changed[frame + 5..frame + 7].fill(0);
    assert_eq!(kind(&changed), ErrorKind::Unsupported);
    assert_eq!(kind(b"\x89PNG\r\n\x1a\n"), ErrorKind::Malformed);
}

#[test]
fn regions_and_buffers_are_checked() {
    let data = fixture("420-64x48");
    let mut scratch = Scratch::default();
    let mut decode = |x, y, width, height, room: usize, stride| {
        let region = Region {
            x,
            y,
            width,
            height,
        };
        let mut out = vec![0; room];
        decode_region(
            &data,
            region,
            Output::Rgb,
            &mut out,
            stride,
            &mut scratch,
            &Limits::default(),
        )
        .map_err(|e| e.kind)
    };
    let bad = Err(ErrorKind::BadRegion);
    assert_eq!(decode(0, 0, 0, 1, 999, 300), bad);
    assert_eq!(decode(0, 0, 1, 0, 999, 300), bad);
    assert_eq!(decode(60, 0, 5, 1, 999, 300), bad);
    assert_eq!(decode(0, 48, 1, 1, 999, 300), bad);
    assert_eq!(decode(u32::MAX, 0, u32::MAX, 1, 999, 300), bad);
    assert_eq!(decode(0, 0, 10, 2, 59, 30), bad);
    assert_eq!(decode(0, 0, 10, 2, 60, 29), bad);
    assert_eq!(decode(0, 0, 10, 2, 60, usize::MAX), bad);
    assert_eq!(decode(0, 0, 10, 2, 60, 30), Ok(()));
    assert_eq!(decode(0, 0, 10, 2, 130, 100), Ok(()));
}

#[test]
fn the_limit_on_pixels_comes_first() {
    let data = fixture("420-64x48");
    let region = whole(&data);
    let decode = |max_pixels| {
        decode_region(
            &data,
            region,
            Output::Rgb,
            &mut [0; 3 * 64 * 48],
            3 * 64,
            &mut Scratch::default(),
            &Limits { max_pixels },
        )
        .map_err(|e| e.kind)
    };
    assert_eq!(decode(64 * 48), Ok(()));
    assert_eq!(decode(64 * 48 - 1), Err(ErrorKind::TooLarge));
}

#[test]
fn scan_upon_scan_over_a_large_picture_is_too_much() {
    // a progressive picture of 16384 x 8192 whose scans are empty but for a few bytes each
    let mut data = b"\xff\xd8".to_vec();
    data.extend(b"\xff\xdb\0\x43\0");
    data.extend([1; 64]);
    data.extend(b"\xff\xc2\0\x0b\x08\x20\0\x40\0\x01\x01\x11\0");
    // one code: a run of ended blocks, as many as the 14 bits behind it say beyond 16384
    data.extend(b"\xff\xc4\0\x14\x10\x01");
    data.extend([0; 15]);
    data.push(0xE0);
    for _ in 0..1000 {
        data.extend(b"\xff\xda\0\x08\x01\x01\0\x01\x3f\x00");
        data.extend([0; 256]);
    }
    data.extend(b"\xff\xd9");
    assert_eq!(info(&data).unwrap().width, 16384);
    let region = Region {
        x: 0,
        y: 8191,
        width: 1,
        height: 1,
    };
    let result = decode_region(
        &data,
        region,
        Output::Grey,
        &mut [0],
        1,
        &mut Scratch::default(),
        &Limits::default(),
    );
    assert_eq!(result.unwrap_err().kind, ErrorKind::TooLarge);
}
