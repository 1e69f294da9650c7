//! NumPy's .npy, versions 1 to 3, read without evaluating anything.
//!
//! The header is a Python dict literal of three keys. What NumPy writes is read by a parser of exactly that
//! grammar; headers repeat from sample to sample, so the last one is remembered.

use crate::dtype::{DType, Spec};
use crate::error::{malformed, mismatch, too_large, truncated, unsupported, Result};
use crate::scratch::Limits;

pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// A header longer than this is refused; NumPy itself refuses 10,000 characters.
const MAX_HEADER: usize = 1 << 16;

/// What a .npy says about its data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    /// Type and shape, the axes as NumPy indexes them.
    pub spec: Spec,
    /// Elements stand in big-endian byte order.
    pub big_endian: bool,
    /// The first axis varies fastest.
    pub fortran: bool,
    /// Where the data begin.
    pub offset: usize,
}

impl Header {
    /// Whether the data are, byte by byte, what a C-order little-endian tensor is.
    pub fn is_plain(&self) -> bool {
        let swapped = self.big_endian && self.spec.dtype.size() > 1;
        let transposed = self.fortran
            && self
                .spec
                .shape()
                .iter()
                .filter(|&&length| length > 1)
                .count()
                > 1;
        !swapped && !transposed
    }

    /// Checks the promised size against the limits and what is there.
    pub fn check(&self, total: u64, limits: &Limits) -> Result<usize> {
        let bytes = self.spec.bytes()?;
        if bytes as u64 > limits.max_bytes {
            return Err(too_large(format!(
                "an npy of shape {:?} and {}: {bytes} bytes, {} are allowed",
                self.spec.shape(),
                self.spec.dtype.name(),
                limits.max_bytes
            )));
        }
        let there = total.saturating_sub(self.offset as u64);
        if there < bytes as u64 {
            return Err(truncated(format!(
                "an npy that ends after {there} of {bytes} bytes of data"
            )));
        }
        if there > bytes as u64 {
            return Err(mismatch(format!(
                "an npy with {} bytes after its data; one array a file is read",
                there - bytes as u64
            )));
        }
        Ok(bytes)
    }
}

/// The last header seen and what it said.
#[derive(Default)]
pub(crate) struct HeaderCache {
    text: Vec<u8>,
    header: Option<Header>,
}

impl HeaderCache {
    /// Parses the header, or recognises it.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Header> {
        if let Some(header) = self.header {
            if bytes.starts_with(&self.text) {
                return Ok(header);
            }
        }
        let header = parse(bytes)?;
        if header.offset <= 512 {
            self.text.clear();
            self.text.extend_from_slice(&bytes[..header.offset]);
            self.header = Some(header);
        }
        Ok(header)
    }
}

/// Parses the header at the beginning of `bytes`.
pub(crate) fn parse(bytes: &[u8]) -> Result<Header> {
    let length = header_length(bytes)?;
    let text = bytes.get(length.begins..length.ends).ok_or_else(|| {
        truncated(format!(
            "an npy that ends inside its header, after {} of {} bytes",
            bytes.len(),
            length.ends
        ))
    })?;
    let mut parser = Parser { rest: text };
    let (spec, big_endian, fortran) = parser.dict()?;
    Ok(Header {
        spec,
        big_endian,
        fortran,
        offset: length.ends,
    })
}

pub(crate) struct HeaderLength {
    begins: usize,
    /// Where the data begin.
    pub ends: usize,
}

/// Where the header's text lies, from the first 12 bytes.
pub(crate) fn header_length(bytes: &[u8]) -> Result<HeaderLength> {
    if bytes.len() < 10 {
        return Err(if MAGIC.starts_with(&bytes[..bytes.len().min(6)]) {
            truncated(format!("an npy of {} bytes", bytes.len()))
        } else {
            malformed("no npy: its first bytes are not \\x93NUMPY")
        });
    }
    if !bytes.starts_with(MAGIC) {
        let head = &bytes[..6];
        return Err(malformed(format!(
            "no npy: it begins with \"{}\"",
            head.escape_ascii()
        )));
    }
    let (begins, length) = match bytes[6] {
        1 => (10, usize::from(u16::from_le_bytes([bytes[8], bytes[9]]))),
        2 | 3 => {
            let Some(field) = bytes.get(8..12) else {
                return Err(truncated(format!("an npy of {} bytes", bytes.len())));
            };
            (
                12,
                u32::from_le_bytes([field[0], field[1], field[2], field[3]]) as usize,
            )
        }
        version => {
            return Err(unsupported(format!(
                "an npy of version {version}; 1 to 3 are known"
            )))
        }
    };
    if length > MAX_HEADER {
        return Err(too_large(format!(
            "an npy header of {length} bytes; {MAX_HEADER} are allowed"
        )));
    }
    Ok(HeaderLength {
        begins,
        ends: begins + length,
    })
}

/// The grammar of NumPy's headers: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
struct Parser<'a> {
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn dict(&mut self) -> Result<(Spec, bool, bool)> {
        let mut element = None;
        let mut fortran = None;
        let mut shape = None;
        self.expect(b'{')?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            match key {
                b"descr" => element = Some(self.descr()?),
                b"fortran_order" => fortran = Some(self.boolean()?),
                b"shape" => shape = Some(self.tuple()?),
                _ => {
                    return Err(malformed(format!(
                        "an npy header with the unknown key \"{}\"",
                        key.escape_ascii()
                    )))
                }
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        if !self.rest.trim_ascii().is_empty() {
            return Err(malformed("an npy header with text after its dict"));
        }
        match (element, fortran, shape) {
            (Some((dtype, big_endian)), Some(fortran), Some(shape)) => {
                let spec = shape.with_dtype(dtype);
                spec.bytes()?;
                Ok((spec, big_endian, fortran))
            }
            _ => Err(malformed(
                "an npy header without all of descr, fortran_order and shape",
            )),
        }
    }

    fn descr(&mut self) -> Result<(DType, bool)> {
        self.skip();
        if self.rest.first() == Some(&b'[') {
            return Err(unsupported(
                "an npy of a structured type; save each of its fields as an array of its own",
            ));
        }
        let text = self.string()?;
        let (order, code) = match text.split_first() {
            Some((order @ (b'<' | b'>' | b'|' | b'='), code)) => (*order, code),
            _ => (b'=', text),
        };
        let dtype = match code {
            b"b1" | b"?" => DType::Bool,
            b"u1" => DType::U8,
            b"i1" => DType::I8,
            b"u2" => DType::U16,
            b"i2" => DType::I16,
            b"u4" => DType::U32,
            b"i4" => DType::I32,
            b"u8" => DType::U64,
            b"i8" => DType::I64,
            b"f2" => DType::F16,
            b"f4" => DType::F32,
            b"f8" => DType::F64,
            b"bfloat16" => DType::BF16,
            [b'O', ..] => {
                return Err(unsupported("an npy of Python objects: reading it would execute what it holds; save numbers instead"))
            }
            _ => {
                return Err(unsupported(format!(
                    "an npy of type \"{}\"; booleans, integers and floats of up to 64 bits are read",
                    text.escape_ascii()
                )))
            }
        };
        Ok((dtype, order == b'>'))
    }

    fn tuple(&mut self) -> Result<Spec> {
        let mut spec = Spec::scalar(DType::U8);
        self.expect(b'(')?;
        while !self.take(b')') {
            let length = self.integer()?;
            if !spec.push(length) {
                return Err(unsupported("an npy of more than 16 axes"));
            }
            if !self.take(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(spec)
    }

    fn integer(&mut self) -> Result<usize> {
        self.skip();
        let digits = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (number, rest) = self.rest.split_at(digits);
        let value = number.iter().try_fold(0usize, |value, digit| {
            value
                .checked_mul(10)?
                .checked_add(usize::from(digit - b'0'))
        });
        // Python 2 wrote long integers with an L.
        self.rest = rest.strip_prefix(b"L").unwrap_or(rest);
        match value {
            Some(value) if digits > 0 => Ok(value),
            Some(_) => Err(malformed(
                "an npy header whose shape holds something else than lengths",
            )),
            None => Err(too_large("an npy header with an axis beyond 64 bits")),
        }
    }

    fn boolean(&mut self) -> Result<bool> {
        self.skip();
        for (word, value) in [(&b"False"[..], false), (b"True", true)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(malformed(
            "an npy header whose fortran_order is neither True nor False",
        ))
    }

    fn string(&mut self) -> Result<&'a [u8]> {
        self.skip();
        let quote = match self.rest.first() {
            Some(&quote @ (b'\'' | b'"')) => quote,
            _ => {
                return Err(malformed(
                    "an npy header with something else where a string should be",
                ))
            }
        };
        let inside = &self.rest[1..];
        let length = inside
            .iter()
            .position(|&byte| byte == quote)
            .ok_or_else(|| malformed("an npy header with a string that does not end"))?;
        self.rest = &inside[length + 1..];
        Ok(&inside[..length])
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip();
        let found = self.rest.first() == Some(&byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(malformed(format!(
                "an npy header without a '{}' where one should be",
                byte as char
            )))
        }
    }
}

/// Writes the data as a C-order little-endian tensor. `data` and `out` have the size that the header says.
pub(crate) fn write(header: &Header, data: &[u8], out: &mut [u8]) {
    if header.is_plain() {
        out.copy_from_slice(data);
        return;
    }
    if header.fortran {
        match header.spec.dtype.size() {
            1 => transpose::<1>(header.spec.shape(), data, out),
            2 => transpose::<2>(header.spec.shape(), data, out),
            4 => transpose::<4>(header.spec.shape(), data, out),
            _ => transpose::<8>(header.spec.shape(), data, out),
        }
    } else {
        out.copy_from_slice(data);
    }
    if header.big_endian {
        swap(header.spec.dtype.size(), out);
    }
}

/// Reverses the bytes of each element in place.
fn swap(size: usize, out: &mut [u8]) {
    fn reverse<const N: usize>(out: &mut [u8]) {
        for element in out.chunks_exact_mut(N) {
            element.reverse();
        }
    }
    match size {
        2 => reverse::<2>(out),
        4 => reverse::<4>(out),
        8 => reverse::<8>(out),
        _ => {}
    }
}

/// From Fortran order to C order: the odometer runs over all axes but the last, which is strided.
fn transpose<const N: usize>(shape: &[usize], data: &[u8], out: &mut [u8]) {
    let Some((&last, outer)) = shape.split_last() else {
        out.copy_from_slice(data);
        return;
    };
    if out.is_empty() {
        return;
    }
    let last_stride: usize = outer.iter().product::<usize>() * N;
    let mut index = [0usize; crate::dtype::MAX_RANK];
    let mut from = 0;
    for row in out.chunks_exact_mut(last * N) {
        for (position, element) in row.chunks_exact_mut(N).enumerate() {
            let at = from + position * last_stride;
            element.copy_from_slice(&data[at..at + N]);
        }
        // The next index in C order: the last of the outer axes turns fastest.
        let mut axis = outer.len();
        while axis > 0 {
            axis -= 1;
            let stride: usize = outer[..axis].iter().product::<usize>() * N;
            index[axis] += 1;
            from += stride;
            if index[axis] < outer[axis] {
                break;
            }
            from -= stride * outer[axis];
            index[axis] = 0;
        }
    }
}
