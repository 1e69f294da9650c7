//! What can be said of a store besides its address.

use std::str::FromStr;
use std::time::Duration;

use object_store::{Certificate, ClientConfigKey, ClientOptions};

use super::refusal::misuse;
use crate::store::StoreError;

/// Options that mean the same for every store, and the rest.
#[derive(Default)]
pub(super) struct Common {
    pub anonymous: bool,
    pub virtual_host: Option<bool>,
    pub profile: Option<String>,
    pub client: ClientOptions,
    pub proxied: bool,
    pub rest: Vec<(String, String)>,
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
    pub fn new(options: &[(String, String)]) -> Result<Self, StoreError> {
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
    pub fn keys<K: FromStr>(&self, store: &str) -> Result<Vec<(K, String)>, StoreError> {
        let parse = |(name, value): &(String, String)| {
            // Google's is called otherwise; nobody who speaks to three stores wants to know that.
            let known = K::from_str(name).or_else(|error| match name.as_str() {
                "endpoint" => K::from_str("base_url"),
                _ => Err(error),
            });
            match known {
                Ok(key) if name == "endpoint" => Ok((key, value.trim_end_matches('/').to_owned())),
                Ok(key) => Ok((key, value.clone())),
                Err(_) => Err(misuse(format!("{name:?} is no option of {store} stores"))),
            }
        };
        self.rest.iter().map(parse).collect()
    }
}
