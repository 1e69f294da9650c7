//! Writing: small objects at once, large ones in parts.

use std::time::Instant;

use bytes::Bytes;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{ObjectStoreExt, PutPayload};
use tokio::time::timeout_at;

use super::refusal::misuse;
use super::ObjectStorage;
use crate::store::StoreError;

/// One step of an upload, under its deadline and with its error in words.
macro_rules! step {
    ($self:ident, $key:ident, $deadline:ident, $work:expr) => {
        timeout_at($deadline.into(), $work)
            .await
            .map_err(|_| $self.late($key))?
            .map_err(|error| $self.explain($key, error))
    };
}

impl ObjectStorage {
    /// Writes an object at once. It appears whole or not at all.
    pub async fn put(&self, key: &str, bytes: Bytes, deadline: Instant) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let put = self.store.put(&path, PutPayload::from_bytes(bytes));
        step!(self, key, deadline, put).map(|_| ())
    }

    /// Whether objects can be written in parts.
    pub fn takes_parts(&self) -> bool {
        self.parts.is_some()
    }

    fn in_parts(&self) -> Result<&dyn MultipartStore, StoreError> {
        let parts = self.parts.as_deref();
        parts.ok_or_else(|| misuse(format!("{} takes objects only whole", self.name)))
    }

    /// Begins an object that is written in parts; gives the upload's id, by which another process may go on or give up.
    pub async fn begin_upload(&self, key: &str, deadline: Instant) -> Result<String, StoreError> {
        let path = self.path(key)?;
        step!(
            self,
            key,
            deadline,
            self.in_parts()?.create_multipart(&path)
        )
    }

    /// Writes part `number`, counted from 0; gives the part's id.
    pub async fn put_part(
        &self,
        key: &str,
        upload: &str,
        number: usize,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<String, StoreError> {
        let (path, upload) = (self.path(key)?, upload.to_owned());
        let payload = PutPayload::from_bytes(bytes);
        let put = self.in_parts()?.put_part(&path, &upload, number, payload);
        step!(self, key, deadline, put).map(|part| part.content_id)
    }

    /// Ends an upload: the object appears.
    pub async fn end_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[String],
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let (path, upload) = (self.path(key)?, upload.to_owned());
        let id = |content_id: &String| PartId {
            content_id: content_id.clone(),
        };
        let parts = parts.iter().map(id).collect();
        let end = self.in_parts()?.complete_multipart(&path, &upload, parts);
        step!(self, key, deadline, end).map(|_| ())
    }

    /// Gives an upload up: its parts go away.
    pub async fn abort_upload(
        &self,
        key: &str,
        upload: &str,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let (path, upload) = (self.path(key)?, upload.to_owned());
        let abort = self.in_parts()?.abort_multipart(&path, &upload);
        step!(self, key, deadline, abort)
    }

    /// Removes an object. For what penstock itself has written and nothing else.
    pub async fn delete(&self, key: &str, deadline: Instant) -> Result<(), StoreError> {
        let path = self.path(key)?;
        step!(self, key, deadline, self.store.delete(&path))
    }
}
