//! The one thing wanted of EXIF: which way up the picture is.
#![forbid(unsafe_code)]

/// Orientation tag (1..=8) of the first directory, if it is there and makes sense.
pub(crate) fn orientation(tiff: &[u8]) -> Option<u8> {
    let big = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if big {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        })
    };
    let long = |at: usize| -> Option<usize> {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        } as usize)
    };
    let directory = long(4)?;
    for entry in 0..usize::from(short(directory)?) {
        let at = directory.checked_add(2 + 12 * entry)?;
        if short(at)? == 0x0112 {
            let is_short = short(at + 2)? == 3 && long(at + 4)? == 1;
            let value = short(at + 8)?;
            return (is_short && (1..=8).contains(&value)).then_some(value as u8);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::orientation;

    #[test]
    fn both_byte_orders_are_read() {
        let little = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!(orientation(little), Some(6));
        assert_eq!(orientation(big), Some(8));
    }

    #[test]
    fn nonsense_is_no_orientation() {
        assert_eq!(orientation(b""), None);
        assert_eq!(orientation(b"II*\0\xff\xff\xff\xff"), None);
        assert_eq!(
            orientation(b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0"),
            None
        );
    }
}
