//! Programs: compiled once, run per sample.

mod cast;
mod colour;
mod encoded;
mod gather;
mod ops;
pub(crate) mod plan;
pub(crate) mod resample;
mod resample_simd;
mod run;
mod simd;
mod store;

use crate::dtype::{DType, Spec, TensorSpec};
use crate::error::{mismatch, truncated, Result};
use crate::field::{FieldSpec, Kind};
use crate::format::Format;
use crate::formats::{cls, npy, psi};
use crate::image::{ImageHeader, Pixel, Want};
use crate::scratch::{Limits, Scratch};
use crate::{CodecError, Draw};

pub use encoded::RECORD;
use ops::{Finish, Layout, Mode, Op, Parts};

/// The transform of a loader: which operations, which element type, which layout.
///
/// Shared by all threads; what changes per sample is in the [`Scratch`].
#[derive(Debug, Clone)]
pub struct Program {
    parts: Parts,
}

/// A sample whose bytes, from `offset` on, are the tensor itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// What they are.
    pub spec: TensorSpec,
    /// Where they begin.
    pub offset: u64,
}

/// What is known of a sample once its header is read.
enum Source {
    /// Elements as they lie, from `offset`; for `npy` perhaps in another order.
    Plain { header: npy::Header },
    /// The same, deflated.
    Deflated { header: npy::Header },
    /// A number in ASCII.
    Number(i64),
    /// A PSI file taken as an array.
    Packed(Spec),
    /// A picture in a codec.
    Picture(ImageHeader),
}

impl Program {
    /// Compiles what `python/penstock/transform.py` writes.
    pub fn from_json(json: &str) -> std::result::Result<Program, CodecError> {
        ops::parse(json).map(|parts| Program { parts })
    }

    /// Type and shape of the field's tensors where they do not depend on the sample.
    pub fn fixed_output(&self, field: &FieldSpec) -> Option<TensorSpec> {
        match field.kind {
            Kind::Bytes | Kind::Encoded => None,
            Kind::Scalar => field
                .raw
                .clone()
                .or_else(|| Some(TensorSpec::new(DType::I64, []))),
            Kind::Array => field.raw.clone().map(|spec| TensorSpec {
                dtype: self.parts.array_dtype.unwrap_or(spec.dtype),
                ..spec
            }),
            Kind::Image | Kind::Mask => self.fixed_picture(field),
        }
    }

    /// Type and shape of this sample's tensor, from its header alone, which claims no more than `limits`.
    pub fn output(
        &self,
        field: &FieldSpec,
        format: Format,
        bytes: &[u8],
        draw: &Draw,
        limits: &Limits,
    ) -> std::result::Result<TensorSpec, CodecError> {
        let mut scratch = Scratch::default();
        if field.kind == Kind::Bytes {
            return Ok(Spec::flat(DType::U8, bytes.len()).into());
        }
        if field.kind == Kind::Encoded {
            let file = self.plain_file(bytes, &mut scratch, limits)?;
            return Ok(Spec::flat(DType::U8, RECORD + file.len()).into());
        }
        let source = self.source(field, format, bytes, &mut scratch, limits)?;
        self.spec(field, &source, draw, &mut scratch)
            .map(TensorSpec::from)
    }

    /// Decodes and transforms the sample into `out`, whose length is that of [`Program::output`].
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        field: &FieldSpec,
        format: Format,
        bytes: &[u8],
        draw: &Draw,
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> std::result::Result<(), CodecError> {
        self.dispatch(field, format, bytes, draw, None, out, scratch, limits)
            .map(|_| ())
    }

    /// As [`Program::run`], if the sample's tensor is the `expected` one: reads the header once and allocates
    /// nothing. Otherwise nothing is written and what the tensor would be is returned.
    #[allow(clippy::too_many_arguments)]
    pub fn run_expecting(
        &self,
        field: &FieldSpec,
        format: Format,
        bytes: &[u8],
        draw: &Draw,
        expected: &TensorSpec,
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> std::result::Result<Option<TensorSpec>, CodecError> {
        self.dispatch(
            field,
            format,
            bytes,
            draw,
            Some(expected),
            out,
            scratch,
            limits,
        )
    }

    /// Where the sample's bytes are the tensor already, for engines that read them straight into the slot.
    ///
    /// `header` is the beginning of the sample, as much of it as was read; `total_len` its whole length. None
    /// means that the sample must go through [`Program::run`].
    pub fn payload(
        &self,
        field: &FieldSpec,
        format: Format,
        header: &[u8],
        total_len: u64,
    ) -> std::result::Result<Option<Payload>, CodecError> {
        if field.kind == Kind::Bytes {
            let Ok(length) = usize::try_from(total_len) else {
                return Ok(None);
            };
            return Ok(Some(Payload {
                spec: Spec::flat(DType::U8, length).into(),
                offset: 0,
            }));
        }
        let header = match format {
            Format::Raw => raw_header(field, total_len)?,
            Format::Npy => npy::parse(header)?,
            _ => return Ok(None),
        };
        if !header.is_plain() || !self.leaves_alone(field.kind, &header.spec) {
            return Ok(None);
        }
        header.check(
            total_len,
            &Limits {
                max_pixels: u64::MAX,
                max_bytes: u64::MAX,
            },
        )?;
        Ok(Some(Payload {
            spec: header.spec.into(),
            offset: header.offset as u64,
        }))
    }

    #[allow(clippy::too_many_arguments)]
    fn dispatch(
        &self,
        field: &FieldSpec,
        format: Format,
        bytes: &[u8],
        draw: &Draw,
        expected: Option<&TensorSpec>,
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<Option<TensorSpec>> {
        if field.kind == Kind::Bytes {
            let spec = Spec::flat(DType::U8, bytes.len());
            if let Some(other) = differs(&spec, expected, out)? {
                return Ok(Some(other));
            }
            out.copy_from_slice(bytes);
            return Ok(None);
        }
        if field.kind == Kind::Encoded {
            let file = self.plain_file(bytes, scratch, limits)?;
            let spec = Spec::flat(DType::U8, RECORD + file.len());
            if let Some(other) = differs(&spec, expected, out)? {
                return Ok(Some(other));
            }
            let (record, place) = out.split_at_mut(RECORD);
            self.write_record(&file, draw, record, scratch, limits)?;
            place.copy_from_slice(&file);
            return Ok(None);
        }
        let source = self.source(field, format, bytes, scratch, limits)?;
        let spec = self.spec(field, &source, draw, scratch)?;
        if let Some(other) = differs(&spec, expected, out)? {
            return Ok(Some(other));
        }
        match source {
            Source::Number(value) => out.copy_from_slice(&value.to_le_bytes()),
            Source::Plain { header } => {
                let data = &bytes[header.offset..];
                if header.is_plain() && self.leaves_alone(field.kind, &header.spec) {
                    out.copy_from_slice(data);
                } else {
                    self.run_elements(field, &header, data, out, scratch, limits)?;
                }
            }
            Source::Deflated { header } => {
                if header.is_plain() && self.leaves_alone(field.kind, &header.spec) {
                    scratch.inflater.data(bytes, out)?;
                } else {
                    let mut whole = std::mem::take(&mut scratch.buffers.whole);
                    let data = whole.take(header.spec.bytes()?);
                    let result = scratch.inflater.data(bytes, data).and_then(|()| {
                        self.run_elements(field, &header, data, out, scratch, limits)
                    });
                    scratch.buffers.whole = whole;
                    result?;
                }
            }
            Source::Packed(stored) if stored.dtype == spec.dtype => {
                psi::decode_array(bytes, out, &mut scratch.codecs.psi)?;
            }
            Source::Packed(stored) => {
                let whole = scratch.buffers.whole.take(stored.bytes()?);
                psi::decode_array(bytes, whole, &mut scratch.codecs.psi)?;
                cast::cast(whole, stored.dtype, out, spec.dtype);
            }
            Source::Picture(header) => {
                self.run_picture(field, &header, bytes, out, scratch, limits)?
            }
        }
        Ok(None)
    }

    /// Reads the header and checks everything that it promises.
    fn source(
        &self,
        field: &FieldSpec,
        format: Format,
        bytes: &[u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<Source> {
        match format {
            Format::Raw => {
                let header = raw_header(field, bytes.len() as u64)?;
                header.check(bytes.len() as u64, limits)?;
                Ok(Source::Plain { header })
            }
            Format::Npy => {
                let header = scratch.npy.parse(bytes)?;
                header.check(bytes.len() as u64, limits)?;
                Ok(Source::Plain { header })
            }
            Format::NpyDeflate => Ok(Source::Deflated {
                header: scratch.inflater.header(bytes, limits)?,
            }),
            Format::Cls => Ok(Source::Number(cls::parse(bytes)?)),
            Format::Bytes | Format::Json => {
                let spec = Spec::flat(DType::U8, bytes.len());
                let header = npy::Header {
                    spec,
                    big_endian: false,
                    fortran: false,
                    offset: 0,
                };
                Ok(Source::Plain { header })
            }
            Format::Psi if field.kind == Kind::Array => {
                psi::array(bytes, limits).map(Source::Packed)
            }
            Format::Jpeg | Format::Png | Format::Webp | Format::Psi => {
                ImageHeader::read(bytes, limits).map(Source::Picture)
            }
        }
    }

    /// The tensor that a sample becomes; for pictures the plan is made and left in the scratch.
    fn spec(
        &self,
        field: &FieldSpec,
        source: &Source,
        draw: &Draw,
        scratch: &mut Scratch,
    ) -> Result<Spec> {
        match (source, field.kind) {
            (Source::Number(_), _) => Ok(Spec::scalar(DType::I64)),
            (Source::Packed(spec), _) => {
                Ok(spec.with_dtype(self.parts.array_dtype.unwrap_or(spec.dtype)))
            }
            (Source::Plain { header } | Source::Deflated { header }, Kind::Image | Kind::Mask) => {
                if self.leaves_alone(field.kind, &header.spec) {
                    return Ok(header.spec);
                }
                let grid = Grid::of(field, &header.spec)?;
                scratch.plan.build(
                    self.ops(field.kind),
                    grid.width,
                    grid.height,
                    field.kind == Kind::Mask,
                    draw,
                )?;
                self.picture_spec(
                    field.kind,
                    grid.pixel,
                    grid.has_channels,
                    scratch.plan.size(),
                )
            }
            (Source::Plain { header } | Source::Deflated { header }, kind) => {
                let dtype = match kind {
                    Kind::Array => self.parts.array_dtype.unwrap_or(header.spec.dtype),
                    _ => header.spec.dtype,
                };
                Ok(header.spec.with_dtype(dtype))
            }
            (Source::Picture(header), kind) => {
                let pixel = header.pixel(self.want(kind))?;
                let (width, height) = self.oriented(kind, header);
                scratch
                    .plan
                    .build(self.ops(kind), width, height, kind == Kind::Mask, draw)?;
                let spec =
                    self.picture_spec(kind, pixel, kind != Kind::Mask, scratch.plan.size())?;
                Ok(match kind {
                    Kind::Array => spec.with_dtype(self.parts.array_dtype.unwrap_or(spec.dtype)),
                    _ => spec,
                })
            }
        }
    }

    fn fixed_picture(&self, field: &FieldSpec) -> Option<TensorSpec> {
        let mut plan = plan::Plan::default();
        let draw = Draw::new(0, 0, 0);
        let mask = field.kind == Kind::Mask;
        if let Some(raw) = &field.raw {
            let spec = Spec::new(raw.dtype, &raw.shape).ok()?;
            if self.leaves_alone(field.kind, &spec) {
                return Some(raw.clone());
            }
            // All sizes that operations lead to depend on the size alone, never on the draw.
            let grid = Grid::of(field, &spec).ok()?;
            plan.build(self.ops(field.kind), grid.width, grid.height, mask, &draw)
                .ok()?;
            return self
                .picture_spec(field.kind, grid.pixel, grid.has_channels, plan.size())
                .ok()
                .map(Into::into);
        }
        let pixel = match (field.kind, self.parts.mode, self.parts.mask_dtype) {
            (Kind::Mask, _, Some(dtype)) => Pixel { dtype, channels: 1 },
            (Kind::Image, Mode::Rgb, _) => Pixel {
                dtype: DType::U8,
                channels: 3,
            },
            (Kind::Image, Mode::Grey, _) => Pixel {
                dtype: DType::U8,
                channels: 1,
            },
            _ => return None,
        };
        let size = ops::fixed_size(&self.parts.pixel_ops)?;
        self.picture_spec(field.kind, pixel, !mask, size)
            .ok()
            .map(Into::into)
    }

    /// Whether elements stored as a tensor come out exactly as they are.
    fn leaves_alone(&self, kind: Kind, spec: &Spec) -> bool {
        match kind {
            Kind::Image => {
                let finish = &self.parts.finish;
                self.parts.pixel_ops.is_empty()
                    && finish.output(spec.dtype) == spec.dtype
                    && finish.is_cast(spec.dtype)
                    && (self.layout(spec.dtype) == Layout::Nhwc || spec.shape().len() != 3)
            }
            Kind::Mask => {
                self.parts.pixel_ops.is_empty()
                    && self.parts.mask_dtype.is_none_or(|to| to == spec.dtype)
            }
            Kind::Array => self.parts.array_dtype.is_none_or(|to| to == spec.dtype),
            Kind::Bytes | Kind::Scalar => true,
            Kind::Encoded => false,
        }
    }

    fn ops(&self, kind: Kind) -> &[(u64, Op)] {
        match kind {
            Kind::Image | Kind::Mask => &self.parts.pixel_ops,
            _ => &[],
        }
    }

    fn want(&self, kind: Kind) -> Want {
        match (kind, self.parts.mode) {
            (Kind::Mask, _) => Want::Values,
            (Kind::Image, Mode::Rgb) => Want::Rgb,
            (Kind::Image, Mode::Grey) => Want::Grey,
            _ => Want::Unchanged,
        }
    }

    /// The orientation to apply: 1 unless the program orients.
    fn orientation(&self, kind: Kind, header: &ImageHeader) -> u8 {
        match self.ops(kind).first() {
            Some((_, Op::Orient {})) => header.orientation,
            _ => 1,
        }
    }

    fn oriented(&self, kind: Kind, header: &ImageHeader) -> (usize, usize) {
        match self.orientation(kind, header) {
            5..=8 => (header.height, header.width),
            _ => (header.width, header.height),
        }
    }

    /// The order of axes for images of this element type: planes for floats unless said otherwise.
    fn layout(&self, from: DType) -> Layout {
        self.parts.layout.unwrap_or(
            if self.parts.finish.output(from).is_float() && self.parts.finish.dtype.is_some() {
                Layout::Nchw
            } else {
                Layout::Nhwc
            },
        )
    }

    fn picture_spec(
        &self,
        kind: Kind,
        pixel: Pixel,
        has_channels: bool,
        (w, h): (usize, usize),
    ) -> Result<Spec> {
        let dtype = match kind {
            Kind::Mask => self.parts.mask_dtype.unwrap_or(pixel.dtype),
            Kind::Image => self.parts.finish.output(pixel.dtype),
            _ => pixel.dtype,
        };
        let shape: &[usize] = match (
            has_channels,
            kind == Kind::Image && self.layout(pixel.dtype) == Layout::Nchw,
        ) {
            (false, _) => &[h, w],
            (true, true) => &[pixel.channels, h, w],
            (true, false) => &[h, w, pixel.channels],
        };
        let spec = Spec::new(dtype, shape)?;
        spec.bytes()?;
        Ok(spec)
    }
}

/// An array seen as a picture: height and width first, channels last.
struct Grid {
    width: usize,
    height: usize,
    pixel: Pixel,
    has_channels: bool,
}

impl Grid {
    fn of(field: &FieldSpec, spec: &Spec) -> Result<Grid> {
        let (shape, has_channels) = match *spec.shape() {
            [h, w] => ([h, w, 1], false),
            [h, w, c] if field.kind == Kind::Image => ([h, w, c], true),
            _ => {
                let wanted = if field.kind == Kind::Mask {
                    "[H, W]"
                } else {
                    "[H, W] or [H, W, C]"
                };
                let (kind, shape) = (field.kind.name(), spec.shape());
                return Err(mismatch(format!("an array of shape {shape:?} as {kind} field; {wanted} is needed to transform it")));
            }
        };
        let [height, width, channels] = shape;
        if height == 0 || width == 0 || channels == 0 {
            return Err(mismatch(format!(
                "an array of shape {:?} as {} field: it has no pixels",
                spec.shape(),
                field.kind.name()
            )));
        }
        // Index tables count in 32 bits.
        if height.max(width) > i32::MAX as usize {
            return Err(crate::error::too_large(format!(
                "an array of shape {:?} as a picture",
                spec.shape()
            )));
        }
        Ok(Grid {
            width,
            height,
            pixel: Pixel {
                dtype: spec.dtype,
                channels,
            },
            has_channels,
        })
    }
}

/// A raw row, described as an npy without a header.
fn raw_header(field: &FieldSpec, length: u64) -> Result<npy::Header> {
    let spec = field.raw.as_ref().ok_or_else(|| {
        mismatch(format!(
            "the raw field {:?}, whose type and shape nothing says",
            field.name
        ))
    })?;
    let header = npy::Header {
        spec: Spec::new(spec.dtype, &spec.shape)?,
        big_endian: false,
        fortran: false,
        offset: 0,
    };
    let bytes = header.spec.bytes()? as u64;
    if length < bytes {
        return Err(truncated(format!(
            "a raw row of {length} bytes; {} {:?} takes {bytes}",
            spec.dtype.name(),
            spec.shape
        )));
    }
    if length > bytes {
        return Err(mismatch(format!(
            "a raw row of {length} bytes; {} {:?} takes {bytes}",
            spec.dtype.name(),
            spec.shape
        )));
    }
    Ok(header)
}

/// None if the sample may be written to `out`; the actual spec if another one was expected.
fn differs(spec: &Spec, expected: Option<&TensorSpec>, out: &[u8]) -> Result<Option<TensorSpec>> {
    if let Some(expected) = expected {
        if !spec.matches(expected) {
            return Ok(Some((*spec).into()));
        }
    }
    let bytes = spec.bytes()?;
    if bytes != out.len() {
        return Err(mismatch(format!(
            "a slot of {} bytes for a {} {:?} of {bytes}",
            out.len(),
            spec.dtype.name(),
            spec.shape()
        )));
    }
    Ok(None)
}

impl Finish {
    fn leaves(&self, from: DType) -> bool {
        self.is_cast(from) && self.output(from) == from
    }
}
