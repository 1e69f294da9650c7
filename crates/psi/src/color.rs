//! Reversible colour transforms of the first three channels of a group, modulo the word.
//!
//! A transform is one byte: its kind in the low four bits, and [`SWAP`]. All kinds but [`YCOCG`] keep one channel as it is,
//! take it from the second, and a blend of both from the third: `[G, R − G, B − ⌊(w·G + (16 − w)·R) / 16⌋]`.

use crate::word::Word;

/// Channels as they are.
pub(crate) const NONE: u8 = 0;
/// G, R − G, B − ⌊(R + G) / 2⌋: the blend of weight 8.
pub(crate) const AVERAGE: u8 = 1;
/// G, R − G, B − G: the blend of weight 16.
pub(crate) const GREEN: u8 = 2;
/// YCoCg-R.
pub(crate) const YCOCG: u8 = 3;
/// Kinds from here on are blends whose weight is their number.
const FIRST_WEIGHT: u8 = 4;
const LAST_WEIGHT: u8 = 15;
/// Added to a kind: the first two channels exchange their parts.
pub(crate) const SWAP: u8 = 16;

/// The kind of a transform and whether the first two channels are exchanged, if there is such a transform.
pub(crate) fn parse(transform: u8) -> Option<(u8, bool)> {
    (transform <= (LAST_WEIGHT | SWAP) && transform != SWAP).then_some((transform & 15, transform & SWAP != 0))
}

/// Weight of the kept channel in the blend, for all kinds that have one.
#[inline(always)]
pub(crate) fn weight(kind: u8) -> Option<u32> {
    match kind {
        NONE | YCOCG => None,
        AVERAGE => Some(8),
        GREEN => Some(16),
        weight => Some(u32::from(weight)),
    }
}

/// The transform whose blend has `green` sixteenths of the second channel and the rest of the first, and which keeps the
/// second channel, or with `swap` the first; if there is one.
pub(crate) fn blending(green: u8, swap: bool) -> Option<u8> {
    let weight = if swap { 16 - green } else { green };
    let kind = match weight {
        8 => AVERAGE,
        16 => GREEN,
        FIRST_WEIGHT..=LAST_WEIGHT => weight,
        _ => return None,
    };
    Some(if swap { kind | SWAP } else { kind })
}

/// R, G, B to coded channels.
#[inline(always)]
pub(crate) fn forward<W: Word>(transform: u8, [red, green, blue]: [W; 3]) -> [W; 3] {
    let (red, green) = if transform & SWAP != 0 { (green, red) } else { (red, green) };
    match weight(transform & 15) {
        Some(weight) => [green, red.sub(green), blue.sub(green.blend(red, weight))],
        None if transform == NONE => [red, green, blue],
        None => {
            let orange = red.sub(blue);
            let middle = blue.add(orange.half());
            let greenish = green.sub(middle);
            [middle.add(greenish.half()), orange, greenish]
        }
    }
}

/// Undoes a blend of that weight; exchanging is left to the caller.
#[inline(always)]
pub(crate) fn unblend<W: Word>(weight: u32, [first, second, third]: [W; 3]) -> [W; 3] {
    let red = second.add(first);
    [red, first, third.add(first.blend(red, weight))]
}

/// Undoes [`YCOCG`].
#[inline(always)]
pub(crate) fn unycocg<W: Word>([first, second, third]: [W; 3]) -> [W; 3] {
    let middle = first.sub(third.half());
    let blue = middle.sub(second.half());
    [blue.add(second), third.add(middle), blue]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inverse<W: Word>(transform: u8, coded: [W; 3]) -> [W; 3] {
        let (kind, swap) = parse(transform).unwrap();
        let [red, green, blue] = match weight(kind) {
            Some(weight) => unblend(weight, coded),
            None if kind == YCOCG => unycocg(coded),
            None => coded,
        };
        if swap {
            [green, red, blue]
        } else {
            [red, green, blue]
        }
    }

    #[test]
    fn every_transform_is_undone_for_every_triple_of_a_grid() {
        let steps = [0u32, 1, 2, 63, 127, 128, 129, 200, 254, 255];
        for transform in (0..=255).filter(|&transform| parse(transform).is_some()) {
            for &r in &steps {
                for &g in &steps {
                    for &b in &steps {
                        let rgb = [r as u8, g as u8, b as u8];
                        assert_eq!(inverse(transform, forward(transform, rgb)), rgb);
                        let wide = rgb.map(|v| u32::from(v).wrapping_mul(0x0101_0101));
                        assert_eq!(inverse(transform, forward(transform, wide)), wide);
                    }
                }
            }
        }
    }

    #[test]
    fn a_blend_is_found_by_its_share_of_green() {
        for green in 0..=16 {
            for swap in [false, true] {
                let Some(transform) = blending(green, swap) else { continue };
                let (kind, swapped) = parse(transform).unwrap();
                assert_eq!(swapped, swap);
                assert_eq!(weight(kind), Some(u32::from(if swap { 16 - green } else { green })));
            }
        }
        assert_eq!((parse(SWAP), parse(32), parse(31)), (None, None, Some((15, true))));
    }
}
