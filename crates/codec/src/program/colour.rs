//! ColorJitter and Grayscale on 8-bit pixels, with Pillow's arithmetic (`ImageEnhance`, HSV), as torchvision
//! uses it on Pillow images. Alpha, where there is any, is left alone.

use super::plan::Jitter;
use crate::image::luminance;

const BRIGHTNESS: u8 = 0;
const CONTRAST: u8 = 1;
const SATURATION: u8 = 2;

/// Applies the four adjustments in their drawn order. `channels` is 1 to 4: grey, grey with alpha, colour,
/// colour with alpha.
pub(crate) fn jitter(pixels: &mut [u8], channels: usize, jitter: &Jitter) {
    for which in jitter.order {
        let factor = jitter.factors[usize::from(which)];
        match which {
            BRIGHTNESS if factor != 1.0 => blend_to(pixels, channels, 0, factor),
            CONTRAST if factor != 1.0 => {
                let mean = mean_luminance(pixels, channels);
                blend_to(pixels, channels, mean, factor);
            }
            SATURATION if factor != 1.0 && channels >= 3 => {
                for pixel in pixels.chunks_exact_mut(channels) {
                    let grey = luminance(pixel[0], pixel[1], pixel[2]);
                    for value in &mut pixel[..3] {
                        *value = blend(grey, *value, factor as f32);
                    }
                }
            }
            3 if factor != 0.0 && channels >= 3 => shift_hue(pixels, channels, factor),
            _ => {}
        }
    }
}

/// Each pixel becomes its luminance, in all its channels.
pub(crate) fn grey(pixels: &mut [u8], channels: usize) {
    if channels >= 3 {
        for pixel in pixels.chunks_exact_mut(channels) {
            let grey = luminance(pixel[0], pixel[1], pixel[2]);
            pixel[..3].fill(grey);
        }
    }
}

/// `Image.blend`: from `base` at factor 0 to `value` at 1 and beyond; fractions are cut off.
#[inline(always)]
fn blend(base: u8, value: u8, factor: f32) -> u8 {
    // `as` saturates, which is the clipping of factors beyond 1.
    (f32::from(base) + factor * (f32::from(value) - f32::from(base))) as u8
}

fn blend_to(pixels: &mut [u8], channels: usize, base: u8, factor: f64) {
    let mut table = [0u8; 256];
    for (value, out) in (0..=255).zip(&mut table) {
        *out = blend(base, value, factor as f32);
    }
    let colours = if channels >= 3 { 3 } else { 1 };
    if channels == colours {
        for value in pixels {
            *value = table[usize::from(*value)];
        }
    } else {
        for pixel in pixels.chunks_exact_mut(channels) {
            for value in &mut pixel[..colours] {
                *value = table[usize::from(*value)];
            }
        }
    }
}

fn mean_luminance(pixels: &[u8], channels: usize) -> u8 {
    let count = pixels.len() / channels;
    let sum: u64 = if channels >= 3 {
        pixels
            .chunks_exact(channels)
            .map(|pixel| u64::from(luminance(pixel[0], pixel[1], pixel[2])))
            .sum()
    } else {
        pixels
            .chunks_exact(channels)
            .map(|pixel| u64::from(pixel[0]))
            .sum()
    };
    (sum as f64 / count.max(1) as f64 + 0.5) as u8
}

fn shift_hue(pixels: &mut [u8], channels: usize, factor: f64) {
    // Hue is a byte that wraps; the factor is a part of the whole circle.
    let shift = (factor * 255.0) as i32 as u8;
    for pixel in pixels.chunks_exact_mut(channels) {
        let [h, s, v] = to_hsv(pixel[0], pixel[1], pixel[2]);
        pixel[..3].copy_from_slice(&to_rgb(h.wrapping_add(shift), s, v));
    }
}

/// Pillow computes in double precision and keeps what it names in single; so is it here, for the same bytes.
fn to_hsv(r: u8, g: u8, b: u8) -> [u8; 3] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    if max == min {
        return [0, 0, max];
    }
    let range = f32::from(max - min);
    let distance = |value: u8| f64::from(f32::from(max - value) / range);
    let sixths = if r == max {
        distance(b) - distance(g)
    } else if g == max {
        2.0 + distance(r) - distance(b)
    } else {
        4.0 + distance(g) - distance(r)
    } as f32;
    let hue = (f64::from(sixths) / 6.0 + 1.0).fract() as f32;
    let saturation = range / f32::from(max);
    [
        (f64::from(hue) * 255.0) as u8,
        (f64::from(saturation) * 255.0) as u8,
        max,
    ]
}

fn to_rgb(h: u8, s: u8, v: u8) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let sixths = f64::from(h) * 6.0 / 255.0;
    let sector = sixths as u8;
    let part = (sixths - f64::from(sector)) as f32;
    let saturation = (f64::from(s) / 255.0) as f32;
    // Positive, so that adding a half and cutting off rounds halves up.
    let level = |missing: f64| (f64::from(v) * (1.0 - missing) + 0.5) as u8;
    let p = level(f64::from(saturation));
    let q = level(f64::from(saturation * part));
    let t = level(f64::from(saturation) * (1.0 - f64::from(part)));
    match sector % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}
