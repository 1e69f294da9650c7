//! Carrying out a plan: decode the region, run the stages, store.

use super::gather::{extent, gather};
use super::ops::Layout;
use super::plan::{Stage, Step};
use super::resample::{Resampler, Task};
use super::store::{store_affine, store_cast, store_plain, Frame};
use super::{cast::cast, colour, Grid, Program};
use crate::dtype::DType;
use crate::error::{unsupported, Result};
use crate::field::{FieldSpec, Kind};
use crate::formats::npy;
use crate::image::{ImageHeader, Pixel, Rect, Want};
use crate::scratch::{Buffer, Buffers, Codecs, Limits, Scratch};

/// Where pixels come from: a codec, or an array that is there already.
enum Pixels<'a> {
    Coded {
        header: &'a ImageHeader,
        bytes: &'a [u8],
        want: Want,
        orientation: u8,
    },
    Array {
        data: &'a [u8],
        width: usize,
    },
}

impl Program {
    /// Arrays, raw or npy: the last pass only, or the stages of a picture.
    pub(super) fn run_elements(
        &self,
        field: &FieldSpec,
        header: &npy::Header,
        data: &[u8],
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<()> {
        let mut plain = Buffer::default();
        let data = if header.is_plain() {
            data
        } else if self.leaves_alone(field.kind, &header.spec) {
            npy::write(header, data, out);
            return Ok(());
        } else {
            // Rare enough (another byte or axis order, and a transform) to pay for its own memory.
            let ordered = plain.take(data.len());
            npy::write(header, data, ordered);
            ordered
        };
        match field.kind {
            Kind::Image | Kind::Mask => {
                let grid = Grid::of(field, &header.spec)?;
                let pixels = Pixels::Array {
                    data,
                    width: grid.width,
                };
                self.run_pixels(field.kind, pixels, grid.pixel, false, out, scratch, limits)
            }
            _ => {
                cast(
                    data,
                    header.spec.dtype,
                    out,
                    self.parts.array_dtype.unwrap_or(header.spec.dtype),
                );
                Ok(())
            }
        }
    }

    /// Pictures in a codec.
    pub(super) fn run_picture(
        &self,
        field: &FieldSpec,
        header: &ImageHeader,
        bytes: &[u8],
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<()> {
        let want = self.want(field.kind);
        let pixel = header.pixel(want)?;
        let orientation = self.orientation(field.kind, header);
        let alpha = matches!(pixel.channels, 2 | 4);
        let pixels = Pixels::Coded {
            header,
            bytes,
            want,
            orientation,
        };
        self.run_pixels(field.kind, pixels, pixel, alpha, out, scratch, limits)
    }

    #[allow(clippy::too_many_arguments)]
    fn run_pixels(
        &self,
        kind: Kind,
        pixels: Pixels<'_>,
        pixel: Pixel,
        alpha: bool,
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<()> {
        let staged =
            kind != Kind::Mask && matches!(pixel.dtype, DType::U8 | DType::U16 | DType::F32);
        if staged {
            self.run_stages(kind, pixels, pixel, alpha, out, scratch, limits)
        } else {
            self.run_gather(kind, pixels, pixel, out, scratch, limits)
        }
    }

    /// Index tables: masks, and images of types that are not resampled.
    fn run_gather(
        &self,
        kind: Kind,
        pixels: Pixels<'_>,
        pixel: Pixel,
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<()> {
        let Scratch {
            plan,
            buffers,
            codecs,
            columns,
            rows,
            ..
        } = scratch;
        if kind != Kind::Mask && !plan.only_moves() {
            return Err(unsupported(format!(
                "an image of {}: uint8, uint16 and float32 are resampled, uint8 is recoloured",
                pixel.dtype.name()
            )));
        }
        plan.columns(columns);
        plan.rows(rows);
        let ((x0, x1), (y0, y1)) = (extent(columns), extent(rows));
        let region = Rect {
            x: x0,
            y: y0,
            w: x1 - x0,
            h: y1 - y0,
        };
        let Buffers { whole, front, back } = buffers;
        let (source, width, origin) = match pixels {
            Pixels::Array { data, width } => (data, width, (0, 0)),
            Pixels::Coded {
                header,
                bytes,
                want,
                orientation,
            } => {
                let size = region.w * region.h * pixel.size();
                let decoded = front.take(size);
                oriented(
                    header,
                    bytes,
                    want,
                    orientation,
                    pixel,
                    region,
                    decoded,
                    whole,
                    back,
                    codecs,
                    limits,
                )?;
                (&*decoded, region.w, (region.x, region.y))
            }
        };
        let fills = |number: usize| match plan.stages[number].step {
            Step::Pad { mask_fill, .. } if kind == Kind::Mask => integer(mask_fill, pixel.dtype),
            Step::Pad { fill, .. } => number_bytes(fill, pixel.dtype),
            _ => [0; 8],
        };
        let element = pixel.dtype.size();
        let (w, h) = plan.size();
        let to = if kind == Kind::Mask {
            self.parts.mask_dtype.unwrap_or(pixel.dtype)
        } else {
            self.parts.finish.output(pixel.dtype)
        };
        let layout = if kind == Kind::Mask {
            Layout::Nhwc
        } else {
            self.layout(pixel.dtype)
        };
        let moved = Frame {
            width: w,
            height: h,
            pixel,
            flip_x: false,
            flip_y: false,
            layout,
        };
        let direct = to == pixel.dtype && (layout == Layout::Nhwc || pixel.channels == 1);
        let leaves = kind == Kind::Mask || self.parts.finish.leaves(pixel.dtype);
        if direct && leaves {
            gather(
                source,
                width,
                origin,
                pixel.size(),
                columns,
                rows,
                fills,
                element,
                out,
            );
            return Ok(());
        }
        let target = back.take(w * h * pixel.size());
        gather(
            source,
            width,
            origin,
            pixel.size(),
            columns,
            rows,
            fills,
            element,
            target,
        );
        let target = &*target;
        if kind == Kind::Mask {
            cast(target, pixel.dtype, out, to);
        } else if leaves {
            store_plain(&moved, target, out);
        } else if self.parts.finish.is_cast(pixel.dtype) {
            store_cast(&moved, to, target, whole.take(out.len()), out);
        } else {
            let elements = w * h * pixel.channels;
            let floats = whole.take(elements * 4);
            cast(target, pixel.dtype, floats, DType::F32);
            let affine = self.parts.finish.affine(pixel.dtype, pixel.channels)?;
            let float = Pixel {
                dtype: DType::F32,
                ..pixel
            };
            store_affine(
                &Frame {
                    pixel: float,
                    ..moved
                },
                to,
                &affine,
                floats,
                out,
            );
        }
        Ok(())
    }

    /// Region → stages → store, for uint8, uint16 and float32 pixels.
    #[allow(clippy::too_many_arguments)]
    fn run_stages(
        &self,
        kind: Kind,
        pixels: Pixels<'_>,
        pixel: Pixel,
        alpha: bool,
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<()> {
        let Scratch {
            plan,
            buffers,
            codecs,
            resampler,
            ..
        } = scratch;
        plan.narrow();
        plan.check(limits)?;
        let Buffers { whole, front, back } = buffers;
        let (w, h) = plan.size();
        let layout = if kind == Kind::Image {
            self.layout(pixel.dtype)
        } else {
            Layout::Nhwc
        };
        let leaves = kind != Kind::Image || self.parts.finish.leaves(pixel.dtype);
        let to = if kind == Kind::Image {
            self.parts.finish.output(pixel.dtype)
        } else {
            pixel.dtype
        };
        let direct = leaves
            && !plan.flip_x
            && !plan.flip_y
            && (layout == Layout::Nhwc || pixel.channels == 1)
            && (kind == Kind::Image || self.parts.array_dtype.is_none_or(|to| to == pixel.dtype));

        // The last stage writes into the slot if nothing is left to do after it.
        let region = plan.source;
        let size = region.w * region.h * pixel.size();
        let mut in_place = false;
        let borrowed = match pixels {
            Pixels::Coded {
                header,
                bytes,
                want,
                orientation,
            } => {
                in_place = direct && plan.stages.is_empty();
                let target = if in_place {
                    &mut *out
                } else {
                    front.take(size)
                };
                oriented(
                    header,
                    bytes,
                    want,
                    orientation,
                    pixel,
                    region,
                    target,
                    whole,
                    back,
                    codecs,
                    limits,
                )?;
                None
            }
            Pixels::Array { data, width } => {
                let rows = &data[region.y * width * pixel.size()..];
                if region.w == width {
                    Some(&rows[..size])
                } else {
                    let target = front.take(size);
                    for (row, source) in target
                        .chunks_exact_mut(region.w * pixel.size())
                        .zip(rows.chunks(width * pixel.size()))
                    {
                        row.copy_from_slice(
                            &source[region.x * pixel.size()..][..region.w * pixel.size()],
                        );
                    }
                    None
                }
            }
        };
        if in_place {
            return Ok(());
        }
        let mut source = borrowed;
        let mut dims = (region.w, region.h);
        let count = plan.stages.len();
        for (number, stage) in plan.stages.iter().enumerate() {
            let made = stage.window.w * stage.window.h * pixel.size();
            let last = number + 1 == count && direct;
            let input = source.unwrap_or_else(|| front.get(dims.0 * dims.1 * pixel.size()));
            let target = if last { &mut *out } else { back.take(made) };
            run_stage(stage, pixel, alpha, input, dims, target, resampler)?;
            if last {
                return Ok(());
            }
            std::mem::swap(front, back);
            source = None;
            dims = (stage.window.w, stage.window.h);
        }
        let made = source.unwrap_or_else(|| front.get(w * h * pixel.size()));
        let frame = Frame {
            width: w,
            height: h,
            pixel,
            flip_x: plan.flip_x,
            flip_y: plan.flip_y,
            layout,
        };
        if kind == Kind::Array {
            cast(
                made,
                pixel.dtype,
                out,
                self.parts.array_dtype.unwrap_or(pixel.dtype),
            );
        } else if leaves {
            store_plain(&frame, made, out);
        } else if self.parts.finish.is_cast(pixel.dtype) && !to.is_float() {
            // Between integers a cast wraps around, as NumPy's does; the factors would clip.
            store_cast(&frame, to, made, whole.take(out.len()), out);
        } else {
            let affine = self.parts.finish.affine(pixel.dtype, pixel.channels)?;
            store_affine(&frame, to, &affine, made, out);
        }
        Ok(())
    }
}

#[allow(clippy::too_many_arguments)]
fn run_stage(
    stage: &Stage,
    pixel: Pixel,
    alpha: bool,
    input: &[u8],
    size: (usize, usize),
    out: &mut [u8],
    resampler: &mut Resampler,
) -> Result<()> {
    match &stage.step {
        Step::Resample(interpolation) => {
            let task = Task {
                stage,
                interpolation: *interpolation,
                pixel,
                alpha,
                source: input,
                size,
            };
            resampler.run(&task, out)
        }
        Step::Pad {
            left, top, fill, ..
        } => {
            pad(
                stage,
                (*left, *top),
                &number_bytes(*fill, pixel.dtype),
                pixel,
                input,
                size,
                out,
            );
            Ok(())
        }
        Step::Jitter(_) | Step::Grey => {
            if pixel.dtype != DType::U8 || pixel.channels > 4 {
                return Err(unsupported(format!(
                    "a colour operation on {} channels of {}; it takes 1 to 4 of uint8",
                    pixel.channels,
                    pixel.dtype.name()
                )));
            }
            recolour(stage, pixel.channels, input, size, out);
            Ok(())
        }
    }
}

/// Colour is changed in the whole picture (its mean counts), of which the window is then kept.
fn recolour(stage: &Stage, channels: usize, input: &[u8], size: (usize, usize), out: &mut [u8]) {
    let change = |pixels: &mut [u8]| match &stage.step {
        Step::Jitter(factors) => colour::jitter(pixels, channels, factors),
        _ => colour::grey(pixels, channels),
    };
    if (stage.window.w, stage.window.h) == size {
        out.copy_from_slice(input);
        change(out);
    } else {
        let mut pixels = input.to_vec();
        change(&mut pixels);
        for (line, row) in out.chunks_exact_mut(stage.window.w * channels).enumerate() {
            let at = ((stage.window.y + line) * size.0 + stage.window.x) * channels;
            row.copy_from_slice(&pixels[at..at + stage.window.w * channels]);
        }
    }
}

fn pad(
    stage: &Stage,
    (left, top): (usize, usize),
    fill: &[u8; 8],
    pixel: Pixel,
    input: &[u8],
    size: (usize, usize),
    out: &mut [u8],
) {
    let bytes = pixel.size();
    let element = &fill[..pixel.dtype.size()];
    let paint = |place: &mut [u8]| {
        if element.iter().all(|&byte| byte == element[0]) {
            place.fill(element[0]);
        } else {
            place
                .chunks_exact_mut(element.len())
                .for_each(|value| value.copy_from_slice(element));
        }
    };
    let window = stage.window;
    // The input begins at `origin` of a picture that lies at (left, top) of the padded one.
    let (x0, y0) = (left + stage.origin.0, top + stage.origin.1);
    for (line, row) in out.chunks_exact_mut(window.w * bytes).enumerate() {
        let y = window.y + line;
        if y < y0 || y >= y0 + size.1 {
            paint(row);
            continue;
        }
        let begin = x0.saturating_sub(window.x).min(window.w);
        let end = (x0 + size.0)
            .saturating_sub(window.x)
            .clamp(begin, window.w);
        let from = ((y - y0) * size.0 + (window.x + begin).saturating_sub(x0)) * bytes;
        paint(&mut row[..begin * bytes]);
        if end > begin {
            row[begin * bytes..end * bytes]
                .copy_from_slice(&input[from..from + (end - begin) * bytes]);
        }
        paint(&mut row[end * bytes..]);
    }
}

/// Decodes `region` of the picture as it is seen after turning it by its EXIF orientation.
#[allow(clippy::too_many_arguments)]
pub(super) fn oriented(
    header: &ImageHeader,
    bytes: &[u8],
    want: Want,
    orientation: u8,
    pixel: Pixel,
    region: Rect,
    out: &mut [u8],
    whole: &mut Buffer,
    spare: &mut Buffer,
    codecs: &mut Codecs,
    limits: &Limits,
) -> Result<()> {
    if orientation == 1 {
        return header.decode(bytes, want, region, out, whole, codecs, limits);
    }
    let (w, h) = (header.width, header.height);
    let swaps = orientation >= 5;
    // In stored coordinates: which axes run backwards.
    let back_x = matches!(orientation, 2 | 3 | 7 | 8);
    let back_y = matches!(orientation, 3 | 4 | 6 | 7);
    let turned = if swaps {
        Rect {
            x: region.y,
            y: region.x,
            w: region.h,
            h: region.w,
        }
    } else {
        region
    };
    let stored = Rect {
        x: if back_x {
            w - turned.x - turned.w
        } else {
            turned.x
        },
        y: if back_y {
            h - turned.y - turned.h
        } else {
            turned.y
        },
        ..turned
    };
    let decoded = spare.take(out.len());
    header.decode(bytes, want, stored, decoded, whole, codecs, limits)?;
    let size = pixel.size();
    for (y, row) in out.chunks_exact_mut(region.w * size).enumerate() {
        for (x, place) in row.chunks_exact_mut(size).enumerate() {
            let (along, down) = if swaps { (y, x) } else { (x, y) };
            let along = if back_x { stored.w - 1 - along } else { along };
            let down = if back_y { stored.h - 1 - down } else { down };
            let at = (down * stored.w + along) * size;
            place.copy_from_slice(&decoded[at..at + size]);
        }
    }
    Ok(())
}

/// The bytes of a fill value in an element type.
fn number_bytes(value: f64, dtype: DType) -> [u8; 8] {
    let mut bytes = [0; 8];
    let value = if dtype.is_float() {
        value
    } else {
        value.round()
    };
    cast(
        &value.to_le_bytes(),
        DType::F64,
        &mut bytes[..dtype.size()],
        dtype,
    );
    bytes
}

fn integer(value: i64, dtype: DType) -> [u8; 8] {
    let mut bytes = [0; 8];
    cast(
        &value.to_le_bytes(),
        DType::I64,
        &mut bytes[..dtype.size()],
        dtype,
    );
    bytes
}
