//! The table of formats: codes as they stand in catalogs, names, file extensions. Mirrored by
//! `python/penstock/formats.py`.

/// How a sample's bytes are coded. The codes are part of every packed data set and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Format {
    /// Elements in C order, little-endian; the catalog knows type and shape.
    Raw = 0,
    /// NumPy's .npy.
    Npy = 1,
    /// JPEG.
    Jpeg = 2,
    /// PNG.
    Png = 3,
    /// WebP.
    Webp = 4,
    /// penstock's own lossless images.
    Psi = 5,
    /// Text or anything else, given as bytes.
    Bytes = 6,
    /// JSON, given as bytes.
    Json = 7,
    /// An integer in ASCII.
    Cls = 8,
    /// A .npy compressed with raw deflate, as inside an .npz.
    NpyDeflate = 9,
}

/// Each format with its name and the extensions that mean it.
pub(crate) const TABLE: [(Format, &str, &[&str]); 10] = [
    (Format::Raw, "raw", &["raw", "bin"]),
    (Format::Npy, "npy", &["npy"]),
    (Format::Jpeg, "jpeg", &["jpg", "jpeg", "jpe", "jfif"]),
    (Format::Png, "png", &["png"]),
    (Format::Webp, "webp", &["webp"]),
    (Format::Psi, "psi", &["psi"]),
    (Format::Bytes, "bytes", &["txt", "text", "bytes"]),
    (Format::Json, "json", &["json"]),
    (Format::Cls, "cls", &["cls", "cls2", "index"]),
    (Format::NpyDeflate, "npy.deflate", &[]),
];

impl Format {
    /// The format of that code.
    pub const fn from_code(code: u8) -> Option<Format> {
        if (code as usize) < TABLE.len() {
            Some(TABLE[code as usize].0)
        } else {
            None
        }
    }

    /// Its code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The format that a file extension (without the dot, in any case) stands for.
    pub fn from_extension(extension: &str) -> Option<Format> {
        TABLE
            .iter()
            .find(|(_, _, extensions)| {
                extensions
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(extension))
            })
            .map(|(format, _, _)| *format)
    }

    /// The whole table, in the order of the codes: for the test that compares it with Python's.
    pub fn table() -> impl Iterator<Item = (u8, &'static str, &'static [&'static str])> {
        TABLE
            .iter()
            .map(|(format, name, extensions)| (format.code(), *name, *extensions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_in_the_order_of_its_codes() {
        for (index, (format, _, _)) in TABLE.iter().enumerate() {
            assert_eq!(format.code() as usize, index);
            assert_eq!(Format::from_code(index as u8), Some(*format));
        }
        assert_eq!(Format::from_code(10), None);
        assert_eq!(Format::from_code(255), None);
    }

    #[test]
    fn extensions_are_found_in_any_case_and_belong_to_one_format() {
        assert_eq!(Format::from_extension("JPG"), Some(Format::Jpeg));
        assert_eq!(Format::from_extension("exe"), None);
        let mut all: Vec<_> = Format::table()
            .flat_map(|(_, _, extensions)| extensions)
            .collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
