//! The worked example of `docs/psi.md`: the page and the codec say the same.

use penstock_psi::{decode, encode, DecodeOptions, Image, Level, Options, SampleType};

/// The picture of the page: eight columns, four rows.
const PICTURE: [u8; 32] = [
    10, 12, 14, 16, 18, 20, 22, 24, //
    13, 15, 18, 19, 21, 23, 25, 27, //
    16, 18, 20, 22, 24, 27, 28, 30, //
    19, 21, 23, 25, 27, 29, 31, 34, //
];

/// The bytes in the page's first block of hexadecimal digits.
fn page() -> Vec<u8> {
    let text = include_str!("../../../docs/psi.md");
    let block = text.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let bytes = block.lines().flat_map(|line| line.split('|').next().unwrap_or("").split_whitespace().skip(1));
    bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn the_pages_example_is_what_the_encoder_writes_and_the_decoder_reads() {
    let image = Image::interleaved(&PICTURE, 8, 4, 1, SampleType::U8);
    let file = encode(&image, &Options { level: Level::Fast, ..Options::default() }).unwrap();
    let dump: Vec<String> = file
        .chunks(16)
        .enumerate()
        .map(|(line, bytes)| {
            let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{:02x} {}", line * 16, digits.join(" "))
        })
        .collect();
    assert_eq!(file, page(), "the encoder writes\n{}", dump.join("\n"));
    assert_eq!(decode(&page(), &DecodeOptions::default()).unwrap(), PICTURE);
}
