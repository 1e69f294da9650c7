//! Tiles of few values in large areas: each row says where its runs end, seen from where those of the row above end.
//!
//! Rows are those of *labels*, numbers into the tile's own list of words, so that all widths of words share this.
//! `docs/psi.md` has the codes.

use crate::bits::{BitReader, BitWriter};
use crate::error::{Error, Result};

/// Most labels that a tile lists.
pub(crate) const LABELS: usize = 256;

/// A code is a number of zeros, a one, and what belongs to it. These two stand between those of distances.
const AFTER: u32 = 3;
const PASS: u32 = 4;
const MOST_ZEROS: u32 = 9;
/// Passes that the encoder tries, one after the other.
const PASSES: u32 = 6;

/// Bits of the number of one of `labels`.
fn label_bits(labels: usize) -> u32 {
    usize::BITS - (labels - 1).leading_zeros()
}

/// Bits of the length of a run that starts at `x`.
fn length_bits(x: usize, width: usize) -> u32 {
    usize::BITS - (width - x).leading_zeros()
}

/// Where the first run of `label` that ends at or behind `from` ends in `row`; its width where none does.
#[inline]
fn edge(row: &[u8], from: usize, label: u8) -> usize {
    (from..row.len()).find(|&x| row[x - 1] == label && row[x] != label).unwrap_or(row.len())
}

/// The next such place behind one.
fn passed(row: &[u8], edge_at: usize, label: u8) -> usize {
    let again = (edge_at..row.len()).find(|&x| row[x] == label).unwrap_or(row.len());
    edge(row, again + 1, label)
}

fn damaged() -> Error {
    Error::malformed("a tile of runs makes no sense")
}

/// Reads rows, one after the other.
pub(crate) struct Reader<'a> {
    bits: BitReader<'a>,
    stream: &'a [u8],
    above: Vec<u8>,
    labels: usize,
    /// Rows that are still to come.
    rows: usize,
    /// Rows to come that are as the one above; None: the stream says.
    repeats: Option<usize>,
}

impl<'a> Reader<'a> {
    /// A tile of `height` rows whose list has `labels` labels, at least one.
    pub fn new(stream: &'a [u8], width: usize, height: usize, labels: usize) -> Self {
        Reader { bits: BitReader::new(stream), stream, above: vec![0; width], labels, rows: height, repeats: None }
    }

    /// The zeros in front of the next one.
    fn zeros(&mut self, most: u32) -> Result<u32> {
        let zeros = self.bits.peek().trailing_zeros();
        if zeros > most {
            return Err(damaged());
        }
        self.bits.get(zeros + 1).ok_or_else(damaged)?;
        Ok(zeros)
    }

    fn get(&mut self, count: u32) -> Result<usize> {
        Ok(self.bits.get(count).ok_or_else(damaged)? as usize)
    }

    /// The next row; None where it is as the one above.
    pub fn row(&mut self) -> Result<Option<&[u8]>> {
        let repeats = match self.repeats.take() {
            Some(repeats) => repeats,
            None => {
                let zeros = self.zeros(12)?;
                (1 << zeros) + self.get(zeros)? - 1
            }
        };
        if repeats > self.rows {
            return Err(damaged());
        }
        self.rows -= 1;
        if repeats > 0 {
            self.repeats = Some(repeats - 1);
            return Ok(None);
        }
        let mut row = vec![0; self.above.len()];
        self.runs(&mut row)?;
        self.above = row;
        Ok(Some(&self.above))
    }

    fn runs(&mut self, row: &mut [u8]) -> Result<()> {
        let width = row.len();
        let (mut x, mut label) = (0, self.above[0]);
        let mut from = edge(&self.above, 1, label);
        loop {
            let zeros = self.zeros(MOST_ZEROS)?;
            if zeros == PASS {
                if from == width {
                    return Err(damaged());
                }
                from = passed(&self.above, from, label);
                continue;
            }
            let end = if zeros == AFTER {
                x + self.get(length_bits(x, width))?
            } else if zeros == 0 {
                from
            } else {
                let low = if zeros < AFTER { zeros - 1 } else { zeros - 3 };
                let distance = (1 << low) + self.get(low)?;
                if self.get(1)? == 0 {
                    from + distance
                } else {
                    from.checked_sub(distance).ok_or_else(damaged)?
                }
            };
            if end > width || end < x || (end == x && x > 0) {
                return Err(damaged());
            }
            row[x..end].fill(label);
            if end == width {
                return Ok(());
            }
            if zeros != AFTER && from < width {
                label = self.above[from];
                from = edge(&self.above, from + 1, label);
            } else {
                let there = self.above[end];
                if there != label && self.get(1)? == 1 {
                    label = there;
                } else {
                    let number = self.get(label_bits(self.labels))?;
                    if number >= self.labels {
                        return Err(damaged());
                    }
                    label = number as u8;
                }
                from = edge(&self.above, end + 1, label);
            }
            x = end;
        }
    }

    /// After the last row: nothing is left but padding.
    pub fn finish(&self) -> Result<()> {
        if self.bits.at.div_ceil(32) * 4 != self.stream.len() {
            return Err(Error::malformed("a tile of runs does not end where it should"));
        }
        Ok(())
    }
}

/// Zeros of the code of a distance, and the bits of it behind the one.
fn code_of(distance: usize) -> (u32, u32) {
    match distance {
        0 => (0, 0),
        1..=3 => (distance.ilog2() + 1, distance.ilog2()),
        _ => (distance.ilog2() + 3, distance.ilog2()),
    }
}

/// How the encoder ends a run: after so many passes, and then either next to the row above or after an explicit length.
#[derive(Clone, Copy)]
struct Choice {
    cost: u32,
    passes: u32,
    from: usize,
    explicit: bool,
}

struct Writer {
    bits: BitWriter,
    label_bits: u32,
}

impl Writer {
    fn zeros(&mut self, zeros: u32) {
        self.bits.put(1 << zeros, zeros + 1);
    }

    fn repeats(&mut self, repeats: usize) {
        let zeros = (repeats + 1).ilog2();
        self.zeros(zeros);
        self.bits.put((repeats + 1) as u32, zeros);
    }

    /// Bits of the label at `end` where the code does not say it.
    fn cost_of_label(&self, above: &[u8], row: &[u8], label: u8, end: usize) -> u32 {
        if end == row.len() {
            0
        } else if above[end] == label {
            self.label_bits
        } else if above[end] == row[end] {
            1
        } else {
            1 + self.label_bits
        }
    }

    fn row(&mut self, above: &[u8], row: &[u8]) {
        let width = row.len();
        let (mut x, mut label) = (0, above[0]);
        let mut from = edge(above, 1, label);
        loop {
            let end = (x..width).find(|&at| row[at] != label).unwrap_or(width);
            let explained = self.cost_of_label(above, row, label, end);
            let explicit = AFTER + 1 + length_bits(x, width) + explained;
            let mut best = Choice { cost: explicit, passes: 0, from, explicit: true };
            for passes in 0..=PASSES {
                let (zeros, low) = code_of(end.abs_diff(from));
                let mut cost = passes * (PASS + 1) + zeros + 1 + low + u32::from(end != from);
                let fits = end == width || from == width || above[from] == row[end];
                if from == width {
                    cost += explained;
                }
                if fits && cost < best.cost {
                    best = Choice { cost, passes, from, explicit: false };
                }
                if from == width {
                    break;
                }
                from = passed(above, from, label);
            }
            for _ in 0..best.passes {
                self.zeros(PASS);
            }
            from = best.from;
            if best.explicit {
                self.zeros(AFTER);
                self.bits.put((end - x) as u32, length_bits(x, width));
            } else {
                let distance = end.abs_diff(from);
                let (zeros, low) = code_of(distance);
                self.zeros(zeros);
                self.bits.put(distance as u32, low);
                if distance > 0 {
                    self.bits.put(u32::from(end < from), 1);
                }
            }
            if end == width {
                return;
            }
            if !best.explicit && from < width {
                from = edge(above, from + 1, row[end]);
            } else {
                if above[end] != label {
                    self.bits.put(u32::from(above[end] == row[end]), 1);
                }
                if above[end] == label || above[end] != row[end] {
                    self.bits.put(u32::from(row[end]), self.label_bits);
                }
                from = edge(above, end + 1, row[end]);
            }
            (x, label) = (end, row[end]);
        }
    }
}

/// The stream of a tile whose rows of `width` labels lie one behind the other; label 0 is that of the first sample.
/// None where it would take more than `most` bytes.
pub(crate) fn write(rows: &[u8], width: usize, labels: usize, most: usize) -> Option<Vec<u8>> {
    let mut writer = Writer { bits: BitWriter::default(), label_bits: label_bits(labels) };
    let first = vec![0; width];
    let (mut above, mut repeats) = (&first[..], 0);
    for row in rows.chunks_exact(width) {
        if row == above {
            repeats += 1;
            continue;
        }
        writer.repeats(repeats);
        writer.row(above, row);
        (above, repeats) = (row, 0);
        if writer.bits.bytes.len() > most {
            return None;
        }
    }
    if repeats > 0 {
        writer.repeats(repeats);
    }
    let mut bytes = writer.bits.finish();
    bytes.resize(bytes.len().div_ceil(4) * 4, 0);
    (bytes.len() <= most).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that follow each other with a few changes, from none to many.
    fn rows(seed: u64, width: usize, height: usize, labels: usize) -> Vec<u8> {
        let mut state = seed;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        let mut row = vec![0u8; width];
        let mut out = Vec::new();
        for y in 0..height {
            if y > 0 {
                match below(8) {
                    0 | 1 => {}
                    2 => row.rotate_left(below(width)),
                    3 => row.rotate_right(below(width)),
                    4 => row.iter_mut().for_each(|label| *label = below(labels) as u8),
                    _ => {
                        let start = below(width);
                        let end = start + 1 + below(width - start);
                        row[start..end].fill(below(labels) as u8);
                    }
                }
            }
            out.extend_from_slice(&row);
        }
        out
    }

    #[test]
    fn rows_come_back_and_nothing_is_left() {
        for seed in 0..4000 {
            let (width, height) = (1 + seed as usize % 128, 1 + seed as usize % 23);
            let labels = [1, 2, 3, 5, 17, 256][seed as usize % 6];
            let rows = rows(seed, width, height, labels);
            let stream = write(&rows, width, labels, usize::MAX).unwrap();
            let mut reader = Reader::new(&stream, width, height, labels);
            let mut last = vec![0; width];
            for (y, row) in rows.chunks_exact(width).enumerate() {
                if let Some(read) = reader.row().unwrap() {
                    last.copy_from_slice(read);
                }
                assert_eq!(last, row, "row {y} of {width} × {height}, seed {seed}");
            }
            reader.finish().unwrap();
        }
    }

    #[test]
    fn any_bytes_end() {
        for seed in 0..4000u64 {
            let stream: Vec<u8> = rows(seed, 64, 4, 256);
            let mut reader = Reader::new(&stream, 100, 50, 3);
            while reader.rows > 0 && reader.row().is_ok() {}
        }
    }
}
