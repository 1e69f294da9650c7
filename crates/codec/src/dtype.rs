//! Element types and shapes.

use crate::error::{too_large, unsupported, Result};

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl DType {
    /// Every type, in the order of the enum.
    pub const ALL: [DType; 13] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::U16,
        DType::I16,
        DType::U32,
        DType::I32,
        DType::U64,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
        }
    }

    /// NumPy's name (`bfloat16` as torch and ml_dtypes call it).
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::I8 => "int8",
            DType::U16 => "uint16",
            DType::I16 => "int16",
            DType::U32 => "uint32",
            DType::I32 => "int32",
            DType::U64 => "uint64",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
        }
    }

    /// The type of that name, if there is one.
    pub fn from_name(name: &str) -> Option<DType> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Whether it is one of the floating types.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// What stands for 1.0 when values are scaled: the largest value of an integer type, 1 of a float.
    pub(crate) const fn unit(self) -> f64 {
        match self {
            DType::U8 => 255.0,
            DType::I8 => 127.0,
            DType::U16 => 65_535.0,
            DType::I16 => 32_767.0,
            DType::U32 => 4_294_967_295.0,
            DType::I32 => 2_147_483_647.0,
            DType::U64 => 18_446_744_073_709_551_615.0,
            DType::I64 => 9_223_372_036_854_775_807.0,
            DType::Bool | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => 1.0,
        }
    }
}

/// Type and shape of a tensor in C order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Type of an element.
    pub dtype: DType,
    /// Length of each axis; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A spec of this type and shape.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        TensorSpec {
            dtype,
            shape: shape.into(),
        }
    }

    /// Size in bytes; an error where that does not fit a `usize`.
    pub fn bytes(&self) -> std::result::Result<usize, crate::CodecError> {
        checked_bytes(self.dtype, &self.shape)
    }
}

fn checked_bytes(dtype: DType, shape: &[usize]) -> Result<usize> {
    // An axis of length 0 makes the whole empty, but its neighbours must still be sane.
    let mut bytes = dtype.size();
    let mut empty = false;
    for &length in shape {
        if length == 0 {
            empty = true;
            continue;
        }
        bytes = bytes
            .checked_mul(length)
            .filter(|&n| n <= isize::MAX as usize)
            .ok_or_else(|| {
                too_large(format!(
                    "an array of shape {shape:?} and type {} does not fit into memory",
                    dtype.name()
                ))
            })?;
    }
    Ok(if empty { 0 } else { bytes })
}

/// Most axes that an array may have: enough for any data set, small enough to be passed by value.
pub(crate) const MAX_RANK: usize = 16;

/// A [`TensorSpec`] without an allocation, for the path that runs per sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub dtype: DType,
    rank: u8,
    lengths: [usize; MAX_RANK],
}

impl Spec {
    pub fn new(dtype: DType, shape: &[usize]) -> Result<Spec> {
        if shape.len() > MAX_RANK {
            return Err(unsupported(format!(
                "an array of {} axes; {MAX_RANK} are supported",
                shape.len()
            )));
        }
        let mut lengths = [0; MAX_RANK];
        lengths[..shape.len()].copy_from_slice(shape);
        Ok(Spec {
            dtype,
            rank: shape.len() as u8,
            lengths,
        })
    }

    pub fn scalar(dtype: DType) -> Spec {
        Spec {
            dtype,
            rank: 0,
            lengths: [0; MAX_RANK],
        }
    }

    pub fn flat(dtype: DType, length: usize) -> Spec {
        let mut spec = Spec::scalar(dtype);
        spec.rank = 1;
        spec.lengths[0] = length;
        spec
    }

    /// Adds an axis; false when there is no room for it.
    pub fn push(&mut self, length: usize) -> bool {
        let Some(slot) = self.lengths.get_mut(self.rank as usize) else {
            return false;
        };
        *slot = length;
        self.rank += 1;
        true
    }

    pub fn shape(&self) -> &[usize] {
        &self.lengths[..self.rank as usize]
    }

    pub fn bytes(&self) -> Result<usize> {
        checked_bytes(self.dtype, self.shape())
    }

    pub fn with_dtype(mut self, dtype: DType) -> Spec {
        self.dtype = dtype;
        self
    }

    pub fn matches(&self, other: &TensorSpec) -> bool {
        self.dtype == other.dtype && self.shape() == other.shape
    }
}

impl From<Spec> for TensorSpec {
    fn from(spec: Spec) -> TensorSpec {
        TensorSpec {
            dtype: spec.dtype,
            shape: spec.shape().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_checked_against_overflow() {
        assert_eq!(TensorSpec::new(DType::F32, [3, 5]).bytes().unwrap(), 60);
        assert_eq!(TensorSpec::new(DType::F64, []).bytes().unwrap(), 8);
        assert_eq!(TensorSpec::new(DType::F64, [0, 7]).bytes().unwrap(), 0);
        let huge = TensorSpec::new(DType::F64, [1 << 40, 1 << 40]);
        assert_eq!(
            huge.bytes().unwrap_err().kind,
            crate::CodecErrorKind::TooLarge
        );
    }

    #[test]
    fn names_lead_back_to_their_types() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_name("object"), None);
    }
}
