//! The bit stream: stuffed bytes are removed a window at a time, so that the reader never looks for markers.
//!
//! An MCU is begun only when the window holds more than the longest MCU possible, or the zeros that follow
//! the last byte of the segment. So nothing inside an MCU has to ask whether bytes are left.
#![forbid(unsafe_code)]

use crate::simd::{self, Level};

/// Bytes in the window; a power of two, so that masking an index replaces a bounds check.
const WINDOW: usize = 1 << 14;

/// Longest MCU: ten blocks of 64 codes of 16 bits with 15 more bits each; and what a refill reads ahead.
const LONGEST_MCU: usize = 10 * 64 * 31 / 8 + 16;

/// Position of the first 0xFF, or the length.
pub(crate) fn find_ff(bytes: &[u8]) -> usize {
    bytes.iter().position(|&b| b == 0xFF).unwrap_or(bytes.len())
}

/// Unstuffed bytes.
pub(crate) struct Window(Box<[u8; WINDOW + 8]>);

impl Default for Window {
    fn default() -> Self {
        Self(Box::new([0; WINDOW + 8]))
    }
}

/// The bits at hand: `count` valid ones at the top of `bits`, the next byte at `at` of the window.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    pub bits: u64,
    pub count: u64,
    at: usize,
}

impl Cursor {
    /// Leaves at least 56 bits at hand.
    #[inline(always)]
    pub fn refill(&mut self, window: &Window) {
        let at = self.at & (WINDOW - 1);
        let bytes: [u8; 8] = window.0[at..at + 8].try_into().unwrap_or_default();
        self.bits |= u64::from_be_bytes(bytes) >> self.count;
        self.at += ((63 - self.count) >> 3) as usize;
        self.count |= 56;
    }

    #[inline(always)]
    pub fn consume(&mut self, length: u32) {
        self.bits <<= length & 63;
        self.count = self.count.wrapping_sub(u64::from(length));
    }

    /// `length` (0..=16) bits as a number.
    #[inline(always)]
    pub fn take(&mut self, length: u32) -> u32 {
        let value = (self.bits >> 1 >> (63 - (length & 63))) as u32;
        self.consume(length);
        value
    }

    /// `length` (0..=15) bits as the standard codes a difference or coefficient.
    #[inline(always)]
    pub fn take_signed(&mut self, length: u32) -> i32 {
        let value = signed(self.bits, length);
        self.consume(length);
        value
    }
}

/// The top `length` (0..=15) bits as the standard codes a difference or coefficient.
#[inline(always)]
pub(crate) fn signed(bits: u64, length: u32) -> i32 {
    let negative = !((bits as i64) >> 63) as i32;
    let value = (bits >> 1 >> (63 - (length & 63))) as i32;
    value + (negative & ((-1i32 << length) + 1))
}

/// Why the segment has no more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The file ends.
    File,
    /// A marker stands at this position of the file.
    Marker(usize),
}

/// More bits were asked for than the segment holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overrun(pub End);

/// Feeds the window from the file.
pub(crate) struct Source<'a> {
    data: &'a [u8],
    level: Level,
    /// Next byte of the file.
    next: usize,
    /// Bytes valid in the window.
    end: usize,
    ended: Option<End>,
    /// An MCU may begin without a look here while the cursor's `at` is not past this.
    safe: usize,
}

impl<'a> Source<'a> {
    pub fn new(data: &'a [u8], level: Level) -> Self {
        Self {
            data,
            level,
            next: 0,
            end: 0,
            ended: None,
            safe: 0,
        }
    }

    /// Begins a segment at `position` of the file.
    pub fn begin(&mut self, position: usize, window: &mut Window) -> Cursor {
        self.next = position.min(self.data.len());
        self.end = 0;
        self.ended = None;
        self.fill(window);
        Cursor::default()
    }

    /// To be called before each MCU.
    #[inline(always)]
    pub fn ready(&mut self, cursor: Cursor, window: &mut Window) -> Result<Cursor, Overrun> {
        if cursor.at > self.safe {
            self.ready_slowly(cursor, window)
        } else {
            Ok(cursor)
        }
    }

    #[cold]
    #[inline(never)]
    fn ready_slowly(&mut self, mut cursor: Cursor, window: &mut Window) -> Result<Cursor, Overrun> {
        if self.ended.is_none() {
            let at = cursor.at.min(self.end);
            window.0.copy_within(at..self.end, 0);
            self.end -= at;
            cursor.at -= at;
            self.fill(window);
        }
        self.check(&cursor)?;
        Ok(cursor)
    }

    /// Whether what was read so far was there.
    pub fn check(&self, cursor: &Cursor) -> Result<(), Overrun> {
        match self.ended {
            Some(end) if cursor.at * 8 > self.end * 8 + cursor.count as usize => Err(Overrun(end)),
            _ => Ok(()),
        }
    }

    fn fill(&mut self, window: &mut Window) {
        const LIMIT: usize = WINDOW - LONGEST_MCU;
        while self.ended.is_none() && self.end < LIMIT {
            let room = LIMIT - self.end;
            let rest = &self.data[self.next..];
            let chunk = &rest[..rest.len().min(room)];
            let plain = simd::copy_until_ff(self.level, chunk, &mut window.0[self.end..]);
            self.end += plain;
            self.next += plain;
            if plain == chunk.len() {
                if plain == rest.len() {
                    self.ended = Some(End::File);
                }
                continue;
            }
            match rest.get(plain + 1) {
                Some(0) => {
                    window.0[self.end] = 0xFF;
                    self.end += 1;
                    self.next += 2;
                }
                // fill bytes before a marker
                Some(0xFF) => self.next += 1,
                Some(_) => self.ended = Some(End::Marker(self.next)),
                None => self.ended = Some(End::File),
            }
        }
        if self.ended.is_some() {
            window.0[self.end..(self.end + LONGEST_MCU).min(WINDOW + 8)].fill(0);
            self.safe = self.end;
        } else {
            self.safe = self.end - LONGEST_MCU;
        }
    }

    /// Position of the first marker at or after what has been fed.
    pub fn next_marker(&self) -> End {
        if let Some(end) = self.ended {
            return end;
        }
        find_marker(self.data, self.next)
    }
}

/// First marker at or after `at` in entropy-coded bytes.
pub(crate) fn find_marker(data: &[u8], mut at: usize) -> End {
    loop {
        at += find_ff(&data[at.min(data.len())..]);
        match data.get(at + 1) {
            None => return End::File,
            Some(0) => at += 2,
            Some(0xFF) => at += 1,
            Some(_) => return End::Marker(at),
        }
    }
}
