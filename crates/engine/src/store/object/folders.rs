//! Folders of web servers, where the server lists them.
//!
//! The page of a folder (its address with a slash at the end) is read: the JSON of nginx's `autoindex_format json`, or HTML,
//! of which every link to something directly below the page counts, as nginx, Apache, lighttpd, Caddy and Python write
//! them. HTML tells no sizes that one could trust, so they are asked for, one by one.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::client::{HttpClient, HttpConnector, HttpRequestBody, ReqwestConnector};
use object_store::ClientOptions;
use serde::Deserialize;
use std::time::Instant;
use url::Url;

use super::listing::Level;
use super::refusal::{misuse, plainly, refused};
use super::{percent_decode, plain, ObjectStorage};
use crate::store::retry::{is_passing, pause};
use crate::store::{Entry, StoreError, StoreErrorKind};

/// Requests of one listing in flight.
const AT_ONCE: usize = 32;
/// Folders within folders: more are a loop of links.
const DEEPEST: usize = 64;
/// The longest page that is read.
const LONGEST_PAGE: usize = 256 << 20;
/// Attempts to get one page.
const ATTEMPTS: u32 = 6;

/// The pages of one server.
pub(super) struct Folders {
    client: HttpClient,
    /// With the query that goes with every request, if there is one.
    root: Url,
}

/// What a page says of one thing in the folder.
#[derive(Debug, PartialEq, Eq)]
struct Item {
    name: String,
    is_folder: bool,
    /// Size and version, where the page knows them.
    known: Option<(u64, String)>,
}

#[derive(Deserialize)]
struct JsonItem {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    mtime: String,
    size: Option<u64>,
}

fn from_json(text: &str) -> Option<Vec<Item>> {
    let items: Vec<JsonItem> = serde_json::from_str(text).ok()?;
    let item = |item: JsonItem| Item {
        is_folder: item.kind == "directory",
        known: item
            .size
            .map(|size| (size, format!("{} {size}", item.mtime))),
        name: item.name,
    };
    Some(items.into_iter().map(item).collect())
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// Where the links of a page lead.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("href").or_else(|| rest.find("HREF")) {
        rest = rest[at + 4..].trim_start();
        let Some(value) = rest.strip_prefix('=').map(str::trim_start) else {
            continue;
        };
        let end = match value.as_bytes().first() {
            Some(&quote @ (b'"' | b'\'')) => value[1..].find(quote as char).map(|end| (1, end + 1)),
            _ => value.find([' ', '>', '\n']).map(|end| (0, end)),
        };
        let Some((start, end)) = end else { break };
        found.push(unescaped(&value[start..end]));
        rest = &value[end..];
    }
    found
}

/// Of a page at `base`, the links to what lies directly below it.
fn from_html(base: &Url, text: &str) -> Vec<Item> {
    let mut items = Vec::new();
    for link in links(text) {
        let Ok(target) = base.join(&link) else {
            continue;
        };
        if target.origin() != base.origin() || target.query().is_some() && link.starts_with('?') {
            continue;
        }
        let Some(below) = target.path().strip_prefix(base.path()) else {
            continue;
        };
        let (name, is_folder) = match below.strip_suffix('/') {
            Some(name) => (name, true),
            None => (below, false),
        };
        let Some(name) =
            percent_decode(name).filter(|name| !name.is_empty() && !name.contains('/'))
        else {
            continue;
        };
        let item = Item {
            name,
            is_folder,
            known: None,
        };
        if !items.contains(&item) {
            items.push(item);
        }
    }
    items
}

impl Folders {
    pub fn new(root: Url, options: &ClientOptions) -> Result<Self, StoreError> {
        let client = ReqwestConnector::default()
            .connect(options)
            .map_err(|error| misuse(plainly(&error.to_string())))?;
        Ok(Self { client, root })
    }

    async fn once(&self, storage: &ObjectStorage, folder: &str) -> Result<Vec<Item>, StoreError> {
        let mut path = String::from("/");
        plain::encode(&storage.prefix, &mut path);
        plain::encode(folder, &mut path);
        let mut address = self.root.clone();
        address.set_path(&path);
        let shown = if folder.is_empty() {
            "the folder"
        } else {
            folder
        };
        let broken = |error: &dyn std::fmt::Display| {
            let text = plainly(&error.to_string());
            StoreError::new(
                StoreErrorKind::Unreachable,
                format!("{}: {shown}: {text}", storage.name),
            )
        };
        let request = http::Request::get(address.as_str())
            .body(HttpRequestBody::empty())
            .map_err(|error| misuse(plainly(&error.to_string())))?;
        let answer = self
            .client
            .execute(request)
            .await
            .map_err(|error| broken(&error))?;
        let status = answer.status().as_u16();
        if (403..=405).contains(&status) {
            let text = format!(
                "{}: {shown}: the server does not list it (status {status}): open what lies there by name, as \
                 …/catalog.parquet, …/shard.tar or …/shard-{{000..099}}.tar",
                storage.name
            );
            let kind = if status == 404 {
                StoreErrorKind::Missing
            } else {
                StoreErrorKind::Denied
            };
            return Err(StoreError::new(kind, text));
        }
        if status != 200 {
            return Err(refused(&storage.name, shown, status, ""));
        }
        let mut body = Vec::new();
        let mut pieces = answer.into_body().bytes_stream();
        while let Some(piece) = pieces.try_next().await.map_err(|error| broken(&error))? {
            if body.len() + piece.len() > LONGEST_PAGE {
                return Err(misuse(format!(
                    "{}: {shown}: its list is too long",
                    storage.name
                )));
            }
            body.extend_from_slice(&piece);
        }
        let text = String::from_utf8_lossy(&body);
        if text.trim_start().starts_with('[') {
            if let Some(items) = from_json(&text) {
                return Ok(items);
            }
        }
        address.set_query(None);
        Ok(from_html(&address, &text))
    }

    async fn page(&self, storage: &ObjectStorage, folder: &str) -> Result<Vec<Item>, StoreError> {
        let mut attempts = 0;
        loop {
            match self.once(storage, folder).await {
                Err(error) if is_passing(error.kind) && attempts + 1 < ATTEMPTS => {
                    tokio::time::sleep(pause(attempts)).await;
                    attempts += 1;
                }
                result => return result,
            }
        }
    }

    /// What lies directly in `folder` (empty, or with a slash at its end).
    pub async fn level(
        &self,
        storage: &ObjectStorage,
        folder: &str,
        sizes: bool,
        deadline: Instant,
    ) -> Result<Level, StoreError> {
        let mut level = Level::default();
        let mut unknown = Vec::new();
        for item in self.page(storage, folder).await? {
            let key = format!("{folder}{}", item.name);
            match item.known {
                _ if item.is_folder => level.folders.push(key + "/"),
                Some((size, version)) => level.entries.push(Entry { key, size, version }),
                None => unknown.push(key),
            }
        }
        let ask = |key: String| async move {
            if !sizes {
                let (size, version) = (0, String::new());
                return Ok(Entry { key, size, version });
            }
            storage.persistent_stat(&key, deadline).await
        };
        let asked: Vec<Entry> = stream::iter(unknown)
            .map(ask)
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        level.entries.extend(asked);
        level.entries.sort_by(|one, two| one.key.cmp(&two.key));
        level.folders.sort();
        Ok(level)
    }

    /// All objects whose keys begin with `prefix`, in any order.
    pub async fn all(
        &self,
        storage: &ObjectStorage,
        prefix: &str,
        sizes: bool,
        deadline: Instant,
    ) -> Result<Vec<Entry>, StoreError> {
        let first = prefix
            .rsplit_once('/')
            .map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let mut found = Vec::new();
        let mut folders = vec![first];
        for depth in 0.. {
            if depth > DEEPEST {
                return Err(misuse(format!(
                    "{}: folders lie more than {DEEPEST} deep in {prefix:?}, as in a loop of links",
                    storage.name
                )));
            }
            let levels: Vec<Level> = stream::iter(std::mem::take(&mut folders))
                .map(|folder| async move { self.level(storage, &folder, sizes, deadline).await })
                .buffered(AT_ONCE / 4)
                .try_collect()
                .await?;
            for level in levels {
                found.extend(
                    level
                        .entries
                        .into_iter()
                        .filter(|entry| entry.key.starts_with(prefix)),
                );
                let below =
                    |key: &String| key.starts_with(prefix) || prefix.starts_with(key.as_str());
                folders.extend(level.folders.into_iter().filter(below));
            }
            if folders.is_empty() {
                break;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(base: &str, text: &str) -> Vec<(String, bool)> {
        let items = from_html(&Url::parse(base).unwrap(), text);
        items
            .into_iter()
            .map(|item| (item.name, item.is_folder))
            .collect()
    }

    #[test]
    fn links_of_the_usual_servers_are_read() {
        let nginx = "<a href=\"../\">../</a>\n<a href=\"cats/\">cats/</a> 01-Jan -\n<a href=\"a%20b%26.jpg\">a b&amp;.jpg</a>";
        let expected = [("cats".to_owned(), true), ("a b&.jpg".to_owned(), false)];
        assert_eq!(names("http://h/d/", nginx), expected);
        let apache = "<A HREF='?C=N;O=D'>Name</A><a href=\"/d/\">Parent</a><a href=\"/d/x.tar\">x</a><a href=x.tar>";
        assert_eq!(names("http://h/d/", apache), [("x.tar".to_owned(), false)]);
        let caddy = "<a href=\"./y.npy\">y</a><a href=\"https://elsewhere/d/z\">z</a><a href=\"deep/er.jpg\">";
        assert_eq!(names("http://h/d/", caddy), [("y.npy".to_owned(), false)]);
        assert_eq!(names("http://h/d/", "<a href=\"unclosed"), []);
    }

    #[test]
    fn json_lists_tell_sizes() {
        let text = r#"[{"name":"a","type":"directory","mtime":"x"},{"name":"b","type":"file","mtime":"y","size":7}]"#;
        let items = from_json(text).unwrap();
        assert!(items[0].is_folder && items[0].known.is_none());
        assert_eq!(items[1].known, Some((7, "y 7".to_owned())));
        assert_eq!(from_json("[1]"), None);
    }
}
