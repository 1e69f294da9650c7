//! The three widths that samples are coded in.

use crate::predict::Row;

/// An unsigned integer of 8, 16 or 32 bits with wrapping arithmetic.
pub(crate) trait Word: Copy + Default + PartialEq + Send + Sync + 'static {
    /// Bits of the word.
    const BITS: u32;
    /// Bytes of the word.
    const BYTES: usize;
    /// Number of tokens of the alphabet: direct values below 16, then two for each power of two.
    const TOKENS: usize;

    fn of(value: u32) -> Self;
    fn get(self) -> u32;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    /// Arithmetic shift right by one of the two's complement value.
    fn half(self) -> Self;
    /// Signed residual to unsigned: 0, -1, 1, -2, … become 0, 1, 2, 3, …
    fn zigzag(self) -> Self;
    fn unzigzag(self) -> Self;
    /// ⌊(weight · self + (16 − weight) · other) / 16⌋ of the unsigned values.
    fn blend(self, other: Self, weight: u32) -> Self;
    /// The row itself where words are bytes.
    fn bytes(row: &Row<Self>) -> Option<&Row<u8>>;
}

macro_rules! word {
    ($unsigned:ty, $signed:ty, $wide:ty, $bytes:expr) => {
        impl Word for $unsigned {
            const BITS: u32 = <$unsigned>::BITS;
            const BYTES: usize = std::mem::size_of::<$unsigned>();
            const TOKENS: usize = 16 + 2 * (<$unsigned>::BITS as usize - 4);

            #[inline(always)]
            fn of(value: u32) -> Self {
                value as $unsigned
            }
            #[inline(always)]
            fn get(self) -> u32 {
                u32::from(self)
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn half(self) -> Self {
                ((self as $signed) >> 1) as $unsigned
            }
            #[inline(always)]
            fn zigzag(self) -> Self {
                (self << 1) ^ (((self as $signed) >> (<$unsigned>::BITS - 1)) as $unsigned)
            }
            #[inline(always)]
            fn unzigzag(self) -> Self {
                (self >> 1) ^ (self & 1).wrapping_neg()
            }
            #[inline(always)]
            fn blend(self, other: Self, weight: u32) -> Self {
                let (mine, its) = (weight as $wide, 16 - weight as $wide);
                ((mine * <$wide>::from(self) + its * <$wide>::from(other)) >> 4) as $unsigned
            }
            #[inline(always)]
            fn bytes(row: &Row<Self>) -> Option<&Row<u8>> {
                $bytes(row)
            }
        }
    };
}

word!(u8, i8, u16, Some);
word!(u16, i16, u32, |_| None);
word!(u32, i32, u64, |_| None);
