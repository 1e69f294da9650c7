//! Bits from the low end of each byte on.

/// Writes.
#[derive(Default)]
pub(crate) struct BitWriter {
    pub bytes: Vec<u8>,
    held: u64,
    count: u32,
}

impl BitWriter {
    /// Appends the low `count` bits of `value`; at most 32.
    pub fn put(&mut self, value: u32, count: u32) {
        self.held |= (u64::from(value) & ((1 << count) - 1)) << self.count;
        self.count += count;
        while self.count >= 8 {
            self.bytes.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// The bytes, the last filled up with zeros.
    pub fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.bytes.push(self.held as u8);
        }
        self.bytes
    }
}

/// Reads.
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Next bit.
    pub at: usize,
}

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        BitReader { bytes, at: 0 }
    }

    /// The next 32 bits, zeros behind the end.
    #[inline]
    pub fn peek(&self) -> u32 {
        let start = self.at / 8;
        let mut eight = [0; 8];
        match self.bytes.get(start..start + 8) {
            Some(bytes) => eight.copy_from_slice(bytes),
            None => {
                let rest = self.bytes.get(start..).unwrap_or(&[]);
                eight[..rest.len()].copy_from_slice(rest);
            }
        }
        (u64::from_le_bytes(eight) >> (self.at % 8)) as u32
    }

    /// The next `count` bits, at most 31; None where there are fewer.
    #[inline]
    pub fn get(&mut self, count: u32) -> Option<u32> {
        let value = self.peek() & ((1 << count) - 1);
        self.at += count as usize;
        (self.at <= 8 * self.bytes.len()).then_some(value)
    }

    /// Bytes behind the last that was read of.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at.div_ceil(8)..).unwrap_or(&[])
    }
}
