//! What the metadata section holds: chunks, each a name of four ASCII characters, the length of its bytes as a
//! little-endian 32-bit number, and the bytes. They follow each other without gaps and end with the section.
//!
//! `ICCP` is an ICC profile, `EXIF` an EXIF block from its TIFF header on, `XMP ` an XMP packet, `JSON` the user's own
//! values, `PLTE` colours for single-channel indices (RGBA, four bytes each). Readers pass over names that they do not know.

use crate::error::{Error, Result};

/// Bytes of the chunk of that name; None where there is none.
///
/// # Errors
/// [`Error::Malformed`] where the section is not made of chunks.
pub fn chunk<'a>(metadata: &'a [u8], name: &[u8; 4]) -> Result<Option<&'a [u8]>> {
    let mut rest = metadata;
    while let Some((head, after)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if length > after.len() {
            return Err(Error::malformed("a chunk of its metadata ends after the metadata"));
        }
        let (content, next) = after.split_at(length);
        if head[..4] == name[..] {
            return Ok(Some(content));
        }
        rest = next;
    }
    if rest.is_empty() {
        Ok(None)
    } else {
        Err(Error::malformed("its metadata do not end with a chunk"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_found_by_name_and_no_length_is_trusted() {
        let mut section = b"EXIF\x03\0\0\0abcICCP\0\0\0\0JSON\x02\0\0\0{}".to_vec();
        assert_eq!(chunk(&section, b"EXIF").unwrap(), Some(&b"abc"[..]));
        assert_eq!(chunk(&section, b"ICCP").unwrap(), Some(&b""[..]));
        assert_eq!(chunk(&section, b"JSON").unwrap(), Some(&b"{}"[..]));
        assert_eq!(chunk(&section, b"PLTE").unwrap(), None);
        assert_eq!(chunk(&[], b"PLTE").unwrap(), None);
        section.pop();
        assert!(chunk(&section, b"PLTE").is_err());
        assert!(chunk(b"EXIF\xff\xff\xff\xff", b"PLTE").is_err());
        assert!(chunk(b"EXIF", b"EXIF").is_err());
    }
}
