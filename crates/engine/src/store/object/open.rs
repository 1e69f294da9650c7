//! From an address and options to a store of the `object_store` crate, and to a place for the direct client.

use std::sync::Arc;

use base64::prelude::{Engine as _, BASE64_STANDARD as STANDARD};
use http::header::{HeaderMap, HeaderValue, AUTHORIZATION};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use super::folders::Folders;
use super::options::Common;
use super::percent_decode;
use super::plain::{self, Place};
use super::profile::Profile;
use super::refusal::{misuse, plainly};
use super::sign::Signer;
use crate::store::StoreError;

fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

/// A store that was opened, as each of its users sees it.
pub(super) struct Opened {
    pub store: Arc<dyn ObjectStore>,
    /// Where objects can be written in parts.
    pub parts: Option<Arc<dyn MultipartStore>>,
    /// Where the direct client may speak to it.
    pub place: Option<Place>,
    /// Of a web server: the pages that list its folders.
    pub folders: Option<Folders>,
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
        query: None,
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

pub(super) fn s3(bucket: &str, name: &str, common: &Common) -> Result<Opened, StoreError> {
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
    let store = Arc::new(store);
    Ok(Opened {
        parts: Some(Arc::clone(&store) as _),
        store,
        place,
        folders: None,
    })
}

/// A store that takes objects in parts and is spoken to by the general client alone.
fn general<S: ObjectStore + MultipartStore>(store: S) -> Opened {
    let store = Arc::new(store);
    Opened {
        parts: Some(Arc::clone(&store) as _),
        store,
        place: None,
        folders: None,
    }
}

/// The client for a store at `endpoint`, if another than the provider's own was given: it may be one without TLS.
fn client_for(endpoint: Option<&str>, common: &Common) -> ClientOptions {
    let plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let client = common.client.clone();
    if plain {
        client.with_allow_http(true)
    } else {
        client
    }
}

/// Who is nobody: without it, the general client asks the machine that it runs on for credentials before it writes.
const NOBODY: &str =
    r#"{"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}"#;

pub(super) fn gs(bucket: &str, common: &Common) -> Result<Opened, StoreError> {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_retry(no_retries());
    // As Google's own libraries have it: an emulator, which asks for no credentials.
    let emulator = std::env::var("STORAGE_EMULATOR_HOST")
        .ok()
        .filter(|host| !host.is_empty())
        .map(|host| match host.contains("://") {
            true => host,
            false => format!("http://{host}"),
        });
    if let Some(host) = &emulator {
        builder = builder.with_base_url(host.trim_end_matches('/'));
    }
    for (key, value) in common.keys::<GoogleConfigKey>("Google Cloud Storage")? {
        builder = builder.with_config(key, value);
    }
    let has = |builder: &GoogleCloudStorageBuilder, key| builder.get_config_value(&key).is_some();
    let named = has(&builder, GoogleConfigKey::ServiceAccount)
        || has(&builder, GoogleConfigKey::ServiceAccountKey)
        || has(&builder, GoogleConfigKey::ApplicationCredentials);
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    if common.anonymous || emulator.is_some() && !named {
        builder = builder.with_skip_signature(true);
        if !named {
            builder = builder.with_service_account_key(NOBODY);
        }
    }
    let client = client_for(endpoint.as_deref(), common);
    Ok(general(built(builder.with_client_options(client).build())?))
}

pub(super) fn az(container: &str, common: &Common) -> Result<Opened, StoreError> {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_retry(no_retries());
    for (key, value) in common.keys::<AzureConfigKey>("Azure")? {
        builder = builder.with_config(key, value);
    }
    if common.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let client = client_for(endpoint.as_deref(), common);
    Ok(general(built(builder.with_client_options(client).build())?))
}

/// The `Authorization` header that the option of that name, or user and password in the address, ask for; the latter are
/// taken out of the address.
fn authorization(root: &mut Url, common: &Common) -> Result<Option<HeaderValue>, StoreError> {
    let mut value = None;
    for (name, given) in &common.rest {
        match name.as_str() {
            "authorization" => value = Some(given.clone()),
            "query" => {}
            _ => return Err(misuse(format!("{name:?} is no option of HTTP stores"))),
        }
    }
    if !root.username().is_empty() || root.password().is_some() {
        let part = |text: &str| percent_decode(text).unwrap_or_default();
        let pair = format!(
            "{}:{}",
            part(root.username()),
            part(root.password().unwrap_or_default())
        );
        value = value.or_else(|| Some(format!("Basic {}", STANDARD.encode(pair))));
        // Only addresses without a host refuse this, and they have been refused before.
        let _ = root.set_username("").and_then(|()| root.set_password(None));
    }
    let header = value.map(|text| HeaderValue::from_str(&text)).transpose();
    let mut header = header.map_err(|_| misuse("the option authorization is no header value"))?;
    if let Some(header) = &mut header {
        header.set_sensitive(true);
    }
    Ok(header)
}

pub(super) fn http(url: &Url, name: &str, common: &Common) -> Result<Opened, StoreError> {
    let mut root = url.clone();
    root.set_path("/");
    // A query goes with every request: signed URLs carry their permission in it.
    if let Some((_, query)) = common.rest.iter().find(|(name, _)| name == "query") {
        root.set_query(Some(query));
    }
    root.set_fragment(None);
    let mut client = common
        .client
        .clone()
        .with_allow_http(url.scheme() == "http");
    let authorization = authorization(&mut root, common)?;
    let is_open = authorization.is_none();
    if let Some(value) = authorization {
        client = client.with_default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)]));
    }
    let folders = Folders::new(root.clone(), &client)?;
    let store = HttpBuilder::new()
        .with_url(root.as_str())
        .with_retry(no_retries())
        .with_client_options(client);
    let mut place = plain_endpoint(root.as_str(), common).filter(|_| is_open);
    if let Some(place) = &mut place {
        place.name = name.to_owned();
        place.query = root.query().map(str::to_owned);
    }
    Ok(Opened {
        store: Arc::new(built(store.build())?),
        parts: None,
        place,
        folders: Some(folders),
    })
}
