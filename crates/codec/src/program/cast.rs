//! From one element type to another, as NumPy's `astype` does it (floats beyond an integer's range saturate).

use half::{bf16, f16};
use num_traits::AsPrimitive;

use crate::dtype::DType;

/// An element that is read from and written to bytes of any alignment.
pub(crate) trait Element: Copy + 'static {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
}

macro_rules! elements {
    ($($type:ty),*) => {
        $(impl Element for $type {
            const SIZE: usize = std::mem::size_of::<$type>();
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut raw = [0; std::mem::size_of::<$type>()];
                raw.copy_from_slice(bytes);
                <$type>::from_le_bytes(raw)
            }
            #[inline(always)]
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        })*
    };
}

elements!(u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64);

fn each<A: Element + AsPrimitive<B>, B: Element>(source: &[u8], out: &mut [u8]) {
    for (value, place) in source
        .chunks_exact(A::SIZE)
        .zip(out.chunks_exact_mut(B::SIZE))
    {
        A::read(value).as_().write(place);
    }
}

fn truth<A: Element + AsPrimitive<f64>>(source: &[u8], out: &mut [u8]) {
    for (value, place) in source.chunks_exact(A::SIZE).zip(out) {
        *place = u8::from(A::read(value).as_() != 0.0);
    }
}

/// Casts each element of `source` into `out`; both hold the same number of elements.
pub(crate) fn cast(source: &[u8], from: DType, out: &mut [u8], to: DType) {
    macro_rules! to {
        ($from:ty) => {
            match to {
                DType::Bool => truth::<$from>(source, out),
                DType::U8 => each::<$from, u8>(source, out),
                DType::I8 => each::<$from, i8>(source, out),
                DType::U16 => each::<$from, u16>(source, out),
                DType::I16 => each::<$from, i16>(source, out),
                DType::U32 => each::<$from, u32>(source, out),
                DType::I32 => each::<$from, i32>(source, out),
                DType::U64 => each::<$from, u64>(source, out),
                DType::I64 => each::<$from, i64>(source, out),
                DType::F16 => each::<$from, f16>(source, out),
                DType::BF16 => each::<$from, bf16>(source, out),
                DType::F32 => each::<$from, f32>(source, out),
                DType::F64 => each::<$from, f64>(source, out),
            }
        };
    }
    if from == to {
        out.copy_from_slice(source);
        return;
    }
    match from {
        DType::Bool | DType::U8 => to!(u8),
        DType::I8 => to!(i8),
        DType::U16 => to!(u16),
        DType::I16 => to!(i16),
        DType::U32 => to!(u32),
        DType::I32 => to!(i32),
        DType::U64 => to!(u64),
        DType::I64 => to!(i64),
        DType::F16 => to!(f16),
        DType::BF16 => to!(bf16),
        DType::F32 => to!(f32),
        DType::F64 => to!(f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<A: Element, B: Element>(value: A, from: DType, to: DType) -> B {
        let (mut source, mut out) = (vec![0; A::SIZE], vec![0; B::SIZE]);
        value.write(&mut source);
        cast(&source, from, &mut out, to);
        B::read(&out)
    }

    #[test]
    fn integers_wrap_and_floats_saturate() {
        assert_eq!(one::<i32, u8>(-1, DType::I32, DType::U8), 255);
        assert_eq!(one::<f64, u8>(300.7, DType::F64, DType::U8), 255);
        assert_eq!(one::<f32, i64>(-2.9, DType::F32, DType::I64), -2);
        assert_eq!(one::<u8, f32>(200, DType::U8, DType::F32), 200.0);
        assert_eq!(one::<i64, u8>(-7, DType::I64, DType::Bool), 1);
        assert_eq!(one::<f32, u16>(1.0, DType::F32, DType::F16), 0x3c00);
        assert_eq!(one::<f32, u16>(1.0, DType::F32, DType::BF16), 0x3f80);
        // Beyond 53 bits a detour over floats would show.
        assert_eq!(
            one::<i64, u64>((1 << 60) + 1, DType::I64, DType::U64),
            (1 << 60) + 1
        );
    }
}
