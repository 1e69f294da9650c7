//! Object stores: S3 and everything that speaks like it, Google Cloud Storage, Azure, plain HTTP.
//!
//! Credentials come from the options, the environment and the usual configuration files, in this order; they are
//! never part of a message. Retries are not done here: the fetch threads do them, with one budget for all.

mod buffers;
mod plain;
mod profile;
mod sign;

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    Certificate, ClientConfigKey, ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt,
};
use object_store::{PutPayload, RetryConfig, WriteMultipart};
use tokio::time::timeout_at;
use url::Url;

use super::{AsyncStore, BlockingStore, Entry, Get, List, Object, StoreError, StoreErrorKind};
use plain::{Got, Place, Plain};
use profile::Profile;
use sign::Signer;

/// A part of an upload. S3 allows 10,000 of them.
const PART: usize = 16 << 20;
/// Parts of one upload in flight.
const PARTS_AT_ONCE: usize = 4;

/// The schemes that [`ObjectStorage::open`] knows.
pub const SCHEMES: [&str; 8] = ["s3", "s3a", "gs", "az", "azure", "abfs", "http", "https"];

/// An object store, below a prefix.
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    plain: Option<Plain>,
    /// Empty, or ends with a slash.
    prefix: String,
    name: String,
}

/// A store's message without what might be a secret: query strings are cut off.
fn plainly(text: &str) -> String {
    let words = text
        .split_inclusive(char::is_whitespace)
        .map(|word| match word.split_once('?') {
            Some((before, query)) if query.contains('=') => format!("{before}?… "),
            _ => word.to_owned(),
        });
    words.collect()
}

/// What an HTTP status and the text behind it mean.
fn refused(name: &str, key: &str, status: u16, text: &str) -> StoreError {
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
            "the store refuses: check the credentials, or open it with anonymous=true when it is public"
        }
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

fn misuse(text: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Other, text)
}

/// Options that mean the same for every store, and the rest.
#[derive(Default)]
struct Common {
    anonymous: bool,
    virtual_host: Option<bool>,
    profile: Option<String>,
    client: ClientOptions,
    proxied: bool,
    rest: Vec<(String, String)>,
}

fn flag(name: &str, value: &str) -> Result<bool, StoreError> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(misuse(format!(
            "the option {name} is true or false, not {value:?}"
        ))),
    }
}

impl Common {
    fn new(options: &[(String, String)]) -> Result<Self, StoreError> {
        // Deadlines are the caller's, for each request; a timeout of the client's own would cut long bodies.
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(Duration::from_secs(10))
            .with_pool_max_idle_per_host(4_096)
            .with_http1_only();
        let mut common = Self {
            client,
            ..Self::default()
        };
        common.proxied = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
            .iter()
            .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        let mut bundle = ["AWS_CA_BUNDLE", "SSL_CERT_FILE"]
            .iter()
            .find_map(std::env::var_os);
        for (name, value) in options {
            match name.as_str() {
                "anonymous" => common.anonymous = flag(name, value)?,
                "virtual_host" => common.virtual_host = Some(flag(name, value)?),
                "profile" => common.profile = Some(value.clone()),
                "ca_file" => bundle = Some(value.into()),
                _ => {
                    common.proxied |= name == "proxy_url";
                    match ClientConfigKey::from_str(name) {
                        Ok(key) => common.client = common.client.with_config(key, value),
                        Err(_) => common.rest.push((name.clone(), value.clone())),
                    }
                }
            }
        }
        if let Some(file) = bundle {
            let shown = file.to_string_lossy().into_owned();
            let read = std::fs::read(&file)
                .map_err(|error| misuse(format!("the CA file {shown}: {error}")))?;
            let certificates = Certificate::from_pem_bundle(&read).map_err(|error| {
                misuse(format!(
                    "the CA file {shown} holds no certificates: {error}"
                ))
            })?;
            for certificate in certificates {
                common.client = common.client.with_root_certificate(certificate);
            }
        }
        Ok(common)
    }

    /// The rest of the options as the store's own.
    fn keys<K: FromStr>(&self, store: &str) -> Result<Vec<(K, String)>, StoreError> {
        let parse = |(name, value): &(String, String)| match K::from_str(name) {
            Ok(key) => Ok((key, value.clone())),
            Err(_) => Err(misuse(format!("{name:?} is no option of {store} stores"))),
        };
        self.rest.iter().map(parse).collect()
    }
}

fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

struct Opened {
    store: Arc<dyn ObjectStore>,
    place: Option<Place>,
}

impl ObjectStorage {
    /// Opens `s3://bucket/prefix`, `gs://…`, `az://container/prefix`, `http(s)://host/prefix`. Nothing is asked of
    /// the store yet.
    ///
    /// Options for every store: `anonymous`, `ca_file`, `virtual_host`, `profile` (of the AWS configuration files),
    /// `allow_http`, `proxy_url`; the rest are those of the `object_store` crate, such as `endpoint`, `region`,
    /// `access_key_id`, `secret_access_key`, `service_account`, `account_name`.
    pub fn open(uri: &str, options: &[(String, String)]) -> Result<Self, StoreError> {
        let url = Url::parse(uri)
            .map_err(|error| misuse(format!("{uri:?} is no address of a store: {error}")))?;
        let common = Common::new(options)?;
        let host = url.host_str().unwrap_or_default();
        if host.is_empty() {
            return Err(misuse(format!(
                "{uri:?} names no bucket, container or host"
            )));
        }
        let keys = percent_decode(url.path().trim_matches('/'))
            .ok_or_else(|| misuse(format!("the path of {uri:?} is no text")))?;
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
            "s3" | "s3a" => open_s3(host, &name, &common),
            "gs" => open_gs(host, &common),
            "az" | "azure" | "abfs" => open_az(host, &common),
            "http" | "https" => open_http(&url, &name, &common),
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
            plain,
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
            object_store::Error::NotFound { .. } => StoreErrorKind::Missing,
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => StoreErrorKind::Denied,
            object_store::Error::InvalidPath { .. } => StoreErrorKind::Missing,
            object_store::Error::NotImplemented { .. }
            | object_store::Error::NotSupported { .. } => StoreErrorKind::Other,
            _ if status.is_some() => return refused(&self.name, key, status.unwrap_or(0), &text),
            _ if text.contains("redential") && text.contains("169.254.") => StoreErrorKind::Denied,
            // What has no status did not come through: resets, timeouts, bodies that end early.
            object_store::Error::Generic { .. } => StoreErrorKind::Unreachable,
            _ => StoreErrorKind::Other,
        };
        if kind == StoreErrorKind::Denied {
            return refused(&self.name, key, status.unwrap_or(403), &text);
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
    ) -> Result<Bytes, StoreError> {
        let path = self.path(key)?;
        let options = GetOptions {
            range: range.clone().map(GetRange::Bounded),
            ..GetOptions::default()
        };
        let get = async {
            let result = self.store.get_opts(&path, options).await?;
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

    /// Size of an object in bytes.
    pub async fn size(&self, key: &str, deadline: Instant) -> Result<u64, StoreError> {
        let path = self.path(key)?;
        let head = timeout_at(deadline.into(), self.store.head(&path))
            .await
            .map_err(|_| self.late(key))?;
        Ok(head.map_err(|error| self.explain(key, error))?.size)
    }

    /// Writes a small object at once.
    pub async fn put(&self, key: &str, bytes: Bytes, deadline: Instant) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let put = self.store.put(&path, PutPayload::from_bytes(bytes));
        let done = timeout_at(deadline.into(), put)
            .await
            .map_err(|_| self.late(key))?;
        done.map(|_| ()).map_err(|error| self.explain(key, error))
    }

    /// Writes the bytes that `next` gives, piece by piece, as one object; in parts where they are many. The object
    /// appears when all is there, or not at all.
    pub async fn put_pieces(
        &self,
        key: &str,
        mut next: impl FnMut() -> std::io::Result<Option<Bytes>>,
        deadline: Instant,
    ) -> Result<u64, StoreError> {
        let path = self.path(key)?;
        let broken = |error: std::io::Error| {
            misuse(format!(
                "what was to become {key} could not be read: {error}"
            ))
        };
        let work = async {
            let upload = self
                .store
                .put_multipart(&path)
                .await
                .map_err(|error| self.explain(key, error))?;
            let mut upload = WriteMultipart::new_with_chunk_size(upload, PART);
            let mut written = 0;
            loop {
                match next() {
                    Ok(Some(piece)) => {
                        written += piece.len() as u64;
                        upload.put(piece);
                        let ready = upload.wait_for_capacity(PARTS_AT_ONCE).await;
                        ready.map_err(|error| self.explain(key, error))?;
                    }
                    Ok(None) => break,
                    Err(error) => {
                        let _ = upload.abort().await;
                        return Err(broken(error));
                    }
                }
            }
            upload
                .finish()
                .await
                .map_err(|error| self.explain(key, error))?;
            Ok(written)
        };
        timeout_at(deadline.into(), work)
            .await
            .unwrap_or_else(|_| Err(self.late(key)))
    }

    async fn listing(&self, prefix: &str, deadline: Instant) -> Result<Vec<Entry>, StoreError> {
        let below = format!("{}{prefix}", self.prefix);
        // The crate lists whole folders; a prefix that ends inside a name is looked for in its folder.
        let folder = below.rsplit_once('/').map_or("", |(folder, _)| folder);
        let root = Path::parse(folder)
            .map_err(|error| misuse(format!("{folder:?} is no prefix: {error}")))?;
        let list = async {
            let mut found = Vec::new();
            let mut stream = self
                .store
                .list(Some(&root).filter(|root| !root.as_ref().is_empty()));
            while let Some(meta) = stream.try_next().await? {
                let key = meta.location.as_ref();
                let Some(key) = key
                    .strip_prefix(&self.prefix)
                    .filter(|_| key.starts_with(&below))
                else {
                    continue;
                };
                let changed = || {
                    meta.last_modified
                        .timestamp_nanos_opt()
                        .unwrap_or_default()
                        .to_string()
                };
                found.push(Entry {
                    key: key.to_owned(),
                    size: meta.size,
                    version: meta.e_tag.clone().unwrap_or_else(changed),
                });
            }
            found.sort_by(|one, two| one.key.cmp(&two.key));
            Ok(found)
        };
        let listed: Result<_, object_store::Error> = timeout_at(deadline.into(), list)
            .await
            .map_err(|_| self.late("the listing"))?;
        listed.map_err(|error| self.explain("the listing", error))
    }
}

impl AsyncStore for ObjectStorage {
    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>, deadline: Instant) -> Get<'a> {
        Box::pin(async move {
            if range.as_ref().is_some_and(|range| range.start >= range.end) {
                return Ok(Bytes::new());
            }
            if let Some(plain) = &self.plain {
                if let Got::Bytes(bytes) = plain.get(key, range.clone(), deadline).await? {
                    return Ok(bytes);
                }
            }
            self.get_general(key, range, deadline).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, deadline: Instant) -> List<'a> {
        Box::pin(self.listing(prefix, deadline))
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn private(&self) -> Option<Arc<dyn AsyncStore>> {
        Some(Arc::new(Self {
            store: Arc::clone(&self.store),
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

/// Host, port, authority and path of an endpoint without TLS, when the direct client may speak to it.
fn plain_endpoint(endpoint: &str, common: &Common) -> Option<Place> {
    let url = Url::parse(endpoint)
        .ok()
        .filter(|url| url.scheme() == "http" && url.username().is_empty())?;
    let host = url.host_str()?.to_owned();
    if common.proxied && host != "localhost" && !host.starts_with("127.") {
        return None;
    }
    let authority = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.clone(),
    };
    Some(Place {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: url.port().unwrap_or(80),
        authority,
        path: format!("{}/", url.path().trim_end_matches('/')),
        signing: None,
        name: String::new(),
    })
}

fn built<T>(result: object_store::Result<T>) -> Result<T, StoreError> {
    result.map_err(|error| {
        misuse(format!(
            "the store cannot be opened: {}",
            plainly(&error.to_string())
        ))
    })
}

fn open_s3(bucket: &str, name: &str, common: &Common) -> Result<Opened, StoreError> {
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_retry(no_retries());
    let profile = Profile::load(common.profile.as_deref());
    let chosen = common.profile.is_some();
    let fill = |builder: AmazonS3Builder, key: AmazonS3ConfigKey, value: Option<String>| match value
    {
        // A profile that was asked for by name goes before the environment.
        Some(value) if chosen || builder.get_config_value(&key).is_none() => {
            builder.with_config(key, value)
        }
        _ => builder,
    };
    if chosen
        || builder
            .get_config_value(&AmazonS3ConfigKey::AccessKeyId)
            .is_none()
    {
        builder = fill(builder, AmazonS3ConfigKey::AccessKeyId, profile.key_id);
        builder = fill(builder, AmazonS3ConfigKey::SecretAccessKey, profile.secret);
        builder = fill(builder, AmazonS3ConfigKey::Token, profile.token);
    }
    builder = fill(builder, AmazonS3ConfigKey::Region, profile.region);
    builder = fill(builder, AmazonS3ConfigKey::Endpoint, profile.endpoint);
    for (key, value) in common.keys::<AmazonS3ConfigKey>("S3")? {
        builder = builder.with_config(key, value);
    }
    let value = |builder: &AmazonS3Builder, key| builder.get_config_value(&key);
    let anonymous = common.anonymous
        || value(&builder, AmazonS3ConfigKey::SkipSignature).as_deref() == Some("true");
    let endpoint = value(&builder, AmazonS3ConfigKey::S3Endpoint)
        .or(value(&builder, AmazonS3ConfigKey::Endpoint));
    let virtual_host = common.virtual_host.unwrap_or_else(|| {
        value(&builder, AmazonS3ConfigKey::VirtualHostedStyleRequest).as_deref() == Some("true")
    });
    let region = value(&builder, AmazonS3ConfigKey::Region)
        .or(value(&builder, AmazonS3ConfigKey::DefaultRegion));
    builder = builder
        .with_virtual_hosted_style_request(virtual_host)
        .with_skip_signature(anonymous);
    let mut client = common.client.clone();
    let mut place = None;
    if let Some(endpoint) = &endpoint {
        client = client.with_allow_http(endpoint.starts_with("http://"));
        let mut address = endpoint.trim_end_matches('/').to_owned();
        if virtual_host {
            if let Some((scheme, rest)) = endpoint
                .split_once("://")
                .filter(|(_, r)| !r.starts_with(&format!("{bucket}.")))
            {
                address = format!("{scheme}://{bucket}.{}", rest.trim_end_matches('/'));
            }
        }
        builder = builder.with_endpoint(&address);
        place = plain_endpoint(&address, common);
    }
    let store = built(builder.with_client_options(client).build())?;
    if let Some(place) = &mut place {
        place.name = name.to_owned();
        if !virtual_host {
            plain::encode(bucket, &mut place.path);
            place.path.push('/');
        }
        if !anonymous {
            let signer = Signer::new(region.as_deref().unwrap_or("us-east-1"));
            place.signing = Some((signer, Arc::clone(store.credentials())));
        }
    }
    Ok(Opened {
        store: Arc::new(store),
        place,
    })
}

fn open_gs(bucket: &str, common: &Common) -> Result<Opened, StoreError> {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_retry(no_retries());
    let mut client = common.client.clone();
    for (key, value) in common.keys::<GoogleConfigKey>("Google Cloud Storage")? {
        if value.starts_with("http://") {
            client = client.with_allow_http(true);
        }
        builder = builder.with_config(key, value);
    }
    if common.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let store = built(builder.with_client_options(client).build())?;
    Ok(Opened {
        store: Arc::new(store),
        place: None,
    })
}

fn open_az(container: &str, common: &Common) -> Result<Opened, StoreError> {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_retry(no_retries());
    let mut client = common.client.clone();
    for (key, value) in common.keys::<AzureConfigKey>("Azure")? {
        if value.starts_with("http://") {
            client = client.with_allow_http(true);
        }
        builder = builder.with_config(key, value);
    }
    if common.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let store = built(builder.with_client_options(client).build())?;
    Ok(Opened {
        store: Arc::new(store),
        place: None,
    })
}

fn open_http(url: &Url, name: &str, common: &Common) -> Result<Opened, StoreError> {
    if let Some((option, _)) = common.rest.first() {
        return Err(misuse(format!("{option:?} is no option of HTTP stores")));
    }
    let mut root = url.clone();
    root.set_path("/");
    root.set_query(None);
    root.set_fragment(None);
    let client = common
        .client
        .clone()
        .with_allow_http(url.scheme() == "http");
    let store = HttpBuilder::new()
        .with_url(root.as_str())
        .with_retry(no_retries())
        .with_client_options(client);
    let mut place = plain_endpoint(root.as_str(), common);
    if let Some(place) = &mut place {
        place.name = name.to_owned();
    }
    Ok(Opened {
        store: Arc::new(built(store.build())?),
        place,
    })
}

/// An object store for callers that wait: indexing, packing, single reads. It has a runtime of its own.
pub struct Waiting {
    storage: Arc<ObjectStorage>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Waiting {
    /// Starts the runtime.
    pub fn new(storage: Arc<ObjectStorage>) -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(1)
            .thread_name("penstock-store")
            .enable_all()
            .build()?;
        Ok(Self {
            storage,
            runtime: Some(runtime),
        })
    }

    /// Runs a future of the store's to its end. The future keeps its own deadline.
    pub fn wait<T>(&self, work: impl std::future::Future<Output = T>) -> T {
        self.runtime
            .as_ref()
            .expect("the runtime lives until it is dropped")
            .block_on(work)
    }

    /// The store.
    pub fn storage(&self) -> &Arc<ObjectStorage> {
        &self.storage
    }

    /// Bytes of `range`, or the whole object.
    pub fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        deadline: Instant,
    ) -> Result<Bytes, StoreError> {
        self.wait(self.storage.get(key, range, deadline))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Connections have nothing to finish.
            runtime.shutdown_background();
        }
    }
}

impl BlockingStore for Waiting {
    fn read_at(
        &self,
        object: Object<'_>,
        offset: u64,
        parts: &mut [&mut [u8]],
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let want: usize = parts.iter().map(|part| part.len()).sum();
        let end = offset
            .checked_add(want as u64)
            .ok_or_else(|| misuse("the range has no end"))?;
        let bytes = self.get(object.key, Some(offset..end), deadline)?;
        let mut rest = &bytes[..];
        for part in parts {
            let (head, tail) = rest.split_at(part.len());
            part.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn size(&self, object: Object<'_>, deadline: Instant) -> Result<u64, StoreError> {
        self.wait(self.storage.size(object.key, deadline))
    }

    fn list(&self, prefix: &str, deadline: Instant) -> Result<Vec<Entry>, StoreError> {
        self.wait(AsyncStore::list(&*self.storage, prefix, deadline))
    }

    fn name(&self) -> String {
        self.storage.name.clone()
    }
}
