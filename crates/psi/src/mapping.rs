//! How samples become the words that are coded: order, offset, shift, whole numbers of decimals, palettes.

use std::collections::HashMap;

use crate::header::{Order, SampleType, MOST_DECIMAL};
use crate::image::{gather, Image};

/// How samples become coded words.
pub(crate) struct Mapping {
    pub order: Order,
    pub coded_bits: u32,
    pub offset: u32,
    pub shift: u32,
    pub significant: u32,
    /// Samples go into the file as they are, not in tiles.
    pub stored: bool,
    /// Colours as they stand in the file, and the index of each.
    pub palette: Vec<u8>,
    pub index: HashMap<Vec<u8>, u8>,
}

impl Mapping {
    /// Samples as they are.
    pub fn none(sample: SampleType) -> Self {
        let bits = 8 * sample.bytes() as u32;
        Mapping {
            order: Order { sample, decimal: 0 },
            coded_bits: bits,
            offset: 0,
            shift: 0,
            significant: bits,
            stored: false,
            palette: Vec::new(),
            index: HashMap::new(),
        }
    }

    pub fn find(image: &Image) -> Self {
        let container = 8 * image.sample_type.bytes() as u32;
        let order = Order { sample: image.sample_type, decimal: decimal(image) };
        let (mut low, mut high) = (u32::MAX, 0);
        if image.sample_type == SampleType::U8 {
            (low, high) = (0, 255);
        } else {
            image.samples(|bits| {
                let value = order.to_ordered(bits);
                (low, high) = (low.min(value), high.max(value));
                true
            });
        }
        let mut any = 0u32;
        if container > 8 {
            image.samples(|bits| {
                any |= order.to_ordered(bits) - low;
                any & 1 == 0
            });
        } else {
            any = 1;
        }
        let shift = if any == 0 { 0 } else { any.trailing_zeros() };
        let significant = (32 - ((high - low) >> shift).leading_zeros()).max(1);
        let coded_bits = match significant {
            0..=8 => 8,
            9..=16 => 16,
            _ => 32,
        };
        // An 8-bit image is not moved: mapping costs time and wins nothing.
        let (offset, shift) =
            if container == 8 { (if image.sample_type == SampleType::U8 { 0 } else { low }, 0) } else { (low, shift) };
        let mut mapping = Mapping { order, coded_bits, offset, shift, significant, ..Mapping::none(image.sample_type) };
        mapping.find_palette(image);
        mapping
    }

    /// A palette where there are few colours: then one index stands for all channels of a pixel.
    fn find_palette(&mut self, image: &Image) {
        let most = if usize::from(image.channels) > 1 || self.coded_bits > 8 { 256 } else { return };
        let size = image.sample_type.bytes();
        let mut colours: HashMap<Vec<u8>, ()> = HashMap::new();
        let mut colour = Vec::with_capacity(usize::from(image.channels) * size);
        for z in 0..image.depth as usize {
            for y in 0..image.height as usize {
                let mut last: Vec<u8> = Vec::new();
                for x in 0..image.width as usize {
                    gather(image, x, y, z, &mut colour);
                    if colour != last {
                        if !colours.contains_key(&colour) {
                            if colours.len() == most {
                                return;
                            }
                            colours.insert(colour.clone(), ());
                        }
                        last.clone_from(&colour);
                    }
                }
            }
        }
        let pixels = u64::from(image.width) * u64::from(image.height) * u64::from(image.depth);
        if (colours.len() * colour.len()) as u64 * 2 > pixels * u64::from(self.coded_bits) / 8 {
            return;
        }
        let mut sorted: Vec<Vec<u8>> = colours.into_keys().collect();
        sorted.sort_by_key(|colour| {
            colour
                .chunks_exact(size)
                .map(|sample| {
                    let mut four = [0; 4];
                    four[..size].copy_from_slice(sample);
                    image.sample_type.to_ordered(u32::from_le_bytes(four))
                })
                .collect::<Vec<_>>()
        });
        self.palette = sorted.concat();
        self.index = sorted.into_iter().enumerate().map(|(index, colour)| (colour, index as u8)).collect();
        (self.coded_bits, self.offset, self.shift) = (8, 0, 0);
        self.order.decimal = 0;
    }
}

/// The fewest decimal places that hold every sample of a float32 image exactly, as [`Order::decimal`] says it.
fn decimal(image: &Image) -> u8 {
    if image.sample_type != SampleType::F32 {
        return 0;
    }
    // The first samples rule out nearly all.
    (1..=MOST_DECIMAL)
        .find(|&decimal| {
            let order = Order { sample: image.sample_type, decimal };
            let mut kept = true;
            image.samples(|bits| {
                kept = order.keeps(bits);
                kept
            });
            kept
        })
        .unwrap_or(0)
}
