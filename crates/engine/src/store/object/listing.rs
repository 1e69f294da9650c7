//! What is there.

use std::sync::Arc;
use std::time::Instant;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use tokio::time::timeout_at;

use super::refusal::misuse;
use super::ObjectStorage;
use crate::store::{Entry, StoreError, StoreErrorKind};

/// What lies directly in a folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Its objects.
    pub entries: Vec<Entry>,
    /// The keys of its folders, each with a slash at its end.
    pub folders: Vec<String>,
}

/// What the store says of an object.
pub(super) fn entry(key: &str, meta: &ObjectMeta) -> Entry {
    let changed = || {
        let nanoseconds = meta.last_modified.timestamp_nanos_opt();
        nanoseconds.unwrap_or_default().to_string()
    };
    Entry {
        key: key.to_owned(),
        size: meta.size,
        version: meta.e_tag.clone().unwrap_or_else(changed),
    }
}

/// Sorts by key, and takes out the empty objects that some tools put in the place of folders.
fn tidy(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|one, two| one.key.cmp(&two.key));
    let is_folder = |entry: &Entry| {
        let below = format!("{}/", entry.key);
        let at = entries.partition_point(|other| other.key < below);
        entries
            .get(at)
            .is_some_and(|other| other.key.starts_with(&below))
    };
    let keep: Vec<bool> = entries
        .iter()
        .map(|entry| entry.size > 0 || !is_folder(entry))
        .collect();
    let mut keep = keep.into_iter();
    entries.retain(|_| keep.next().unwrap_or(true));
    entries
}

impl ObjectStorage {
    fn folder(&self, prefix: &str) -> Result<(String, Option<Path>), StoreError> {
        let below = format!("{}{prefix}", self.prefix);
        // The crate lists whole folders; a prefix that ends inside a name is looked for in its folder.
        let folder = below.rsplit_once('/').map_or("", |(folder, _)| folder);
        let root = Path::parse(folder)
            .map_err(|error| misuse(format!("{folder:?} is no prefix: {error}")))?;
        Ok((below, Some(root).filter(|root| !root.as_ref().is_empty())))
    }

    /// All objects whose keys begin with `prefix`, sorted by key. Without `sizes`, a store to which they cost a request
    /// each leaves size and version out.
    pub async fn listing(
        &self,
        prefix: &str,
        sizes: bool,
        deadline: Instant,
    ) -> Result<Vec<Entry>, StoreError> {
        if let Some(folders) = &self.folders {
            let work = folders.all(self, prefix, sizes, deadline);
            return timeout_at(deadline.into(), work)
                .await
                .unwrap_or_else(|_| Err(self.late("the listing")))
                .map(tidy);
        }
        let (below, root) = self.folder(prefix)?;
        let list = async {
            let mut found = Vec::new();
            let mut stream = self.store.list(root.as_ref());
            while let Some(meta) = stream.try_next().await? {
                let key = meta.location.as_ref();
                let Some(key) = key
                    .strip_prefix(&self.prefix)
                    .filter(|_| key.starts_with(&below))
                else {
                    continue;
                };
                found.push(entry(key, &meta));
            }
            Ok(tidy(found))
        };
        let listed: Result<_, object_store::Error> = timeout_at(deadline.into(), list)
            .await
            .map_err(|_| self.late("the listing"))?;
        listed.map_err(|error| self.explain("the listing", error))
    }

    /// Whether anything lies in the folder `prefix` (empty, or with a slash at its end): one request.
    pub async fn is_folder(&self, prefix: &str, deadline: Instant) -> Result<bool, StoreError> {
        if self.folders.is_some() {
            return match self.level(prefix, deadline).await {
                Ok(level) => Ok(!level.entries.is_empty() || !level.folders.is_empty()),
                Err(error) if error.kind == StoreErrorKind::Missing => Ok(false),
                Err(error) => Err(error),
            };
        }
        let (_, root) = self.folder(prefix)?;
        let mut stream = self.store.list(root.as_ref());
        let first = timeout_at(deadline.into(), stream.try_next())
            .await
            .map_err(|_| self.late("the listing"))?;
        let first = first.map_err(|error| self.explain("the listing", error))?;
        Ok(first.is_some())
    }

    /// What lies directly in the folder `prefix` (empty, or with a slash at its end), sorted by key.
    pub async fn level(&self, prefix: &str, deadline: Instant) -> Result<Level, StoreError> {
        if let Some(folders) = &self.folders {
            let work = folders.level(self, prefix, true, deadline);
            return timeout_at(deadline.into(), work)
                .await
                .unwrap_or_else(|_| Err(self.late("the listing")));
        }
        let (_, root) = self.folder(prefix)?;
        let store = Arc::clone(&self.store);
        let list = async { store.list_with_delimiter(root.as_ref()).await };
        let listed = timeout_at(deadline.into(), list)
            .await
            .map_err(|_| self.late("the listing"))?;
        let listed = listed.map_err(|error| self.explain("the listing", error))?;
        let relative = |path: &Path| path.as_ref().strip_prefix(&self.prefix).map(str::to_owned);
        let mut folders: Vec<String> = listed
            .common_prefixes
            .iter()
            .filter_map(relative)
            .map(|key| key + "/")
            .collect();
        folders.sort();
        let entries = listed
            .objects
            .iter()
            .filter_map(|meta| Some(entry(&relative(&meta.location)?, meta)))
            .filter(|entry| {
                entry.size > 0 || folders.binary_search(&format!("{}/", entry.key)).is_err()
            })
            .collect();
        Ok(Level {
            entries: tidy(entries),
            folders,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_objects_in_the_place_of_folders_are_left_out() {
        let made = |key: &str, size| Entry {
            key: key.into(),
            size,
            version: String::new(),
        };
        let found = tidy(vec![
            made("b", 0),
            made("a/x", 1),
            made("a", 0),
            made("a.txt", 0),
            made("a", 5),
        ]);
        let keys: Vec<_> = found
            .iter()
            .map(|entry| (entry.key.as_str(), entry.size))
            .collect();
        assert_eq!(keys, [("a", 5), ("a.txt", 0), ("a/x", 1), ("b", 0)]);
    }
}
