//! Reversible colour transforms of the first three channels of a group, modulo the word.

use crate::word::Word;

/// Channels as they are.
pub(crate) const NONE: u8 = 0;
/// G, R − G, B − ⌊(R + G) / 2⌋.
pub(crate) const AVERAGE: u8 = 1;
/// G, R − G, B − G.
pub(crate) const GREEN: u8 = 2;
/// YCoCg-R.
pub(crate) const YCOCG: u8 = 3;
pub(crate) const COUNT: u8 = 4;

/// R, G, B to coded channels.
#[inline(always)]
pub(crate) fn forward<W: Word>(transform: u8, [red, green, blue]: [W; 3]) -> [W; 3] {
    match transform {
        AVERAGE => [green, red.sub(green), blue.sub(average(red, green))],
        GREEN => [green, red.sub(green), blue.sub(green)],
        YCOCG => {
            let orange = red.sub(blue);
            let middle = blue.add(orange.half());
            let greenish = green.sub(middle);
            [middle.add(greenish.half()), orange, greenish]
        }
        _ => [red, green, blue],
    }
}

/// Coded channels to R, G, B.
#[inline(always)]
pub(crate) fn inverse<W: Word>(transform: u8, [first, second, third]: [W; 3]) -> [W; 3] {
    match transform {
        AVERAGE => {
            let red = second.add(first);
            [red, first, third.add(average(red, first))]
        }
        GREEN => [second.add(first), first, third.add(first)],
        YCOCG => {
            let middle = first.sub(third.half());
            let blue = middle.sub(second.half());
            [blue.add(second), third.add(middle), blue]
        }
        _ => [first, second, third],
    }
}

/// ⌊(a + b) / 2⌋ of the unsigned values, without overflow.
#[inline(always)]
fn average<W: Word>(a: W, b: W) -> W {
    W::of(((u64::from(a.get()) + u64::from(b.get())) >> 1) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transform_is_undone_for_every_triple_of_a_grid() {
        let steps = [0u32, 1, 2, 63, 127, 128, 129, 200, 254, 255];
        for transform in 0..COUNT {
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
}
