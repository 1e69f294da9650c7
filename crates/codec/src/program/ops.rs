//! The operations as `python/penstock/transform.py` writes them, checked once when a program is made.

use serde::Deserialize;

use crate::dtype::DType;
use crate::error::{malformed, unsupported, CodecError, Result};
use crate::field::Kind;

/// How pixels between pixels are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Interpolation {
    Nearest,
    Bilinear,
    Bicubic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    Horizontal,
    Vertical,
}

/// The channels that images come with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Rgb,
    Grey,
    Unchanged,
}

/// The order of an image's axes in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Layout {
    #[serde(rename = "NCHW")]
    Nchw,
    #[serde(rename = "NHWC")]
    Nhwc,
}

/// One number (the short side) or height and width.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Size {
    Short(usize),
    Exact([usize; 2]),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Op {
    Orient {},
    Resize {
        size: Size,
        interpolation: Interpolation,
    },
    RandomResizedCrop {
        size: [usize; 2],
        scale: [f64; 2],
        ratio: [f64; 2],
        interpolation: Interpolation,
    },
    CenterCrop {
        size: [usize; 2],
    },
    /// `padding` is left, top, right, bottom.
    RandomCrop {
        size: [usize; 2],
        padding: [usize; 4],
        fill: f64,
        mask_fill: i64,
    },
    Pad {
        padding: [usize; 4],
        fill: f64,
        mask_fill: i64,
    },
    Flip {
        p: f64,
        axis: Axis,
    },
    ColorJitter {
        brightness: [f64; 2],
        contrast: [f64; 2],
        saturation: [f64; 2],
        hue: [f64; 2],
    },
    Grayscale {
        p: f64,
    },
    Normalize {
        mean: Vec<f64>,
        std: Vec<f64>,
    },
    ToDtype {
        dtype: String,
        scale: bool,
        kind: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub version: u32,
    pub ops: Vec<Op>,
    pub mode: Mode,
    pub layout: Option<Layout>,
}

/// A mean and a standard deviation per channel, or one for all.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Normalize {
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

/// What happens to an image's values when they are stored: `(value / unit if scaled − mean) / std`, then the cast.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Finish {
    pub dtype: Option<DType>,
    pub scale: bool,
    pub normalize: Option<Normalize>,
}

/// The program, sorted into what acts on pixels and what acts on values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parts {
    /// Operations on pixels, each with its place in the program: the number of its random stream.
    pub pixel_ops: Vec<(u64, Op)>,
    pub finish: Finish,
    pub mask_dtype: Option<DType>,
    pub array_dtype: Option<DType>,
    pub mode: Mode,
    pub layout: Option<Layout>,
}

const VERSION: u32 = 1;
/// Most pixels along a side that an operation may ask for.
const MAX_SIDE: usize = 1 << 24;

pub(crate) fn parse(json: &str) -> Result<Parts> {
    let document: Document = serde_json::from_str(json)
        .map_err(|error| malformed(format!("a program that is not understood: {error}")))?;
    if document.version != VERSION {
        return Err(unsupported(format!(
            "a program of version {}; this build runs version {VERSION}",
            document.version
        )));
    }
    let mut parts = Parts {
        pixel_ops: Vec::new(),
        finish: Finish::default(),
        mask_dtype: None,
        array_dtype: None,
        mode: document.mode,
        layout: document.layout,
    };
    for (place, op) in document.ops.into_iter().enumerate() {
        check(&op)?;
        match op {
            Op::Normalize { mean, std } => {
                let finish = &mut parts.finish;
                if finish.normalize.is_some() {
                    return Err(bad("two Normalize; put them into one"));
                }
                match finish.dtype {
                    Some(dtype) if !dtype.is_float() => {
                        return Err(bad(format!(
                            "Normalize after ToDType({}): it needs a float",
                            dtype.name()
                        )));
                    }
                    Some(_) => {}
                    None => {
                        finish.dtype = Some(DType::F32);
                        finish.scale = true;
                    }
                }
                finish.normalize = Some(Normalize { mean, std });
            }
            Op::ToDtype { dtype, scale, kind } => {
                let dtype = DType::from_name(&dtype)
                    .ok_or_else(|| bad(format!("the unknown type {dtype:?}")))?;
                match Kind::from_name(&kind) {
                    Some(Kind::Image) => {
                        let finish = &mut parts.finish;
                        if finish.normalize.is_some() {
                            if !dtype.is_float() {
                                return Err(bad(format!(
                                    "ToDType({}) after Normalize would lose the fractions",
                                    dtype.name()
                                )));
                            }
                        } else if finish.dtype.is_some() {
                            return Err(bad("two ToDType for images"));
                        } else {
                            finish.scale = scale;
                        }
                        finish.dtype = Some(dtype);
                    }
                    Some(Kind::Mask) => parts.mask_dtype = Some(dtype),
                    Some(Kind::Array) => parts.array_dtype = Some(dtype),
                    _ => {
                        return Err(bad(format!(
                            "ToDType for the kind {kind:?}; image, mask and array have one"
                        )))
                    }
                }
            }
            op => {
                if parts.finish.dtype.is_some() {
                    return Err(bad(
                        "an operation on pixels after Normalize or ToDType; put those last",
                    ));
                }
                if matches!(op, Op::Orient {}) && !parts.pixel_ops.is_empty() {
                    return Err(bad("Orient after another operation; put it first"));
                }
                parts.pixel_ops.push((place as u64, op));
            }
        }
    }
    Ok(parts)
}

fn bad(message: impl Into<String>) -> CodecError {
    malformed(format!("a program with {}", message.into()))
}

fn check(op: &Op) -> Result<()> {
    let side = |value: usize| (1..=MAX_SIDE).contains(&value);
    let ordered = |range: &[f64; 2], low: f64, high: f64| {
        range[0] >= low && range[0] <= range[1] && range[1] <= high
    };
    let fine = match op {
        Op::Orient {} | Op::ToDtype { .. } => true,
        Op::Resize {
            size: Size::Short(size),
            ..
        } => side(*size),
        Op::Resize {
            size: Size::Exact(size),
            ..
        }
        | Op::CenterCrop { size } => side(size[0]) && side(size[1]),
        Op::RandomResizedCrop {
            size, scale, ratio, ..
        } => {
            side(size[0])
                && side(size[1])
                && scale[0] > 0.0
                && ordered(scale, 0.0, 1e6)
                && ratio[0] > 0.0
                && ordered(ratio, 1e-6, 1e6)
        }
        Op::RandomCrop {
            size,
            padding,
            fill,
            ..
        } => {
            side(size[0])
                && side(size[1])
                && padding.iter().all(|&value| value <= MAX_SIDE)
                && fill.is_finite()
        }
        Op::Pad { padding, fill, .. } => {
            padding.iter().all(|&value| value <= MAX_SIDE) && fill.is_finite()
        }
        Op::Flip { p, .. } | Op::Grayscale { p } => (0.0..=1.0).contains(p),
        Op::ColorJitter {
            brightness,
            contrast,
            saturation,
            hue,
        } => {
            [brightness, contrast, saturation]
                .iter()
                .all(|range| ordered(range, 0.0, 1e6))
                && ordered(hue, -0.5, 0.5)
        }
        Op::Normalize { mean, std } => {
            !mean.is_empty()
                && mean.len() == std.len()
                && mean.iter().all(|value| value.is_finite())
                && std.iter().all(|value| (1e-12..1e12).contains(value))
        }
    };
    if fine {
        Ok(())
    } else {
        Err(bad(format!("parameters out of bounds: {op:?}")))
    }
}

/// Width and height of what the operations make of any picture, where that is the same for all.
pub(crate) fn fixed_size(ops: &[(u64, Op)]) -> Option<(usize, usize)> {
    let mut fixed: Option<(usize, usize)> = None;
    for (_, op) in ops {
        fixed = match op {
            Op::Resize {
                size: Size::Exact([h, w]),
                ..
            }
            | Op::RandomResizedCrop { size: [h, w], .. }
            | Op::CenterCrop { size: [h, w] }
            | Op::RandomCrop { size: [h, w], .. } => Some((*w, *h)),
            Op::Resize { size, .. } => fixed.map(|(w, h)| super::plan::resized(*size, w, h)),
            Op::Pad {
                padding: [left, top, right, bottom],
                ..
            } => fixed.map(|(w, h)| (w + left + right, h + top + bottom)),
            _ => fixed,
        };
    }
    fixed
}
