//! libjpeg's accurate integer inverse DCT, for four neighbouring blocks at a time.
//!
//! Coefficients of the four lie interleaved by rows: row r of block l begins at `r * 32 + l * 8`. A group is
//! then eight vectors of 32 coefficients, and what comes out of it eight rows of 32 samples.
//!
//! The arithmetic is that of libjpeg-turbo's vector code: 16-bit products of coefficient and quantiser, 32-bit
//! sums of products, 16 bits between the passes, saturation at the end. For any real picture it equals the
//! plain C code; on garbage it is at least the same on every machine.
#![forbid(unsafe_code)]

use crate::header::ZIGZAG;

/// Blocks in a group.
pub(crate) const LANES: usize = 4;
/// Samples in a row of a group.
pub(crate) const GROUP_WIDTH: usize = 8 * LANES;

const DUMMY: u16 = 256;

/// Coefficients of four blocks, and room where a decoder may write what belongs to no block.
#[repr(C, align(64))]
#[derive(Clone)]
pub(crate) struct Group {
    pub values: [i16; 512],
}

impl Default for Group {
    fn default() -> Self {
        Self { values: [0; 512] }
    }
}

/// Quantisers in the layout of a group.
#[repr(C, align(64))]
#[derive(Clone)]
pub(crate) struct Quantiser {
    pub values: [i16; 256],
}

impl Quantiser {
    /// From a table in natural order.
    pub fn new(table: &[u16; 64]) -> Self {
        let mut values = [0; 256];
        for (i, value) in values.iter_mut().enumerate() {
            *value = table[i / GROUP_WIDTH * 8 + i % 8] as i16;
        }
        Self { values }
    }
}

/// Where in a group's first block each coefficient goes; positions past the block go to the dummy.
pub(crate) static PLACE: [u16; 256] = {
    let mut places = [DUMMY; 256];
    let mut k = 0;
    while k < 64 {
        let natural = ZIGZAG[k] as u16;
        places[k] = natural / 8 * GROUP_WIDTH as u16 + natural % 8;
        k += 1;
    }
    places
};

const F_0_298: i32 = 2446;
const F_0_390: i32 = 3196;
const F_0_541: i32 = 4433;
const F_0_765: i32 = 6270;
const F_0_899: i32 = 7373;
const F_1_175: i32 = 9633;
const F_1_501: i32 = 12299;
const F_1_847: i32 = 15137;
const F_1_961: i32 = 16069;
const F_2_053: i32 = 16819;
const F_2_562: i32 = 20995;
const F_3_072: i32 = 25172;

/// The multipliers of the vector code: pairs (for the first and the second of two interleaved inputs).
pub(crate) const EVEN_2: (i32, i32) = (F_0_541, F_0_541 - F_1_847);
pub(crate) const EVEN_3: (i32, i32) = (F_0_541 + F_0_765, F_0_541);
pub(crate) const ODD_Z3: (i32, i32) = (F_1_175 - F_1_961, F_1_175);
pub(crate) const ODD_Z4: (i32, i32) = (F_1_175, F_1_175 - F_0_390);
pub(crate) const ODD_0: (i32, i32) = (F_0_298 - F_0_899, -F_0_899);
pub(crate) const ODD_3: (i32, i32) = (-F_0_899, F_1_501 - F_0_899);
pub(crate) const ODD_1: (i32, i32) = (F_2_053 - F_2_562, -F_2_562);
pub(crate) const ODD_2: (i32, i32) = (-F_2_562, F_3_072 - F_2_562);

/// Fraction bits of the multipliers, and those kept between the passes.
pub(crate) const CONST_BITS: i32 = 13;
pub(crate) const SHIFT_1: i32 = CONST_BITS - 2;
pub(crate) const SHIFT_2: i32 = CONST_BITS + 2 + 3;

fn dot(pair: (i32, i32), a: i16, b: i16) -> i32 {
    (pair.0 * i32::from(a)).wrapping_add(pair.1 * i32::from(b))
}

/// One dimension, without the final shift.
fn transform(x: [i16; 8]) -> [i32; 8] {
    let tmp2 = dot(EVEN_2, x[2], x[6]);
    let tmp3 = dot(EVEN_3, x[2], x[6]);
    let tmp0 = i32::from(x[0].wrapping_add(x[4])) << CONST_BITS;
    let tmp1 = i32::from(x[0].wrapping_sub(x[4])) << CONST_BITS;
    let even = [
        tmp0.wrapping_add(tmp3),
        tmp1.wrapping_add(tmp2),
        tmp1.wrapping_sub(tmp2),
        tmp0.wrapping_sub(tmp3),
    ];
    let (s3, s4) = (x[7].wrapping_add(x[3]), x[5].wrapping_add(x[1]));
    let z3 = dot(ODD_Z3, s3, s4);
    let z4 = dot(ODD_Z4, s3, s4);
    let odd = [
        dot(ODD_3, x[7], x[1]).wrapping_add(z4),
        dot(ODD_2, x[5], x[3]).wrapping_add(z3),
        dot(ODD_1, x[5], x[3]).wrapping_add(z4),
        dot(ODD_0, x[7], x[1]).wrapping_add(z3),
    ];
    let mut out = [0; 8];
    for i in 0..4 {
        out[i] = even[i].wrapping_add(odd[i]);
        out[7 - i] = even[i].wrapping_sub(odd[i]);
    }
    out
}

fn descale(x: i32, shift: i32) -> i16 {
    let rounded = x.wrapping_add(1 << (shift - 1)) >> shift;
    rounded.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

/// Samples of the group into eight rows of `out`, `stride` apart.
pub(crate) fn inverse(group: &Group, quantiser: &Quantiser, out: &mut [u8], stride: usize) {
    for lane in 0..LANES {
        let mut middle = [[0i16; 8]; 8];
        #[allow(clippy::needless_range_loop)] // rows and columns: a matrix
        for column in 0..8 {
            let mut input = [0i16; 8];
            for (row, value) in input.iter_mut().enumerate() {
                let at = row * GROUP_WIDTH + lane * 8 + column;
                *value = group.values[at].wrapping_mul(quantiser.values[at]);
            }
            for (row, &value) in transform(input).iter().enumerate() {
                middle[row][column] = descale(value, SHIFT_1);
            }
        }
        for (row, &input) in middle.iter().enumerate() {
            let at = row * stride + lane * 8;
            for (sample, &value) in out[at..at + 8].iter_mut().zip(&transform(input)) {
                *sample = (descale(value, SHIFT_2).clamp(-128, 127) + 128) as u8;
            }
        }
    }
}
