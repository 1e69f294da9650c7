//! Object stores: S3 and everything that speaks like it, Google Cloud Storage, Azure, plain HTTP.
//!
//! Credentials come from the options, the environment and the usual configuration files, in this order; they are
//! never part of a message. Retries are not done here: the fetch threads do them, with one budget for all, and
//! [`Waiting`] does for calls that wait.
//!
//! - `options`, `profile`, `open`: from an address to a store.
//! - `plain`, `sign`, `buffers`: the direct way to endpoints without TLS.
//! - `listing`, `folders`: what is there, also on web servers.
//! - `upload`: writing, whole or in parts.
//! - `refusal`: what went wrong, in words.
//! - `waiting`: all of it for callers that wait.

mod buffers;
mod folders;
mod listing;
mod open;
mod options;
mod plain;
mod profile;
mod refusal;
mod sign;
mod upload;
mod waiting;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use tokio::time::timeout_at;
use url::Url;

use super::{Ahead, AsyncStore, Entry, FirstByte, Get, List, StoreError, StoreErrorKind};
use folders::Folders;
pub use listing::Level;
use options::Common;
use plain::{Got, Plain};
use refusal::{deepest, misuse, plainly, refused};
pub use waiting::{Upload, Waiting, Wanted, Watch};

/// The schemes that [`ObjectStorage::open`] knows.
pub const SCHEMES: [&str; 8] = ["s3", "s3a", "gs", "az", "azure", "abfs", "http", "https"];

/// An object store, below a prefix.
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    /// The same store, where it takes objects in parts.
    parts: Option<Arc<dyn MultipartStore>>,
    plain: Option<Plain>,
    /// Of a web server: the pages that list its folders.
    folders: Option<Arc<Folders>>,
    /// Empty, or ends with a slash.
    prefix: String,
    name: String,
}

impl ObjectStorage {
    /// Opens `s3://bucket/prefix`, `gs://…`, `az://container/prefix`, `http(s)://host/prefix`. Nothing is asked of
    /// the store yet.
    ///
    /// Options for every store: `anonymous`, `ca_file`, `virtual_host`, `profile` (of the AWS configuration files),
    /// `allow_http`, `proxy_url`; of web servers `authorization` (the header's value) and `query` (goes with every
    /// request); the rest are those of the `object_store` crate, such as `endpoint`, `region`, `access_key_id`,
    /// `secret_access_key`, `service_account`, `account_name`.
    pub fn open(uri: &str, options: &[(String, String)]) -> Result<Self, StoreError> {
        // What was given is not repeated: it may hold a secret.
        let url = Url::parse(uri)
            .map_err(|error| misuse(format!("that is no address of a store: {error}")))?;
        let common = Common::new(options)?;
        let host = url.host_str().unwrap_or_default();
        if host.is_empty() {
            return Err(misuse(format!(
                "the address {}://… names no bucket, container or host",
                url.scheme()
            )));
        }
        let keys = percent_decode(url.path().trim_matches('/'))
            .ok_or_else(|| misuse(format!("the path of {}://{host} is no text", url.scheme())))?;
        let prefix = if keys.is_empty() {
            keys.clone()
        } else {
            format!("{keys}/")
        };
        // Without user, password and query.
        let name = match url.port() {
            Some(port) => format!("{}://{host}:{port}/{keys}", url.scheme()),
            None => format!("{}://{host}/{keys}", url.scheme()),
        };
        let name = name.trim_end_matches('/').to_owned();
        let opened = match url.scheme() {
            "s3" | "s3a" => open::s3(host, &name, &common),
            "gs" => open::gs(host, &common),
            "az" | "azure" | "abfs" => open::az(host, &common),
            "http" | "https" => open::http(&url, &name, &common),
            other => Err(misuse(format!(
                "{other}: is no scheme of a store; there are {}",
                SCHEMES.join(", ")
            ))),
        }?;
        let plain = opened.place.map(|mut place| {
            let mut path = place.path;
            for part in prefix.split_inclusive('/') {
                plain::encode(part, &mut path);
            }
            place.path = path;
            Plain::new(Arc::new(place))
        });
        Ok(Self {
            store: opened.store,
            parts: opened.parts,
            plain,
            folders: opened.folders.map(Arc::new),
            prefix,
            name,
        })
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        Path::parse(format!("{}{key}", self.prefix)).map_err(|error| {
            StoreError::new(
                StoreErrorKind::Missing,
                format!("{key:?} is no key: {error}"),
            )
        })
    }

    fn explain(&self, key: &str, error: object_store::Error) -> StoreError {
        let text = error.to_string();
        let status = text
            .split_once("status code: ")
            .and_then(|(_, rest)| rest.get(..3))
            .and_then(|digits| digits.parse().ok());
        let kind = match &error {
            object_store::Error::NotFound { .. } => return refused(&self.name, key, 404, &text),
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => StoreErrorKind::Denied,
            object_store::Error::InvalidPath { .. } => StoreErrorKind::Missing,
            object_store::Error::NotImplemented { .. }
            | object_store::Error::NotSupported { .. } => StoreErrorKind::Other,
            _ if status.is_some() => return refused(&self.name, key, status.unwrap_or(0), &text),
            _ if text.contains("redential") && text.contains("169.254.") => StoreErrorKind::Denied,
            // Azure answers such a range with the whole object's length, and the client knows better.
            object_store::Error::Generic { .. }
                if deepest(&error).starts_with("Wanted range starting at") =>
            {
                StoreErrorKind::Truncated
            }
            // What has no status did not come through: resets, timeouts, bodies that end early.
            object_store::Error::Generic { .. } if text.contains("Header") => StoreErrorKind::Other,
            object_store::Error::Generic { .. } if deepest(&error).contains("certificate") => {
                let reason =
                    "its certificate is not trusted: give the CA's file with the option ca_file";
                let text = format!("{}: {reason} ({})", self.name, plainly(&deepest(&error)));
                return StoreError::new(StoreErrorKind::Other, text);
            }
            object_store::Error::Generic { .. } => StoreErrorKind::Unreachable,
            _ => StoreErrorKind::Other,
        };
        if kind == StoreErrorKind::Denied {
            return refused(&self.name, key, status.unwrap_or(403), &text);
        }
        if kind == StoreErrorKind::Unreachable {
            let reason = plainly(&deepest(&error));
            let text = format!(
                "{}: {key}: the store cannot be reached: {reason}",
                self.name
            );
            return StoreError::new(kind, text);
        }
        StoreError::new(kind, format!("{}: {key}: {}", self.name, plainly(&text)))
    }

    fn late(&self, key: &str) -> StoreError {
        StoreError::new(
            StoreErrorKind::Deadline,
            format!("{}: {key} did not come before the deadline", self.name),
        )
    }

    async fn get_general(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        deadline: Instant,
        first: &FirstByte,
    ) -> Result<Bytes, StoreError> {
        let path = self.path(key)?;
        let options = GetOptions {
            range: range.clone().map(GetRange::Bounded),
            ..GetOptions::default()
        };
        let get = async {
            let result = self.store.get_opts(&path, options).await?;
            first.came();
            let size = result.meta.size;
            Ok((size, result.bytes().await?))
        };
        let got: Result<_, object_store::Error> = timeout_at(deadline.into(), get)
            .await
            .map_err(|_| self.late(key))?;
        let (size, bytes) = got.map_err(|error| self.explain(key, error))?;
        if let Some(range) = range {
            let wanted = range.end - range.start;
            if (bytes.len() as u64) < wanted {
                let text = format!(
                    "{}: {key} has {size} bytes; {wanted} from {} on are wanted",
                    self.name, range.start
                );
                return Err(StoreError::new(StoreErrorKind::Truncated, text));
            }
        }
        Ok(bytes)
    }

    /// Size and version of an object.
    pub async fn stat(&self, key: &str, deadline: Instant) -> Result<Entry, StoreError> {
        let path = self.path(key)?;
        let head = timeout_at(deadline.into(), self.store.head(&path))
            .await
            .map_err(|_| self.late(key))?;
        let meta = head.map_err(|error| self.explain(key, error))?;
        Ok(listing::entry(key, &meta))
    }
}

impl AsyncStore for ObjectStorage {
    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>, deadline: Instant) -> Get<'a> {
        Box::pin(async move {
            let first = FirstByte::default();
            self.get_noting(key, range, deadline, &first).await
        })
    }

    fn get_noting<'a>(
        &'a self,
        key: &'a str,
        range: Option<Range<u64>>,
        deadline: Instant,
        first: &'a FirstByte,
    ) -> Get<'a> {
        Box::pin(async move {
            if range.as_ref().is_some_and(|range| range.start >= range.end) {
                return Ok(Bytes::new());
            }
            if let Some(plain) = &self.plain {
                if let Got::Bytes(bytes) = plain.get(key, range.clone(), deadline, first).await? {
                    return Ok(bytes);
                }
            }
            self.get_general(key, range, deadline, first).await
        })
    }

    fn connect_ahead(&self, spare: usize) -> Option<Ahead<'_>> {
        self.plain.as_ref()?.connect_ahead(spare)
    }

    fn list<'a>(&'a self, prefix: &'a str, deadline: Instant) -> List<'a> {
        Box::pin(self.listing(prefix, true, deadline))
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn private(&self) -> Option<Arc<dyn AsyncStore>> {
        Some(Arc::new(Self {
            store: Arc::clone(&self.store),
            parts: self.parts.clone(),
            folders: self.folders.clone(),
            plain: self.plain.as_ref().map(Plain::again),
            prefix: self.prefix.clone(),
            name: self.name.clone(),
        }))
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        match (
            first,
            after.get(..2).and_then(|two| std::str::from_utf8(two).ok()),
        ) {
            (b'%', Some(two)) => {
                bytes.push(u8::from_str_radix(two, 16).ok()?);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}
