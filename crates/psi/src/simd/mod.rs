//! Choosing instructions at run time. The decoder is compiled once for each set of them: elementwise work by the compiler's
//! own vectors, and what that cannot see through (the entropy decoder's step, running sums, the order of bytes) by hand.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use crate::decode::Backend;
use crate::error::Result;
use crate::header::{COLUMNS, LANES};
use crate::predict::{self, Masks, Row};
use crate::rans::Coder;
use crate::tables::SLOTS;
use crate::tile::{unpack_band, Packed, BAND};
use crate::token::{energies, CONTEXTS};
use crate::word::Word;

/// Samples of a whole row of a tile.
pub(crate) const ROW: usize = LANES * COLUMNS;

/// The parts of decoding that are written for each set of instructions. All give what the defaults give.
pub(crate) trait Engine {
    /// The first slot of each lane's table.
    #[inline(always)]
    fn tables(contexts: &[u8; LANES], map: &[u8; CONTEXTS]) -> [u32; LANES] {
        let mut out = [0; LANES];
        for (table, &context) in out.iter_mut().zip(contexts) {
            *table = u32::from(map[usize::from(context)]) * SLOTS as u32;
        }
        out
    }

    /// Decodes the residuals of one row of one channel and their energies. `tables` come from [`Engine::tables`].
    #[inline(always)]
    fn row<W: Word>(coder: &mut Coder, tables: &[u32; LANES], width: usize, out: &mut Row<W>) -> Result<[u32; LANES]> {
        for (column, out) in out.iter_mut().enumerate() {
            coder.step(tables, active(width, column), out)?;
        }
        Ok(energies(out))
    }

    /// See [`predict::reconstruct`].
    #[inline(always)]
    fn reconstruct<W: Word>(residuals: &Row<W>, masks: &Masks<W>, row: &mut Row<W>) {
        predict::reconstruct(residuals, masks, row);
    }

    /// Unpacks one channel's residuals of the rows that share widths.
    #[inline(always)]
    fn unpack<W: Word>(packed: &mut Packed, out: &mut [Row<W>; BAND]) -> Result<()> {
        unpack_band(packed, out)
    }

    /// A row in the order of the image.
    #[inline(always)]
    fn flat<W: Word>(row: &Row<W>) -> [W; ROW] {
        let mut out = [W::default(); ROW];
        for lane in 0..LANES {
            for column in 0..COLUMNS {
                out[lane * COLUMNS + column] = row[column][lane];
            }
        }
        out
    }

    /// Three rows of bytes as pixels.
    #[inline(always)]
    fn pixels(rows: [&Row<u8>; 3]) -> [u8; 3 * ROW] {
        let mut out = [0; 3 * ROW];
        let (red, green, blue) = (Self::flat(rows[0]), Self::flat(rows[1]), Self::flat(rows[2]));
        for (pixel, ((r, g), b)) in out.chunks_exact_mut(3).zip(red.into_iter().zip(green).zip(blue)) {
            (pixel[0], pixel[1], pixel[2]) = (r, g, b);
        }
        out
    }
}

/// Lanes that have a sample in the given column of the lane layout.
#[inline(always)]
pub(crate) fn active(width: usize, column: usize) -> usize {
    (width + COLUMNS - 1 - column) / COLUMNS
}

/// Plain checked Rust.
pub(crate) struct Plain;

impl Engine for Plain {}

/// Work that is compiled once for each set of instructions: `run` must be inlined, with all that it calls.
pub(crate) trait Work {
    fn run<E: Engine>(self) -> Result<()>;
}

/// The best that this machine has.
pub(crate) fn best() -> Backend {
    #[cfg(target_arch = "x86_64")]
    {
        if avx512::present() {
            return Backend::Avx512;
        }
        if avx2::present() {
            return Backend::Avx2;
        }
    }
    Backend::Plain
}

/// Runs `work` with the instructions of `backend`, or with those that the machine has of them.
pub(crate) fn run(backend: Backend, work: impl Work) -> Result<()> {
    #[cfg(target_arch = "x86_64")]
    match backend {
        // SAFETY: the processor was just asked whether it has these instructions.
        Backend::Avx512 if avx512::present() => return unsafe { avx512::run(work) },
        // SAFETY: as above.
        Backend::Avx2 if avx2::present() => return unsafe { avx2::run(work) },
        _ => {}
    }
    let _ = backend;
    work.run::<Plain>()
}
