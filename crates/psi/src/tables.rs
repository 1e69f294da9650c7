//! The entropy coder's tables: 1,024 slots dealt out to tokens, and which table a context uses.
//!
//! In the file: the number of tables; for each, the number of its tokens and their frequencies, as bits;
//! then, for each channel of a group, the table of each of its 256 contexts in runs.

use crate::bits::{BitReader, BitWriter};
use crate::error::{Error, Result};
use crate::header::GROUP;
use crate::token::{base, raw_bits, CONTEXTS};
use crate::word::Word;

pub(crate) const SLOT_BITS: u32 = 10;
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
pub(crate) const TABLES: usize = 16;

/// How often each token comes, of 1,024.
pub(crate) type Frequencies = Vec<u16>;

/// What the file says: frequencies by table, table by context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub tables: Vec<Frequencies>,
    /// `[channel][context]`, flattened.
    pub of_context: Vec<u8>,
}

impl Model {
    pub fn write(&self) -> Vec<u8> {
        let mut out = BitWriter::default();
        out.put(self.tables.len() as u32, 8);
        out.put((self.of_context.len() / CONTEXTS) as u32, 8);
        for frequencies in &self.tables {
            let used = frequencies.iter().rposition(|&f| f > 0).map_or(0, |last| last + 1);
            out.put(used as u32, 7);
            for &frequency in &frequencies[..used] {
                let length = 16 - frequency.leading_zeros();
                out.put(length, 4);
                if length > 1 {
                    out.put(u32::from(frequency), length - 1);
                }
            }
        }
        let mut bytes = out.finish();
        let mut rest = &self.of_context[..];
        while let Some(&first) = rest.first() {
            let run = rest.iter().take_while(|&&table| table == first).take(16).count();
            bytes.push(first << 4 | (run - 1) as u8);
            rest = &rest[run..];
        }
        bytes
    }

    /// Reads the tables of an image whose words are `W` and whose groups have up to `channels` channels.
    pub fn parse<W: Word>(bytes: &[u8], channels: usize) -> Result<Self> {
        if bytes.len() < 2 {
            return Err(Error::malformed("there are coded tiles but no coding tables"));
        }
        let (count, mapped) = (usize::from(bytes[0]), usize::from(bytes[1]));
        if count == 0 || count > TABLES {
            return Err(Error::malformed(format!("{count} coding tables; there can be 1 to {TABLES}")));
        }
        if mapped != channels.min(GROUP) {
            return Err(Error::malformed(format!("contexts of {mapped} channels for {channels}")));
        }
        let mut reader = BitReader::new(&bytes[2..]);
        let mut get = |count| reader.get(count).ok_or_else(|| Error::malformed("the coding tables end early"));
        let mut tables = Vec::with_capacity(count);
        for number in 0..count {
            let used = get(7)? as usize;
            if used > W::TOKENS {
                return Err(Error::malformed(format!("coding table {number} has {used} tokens")));
            }
            let mut frequencies = vec![0u16; W::TOKENS];
            let mut sum = 0u32;
            for frequency in &mut frequencies[..used] {
                let length = get(4)?;
                if length > 11 {
                    return Err(Error::malformed(format!("coding table {number} has a frequency of {length} bits")));
                }
                let low = if length > 1 { get(length - 1)? } else { 0 };
                let value = if length == 0 { 0 } else { 1 << (length - 1) | low };
                *frequency = value as u16;
                sum += value;
            }
            if sum != SLOTS as u32 {
                return Err(Error::malformed(format!("coding table {number} sums to {sum} of {SLOTS}")));
            }
            tables.push(frequencies);
        }
        let mut of_context = Vec::with_capacity(mapped * CONTEXTS);
        for &run in reader.rest() {
            if usize::from(run >> 4) >= count {
                return Err(Error::malformed(format!("a context names table {} of {count}", run >> 4)));
            }
            of_context.extend(std::iter::repeat_n(run >> 4, usize::from(run & 15) + 1));
            if of_context.len() > mapped * CONTEXTS {
                break;
            }
        }
        if of_context.len() != mapped * CONTEXTS {
            return Err(Error::malformed("the map from contexts to tables has a wrong length"));
        }
        Ok(Model { tables, of_context })
    }

    /// One word for each slot of each table; see [`Slot`]. Always `TABLES * SLOTS` long.
    pub fn slots<W: Word>(&self, out: &mut Vec<u32>) {
        out.clear();
        for frequencies in &self.tables {
            for (token, &frequency) in frequencies.iter().enumerate() {
                for within in 0..u32::from(frequency) {
                    out.push(slot::<W>(u32::from(frequency), within, token as u32));
                }
            }
        }
        out.resize(TABLES * SLOTS, slot::<W>(SLOTS as u32, 0, 0));
    }
}

/// A slot's word. Bits 0–10 frequency, 11–20 place within the token, then for 8-bit words 21–23 the number of raw
/// bits and 24–31 the token's smallest value, for wider ones 21–27 the token.
#[inline(always)]
fn slot<W: Word>(frequency: u32, within: u32, token: u32) -> u32 {
    let tail = if W::BITS == 8 { raw_bits(token) | base(token) << 3 } else { token };
    frequency | within << 11 | tail << 21
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_survives_writing_and_reading() {
        let mut flat = vec![0u16; 24];
        flat[..16].fill(64);
        let mut single = vec![0u16; 24];
        single[3] = 1024;
        let mut of_context = vec![0u8; 3 * CONTEXTS];
        of_context[100..300].fill(1);
        of_context[767] = 1;
        let model = Model { tables: vec![flat, single], of_context };
        let bytes = model.write();
        assert_eq!(Model::parse::<u8>(&bytes, 3).unwrap(), model);
        for end in 0..bytes.len() {
            assert!(Model::parse::<u8>(&bytes[..end], 3).is_err());
        }
        let mut slots = Vec::new();
        model.slots::<u8>(&mut slots);
        assert_eq!(slots.len(), TABLES * SLOTS);
    }
}
