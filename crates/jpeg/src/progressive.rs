//! Pictures in several scans: coefficients are kept until the last scan, from the top to the last row needed.
#![forbid(unsafe_code)]

use crate::bits::{Cursor, End, Source, Window};
use crate::error::{malformed, Error};
use crate::frame::Frame;
use crate::header::Scan;
use crate::huffman::{coefficient, difference, BadCode, Codes, Tables, END_OF_BLOCK};
use crate::idct::{Group, Quantiser, LANES, PLACE};
use crate::planes::Plane;
use crate::render::Renderer;
use crate::sequential::{finish_row, needed_mcus, Fault};
use crate::simd::{self, Level};
use crate::ErrorKind;

/// Blocks that all scans of a file may visit together: about a second's work. A file of a few hundred
/// kilobytes can otherwise name scan after scan over a picture of hundreds of megapixels.
const MAX_BLOCK_VISITS: u64 = 1 << 28;
/// And scans: real files have about ten, one for each coefficient and bit of three components 1,500.
const MAX_SCANS: usize = 2000;

/// Coefficients of one component in the order of the file.
#[derive(Default)]
pub(crate) struct Coefficients {
    blocks: Vec<[i16; 64]>,
    /// Blocks in a row, padding to whole MCUs included.
    width: usize,
    /// Rows of blocks that are kept.
    height: usize,
}

pub(crate) struct Buffered<'a> {
    data: &'a [u8],
    level: Level,
    frame: &'a Frame,
    components: &'a mut [Coefficients],
    /// MCU rows that are kept.
    rows: usize,
    scans: usize,
    visits: u64,
    seen: [bool; 4],
}

/// Parameters of a scan as its blocks see them.
#[derive(Clone, Copy)]
struct Band {
    progressive: bool,
    start: usize,
    end: usize,
    refine: bool,
    low: u32,
}

impl<'a> Buffered<'a> {
    /// Makes room for all that lies above the end of MCU row `rows - 1`.
    pub fn new(
        data: &'a [u8],
        level: Level,
        frame: &'a Frame,
        components: &'a mut [Coefficients],
        rows: usize,
    ) -> Self {
        for (kept, c) in components.iter_mut().zip(&frame.components) {
            kept.width = frame.mcus_x * c.h;
            kept.height = rows * c.v;
            kept.blocks.clear();
            kept.blocks.resize(kept.width * kept.height, [0; 64]);
        }
        Self {
            data,
            level,
            frame,
            components,
            rows,
            scans: 0,
            visits: 0,
            seen: [false; 4],
        }
    }

    /// Decodes one scan; gives a position from which the next marker can be looked for.
    pub fn scan(
        &mut self,
        scan: &Scan,
        tables: &Tables,
        restart_interval: usize,
        window: &mut Window,
    ) -> Result<usize, Error> {
        let frame = self.frame;
        let alone = scan.components.len() == 1;
        let first = &frame.components[scan.components[0].index];
        let (width, height) = match alone {
            true => (first.blocks_x, first.blocks_y.min(self.rows * first.v)),
            false => (frame.mcus_x, self.rows),
        };
        let lines = match alone {
            true => 8 * frame.v_max / first.v,
            false => 8 * frame.v_max,
        };
        self.count(scan, width * height)?;
        let band = Band {
            progressive: frame.progressive,
            start: usize::from(scan.start),
            end: usize::from(scan.end),
            refine: scan.high != 0,
            low: u32::from(scan.low),
        };
        let mut blocks = Vec::new();
        for spec in &scan.components {
            let c = &frame.components[spec.index];
            let (h, v) = if alone { (1, 1) } else { (c.h, c.v) };
            let dc = match band.start == 0 && !band.refine {
                true => Some(tables.dc(spec.dc)?),
                false => None,
            };
            let ac = match band.end > 0 {
                true => Some(tables.ac(spec.ac)?),
                false => None,
            };
            self.seen[spec.index] = true;
            blocks.extend((0..h * v).map(|i| (spec.index, h, v, i % h, i / h, dc, ac)));
        }
        let mut source = Source::new(self.data, self.level);
        let mut cursor = source.begin(scan.data, window);
        let mut predictions = [0i32; 4];
        let mut run = 0u32;
        let interval = match restart_interval {
            0 => usize::MAX,
            n => n,
        };
        for y in 0..height {
            let fail = |fault: Fault| fault.error(self.data, frame, y * lines);
            for x in 0..width {
                let mcu = y * width + x;
                if mcu > 0 && mcu % interval == 0 {
                    source.check(&cursor).map_err(|o| fail(Fault::from(o)))?;
                    let expected = 0xD0 + ((mcu / interval - 1) & 7) as u8;
                    let position = match source.next_marker() {
                        End::Marker(at) if self.data[at + 1] == expected => at + 2,
                        end => return Err(fail(Fault::Overrun(end))),
                    };
                    cursor = source.begin(position, window);
                    predictions = [0; 4];
                    run = 0;
                }
                cursor = source
                    .ready(cursor, window)
                    .map_err(|o| fail(Fault::from(o)))?;
                for &(index, h, v, dx, dy, dc, ac) in &blocks {
                    let kept = &mut self.components[index];
                    let at = (y * v + dy) * kept.width + x * h + dx;
                    let block = &mut kept.blocks[at];
                    if band.start == 0 {
                        let prediction = &mut predictions[index];
                        dc_part(block, dc, band, &mut cursor, window, prediction)
                            .map_err(|bad| fail(Fault::from(bad)))?;
                    }
                    if let Some(ac) = ac {
                        let part = match (band.progressive, band.refine) {
                            (false, _) => sequential_ac(block, ac, &mut cursor, window),
                            (_, false) => first_ac(block, ac, band, &mut cursor, window, &mut run),
                            _ => refine_ac(block, ac, band, &mut cursor, window, &mut run),
                        };
                        part.map_err(fail)?;
                    }
                }
            }
        }
        source
            .check(&cursor)
            .map_err(|o| Fault::from(o).error(self.data, frame, height * lines))?;
        Ok(match source.next_marker() {
            End::Marker(at) => at,
            End::File => self.data.len(),
        })
    }

    fn count(&mut self, scan: &Scan, mcus: usize) -> Result<(), Error> {
        self.scans += 1;
        self.visits += (mcus * scan.components.len()) as u64;
        if self.scans > MAX_SCANS || self.visits > MAX_BLOCK_VISITS {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "{} scans over a picture of {}x{}: more work than any real JPEG asks for",
                    self.scans, self.frame.width, self.frame.height
                ),
            ));
        }
        Ok(())
    }

    /// Whether scans of every component have been seen.
    pub fn is_complete(&self) -> bool {
        self.seen[..self.frame.components.len()].iter().all(|&s| s)
    }

    /// Turns the coefficients into samples and pixels.
    pub fn render(
        self,
        planes: &mut [Plane],
        groups: &mut Vec<Group>,
        quantisers: &[Quantiser],
        renderer: &mut Renderer,
    ) -> Result<(), Error> {
        if !self.is_complete() {
            return Err(malformed("JPEG ends without a scan of every component"));
        }
        groups.clear();
        groups.resize(1, Group::default());
        let group = &mut groups[0];
        let (_, rows) = needed_mcus(self.frame, planes);
        for row in rows.from..rows.to {
            for (i, plane) in planes.iter_mut().enumerate() {
                let (kept, c) = (&self.components[i], &self.frame.components[i]);
                for line in row * c.v..(row + 1) * c.v {
                    if !plane.rows.contains(line) {
                        continue;
                    }
                    let columns = plane.columns;
                    for column in (columns.from..columns.to).step_by(LANES) {
                        let at = line * kept.width;
                        let end = (column + LANES).min(columns.to);
                        for (lane, block) in kept.blocks[at + column..at + end].iter().enumerate() {
                            for (&value, &place) in block.iter().zip(&PLACE) {
                                group.values[usize::from(place) + lane * 8] = value;
                            }
                        }
                        let stride = plane.stride();
                        let out = plane.block(column, line);
                        simd::inverse(self.level, group, &quantisers[i], out, stride);
                    }
                }
            }
            finish_row(self.frame, planes, renderer, row);
        }
        Ok(())
    }
}

fn dc_part(
    block: &mut [i16; 64],
    codes: Option<&Codes>,
    band: Band,
    cursor: &mut Cursor,
    window: &Window,
    prediction: &mut i32,
) -> Result<(), BadCode> {
    cursor.refill(window);
    match codes {
        Some(codes) => {
            *prediction = prediction.wrapping_add(difference(codes, cursor)?);
            block[0] = (*prediction << band.low) as i16;
        }
        None => block[0] |= (cursor.take(1) << band.low) as i16,
    }
    Ok(())
}

fn sequential_ac(
    block: &mut [i16; 64],
    codes: &Codes,
    cursor: &mut Cursor,
    window: &Window,
) -> Result<(), Fault> {
    let mut k = 0;
    while k < 63 {
        let (advance, value) = coefficient(codes, cursor, window)?;
        if advance == u32::from(END_OF_BLOCK) {
            break;
        }
        k += advance as usize;
        *block.get_mut(k).ok_or(Fault::Position)? = value;
    }
    Ok(())
}

fn first_ac(
    block: &mut [i16; 64],
    codes: &Codes,
    band: Band,
    cursor: &mut Cursor,
    window: &Window,
    run: &mut u32,
) -> Result<(), Fault> {
    if *run > 0 {
        *run -= 1;
        return Ok(());
    }
    let mut k = band.start;
    while k <= band.end {
        cursor.refill(window);
        let symbol = codes.symbol(cursor)?;
        let (zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        match (zeros, size) {
            (15, 0) => k += 16,
            (_, 0) => {
                *run = (1 << zeros) + cursor.take(zeros) - 1;
                return Ok(());
            }
            _ => {
                k += zeros as usize;
                if k > band.end {
                    return Err(Fault::Position);
                }
                block[k & 63] = (cursor.take_signed(size) << band.low) as i16;
                k += 1;
            }
        }
    }
    Ok(())
}

/// Adds a bit to a coefficient that is not zero.
#[inline(always)]
fn refine(value: &mut i16, bit: i16, cursor: &mut Cursor, window: &Window) {
    if cursor.count < 16 {
        cursor.refill(window);
    }
    if cursor.take(1) != 0 && *value & bit == 0 {
        *value = value.wrapping_add(if *value >= 0 { bit } else { -bit });
    }
}

fn refine_ac(
    block: &mut [i16; 64],
    codes: &Codes,
    band: Band,
    cursor: &mut Cursor,
    window: &Window,
    run: &mut u32,
) -> Result<(), Fault> {
    let bit = 1i16 << band.low;
    let mut k = band.start;
    if *run == 0 {
        while k <= band.end {
            cursor.refill(window);
            let symbol = codes.symbol(cursor)?;
            let (mut zeros, size) = (u32::from(symbol >> 4), symbol & 15);
            let mut value = 0;
            if size != 0 {
                value = if cursor.take(1) != 0 { bit } else { -bit };
            } else if zeros < 15 {
                *run = (1 << zeros) + cursor.take(zeros);
                break;
            }
            while k <= band.end {
                if block[k] != 0 {
                    refine(&mut block[k], bit, cursor, window);
                } else {
                    if zeros == 0 {
                        break;
                    }
                    zeros -= 1;
                }
                k += 1;
            }
            if value != 0 {
                if k > band.end {
                    return Err(Fault::Position);
                }
                block[k] = value;
            }
            k += 1;
        }
    }
    if *run > 0 {
        for value in &mut block[k..=band.end] {
            if *value != 0 {
                refine(value, bit, cursor, window);
            }
        }
        *run -= 1;
    }
    Ok(())
}
