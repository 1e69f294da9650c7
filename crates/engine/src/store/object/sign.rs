//! AWS Signature Version 4 of a GET, for requests that do not go through the `object_store` crate.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, hmac};

/// SHA-256 of nothing: the body of a GET.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn hex(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
}

/// `YYYYMMDD` and `HHMMSS` of a time in UTC.
fn stamp(seconds: u64) -> (String, String) {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since 1970, counting years from March: February's end is the year's end.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (
        format!("{year:04}{month:02}{day:02}"),
        format!("{:02}{:02}{:02}", rest / 3_600, rest / 60 % 60, rest % 60),
    )
}

struct DayKey {
    day: String,
    secret: String,
    key: hmac::Key,
}

/// Signs requests for one region; keeps the day's key.
pub(super) struct Signer {
    region: String,
    key: Mutex<Option<DayKey>>,
}

/// Who signs.
pub(super) struct Credential<'a> {
    pub key_id: &'a str,
    pub secret: &'a str,
    pub token: Option<&'a str>,
}

/// What is signed.
pub(super) struct Get<'a> {
    pub host: &'a str,
    /// Percent-encoded, with the leading slash.
    pub path: &'a str,
    /// Value of the `Range` header.
    pub range: Option<&'a str>,
}

impl Signer {
    pub fn new(region: &str) -> Self {
        Self {
            region: region.to_owned(),
            key: Mutex::default(),
        }
    }

    fn day_key(&self, day: &str, secret: &str) -> hmac::Key {
        let mut kept = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept
            .as_ref()
            .filter(|kept| kept.day == day && kept.secret == secret)
        {
            return kept.key.clone();
        }
        let mut key = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{secret}").as_bytes());
        for part in [day, &self.region, "s3", "aws4_request"] {
            key = hmac::Key::new(
                hmac::HMAC_SHA256,
                hmac::sign(&key, part.as_bytes()).as_ref(),
            );
        }
        *kept = Some(DayKey {
            day: day.to_owned(),
            secret: secret.to_owned(),
            key: key.clone(),
        });
        key
    }

    /// Writes the header lines that sign the request.
    pub fn sign(
        &self,
        get: &Get<'_>,
        credential: &Credential<'_>,
        now: SystemTime,
        into: &mut String,
    ) {
        let (day, time) = stamp(
            now.duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        );
        let date = format!("{day}T{time}Z");
        let mut headers = format!("host:{}\n", get.host);
        let mut names = String::from("host");
        let mut header = |name: &str, value: &str| {
            let _ = writeln!(headers, "{name}:{value}");
            let _ = write!(names, ";{name}");
        };
        // In the order of their names, as the canonical form wants them.
        if let Some(range) = get.range {
            header("range", range);
        }
        header("x-amz-content-sha256", EMPTY);
        header("x-amz-date", &date);
        if let Some(token) = credential.token {
            header("x-amz-security-token", token);
        }
        let canonical = format!("GET\n{}\n\n{headers}\n{names}\n{EMPTY}", get.path);
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let mut text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n");
        hex(
            digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref(),
            &mut text,
        );
        let signature = hmac::sign(&self.day_key(&day, credential.secret), text.as_bytes());
        let _ = write!(
            into,
            "x-amz-content-sha256: {EMPTY}\r\nx-amz-date: {date}\r\nAuthorization: AWS4-HMAC-SHA256 \
             Credential={}/{scope}, SignedHeaders={names}, Signature=",
            credential.key_id
        );
        hex(signature.as_ref(), into);
        into.push_str("\r\n");
        if let Some(token) = credential.token {
            let _ = write!(into, "x-amz-security-token: {token}\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let join = |seconds| {
            let (day, time) = stamp(seconds);
            day + "T" + &time
        };
        assert_eq!(join(0), "19700101T000000");
        assert_eq!(join(951_782_400), "20000229T000000");
        assert_eq!(join(1_369_353_600), "20130524T000000");
        assert_eq!(join(4_107_542_399), "21000228T235959");
        assert_eq!(join(4_107_542_400), "21000301T000000");
    }

    #[test]
    fn the_signature_is_that_of_the_published_example() {
        // "GET Object" in Amazon's examples of header-based authentication.
        let signer = Signer::new("us-east-1");
        let get = Get {
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            range: Some("bytes=0-9"),
        };
        let credential = Credential {
            key_id: "AKIAIOSFODNN7EXAMPLE",
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            token: None,
        };
        let mut text = String::new();
        for _ in 0..2 {
            text.clear();
            signer.sign(
                &get,
                &credential,
                UNIX_EPOCH + Duration::from_secs(1_369_353_600),
                &mut text,
            );
        }
        assert!(
            text.contains(
                "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
            ),
            "{text}"
        );
    }
}
