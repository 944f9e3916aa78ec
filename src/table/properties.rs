//! The totals of a table, known without reading its leaves.

use std::path::Path;

use super::sample::KeySample;
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::cache::Compression;
use crate::manifest::KeyspaceMeta;

/// The keyspace of a table: enough to create it again if the manifest is lost. It is at the end of
/// the properties, and only repair reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) meta: KeyspaceMeta,
}

impl Origin {
    /// Appends the origin to encoded properties.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.keyspace.0));
        put_bytes(out, self.meta.name.as_bytes());
        put_bytes(out, self.meta.kind.as_bytes());
        put_bytes(out, &self.meta.options);
        // An operator's name is never empty.
        put_bytes(out, self.meta.operator.as_deref().unwrap_or_default().as_bytes());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Origin> {
        let number = from.varint("keyspace number")?;
        let keyspace = u32::try_from(number)
            .map_err(|_| from.corrupt("keyspace number", "32 bits", number))?;
        let mut text = |what| {
            let bytes = from.byte_string(what)?;
            let text = std::str::from_utf8(bytes).map(str::to_string);
            text.map_err(|error| from.corrupt(what, "UTF-8", error))
        };
        let (name, kind) = (text("keyspace name")?, text("keyspace kind")?);
        let options = from.byte_string("keyspace options")?.to_vec();
        let operator = from.byte_string("merge operator name")?;
        let operator = std::str::from_utf8(operator)
            .map_err(|error| from.corrupt("merge operator name", "UTF-8", error))?;
        let operator = (!operator.is_empty()).then(|| operator.to_string());
        Ok(Origin {
            keyspace: KeyspaceId(keyspace),
            meta: KeyspaceMeta { name, kind, options, operator },
        })
    }
}

/// The references of a table to one blob file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobReference {
    pub(crate) file: FileId,
    /// The number of the table's entries that point there.
    pub(crate) values: u64,
    /// The size of their values in bytes.
    pub(crate) bytes: u64,
}

/// A table's totals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Properties {
    /// The smallest key.
    pub(crate) first_key: Vec<u8>,
    /// The largest key.
    pub(crate) last_key: Vec<u8>,
    /// The number of entries with an inline value.
    pub(crate) puts: u64,
    /// The number of deletes.
    pub(crate) deletes: u64,
    /// The number of entries with a merge operand.
    pub(crate) merges: u64,
    /// The number of entries with a value in a blob file.
    pub(crate) blob_puts: u64,
    /// The number of entries with a merge operand in a blob file.
    pub(crate) blob_merges: u64,
    /// The size of all keys in bytes.
    pub(crate) key_bytes: u64,
    /// The size of all values in bytes (for a blob, the size of its pointer).
    pub(crate) value_bytes: u64,
    /// The smallest sequence number.
    pub(crate) seqno_min: Seqno,
    /// The largest sequence number.
    pub(crate) seqno_max: Seqno,
    /// The requested compression of leaves.
    pub(crate) compression: Compression,
    /// The number of leaf pages.
    pub(crate) leaf_pages: u32,
    /// The number of index pages.
    pub(crate) index_pages: u32,
    /// The builder's creation counter.
    pub(crate) creation: u64,
    /// The blob files referred to, by file number ascending.
    pub(crate) blobs: Vec<BlobReference>,
    /// A sample of the keys.
    pub(crate) sample: KeySample,
}

impl Properties {
    /// The number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.puts + self.deletes + self.merges + self.blob_puts + self.blob_merges
    }

    /// The size of all keys and values in bytes.
    pub(crate) fn entry_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, &self.first_key);
        put_bytes(&mut out, &self.last_key);
        let numbers = [
            self.puts,
            self.deletes,
            self.merges,
            self.blob_puts,
            self.key_bytes,
            self.value_bytes,
            self.seqno_min.0,
            self.seqno_max.0,
            u64::from(self.compression as u8),
            u64::from(self.leaf_pages),
            u64::from(self.index_pages),
            self.creation,
            self.blobs.len() as u64,
        ];
        for number in numbers {
            put_varint(&mut out, number);
        }
        for blob in &self.blobs {
            put_varint(&mut out, blob.file.0);
            put_varint(&mut out, blob.values);
            put_varint(&mut out, blob.bytes);
        }
        put_varint(&mut out, self.blob_merges);
        self.sample.encode(&mut out);
        out
    }

    /// Reads the payload of the properties page, which starts at `offset` of `file`.
    pub(super) fn decode(payload: &[u8], file: &Path, offset: u64) -> Result<Properties> {
        Properties::decode_from(&mut Decoder::new(payload, file, offset))
    }

    /// As [`Properties::decode`], with the origin, if the table has one.
    pub(super) fn decode_with_origin(
        payload: &[u8],
        file: &Path,
        offset: u64,
    ) -> Result<(Properties, Option<Origin>)> {
        let mut from = Decoder::new(payload, file, offset);
        let properties = Properties::decode_from(&mut from)?;
        let origin = (!from.is_empty()).then(|| Origin::decode(&mut from)).transpose()?;
        Ok((properties, origin))
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Properties> {
        let first_key = from.byte_string("first key")?.to_vec();
        let last_key = from.byte_string("last key")?.to_vec();
        let counts = [
            from.varint("puts")?,
            from.varint("deletes")?,
            from.varint("merges")?,
            from.varint("blob puts")?,
        ];
        let [puts, deletes, merges, blob_puts] = counts;
        let (key_bytes, value_bytes) = (from.varint("key bytes")?, from.varint("value bytes")?);
        let seqno_min = Seqno(from.varint("smallest sequence number")?);
        let seqno_max = Seqno(from.varint("largest sequence number")?);
        let tag = from.varint("compression")?;
        let compression = u8::try_from(tag).ok().and_then(Compression::from_tag);
        let compression =
            compression.ok_or_else(|| from.corrupt("compression", "a known tag (0 or 1)", tag))?;
        let mut page_count = |what| {
            let n = from.varint(what)?;
            u32::try_from(n).map_err(|_| from.corrupt(what, "32 bits", n))
        };
        let (leaf_pages, index_pages) = (page_count("leaf pages")?, page_count("index pages")?);
        let creation = from.varint("creation counter")?;
        let count = from.count(3, "blob references")?;
        let mut blobs = Vec::with_capacity(count);
        for _ in 0..count {
            blobs.push(BlobReference {
                file: FileId(from.varint("blob file")?),
                values: from.varint("blob values")?,
                bytes: from.varint("blob bytes")?,
            });
        }
        let blob_merges = from.varint("blob merges")?;
        let entries = counts.iter().try_fold(blob_merges, |sum, &n| sum.checked_add(n));
        if entries.is_none_or(|n| n == 0) || key_bytes.checked_add(value_bytes).is_none() {
            return Err(from.corrupt("table totals", "at least one entry", "none or too many"));
        }
        let sample = KeySample::decode(from)?;
        Ok(Properties {
            first_key,
            last_key,
            puts,
            deletes,
            merges,
            blob_puts,
            blob_merges,
            key_bytes,
            value_bytes,
            seqno_min,
            seqno_max,
            compression,
            leaf_pages,
            index_pages,
            creation,
            blobs,
            sample,
        })
    }
}
