//! GET over plain HTTP/1.1, as directly as it goes.
//!
//! For endpoints without TLS (a store in the same room, a cache, a test) the general client's layers cost more than
//! the wire. Here a request is one write, and the body is read into the memory that it stays in: head and body share
//! a buffer, and what is handed out is the part behind the head. Connections are kept open and belong to one client;
//! each fetch thread has a client of its own. What is unusual (redirects, chunked bodies, compression) is left to the
//! general client: [`Plain::get`] says so.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use object_store::aws::AwsCredentialProvider;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::buffers::{Buffer, Buffers};
use super::sign::{Credential, Get, Signer};
use crate::store::{Ahead, FirstByte, StoreError, StoreErrorKind};

/// Room for the head of an answer.
const HEAD: usize = 8 << 10;
/// The first buffer of a body whose length nobody knows.
const UNKNOWN: usize = 248 << 10;
/// Whole objects of unknown length are refused above this.
const LARGEST: u64 = 4 << 30;
/// A connection is given up when it was not made within this time.
const CONNECT: Duration = Duration::from_secs(10);
/// The longest error text that is read.
const ERROR_TEXT: u64 = 16 << 10;

/// Where to connect, what to ask for, who signs.
pub(super) struct Place {
    pub host: String,
    pub port: u16,
    /// Value of the `Host` header.
    pub authority: String,
    /// Percent-encoded, from the first slash to the last: keys come behind it.
    pub path: String,
    /// Goes behind the key of every request; signed requests have none.
    pub query: Option<String>,
    pub signing: Option<(Signer, AwsCredentialProvider)>,
    /// The store's name in messages.
    pub name: String,
}

/// A client with connections of its own.
pub(super) struct Plain {
    place: Arc<Place>,
    buffers: Arc<Buffers>,
    /// The last is taken first: one that has carried much has the widest window.
    idle: Mutex<VecDeque<TcpStream>>,
    /// Connections that are being opened ahead.
    coming: AtomicUsize,
}

/// A connection that is being opened ahead, counted until it is there or given up.
struct Coming<'a>(&'a AtomicUsize);

impl<'a> Coming<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What came of a request.
pub(super) enum Got {
    Bytes(Bytes),
    /// The general client is to try.
    Unusual,
}

/// What an answer's head says.
struct Head {
    status: u16,
    /// Of the head, in bytes.
    end: usize,
    length: Option<u64>,
    range_start: Option<u64>,
    plain: bool,
    keep: bool,
}

/// Percent-encodes a key; slashes stay.
pub(super) fn encode(key: &str, into: &mut String) {
    for byte in key.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                into.push(byte as char)
            }
            _ => {
                let _ = write!(into, "%{byte:02X}");
            }
        }
    }
}

/// The head, when it is whole. An error is no HTTP.
fn head(bytes: &[u8]) -> Result<Option<Head>, String> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Response::new(&mut headers);
    let end = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("the answer is no HTTP: {error}")),
    };
    let mut found = Head {
        status: parsed.code.unwrap_or(0),
        end,
        length: None,
        range_start: None,
        plain: true,
        keep: parsed.version == Some(1),
    };
    for header in parsed.headers.iter() {
        let value = || std::str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("content-length") {
            found.length = Some(
                value()
                    .parse()
                    .map_err(|_| "the answer's length is no number".to_owned())?,
            );
        } else if header.name.eq_ignore_ascii_case("content-range") {
            let start = value()
                .strip_prefix("bytes ")
                .and_then(|rest| rest.split_once('-'));
            found.range_start = start.and_then(|(start, _)| start.parse().ok());
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            found.plain = false;
        } else if header.name.eq_ignore_ascii_case("content-encoding") {
            found.plain &= value().eq_ignore_ascii_case("identity");
        } else if header.name.eq_ignore_ascii_case("connection") {
            found.keep &= !value().eq_ignore_ascii_case("close");
        }
    }
    Ok(Some(found))
}

/// A connection that broke, and whether a byte of the answer had come.
struct Broken {
    text: String,
    answered: bool,
}

impl Plain {
    pub fn new(place: Arc<Place>) -> Self {
        Self {
            place,
            buffers: Arc::default(),
            idle: Mutex::default(),
            coming: AtomicUsize::new(0),
        }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<TcpStream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`AsyncStore::connect_ahead`](crate::store::AsyncStore::connect_ahead).
    pub fn connect_ahead(&self, spare: usize) -> Option<Ahead<'_>> {
        if self.idle().len() + self.coming.load(Relaxed) >= spare {
            return None;
        }
        let coming = Coming::new(&self.coming);
        Some(Box::pin(async move {
            let made = self.connect().await;
            drop(coming);
            if let Ok(stream) = made {
                self.idle().push_front(stream);
            }
        }))
    }

    /// The same place with connections of its own.
    pub fn again(&self) -> Self {
        Self::new(Arc::clone(&self.place))
    }

    fn error(&self, kind: StoreErrorKind, what: impl std::fmt::Display) -> StoreError {
        StoreError::new(kind, format!("{}: {what}", self.place.name))
    }

    /// Bytes of `range`, or the whole object.
    pub async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        deadline: Instant,
        first: &FirstByte,
    ) -> Result<Got, StoreError> {
        let late = || {
            self.error(
                StoreErrorKind::Deadline,
                format!("{key} did not come before the deadline"),
            )
        };
        timeout_at(deadline.into(), self.undisturbed(key, range, first))
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    async fn undisturbed(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        first: &FirstByte,
    ) -> Result<Got, StoreError> {
        let request = self.request(key, range.as_ref()).await?;
        let expected = range.as_ref().map(|range| range.end - range.start);
        loop {
            let idle = self.idle().pop_back();
            let used = idle.is_some();
            let mut stream = match idle {
                Some(stream) => stream,
                None => self.connect().await?,
            };
            match self.exchange(&mut stream, &request, expected).await {
                Ok((head, buffer, filled)) => {
                    first.came();
                    return self.judge(key, range, head, buffer, filled, stream).await;
                }
                // The server had closed the idle connection: no fault of anybody's.
                Err(broken) if used && !broken.answered => {}
                Err(broken) => {
                    return Err(self.error(
                        StoreErrorKind::Unreachable,
                        format!("{key}: {}", broken.text),
                    ));
                }
            }
        }
    }

    async fn request(&self, key: &str, range: Option<&Range<u64>>) -> Result<String, StoreError> {
        let place = &*self.place;
        let mut text = String::with_capacity(512);
        text.push_str("GET ");
        text.push_str(&place.path);
        encode(key, &mut text);
        let path_end = text.len();
        if let Some(query) = &place.query {
            let _ = write!(text, "?{query}");
        }
        let _ = write!(
            text,
            " HTTP/1.1\r\nHost: {}\r\nUser-Agent: penstock\r\n",
            place.authority
        );
        let range =
            range.map(|range| format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        if let Some(range) = &range {
            let _ = write!(text, "Range: {range}\r\n");
        }
        if let Some((signer, credentials)) = &place.signing {
            let credential = credentials.get_credential().await.map_err(|error| {
                self.error(
                    StoreErrorKind::Denied,
                    format!("no credentials: {}", super::plainly(&error.to_string())),
                )
            })?;
            let path = text[4..path_end].to_owned();
            let get = Get {
                host: &place.authority,
                path: &path,
                range: range.as_deref(),
            };
            let credential = Credential {
                key_id: &credential.key_id,
                secret: &credential.secret_key,
                token: credential.token.as_deref(),
            };
            signer.sign(&get, &credential, SystemTime::now(), &mut text);
        }
        text.push_str("\r\n");
        Ok(text)
    }

    async fn connect(&self) -> Result<TcpStream, StoreError> {
        let place = &*self.place;
        let unreachable = |text: String| {
            self.error(
                StoreErrorKind::Unreachable,
                format!("{}:{} {text}", place.host, place.port),
            )
        };
        let stream = tokio::time::timeout(
            CONNECT,
            TcpStream::connect((place.host.as_str(), place.port)),
        )
        .await
        .map_err(|_| unreachable(format!("does not answer within {} s", CONNECT.as_secs())))?
        .map_err(|error| unreachable(format!("cannot be reached: {error}")))?;
        // Without it, the end of a request may wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    /// Sends the request and reads until the head is whole. Returns it, the buffer, and how many bytes are in it.
    async fn exchange(
        &self,
        stream: &mut TcpStream,
        request: &str,
        expected: Option<u64>,
    ) -> Result<(Head, Buffer, usize), Broken> {
        let broken = |text: String, filled: usize| Broken {
            text,
            answered: filled > 0,
        };
        let written = stream.write_all(request.as_bytes()).await;
        written.map_err(|error| broken(format!("the connection broke: {error}"), 0))?;
        // What was asked for is bounded by the catalog, which was checked.
        let room = expected.map_or(UNKNOWN, |length| length as usize);
        let mut buffer = self.buffers.take(room + HEAD);
        let mut filled = 0;
        loop {
            let memory = &mut buffer.memory()[filled..];
            if memory.is_empty() {
                return Err(broken("the answer's head has no end".into(), filled));
            }
            let count = stream.read(memory).await;
            let count =
                count.map_err(|error| broken(format!("the connection broke: {error}"), filled))?;
            if count == 0 {
                return Err(broken(
                    "the connection was closed before the answer".into(),
                    filled,
                ));
            }
            filled += count;
            match head(&buffer.memory()[..filled]) {
                Ok(Some(head)) => return Ok((head, buffer, filled)),
                Ok(None) if filled < HEAD => {}
                Ok(None) => return Err(broken("the answer's head has no end".into(), filled)),
                Err(text) => return Err(broken(text, filled)),
            }
        }
    }

    async fn judge(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        head: Head,
        mut buffer: Buffer,
        mut filled: usize,
        mut stream: TcpStream,
    ) -> Result<Got, StoreError> {
        let whole_is_range = |start: u64, length: u64| {
            head.status == 200
                && range
                    .as_ref()
                    .is_some_and(|range| start == 0 && range.end == length)
        };
        let good = head.status == 200 && range.is_none() || head.status == 206 && range.is_some();
        let Some(length) = head.length.filter(|_| head.plain) else {
            return Ok(Got::Unusual);
        };
        let start = range.as_ref().map_or(0, |range| range.start);
        if head.status == 200 && !good && !whole_is_range(start, length) {
            let text = format!(
                "{key}: the server does not give parts of objects (it answers a range with status 200)"
            );
            return Err(self.error(StoreErrorKind::Other, text));
        }
        if !good && !whole_is_range(start, length) {
            return self
                .refusal(key, range.as_ref(), &head, length, buffer, filled, stream)
                .await;
        }
        if let Some(range) = &range {
            let wanted = range.end - range.start;
            if length < wanted {
                let text = format!(
                    "{key} ends {} bytes before byte {}",
                    wanted - length,
                    range.end
                );
                return Err(self.error(StoreErrorKind::Truncated, text));
            }
            if length > wanted || head.range_start.is_some_and(|found| found != start) {
                return Err(self.error(
                    StoreErrorKind::Other,
                    format!("{key}: another range than was asked for came"),
                ));
            }
        } else if length > LARGEST {
            return Err(self.error(
                StoreErrorKind::Other,
                format!("{key} has {length} bytes: too many for a sample"),
            ));
        }
        let need = head.end + length as usize;
        if buffer.memory().len() < need {
            let mut larger = self.buffers.take(need);
            larger.memory()[..filled].copy_from_slice(&buffer.memory()[..filled]);
            buffer = larger;
        }
        while filled < need {
            let count = stream.read(&mut buffer.memory()[filled..need]).await;
            let came = filled - head.end;
            let count = count.map_err(|error| {
                let text =
                    format!("{key}: the connection broke after {came} of {length} bytes: {error}");
                self.error(StoreErrorKind::Unreachable, text)
            })?;
            if count == 0 {
                let text =
                    format!("{key}: the connection was closed after {came} of {length} bytes");
                return Err(self.error(StoreErrorKind::Unreachable, text));
            }
            filled += count;
        }
        if head.keep && filled == need {
            self.idle().push_back(stream);
        }
        Ok(Got::Bytes(buffer.into_bytes().slice(head.end..need)))
    }

    /// What an answer that brings no bytes means.
    #[allow(clippy::too_many_arguments)] // All that is left of the exchange.
    async fn refusal(
        &self,
        key: &str,
        range: Option<&Range<u64>>,
        head: &Head,
        length: u64,
        mut buffer: Buffer,
        mut filled: usize,
        mut stream: TcpStream,
    ) -> Result<Got, StoreError> {
        if (300..400).contains(&head.status) || (200..300).contains(&head.status) && range.is_none()
        {
            return Ok(Got::Unusual);
        }
        let short = head.end + length.min(ERROR_TEXT) as usize;
        let whole = length <= ERROR_TEXT && short <= buffer.memory().len();
        let end = short.min(buffer.memory().len());
        while filled < end {
            match stream.read(&mut buffer.memory()[filled..end]).await {
                Ok(count) if count > 0 => filled += count,
                _ => break,
            }
        }
        let text =
            String::from_utf8_lossy(&buffer.memory()[head.end..filled.min(end)]).into_owned();
        if whole && filled == end && head.keep {
            self.idle().push_back(stream);
        }
        Err(super::refused(&self.place.name, key, head.status, &text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_when_it_is_whole() {
        let text = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\ncontent-range: bytes 10-14/99\r\n\r\nhello";
        assert!(head(&text[..40]).unwrap().is_none());
        let found = head(text).unwrap().unwrap();
        assert_eq!(
            (found.status, found.length, found.range_start),
            (206, Some(5), Some(10))
        );
        assert_eq!(&text[found.end..], b"hello");
        assert!(found.keep && found.plain);
        let old = head(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .unwrap()
            .unwrap();
        assert!(!old.keep && !old.plain);
        assert!(head(b"SSH-2.0 hello\r\n\r\n").is_err());
        assert!(head(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n").is_err());
    }

    #[test]
    fn keys_are_encoded_as_signatures_want_them() {
        let mut text = String::new();
        encode("a b/ü+~.x", &mut text);
        assert_eq!(text, "a%20b/%C3%BC%2B~.x");
    }
}
