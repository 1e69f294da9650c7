//! The file's header: what the image is, how it is cut into tiles, and where each tile lies.

use crate::error::{Error, Result};
use crate::hash::hash;

pub(crate) const MAGIC: [u8; 4] = [0x8F, b'P', b'S', b'I'];
pub(crate) const VERSION: u8 = 1;
pub(crate) const FIXED: usize = 52;
/// Lanes of a tile: columns are dealt out in fours.
pub(crate) const LANES: usize = 32;
/// Neighbouring columns that one lane holds.
pub(crate) const COLUMNS: usize = 4;
/// Channels that are coded together in one tile.
pub(crate) const GROUP: usize = 4;
const MAX_SIDE: u32 = i32::MAX as u32;

/// Type of one sample as the user sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleType {
    U8,
    I8,
    U16,
    I16,
    F16,
    F32,
    U32,
    I32,
}

impl SampleType {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        use SampleType::{F16, F32, I16, I32, I8, U16, U32, U8};
        [U8, I8, U16, I16, F16, F32, U32, I32].get(code as usize).copied()
    }

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// Bytes of one sample.
    pub fn bytes(self) -> usize {
        match self {
            SampleType::U8 | SampleType::I8 => 1,
            SampleType::U16 | SampleType::I16 | SampleType::F16 => 2,
            SampleType::F32 | SampleType::U32 | SampleType::I32 => 4,
        }
    }

    /// The name that NumPy gives the type.
    pub fn name(self) -> &'static str {
        match self {
            SampleType::U8 => "uint8",
            SampleType::I8 => "int8",
            SampleType::U16 => "uint16",
            SampleType::I16 => "int16",
            SampleType::F16 => "float16",
            SampleType::F32 => "float32",
            SampleType::U32 => "uint32",
            SampleType::I32 => "int32",
        }
    }

    /// The type of that NumPy name.
    pub fn from_name(name: &str) -> Option<Self> {
        (0..8).filter_map(SampleType::from_code).find(|kind| kind.name() == name)
    }

    /// The bits of a sample as an unsigned integer whose order is the order of the values.
    #[inline(always)]
    pub(crate) fn to_ordered(self, bits: u32) -> u32 {
        match self {
            SampleType::U8 | SampleType::U16 | SampleType::U32 => bits,
            SampleType::I8 => bits ^ 0x80,
            SampleType::I16 => bits ^ 0x8000,
            SampleType::I32 => bits ^ 0x8000_0000,
            SampleType::F16 => {
                if bits & 0x8000 != 0 {
                    bits ^ 0xFFFF
                } else {
                    bits ^ 0x8000
                }
            }
            SampleType::F32 => {
                if bits & 0x8000_0000 != 0 {
                    !bits
                } else {
                    bits ^ 0x8000_0000
                }
            }
        }
    }

    /// Undoes [`SampleType::to_ordered`]; the result is masked to the sample's bits.
    #[inline(always)]
    pub(crate) fn sample_bits(self, ordered: u32) -> u32 {
        match self {
            SampleType::U8 => ordered & 0xFF,
            SampleType::U16 => ordered & 0xFFFF,
            SampleType::U32 => ordered,
            SampleType::I8 => (ordered ^ 0x80) & 0xFF,
            SampleType::I16 => (ordered ^ 0x8000) & 0xFFFF,
            SampleType::I32 => ordered ^ 0x8000_0000,
            SampleType::F16 => {
                let ordered = ordered & 0xFFFF;
                if ordered & 0x8000 != 0 {
                    ordered ^ 0x8000
                } else {
                    ordered ^ 0xFFFF
                }
            }
            SampleType::F32 => {
                if ordered & 0x8000_0000 != 0 {
                    ordered ^ 0x8000_0000
                } else {
                    !ordered
                }
            }
        }
    }
}

/// How the bits of a sample become an integer whose order is the order of the values, and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub sample: SampleType,
    /// 0, or one more than the number of decimal places of which float32 samples are whole multiples.
    pub decimal: u8,
}

/// The most that [`Order::decimal`] can be: 10⁹ is a float32, exactly.
pub(crate) const MOST_DECIMAL: u8 = 10;
/// Whole numbers up to here are float32 values.
const MOST_WHOLE: f64 = 16_777_216.0;

impl Order {
    pub fn unit(self) -> f32 {
        const UNITS: [f32; MOST_DECIMAL as usize] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
        UNITS[usize::from(self.decimal.clamp(1, MOST_DECIMAL)) - 1]
    }

    #[inline(always)]
    pub fn to_ordered(self, bits: u32) -> u32 {
        if self.decimal == 0 {
            return self.sample.to_ordered(bits);
        }
        let whole = (f64::from(f32::from_bits(bits & 0x7FFF_FFFF)) * f64::from(self.unit())).round() as u32;
        (if bits >> 31 == 0 { whole } else { !whole }) ^ 0x8000_0000
    }

    #[inline(always)]
    pub fn sample_bits(self, ordered: u32) -> u32 {
        if self.decimal == 0 {
            return self.sample.sample_bits(ordered);
        }
        let signed = (ordered ^ 0x8000_0000) as i32;
        let whole = signed ^ (signed >> 31);
        (whole as f32 / self.unit()).to_bits() | (signed as u32 & 0x8000_0000)
    }

    /// Whether a sample survives the way there and back.
    pub fn keeps(self, bits: u32) -> bool {
        let size = f64::from(f32::from_bits(bits & 0x7FFF_FFFF)) * f64::from(self.unit());
        self.decimal == 0 || (size < MOST_WHOLE && self.sample_bits(self.to_ordered(bits)) == bits)
    }
}

/// What an image is, read from the header alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub sample_type: SampleType,
    pub width: u32,
    pub height: u32,
    /// Slices; 1 for a picture.
    pub depth: u32,
    pub channels: u16,
    /// True where the image is a volume even if it has one slice.
    pub volume: bool,
    /// Bits that the values need after offset and shift: 12 in a 16-bit container, say.
    pub significant_bits: u8,
    /// Level that it was written at: 0 fast, 1 dense, 2 max. Says nothing that a decoder needs.
    pub level: u8,
    /// Colours of the palette, 0 where there is none.
    pub palette: u16,
    pub tile_width: u32,
    pub tile_height: u32,
    pub tiles: u32,
}

impl Info {
    /// Bytes of the decoded image.
    pub fn bytes(&self) -> u64 {
        u64::from(self.width)
            .saturating_mul(u64::from(self.height))
            .saturating_mul(u64::from(self.depth))
            .saturating_mul(u64::from(self.channels))
            .saturating_mul(self.sample_type.bytes() as u64)
    }
}

/// The header and the sections behind it, all inside the file's bytes.
#[derive(Debug, Clone)]
pub(crate) struct Header<'a> {
    pub info: Info,
    /// Width of the coded words: 8, 16 or 32.
    pub coded_bits: u32,
    /// Added to a coded word after the shift to give the ordered sample.
    pub offset: u32,
    pub shift: u8,
    pub order: Order,
    /// One tile holds all samples as they are.
    pub stored: bool,
    pub metadata: &'a [u8],
    pub palette: &'a [u8],
    pub tables: &'a [u8],
    offsets: &'a [u8],
    hashes: &'a [u8],
    payload: &'a [u8],
    /// Byte of the file where the payload starts.
    pub payload_start: usize,
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn padded(bytes: u64) -> u64 {
    bytes.div_ceil(4) * 4
}

impl<'a> Header<'a> {
    /// Reads and checks the header. Nothing is allocated; every size is checked against the file.
    pub fn parse(file: &'a [u8]) -> Result<Self> {
        let have = file.len() as u64;
        if file.len() < 4 {
            return Err(Error::Truncated { needed: FIXED as u64, have });
        }
        if file[..4] != MAGIC {
            return Err(Error::malformed("it does not start with the four bytes 8F 50 53 49"));
        }
        if file.len() < FIXED {
            return Err(Error::Truncated { needed: FIXED as u64, have });
        }
        if file[4] != VERSION {
            return Err(Error::Unsupported(format!(
                "version {} of the format; this is a reader of version {VERSION}",
                file[4]
            )));
        }
        let sample_type = SampleType::from_code(file[5])
            .ok_or_else(|| Error::Unsupported(format!("sample type {} is unknown", file[5])))?;
        let coded_bits = u32::from(file[6]);
        if !matches!(coded_bits, 8 | 16 | 32) {
            return Err(Error::malformed(format!("coded width of {coded_bits} bits")));
        }
        if file[7] > 3 {
            return Err(Error::Unsupported(format!("flags {:#x} are unknown", file[7])));
        }
        let (width, height, depth) = (u32_at(file, 8), u32_at(file, 12), u32_at(file, 16));
        for (what, side) in [("width", width), ("height", height), ("depth", depth)] {
            if side == 0 || side > MAX_SIDE {
                return Err(Error::malformed(format!("{what} of {side}")));
            }
        }
        let channels = u16_at(file, 20) as u16;
        if channels == 0 {
            return Err(Error::malformed("no channels"));
        }
        let palette_entries = u16_at(file, 22);
        let shift = file[28];
        if u32::from(shift) >= coded_bits.max(8 * sample_type.bytes() as u32) {
            return Err(Error::malformed(format!("shift of {shift} bits")));
        }
        let tile_width = u32::from(file[29]) * COLUMNS as u32;
        let tile_height = u16_at(file, 30);
        if tile_width == 0 || tile_width > (LANES * COLUMNS) as u32 || tile_height == 0 || tile_height > 4096 {
            return Err(Error::malformed(format!("tiles of {tile_width}×{tile_height}")));
        }
        let tiles = u32_at(file, 40);
        let order = Order { sample: sample_type, decimal: file[46] };
        if order.decimal > MOST_DECIMAL || (order.decimal > 0 && sample_type != SampleType::F32) || file[47] != 0 {
            return Err(Error::Unsupported("reserved header bytes are not zero".into()));
        }
        if palette_entries > 0 && coded_bits != 8 {
            return Err(Error::malformed("a palette with indices wider than 8 bits"));
        }
        if palette_entries > 256 {
            return Err(Error::malformed(format!("a palette of {palette_entries} colours")));
        }
        let info = Info {
            sample_type,
            width,
            height,
            depth,
            channels,
            volume: file[7] & 1 != 0,
            significant_bits: file[45],
            level: file[44],
            palette: palette_entries as u16,
            tile_width,
            tile_height,
            tiles,
        };
        let coded_channels = if palette_entries > 0 { 1 } else { u64::from(channels) };
        let expected = u128::from(width.div_ceil(tile_width))
            * u128::from(height.div_ceil(tile_height))
            * u128::from(depth)
            * u128::from(coded_channels.div_ceil(GROUP as u64));
        let stored = file[7] & 2 != 0;
        if stored && (palette_entries, u32_at(file, 24), shift, file[46], u32_at(file, 36)) != (0, 0, 0, 0, 0) {
            return Err(Error::malformed("samples that are stored as they are, and yet mapped"));
        }
        let expected = if stored { 1 } else { expected };
        if u128::from(tiles) != expected {
            return Err(Error::malformed(format!("{tiles} tiles where the size needs {expected}")));
        }
        let palette_bytes = u64::from(palette_entries) * u64::from(channels) * sample_type.bytes() as u64;
        let sizes = [
            u64::from(u32_at(file, 32)),
            palette_bytes,
            u64::from(u32_at(file, 36)),
            (u64::from(tiles) + 1) * 4,
            u64::from(tiles) * 4,
        ];
        let needed = FIXED as u64 + sizes.iter().map(|&size| padded(size)).sum::<u64>();
        if needed > have {
            return Err(Error::Truncated { needed, have });
        }
        let mut at = FIXED;
        let mut section = |size: u64| {
            let part = &file[at..at + size as usize];
            at += padded(size) as usize;
            part
        };
        let [metadata, palette, tables] = [section(sizes[0]), section(sizes[1]), section(sizes[2])];
        let covered = FIXED + (padded(sizes[0]) + padded(sizes[1]) + padded(sizes[2])) as usize;
        if header_hash(&file[..48], &file[FIXED..covered]) != u32_at(file, 48) {
            return Err(Error::Checksum("the header is not the one that was written".into()));
        }
        let [offsets, hashes] = [section(sizes[3]), section(sizes[4])];
        Ok(Header {
            info,
            coded_bits,
            offset: u32_at(file, 24),
            shift,
            order,
            stored,
            metadata,
            palette,
            tables,
            offsets,
            hashes,
            payload: &file[at..],
            payload_start: at,
        })
    }

    /// Channels that are coded: 1 where a palette stands for them.
    pub fn coded_channels(&self) -> usize {
        if self.info.palette > 0 {
            1
        } else {
            usize::from(self.info.channels)
        }
    }

    pub fn grid(&self) -> Grid {
        Grid::new(&self.info, self.coded_channels())
    }

    /// First byte and length of a tile, from the start of the payload, checked to lie inside the file.
    pub fn tile_range(&self, tile: usize) -> Result<(usize, usize)> {
        let (start, end) =
            (u64::from(u32_at(self.offsets, tile * 4)) * 4, u64::from(u32_at(self.offsets, tile * 4 + 4)) * 4);
        if end < start + 4 {
            return Err(Error::malformed(format!("tile {tile} ends at {end}, before its start at {start}")));
        }
        if end > self.payload.len() as u64 {
            return Err(Error::Truncated {
                needed: self.payload_start as u64 + end,
                have: (self.payload_start + self.payload.len()) as u64,
            });
        }
        Ok((start as usize, (end - start) as usize))
    }

    /// The bytes of a tile; with `verify`, only if they are those that were written.
    #[inline(always)]
    pub fn tile(&self, tile: usize, verify: bool) -> Result<&'a [u8]> {
        let (start, length) = self.tile_range(tile)?;
        let bytes = &self.payload[start..start + length];
        if verify && tile_hash(tile, bytes) != self.tile_hash(tile) {
            return Err(Error::Checksum(format!("the bytes of tile {tile} are not those that were written")));
        }
        Ok(bytes)
    }

    pub fn tile_hash(&self, tile: usize) -> u32 {
        u32_at(self.hashes, tile * 4)
    }
}

pub(crate) fn header_hash(fixed: &[u8], sections: &[u8]) -> u32 {
    hash(fixed) ^ hash(sections).rotate_left(1)
}

/// Hash of a tile's bytes; its number goes in, so that tiles cannot be exchanged.
#[inline(always)]
pub(crate) fn tile_hash(tile: usize, bytes: &[u8]) -> u32 {
    hash(bytes) ^ (tile as u32).wrapping_mul(0x85EB_CA6B)
}

/// How the image is cut: numbers of tiles along each axis, in the order in which tiles are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub across: usize,
    pub down: usize,
    pub groups: usize,
    width: usize,
    height: usize,
    channels: usize,
    pub tile_width: usize,
    pub tile_height: usize,
}

/// One tile: where it lies and what it holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub index: usize,
    pub slice: usize,
    pub first_channel: usize,
    pub channels: usize,
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

impl Grid {
    pub fn new(info: &Info, coded_channels: usize) -> Self {
        Grid {
            across: info.width.div_ceil(info.tile_width) as usize,
            down: info.height.div_ceil(info.tile_height) as usize,
            groups: coded_channels.div_ceil(GROUP),
            width: info.width as usize,
            height: info.height as usize,
            channels: coded_channels,
            tile_width: info.tile_width as usize,
            tile_height: info.tile_height as usize,
        }
    }

    pub fn place(&self, slice: usize, group: usize, row: usize, column: usize) -> Place {
        let (x, y) = (column * self.tile_width, row * self.tile_height);
        Place {
            index: ((slice * self.groups + group) * self.down + row) * self.across + column,
            slice,
            first_channel: group * GROUP,
            channels: (self.channels - group * GROUP).min(GROUP),
            x,
            y,
            width: (self.width - x).min(self.tile_width),
            height: (self.height - y).min(self.tile_height),
        }
    }
}
