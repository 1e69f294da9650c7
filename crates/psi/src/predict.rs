//! Prediction inside a tile, a row at a time, in the lane layout.
//!
//! A row is held as `[column][lane]`: lane `l` has the image columns `4·l … 4·l+3` of the tile. Three of the four
//! predictors add to the left neighbour; their inverse is a running sum along the row, which starts anew at each lane
//! that is predicted from above.

use crate::header::{COLUMNS, LANES};
use crate::word::Word;

/// One row of one channel.
pub(crate) type Row<W> = [[W; LANES]; COLUMNS];

/// Left neighbour.
pub(crate) const LEFT: u8 = 0;
/// Neighbour above.
pub(crate) const ABOVE: u8 = 1;
/// Left + above − above left.
pub(crate) const PLANE: u8 = 2;
/// Left + half of (above − above left).
pub(crate) const HALF: u8 = 3;

/// Which lanes use which predictor, as masks.
#[derive(Clone, Copy)]
pub(crate) struct Masks<W> {
    pub above: [W; LANES],
    pub plane: [W; LANES],
    pub half: [W; LANES],
    /// For a running sum in steps of 1, 2, 4, 8 and 16 lanes: whether it flows from that many lanes before to here,
    /// which no lane between that is predicted from above, nor this one, may stop.
    pub flows: [[W; LANES]; 5],
}

impl<W: Word> Masks<W> {
    /// All lanes predicted from the left, as the first row of a tile always is.
    pub fn left() -> Self {
        Self::new(&[LEFT; LANES])
    }

    pub fn new(predictors: &[u8; LANES]) -> Self {
        let mask = |on: bool| W::of(if on { u32::MAX } else { 0 });
        let of = |which: u8| std::array::from_fn(|lane| mask(predictors[lane] == which));
        let above = of(ABOVE);
        let mut flows = [[W::default(); LANES]; 5];
        let mut open: [bool; LANES] = std::array::from_fn(|lane| predictors[lane] != ABOVE);
        for (step, flow) in flows.iter_mut().enumerate() {
            let step = 1 << step;
            for lane in step..LANES {
                flow[lane] = mask(open[lane]);
            }
            for lane in (step..LANES).rev() {
                open[lane] &= open[lane - step];
            }
        }
        Masks { above, plane: of(PLANE), half: of(HALF), flows }
    }
}

/// Turns unsigned residuals into samples. `row` holds the row above (zeros above the first) and then this one.
#[inline(always)]
pub(crate) fn reconstruct<W: Word>(residuals: &Row<W>, masks: &Masks<W>, row: &mut Row<W>) {
    let up = *row;
    let mut corner = up[COLUMNS - 1];
    corner.copy_within(0..LANES - 1, 1);
    corner[0] = up[0][0];
    let mut sums = [[W::default(); LANES]; COLUMNS];
    for column in 0..COLUMNS {
        let north_west = if column == 0 { &corner } else { &up[column - 1] };
        for lane in 0..LANES {
            let north = up[column][lane];
            let slope = north.sub(north_west[lane]);
            let known =
                north.and(masks.above[lane]).add(slope.and(masks.plane[lane])).add(slope.half().and(masks.half[lane]));
            sums[column][lane] = residuals[column][lane].unzigzag().add(known);
        }
    }
    // Within the lane: a running sum where the left neighbour is added.
    for column in 1..COLUMNS {
        for lane in 0..LANES {
            let left = sums[column - 1][lane];
            sums[column][lane] = sums[column][lane].add(left.sub(left.and(masks.above[lane])));
        }
    }
    // Across lanes: the left neighbour of a lane's first column.
    let first = up[0][0].sub(up[0][0].and(masks.above[0]));
    let mut leaving = sums[COLUMNS - 1];
    leaving[0] = leaving[0].add(first);
    for lane in 1..LANES {
        let before = leaving[lane - 1];
        leaving[lane] = leaving[lane].add(before.sub(before.and(masks.above[lane])));
    }
    let mut carries = leaving;
    carries.copy_within(0..LANES - 1, 1);
    carries[0] = first;
    for column in 0..COLUMNS {
        for lane in 0..LANES {
            let carry = carries[lane].sub(carries[lane].and(masks.above[lane]));
            row[column][lane] = sums[column][lane].add(carry);
        }
    }
}

/// The residual of a sample from its neighbours, for each of the four predictors.
#[inline(always)]
pub(crate) fn residuals<W: Word>(sample: W, left: W, above: W, corner: W) -> [W; 4] {
    let slope = above.sub(corner);
    let from_left = sample.sub(left);
    [from_left, sample.sub(above), from_left.sub(slope), from_left.sub(slope.half())]
}
