//! Huffman tables, made ready to decode more than a symbol at a time.
#![forbid(unsafe_code)]

use crate::bits::{signed, Cursor, Window};
use crate::error::{malformed, Error};

/// Bits looked up at once for one code.
const CODE_BITS: u32 = 9;
/// Bits looked up at once for up to two coefficients with their values.
pub(crate) const PAIR_BITS: u32 = 11;
/// Bits looked up at once for as many coefficients as fit, when only their length matters.
pub(crate) const SKIP_BITS: u32 = 12;
/// Added to the coefficient's position by an end of block.
pub(crate) const END_OF_BLOCK: u8 = 128;

/// A code that is in no table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BadCode;

/// The plain table: a symbol a lookup.
pub(crate) struct Codes {
    /// Length << 8 | symbol; 0 for longer codes.
    short: [u16; 1 << CODE_BITS],
    /// For each length: codes of it, left-aligned in 16 bits, are less than this.
    limit: [u32; 17],
    /// For each length: index of its first symbol less its first code.
    offset: [i32; 17],
    symbols: [u8; 256],
}

impl Codes {
    fn new() -> Self {
        Self {
            short: [0; 1 << CODE_BITS],
            limit: [0; 17],
            offset: [0; 17],
            symbols: [0; 256],
        }
    }

    fn build(&mut self, counts: &[u8], symbols: &[u8]) -> Result<(), Error> {
        self.short.fill(0);
        self.symbols.fill(0);
        self.symbols[..symbols.len()].copy_from_slice(symbols);
        let (mut code, mut index) = (0usize, 0usize);
        for length in 1..=16usize {
            let count = usize::from(counts[length - 1]);
            if code + count > 1 << length {
                return Err(malformed("Huffman table has more codes than fit"));
            }
            self.offset[length] = index as i32 - code as i32;
            if length <= CODE_BITS as usize {
                let spread = 1 << (CODE_BITS as usize - length);
                for i in 0..count {
                    let first = (code + i) * spread;
                    let entry = (length as u16) << 8 | u16::from(symbols[index + i]);
                    self.short[first..first + spread].fill(entry);
                }
            }
            index += count;
            code += count;
            self.limit[length] = (code << (16 - length)) as u32;
            code <<= 1;
        }
        Ok(())
    }

    /// Length and symbol of the code at the top of `bits`.
    #[inline(always)]
    fn find(&self, bits: u64) -> Option<(u32, u8)> {
        let entry = self.short[(bits >> (64 - CODE_BITS)) as usize];
        if entry != 0 {
            return Some((u32::from(entry >> 8), entry as u8));
        }
        self.find_long(bits)
    }

    #[inline(never)]
    fn find_long(&self, bits: u64) -> Option<(u32, u8)> {
        let top = (bits >> 48) as u32;
        for length in CODE_BITS + 1..=16 {
            if top < self.limit[length as usize] {
                let code = (top >> (16 - length)) as i32;
                let index = (code + self.offset[length as usize]) as usize & 255;
                return Some((length, self.symbols[index]));
            }
        }
        None
    }

    /// Reads one symbol; at least 16 bits must be at hand.
    #[inline(always)]
    pub fn symbol(&self, cursor: &mut Cursor) -> Result<u8, BadCode> {
        let (length, symbol) = self.find(cursor.bits).ok_or(BadCode)?;
        cursor.consume(length);
        Ok(symbol)
    }
}

/// One or two coefficients. The value of the first of two lies within the bits looked up; the value of the last
/// need not, only its code: it is taken from the stream.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(crate) struct Pair {
    /// Bits of both; 0 where not even one code fits.
    pub bits: u8,
    /// Bits before the value of the last, and bits of that value.
    pub before: u8,
    pub size: u8,
    /// How far the first, and the last, are from the coefficient before.
    pub first: u8,
    pub last: u8,
    /// Value of the first of two.
    pub value: i16,
}

/// Total length and advance of several coefficients, of which the last may have its value outside the bits
/// looked up; length 0 where not even one code fits.
#[derive(Clone, Copy, Default)]
#[repr(C, align(2))]
pub(crate) struct Skip {
    pub bits: u8,
    pub advance: u8,
}

/// No entry of the fast tables is longer, so that two can be used after a refill.
const _: () = assert!(2 * (PAIR_BITS + 15) <= 56 && 2 * (SKIP_BITS + 15) <= 56);

pub(crate) struct AcTable {
    pub pairs: Box<[Pair; 1 << PAIR_BITS]>,
    pub skips: Box<[Skip; 1 << SKIP_BITS]>,
    /// Whether `pairs` and `skips` belong to the present codes.
    ready: bool,
}

/// Code length, advance and size of the coefficient at the top of `bits`, if its code lies within `room`.
fn code(codes: &Codes, bits: u64, room: u32) -> Option<(u32, u8, u32)> {
    let (length, symbol) = codes.find(bits)?;
    let (run, size) = (symbol >> 4, symbol & 15);
    let advance = match (run, size) {
        (15, 0) => 16,
        (_, 0) => END_OF_BLOCK,
        _ => run + 1,
    };
    (length <= room).then_some((length, advance, u32::from(size)))
}

impl AcTable {
    fn new() -> Self {
        Self {
            pairs: Box::new([Pair::default(); 1 << PAIR_BITS]),
            skips: Box::new([Skip::default(); 1 << SKIP_BITS]),
            ready: false,
        }
    }

    fn prepare(&mut self, codes: &Codes) {
        if std::mem::replace(&mut self.ready, true) {
            return;
        }
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            *pair = Self::pair(codes, (index as u64) << (64 - PAIR_BITS));
        }
        for (index, skip) in self.skips.iter_mut().enumerate() {
            *skip = Self::skip(codes, (index as u64) << (64 - SKIP_BITS));
        }
    }

    fn pair(codes: &Codes, bits: u64) -> Pair {
        let Some((length, first, size)) = code(codes, bits, PAIR_BITS) else {
            return Pair::default();
        };
        let used = length + size;
        let one = Pair {
            bits: used as u8,
            before: length as u8,
            size: size as u8,
            first,
            last: first,
            value: 0,
        };
        if first == END_OF_BLOCK || used >= PAIR_BITS {
            return one;
        }
        let Some((more, second, next)) = code(codes, bits << used, PAIR_BITS - used) else {
            return one;
        };
        Pair {
            bits: (used + more + next) as u8,
            before: (used + more) as u8,
            size: next as u8,
            first,
            last: first + second,
            value: signed(bits << length, size) as i16,
        }
    }

    fn skip(codes: &Codes, bits: u64) -> Skip {
        let (mut used, mut advance) = (0, 0);
        // further coefficients are left out from 48 on: without an end of block no sum comes near END_OF_BLOCK
        while used < SKIP_BITS && advance < 48 {
            let Some((length, more, size)) = code(codes, bits << used, SKIP_BITS - used) else {
                break;
            };
            used += length + size;
            advance += more;
        }
        Skip {
            bits: used as u8,
            advance,
        }
    }
}

/// One table as its DHT segment defined it.
struct Slot {
    codes: Codes,
    ac: AcTable,
    /// The segment's bytes: the same table needs no building again.
    key: Vec<u8>,
    defined: bool,
}

/// The tables of a file. Kept from file to file, since many share theirs.
pub(crate) struct Tables {
    dc: [Slot; 4],
    ac: [Slot; 4],
}

impl Default for Tables {
    fn default() -> Self {
        let slot = || Slot {
            codes: Codes::new(),
            ac: AcTable::new(),
            key: Vec::new(),
            defined: false,
        };
        Self {
            dc: [slot(), slot(), slot(), slot()],
            ac: [slot(), slot(), slot(), slot()],
        }
    }
}

impl Tables {
    /// Forgets what the last file defined.
    pub fn reset(&mut self) {
        for slot in self.dc.iter_mut().chain(&mut self.ac) {
            slot.defined = false;
        }
    }

    /// Reads the body of a DHT segment.
    pub fn define(&mut self, mut body: &[u8]) -> Result<(), Error> {
        while let [spec, rest @ ..] = body {
            let (class, index) = (spec >> 4, usize::from(spec & 15));
            if class > 1 || index > 3 {
                return Err(malformed(format!("Huffman table with header {spec:02X}")));
            }
            let count = match rest.get(..16) {
                Some(counts) => counts.iter().map(|&n| usize::from(n)).sum::<usize>(),
                None => return Err(malformed("Huffman table is cut short")),
            };
            if count > 256 {
                return Err(malformed("Huffman table of more than 256 symbols"));
            }
            let Some(key) = rest.get(..16 + count) else {
                return Err(malformed("Huffman table is cut short"));
            };
            let slot = match class {
                0 => &mut self.dc[index],
                _ => &mut self.ac[index],
            };
            if slot.key != key {
                slot.key.clear();
                slot.ac.ready = false;
                slot.codes.build(&key[..16], &key[16..])?;
                if class == 0 && key[16..].iter().any(|&size| size > 15) {
                    return Err(malformed("Huffman table of DC differences over 15 bits"));
                }
                slot.key.extend_from_slice(key);
            }
            slot.defined = true;
            body = &rest[16 + count..];
        }
        Ok(())
    }

    /// Gives the tables that are missing their usual contents, as in the frames of Motion JPEG.
    pub fn define_missing(&mut self) -> Result<(), Error> {
        for (class, index, body) in crate::usual_tables::ALL {
            let slot = match class {
                0 => &self.dc[index],
                _ => &self.ac[index],
            };
            if !slot.defined {
                self.define(body)?;
            }
        }
        Ok(())
    }

    pub fn dc(&self, index: usize) -> Result<&Codes, Error> {
        let slot = &self.dc[index];
        if !slot.defined {
            return Err(malformed(format!(
                "scan uses DC Huffman table {index}, which is not defined"
            )));
        }
        Ok(&slot.codes)
    }

    pub fn ac(&self, index: usize) -> Result<&Codes, Error> {
        let slot = &self.ac[index];
        if !slot.defined {
            return Err(malformed(format!(
                "scan uses AC Huffman table {index}, which is not defined"
            )));
        }
        Ok(&slot.codes)
    }

    /// Makes the fast tables of an AC table; they are read with [`Tables::fast_ac`].
    pub fn prepare_ac(&mut self, index: usize) -> Result<(), Error> {
        self.ac(index)?;
        let slot = &mut self.ac[index];
        slot.ac.prepare(&slot.codes);
        Ok(())
    }

    pub fn fast_ac(&self, index: usize) -> &AcTable {
        &self.ac[index].ac
    }
}

/// Reads a DC difference; at least 31 bits must be at hand.
#[inline(always)]
pub(crate) fn difference(codes: &Codes, cursor: &mut Cursor) -> Result<i32, BadCode> {
    let size = codes.symbol(cursor)?;
    Ok(cursor.take_signed(u32::from(size & 15)))
}

/// Reads one AC coefficient by the plain table: advance and value.
#[inline(always)]
pub(crate) fn coefficient(
    codes: &Codes,
    cursor: &mut Cursor,
    window: &Window,
) -> Result<(u32, i16), BadCode> {
    cursor.refill(window);
    let symbol = codes.symbol(cursor)?;
    let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
    let value = cursor.take_signed(size) as i16;
    Ok(match (run, size) {
        (15, 0) => (16, 0),
        (_, 0) => (u32::from(END_OF_BLOCK), 0),
        _ => (run + 1, value),
    })
}
