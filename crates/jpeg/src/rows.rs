//! Rows of samples to rows of pixels, in plain code: what the vector code must equal.
#![forbid(unsafe_code)]

/// Widens a row twofold by libjpeg's triangle filter. `row` has one more sample at either end.
pub(crate) fn widen(row: &[u8], out: &mut [u8]) {
    for (w, pair) in row.windows(3).zip(out.chunks_exact_mut(2)) {
        let [left, this, right] = [w[0], w[1], w[2]].map(u16::from);
        pair[0] = ((3 * this + left + 1) >> 2) as u8;
        pair[1] = ((3 * this + right + 2) >> 2) as u8;
    }
}

/// Between two rows, three parts of the nearer one.
pub(crate) fn between(near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
    for ((&near, &far), out) in near.iter().zip(far).zip(out) {
        *out = ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8;
    }
}

/// Both at once, rounded once. The rows have one more sample at either end.
pub(crate) fn widen_between(near: &[u8], far: &[u8], out: &mut [u8]) {
    for ((n, f), pair) in near
        .windows(3)
        .zip(far.windows(3))
        .zip(out.chunks_exact_mut(2))
    {
        let sum = |i: usize| 3 * u16::from(n[i]) + u16::from(f[i]);
        pair[0] = ((3 * sum(1) + sum(0) + 8) >> 4) as u8;
        pair[1] = ((3 * sum(1) + sum(2) + 7) >> 4) as u8;
    }
}

/// Each sample `times` over.
pub(crate) fn repeat(row: &[u8], times: usize, out: &mut [u8]) {
    for (&sample, out) in row.iter().zip(out.chunks_mut(times)) {
        out.fill(sample);
    }
}

/// Red, green and blue of libjpeg's fixed-point tables.
#[inline(always)]
pub(crate) fn rgb_of(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let r = y + ((91881 * cr + 32768) >> 16);
    let g = y + ((-22554 * cb - 46802 * cr + 32768) >> 16);
    let b = y + ((116130 * cb + 32768) >> 16);
    [r, g, b].map(|v| v.clamp(0, 255) as u8)
}

pub(crate) fn ycc_to_rgb(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    for (((&y, &cb), &cr), out) in y.iter().zip(cb).zip(cr).zip(out.chunks_exact_mut(3)) {
        out.copy_from_slice(&rgb_of(y, cb, cr));
    }
}

pub(crate) fn interleave(r: &[u8], g: &[u8], b: &[u8], out: &mut [u8]) {
    for (((&r, &g), &b), out) in r.iter().zip(g).zip(b).zip(out.chunks_exact_mut(3)) {
        out.copy_from_slice(&[r, g, b]);
    }
}

pub(crate) fn grey_to_rgb(y: &[u8], out: &mut [u8]) {
    for (&y, out) in y.iter().zip(out.chunks_exact_mut(3)) {
        out.fill(y);
    }
}

/// Pillow's RGB from CMYK of inverted (Adobe) inks: `ink` are cyan, magenta and yellow as stored in the file.
pub(crate) fn inked(ink: [u8; 3], black: u8) -> [u8; 3] {
    let light = u32::from(black); // 255 - (255 - black)
    ink.map(|ink| {
        let product = u32::from(255 - ink) * light + 128;
        (light - (((product >> 8) + product) >> 8)) as u8
    })
}

pub(crate) fn cmyk_to_rgb(rows: [&[u8]; 4], ycck: bool, out: &mut [u8]) {
    for (x, out) in out.chunks_exact_mut(3).enumerate() {
        let [a, b, c, k] = rows.map(|row| row[x]);
        let ink = if ycck {
            rgb_of(a, b, c).map(|v| 255 - v)
        } else {
            [a, b, c]
        };
        out.copy_from_slice(&inked(ink, k));
    }
}

/// Pillow's luminance of RGB.
pub(crate) fn rgb_to_grey(rgb: &[u8], out: &mut [u8]) {
    for (rgb, out) in rgb.chunks_exact(3).zip(out) {
        let [r, g, b] = [rgb[0], rgb[1], rgb[2]].map(u32::from);
        *out = ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16) as u8;
    }
}
