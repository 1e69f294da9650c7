//! An integer in ASCII, as in WebDataset's `.cls`.

use crate::error::{malformed, truncated, Result};

/// The number; white space around it is allowed, as a newline at the end of the file is usual.
pub(crate) fn parse(bytes: &[u8]) -> Result<i64> {
    let digits = bytes.trim_ascii();
    if digits.is_empty() {
        return Err(truncated(
            "a class of 0 characters where an integer should be",
        ));
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| {
            let head = &digits[..digits.len().min(24)];
            malformed(format!(
                "a class \"{}\" that is no 64-bit integer",
                head.escape_ascii()
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CodecErrorKind;

    #[test]
    fn integers_of_64_bits_are_read() {
        assert_eq!(parse(b"17\n").unwrap(), 17);
        assert_eq!(parse(b" -3 ").unwrap(), -3);
        assert_eq!(parse(b"9223372036854775807").unwrap(), i64::MAX);
    }

    #[test]
    fn anything_else_is_an_error() {
        assert_eq!(parse(b" \n").unwrap_err().kind, CodecErrorKind::Truncated);
        for bad in [
            &b"cat"[..],
            b"1.5",
            b"9223372036854775808",
            b"1 2",
            b"\xff\xfe",
        ] {
            assert_eq!(parse(bad).unwrap_err().kind, CodecErrorKind::Malformed);
        }
    }
}
