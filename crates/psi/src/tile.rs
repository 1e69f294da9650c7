//! One tile: its four-byte head, its predictor map, and how each mode is decoded, row by row.

use crate::color;
use crate::error::{Error, Result};
use crate::header::{Place, COLUMNS, GROUP, LANES};
use crate::predict::{Masks, Row};
use crate::rans::{Coder, PADDING};
use crate::runs::Reader;
use crate::simd::Engine;
use crate::token::{Energies, CONTEXTS};
use crate::word::Word;

/// What takes the rows of a tile, in order.
pub(crate) trait Sink<W> {
    /// Row `y` of the tile, one lane-layout row a channel.
    fn row<E: Engine>(&mut self, y: usize, rows: &[Row<W>; GROUP]);
}

/// How a tile is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The words themselves, channel by channel, row by row.
    Raw = 0,
    /// One word for each channel.
    Constant = 1,
    /// Tokens by rANS.
    Dense = 2,
    /// Residuals in as many bits as the largest of sixteen needs.
    Packed = 3,
    /// Where runs of labels end.
    Runs = 4,
}

pub(crate) const HEAD: usize = 4;

/// The first four bytes of a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub mode: Mode,
    pub transform: u8,
    /// Logarithms of a predictor block's width and height.
    pub block: (u32, u32),
    /// Predictor maps: one for all channels, or one each.
    pub planes: usize,
}

impl Head {
    pub fn parse(bytes: &[u8], channels: usize) -> Result<Self> {
        let mode = match bytes[0] {
            0 => Mode::Raw,
            1 => Mode::Constant,
            2 => Mode::Dense,
            3 => Mode::Packed,
            4 => Mode::Runs,
            other => return Err(Error::Unsupported(format!("tile mode {other} is unknown"))),
        };
        let transform = bytes[1];
        if color::parse(transform).is_none() || (transform != color::NONE && channels < 3) {
            return Err(Error::malformed(format!("colour transform {transform} on {channels} channels")));
        }
        let block = (u32::from(bytes[2] & 15), u32::from(bytes[2] >> 4));
        let planes = usize::from(bytes[3]);
        if matches!(mode, Mode::Dense | Mode::Packed) {
            if !(2..=7).contains(&block.0) || block.1 > 12 {
                return Err(Error::malformed(format!("predictor blocks of 2^{} × 2^{}", block.0, block.1)));
            }
            if planes != 1 && planes != channels {
                return Err(Error::malformed(format!("{planes} predictor maps for {channels} channels")));
            }
        }
        if mode == Mode::Runs && (channels, transform, planes) != (1, color::NONE, 0) {
            return Err(Error::malformed(format!("runs in a tile of {channels} channels")));
        }
        Ok(Head { mode, transform, block, planes })
    }

    pub fn write(&self) -> [u8; HEAD] {
        [self.mode as u8, self.transform, (self.block.0 | self.block.1 << 4) as u8, self.planes as u8]
    }

    /// Blocks across and down.
    pub fn blocks(&self, width: usize, height: usize) -> (usize, usize) {
        (width.div_ceil(1 << self.block.0), height.div_ceil(1 << self.block.1))
    }

    /// Bytes of the predictor maps, padded to words.
    pub fn map_bytes(&self, width: usize, height: usize) -> usize {
        let (across, down) = self.blocks(width, height);
        (across * down * self.planes).div_ceil(16) * 4
    }
}

/// Predictors of the lanes of one row of blocks.
fn predictors(
    map: &[u8],
    head: &Head,
    width: usize,
    across: usize,
    down: usize,
    plane: usize,
    block_row: usize,
) -> [u8; LANES] {
    let mut out = [0u8; LANES];
    for (lane, predictor) in out.iter_mut().enumerate().take(width.div_ceil(COLUMNS)) {
        let at = (plane * down + block_row) * across + ((lane * COLUMNS) >> head.block.0);
        *predictor = map[at / 4] >> (at % 4 * 2) & 3;
    }
    out
}

/// Decodes rows `0..rows` of a tile and hands each to `sink`, colours restored.
#[inline(always)]
pub(crate) fn decode<W: Word, E: Engine>(
    bytes: &[u8],
    place: &Place,
    slots: &[u32],
    of_context: &[u8],
    rows: usize,
    sink: &mut impl Sink<W>,
) -> Result<()> {
    let head = Head::parse(bytes, place.channels)?;
    let body = &bytes[HEAD..];
    match head.mode {
        Mode::Raw => raw::<W, E>(body, place, rows, sink),
        Mode::Constant => constant::<W, E>(body, place, rows, sink),
        Mode::Dense => dense::<W, E>(body, &head, place, slots, of_context, rows, sink),
        Mode::Packed => packed::<W, E>(body, &head, place, rows, sink),
        Mode::Runs => runs::<W, E>(body, usize::from(bytes[2]) + 1, place, rows, sink),
    }
}

fn word<W: Word>(bytes: &[u8], index: usize) -> W {
    let at = index * W::BYTES;
    let mut value = 0u32;
    for (place, &byte) in bytes[at..at + W::BYTES].iter().enumerate() {
        value |= u32::from(byte) << (8 * place);
    }
    W::of(value)
}

fn need(body: &[u8], bytes: usize) -> Result<()> {
    if body.len() < bytes {
        return Err(Error::malformed(format!("a tile of {} bytes needs {bytes}", body.len())));
    }
    Ok(())
}

fn raw<W: Word, E: Engine>(body: &[u8], place: &Place, rows: usize, sink: &mut impl Sink<W>) -> Result<()> {
    need(body, place.width * place.height * place.channels * W::BYTES)?;
    let mut out = [[[W::default(); LANES]; COLUMNS]; GROUP];
    for y in 0..rows {
        for (channel, row) in out.iter_mut().enumerate().take(place.channels) {
            let first = (channel * place.height + y) * place.width;
            for x in 0..place.width {
                row[x % COLUMNS][x / COLUMNS] = word(body, first + x);
            }
        }
        sink.row::<E>(y, &out);
    }
    Ok(())
}

fn constant<W: Word, E: Engine>(body: &[u8], place: &Place, rows: usize, sink: &mut impl Sink<W>) -> Result<()> {
    need(body, place.channels * W::BYTES)?;
    let mut out = [[[W::default(); LANES]; COLUMNS]; GROUP];
    for (channel, row) in out.iter_mut().enumerate().take(place.channels) {
        *row = [[word(body, channel); LANES]; COLUMNS];
    }
    for y in 0..rows {
        sink.row::<E>(y, &out);
    }
    Ok(())
}

fn runs<W: Word, E: Engine>(
    body: &[u8],
    labels: usize,
    place: &Place,
    rows: usize,
    sink: &mut impl Sink<W>,
) -> Result<()> {
    let list = (labels * W::BYTES).div_ceil(4) * 4;
    need(body, list)?;
    let words: Vec<W> = (0..labels).map(|label| word(body, label)).collect();
    let mut reader = Reader::new(&body[list..], place.width, place.height, labels);
    let mut out = [[[words[0]; LANES]; COLUMNS]; GROUP];
    for y in 0..rows {
        if let Some(row) = reader.row()? {
            for (lane, four) in row.chunks(COLUMNS).enumerate() {
                for (column, &label) in four.iter().enumerate() {
                    out[0][column][lane] = words[usize::from(label)];
                }
            }
        }
        sink.row::<E>(y, &out);
    }
    if rows == place.height {
        reader.finish()?;
    }
    Ok(())
}

/// Rows of a predicted tile as they are rebuilt.
struct Rebuild<'a, W> {
    head: &'a Head,
    map: &'a [u8],
    masks: [Masks<W>; GROUP],
    rows: [Row<W>; GROUP],
    place: &'a Place,
}

impl<'a, W: Word> Rebuild<'a, W> {
    fn new(head: &'a Head, map: &'a [u8], place: &'a Place) -> Self {
        Rebuild { head, map, masks: [Masks::left(); GROUP], rows: [[[W::default(); LANES]; COLUMNS]; GROUP], place }
    }

    /// Loads the predictors of row `y`.
    #[inline(always)]
    fn start_row(&mut self, y: usize) {
        let starts_block = y & ((1 << self.head.block.1) - 1) == 0;
        if y != 1 && (y == 0 || !starts_block) {
            return;
        }
        let (across, down) = self.head.blocks(self.place.width, self.place.height);
        for channel in 0..self.place.channels {
            let plane = if self.head.planes == 1 { 0 } else { channel };
            let row = predictors(self.map, self.head, self.place.width, across, down, plane, y >> self.head.block.1);
            self.masks[channel] = Masks::new(&row);
        }
    }

    #[inline(always)]
    fn channel<E: Engine>(&mut self, channel: usize, residuals: &Row<W>) {
        E::reconstruct(residuals, &self.masks[channel], &mut self.rows[channel]);
    }

    #[inline(always)]
    fn colours(&self) -> [Row<W>; GROUP] {
        let mut out = self.rows;
        macro_rules! undo {
            ($inverse:expr) => {
                for column in 0..COLUMNS {
                    for lane in 0..LANES {
                        let coded =
                            [self.rows[0][column][lane], self.rows[1][column][lane], self.rows[2][column][lane]];
                        let [red, green, blue] = $inverse(coded);
                        (out[0][column][lane], out[1][column][lane], out[2][column][lane]) = (red, green, blue);
                    }
                }
            };
        }
        let kind = self.head.transform & 15;
        if let Some(weight) = color::weight(kind) {
            undo!(|coded| color::unblend(weight, coded));
        } else if kind == color::YCOCG {
            undo!(color::unycocg);
        }
        if self.head.transform & color::SWAP != 0 {
            out.swap(0, 1);
        }
        out
    }
}

#[inline(always)]
fn dense<W: Word, E: Engine>(
    body: &[u8],
    head: &Head,
    place: &Place,
    slots: &[u32],
    of_context: &[u8],
    rows: usize,
    sink: &mut impl Sink<W>,
) -> Result<()> {
    let map_bytes = head.map_bytes(place.width, place.height);
    need(body, map_bytes)?;
    if of_context.len() < place.channels * CONTEXTS {
        return Err(Error::malformed("a coded tile, but the file has no coding tables for it"));
    }
    let lanes = place.width.div_ceil(COLUMNS);
    let stream = padded(&body[map_bytes..]);
    let mut coder = Coder::new(&stream, lanes, slots)?;
    let mut energies = Energies::new::<W>(lanes, place.channels);
    let mut rebuild = Rebuild::<W>::new(head, &body[..map_bytes], place);
    let mut contexts = [0u8; LANES];
    let mut residuals = [[W::default(); LANES]; COLUMNS];
    for y in 0..rows {
        rebuild.start_row(y);
        for channel in 0..place.channels {
            energies.contexts::<W>(channel, &mut contexts);
            let map = of_context[channel * CONTEXTS..][..CONTEXTS]
                .try_into()
                .map_err(|_| Error::malformed("a context map is short"))?;
            let tables = E::tables(&contexts, map);
            let sums = E::row(&mut coder, &tables, place.width, &mut residuals)?;
            energies.take(channel, &sums);
            rebuild.channel::<E>(channel, &residuals);
        }
        sink.row::<E>(y, &rebuild.colours());
    }
    if rows == place.height {
        coder.finish()?;
    }
    Ok(())
}

/// A copy with zeros behind it, so that vectors can be read up to its end and past it.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + PADDING);
    out.extend_from_slice(bytes);
    out.resize(bytes.len() + PADDING, 0);
    out
}

/// Rows that share a width in packed tiles.
pub(crate) const BAND: usize = 4;
/// Samples that share a width.
pub(crate) const UNIT: usize = BAND * COLUMNS;

/// Bits of a packed sample for a width code.
pub(crate) fn packed_bits<W: Word>(code: u8) -> u32 {
    match (W::BITS, code) {
        (8, code) => u32::from(code).min(8),
        (16, 15) => 16,
        (16, code) => u32::from(code),
        (_, 15) => 32,
        (_, code) => 2 * u32::from(code),
    }
}

/// The smallest code whose width holds `bits` bits.
pub(crate) fn packed_code<W: Word>(bits: u32) -> u8 {
    match W::BITS {
        8 => bits as u8,
        16 => bits.min(15) as u8,
        _ => bits.div_ceil(2).min(15) as u8,
    }
}

/// The widths and values of a packed tile, as far as they are read.
pub(crate) struct Packed<'a> {
    codes: &'a [u8],
    /// The values and then [`PADDING`] zeros.
    pub padded: &'a [u8],
    /// Bytes of the values.
    end: usize,
    /// Next byte of the values; never past `end` between bands.
    pub at: usize,
    /// Next unit, of which each lane has one.
    unit: usize,
    pub lanes: usize,
}

impl Packed<'_> {
    /// Bits of a lane's values in the next band.
    #[inline(always)]
    pub fn bits<W: Word>(&self, lane: usize) -> u32 {
        let unit = self.unit + lane;
        packed_bits::<W>(self.codes[unit / 2] >> (unit % 2 * 4) & 15)
    }

    /// Goes on to the next band, whose values start at `at`.
    #[inline(always)]
    pub fn advance(&mut self, at: usize) -> Result<()> {
        if at > self.end {
            return Err(Error::malformed("a packed tile ends early"));
        }
        (self.at, self.unit) = (at, self.unit + self.lanes);
        Ok(())
    }
}

/// One lane after the other.
#[inline(always)]
pub(crate) fn unpack_band<W: Word>(packed: &mut Packed, out: &mut [Row<W>; BAND]) -> Result<()> {
    let mut at = packed.at;
    for lane in 0..packed.lanes {
        let bits = packed.bits::<W>(lane);
        let bytes = 2 * bits as usize;
        let part = packed.padded[..packed.end].get(at..at + bytes);
        at += bytes;
        let mut values = [W::default(); UNIT];
        unpack(part.ok_or_else(|| Error::malformed("a packed tile ends early"))?, bits, &mut values);
        for (row, four) in values.chunks_exact(COLUMNS).enumerate() {
            for (column, &value) in four.iter().enumerate() {
                out[row][column][lane] = value;
            }
        }
    }
    packed.advance(at)
}

#[inline(always)]
fn packed<W: Word, E: Engine>(
    body: &[u8],
    head: &Head,
    place: &Place,
    rows: usize,
    sink: &mut impl Sink<W>,
) -> Result<()> {
    let map_bytes = head.map_bytes(place.width, place.height);
    let lanes = place.width.div_ceil(COLUMNS);
    let units = place.height.div_ceil(BAND) * place.channels * lanes;
    let code_bytes = units.div_ceil(8) * 4;
    need(body, map_bytes + code_bytes)?;
    let (codes, data) = body[map_bytes..].split_at(code_bytes);
    let values = padded(data);
    let mut packed = Packed { codes, padded: &values, end: data.len(), at: 0, unit: 0, lanes };
    let mut rebuild = Rebuild::<W>::new(head, &body[..map_bytes], place);
    let mut bands = [[[[W::default(); LANES]; COLUMNS]; BAND]; GROUP];
    for y in 0..rows {
        if y % BAND == 0 {
            for band in &mut bands[..place.channels] {
                E::unpack(&mut packed, band)?;
            }
        }
        rebuild.start_row(y);
        for (channel, band) in bands[..place.channels].iter().enumerate() {
            rebuild.channel::<E>(channel, &band[y % BAND]);
        }
        sink.row::<E>(y, &rebuild.colours());
    }
    if rows == place.height && packed.at.div_ceil(4) * 4 != data.len() {
        return Err(Error::malformed("a packed tile does not end where it should"));
    }
    Ok(())
}

/// Sixteen values of `bits` bits each, little-endian, from `2 * bits` bytes.
#[inline(always)]
fn unpack<W: Word>(bytes: &[u8], bits: u32, out: &mut [W; UNIT]) {
    let mut window = [0u8; 72];
    window[..bytes.len()].copy_from_slice(bytes);
    let mask = ((1u64 << bits) - 1) as u32;
    for (index, value) in out.iter_mut().enumerate() {
        let bit = index * bits as usize;
        let at = bit / 8;
        let eight: [u8; 8] = std::array::from_fn(|place| window[at + place]);
        *value = W::of((u64::from_le_bytes(eight) >> (bit % 8)) as u32 & mask);
    }
}
