//! What went wrong, in words that hold no secret.

use crate::store::{StoreError, StoreErrorKind};

/// A store's message without what might be a secret: query strings are cut off.
pub(super) fn plainly(text: &str) -> String {
    let words = text
        .split_inclusive(char::is_whitespace)
        .map(|word| match word.split_once('?') {
            Some((before, query)) if query.contains('=') => format!("{before}?… "),
            _ => word.to_owned(),
        });
    words.collect()
}

/// What is at the bottom of an error: the text of what it came from, without all that it went through.
pub(super) fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// What an HTTP status and the text behind it mean.
pub(super) fn refused(name: &str, key: &str, status: u16, text: &str) -> StoreError {
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"))
        .map(|(code, _)| code);
    let said = code.map_or(String::new(), |code| format!(", {code}"));
    let kind = match (status, code) {
        (_, Some("SlowDown" | "TooManyRequests" | "RequestLimitExceeded")) | (429 | 503, _) => {
            StoreErrorKind::Busy
        }
        (_, Some("ExpiredToken" | "InvalidAccessKeyId" | "InvalidToken"))
        | (401 | 403 | 407, _) => StoreErrorKind::Denied,
        (404 | 410, _) => StoreErrorKind::Missing,
        (416, _) => StoreErrorKind::Truncated,
        (408 | 500..=599, _) => StoreErrorKind::Unreachable,
        _ => StoreErrorKind::Other,
    };
    let what = match kind {
        StoreErrorKind::Busy => "the store asks for fewer requests",
        StoreErrorKind::Denied => {
            "the store refuses: check the credentials (environment, profile or storage options), or give anonymous=true \
             when it is public"
        }
        StoreErrorKind::Missing if code == Some("NoSuchBucket") => "there is no bucket of that name",
        StoreErrorKind::Missing => "there is no such object",
        StoreErrorKind::Truncated => "the object ends before the range",
        StoreErrorKind::Unreachable => "the store has trouble",
        _ => "the store does not understand the request",
    };
    StoreError::new(
        kind,
        format!("{name}: {key}: {what} (status {status}{said})"),
    )
}

pub(super) fn misuse(text: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Other, text)
}
