//! Edits: the content of the manifest's records.
//!
//! An edit is a sequence of fields, each with a tag and a payload, applied in order. Numbers that
//! only grow (`next_file_id`, `journal_floor`, `last_seqno`, `flushed`) never decrease: the larger
//! of two values wins. So edits that are prepared concurrently may be committed in any order.

use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::range_delete::RangeDelete;

const TAG_NEXT_FILE_ID: u8 = 1;
const TAG_JOURNAL_FLOOR: u8 = 2;
const TAG_EPOCHS: u8 = 3;
const TAG_LAST_SEQNO: u8 = 4;
const TAG_NEXT_KEYSPACE_ID: u8 = 5;
const TAG_CREATE: u8 = 6;
const TAG_DROP: u8 = 7;
const TAG_OPTIONS: u8 = 8;
const TAG_TREE_EDIT: u8 = 9;
const TAG_TREE_SNAPSHOT: u8 = 10;
const TAG_FLUSHED: u8 = 11;
const TAG_RANGE_DELETE: u8 = 12;
const TAG_RANGE_DELETE_DONE: u8 = 13;

/// One atomic change of the manifest's state. An empty edit is allowed and changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    /// Changes of keyspaces, applied in order.
    pub(crate) keyspaces: Vec<KeyspaceEdit>,
    /// A number above that of every data file.
    pub(crate) next_file_id: Option<FileId>,
    /// The trees have everything up to this number: no journal record up to it is needed.
    pub(crate) journal_floor: Option<Seqno>,
    /// The new epochs of the journal.
    pub(crate) epochs: Option<Epochs>,
    /// No number up to this one will be assigned again. Everything up to it was durable in the
    /// journal or is below its floor.
    pub(crate) last_seqno: Option<Seqno>,
    /// A number above that of every keyspace. It follows from the keyspaces created; only a
    /// snapshot has it.
    pub(crate) next_keyspace_id: Option<KeyspaceId>,
}

/// The journal's epochs. Each recovery begins a new one. Records of older epochs count only up to
/// the last number that the recovery replayed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Epochs {
    /// The epoch of new journal records.
    pub(crate) current: u64,
    /// Older epochs with records that may still be needed, each with its last valid number.
    pub(crate) older: Vec<(u64, Seqno)>,
}

/// A change of one keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyspaceEdit {
    pub(crate) id: KeyspaceId,
    pub(crate) change: KeyspaceChange,
}

/// The change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyspaceChange {
    /// Creates the keyspace. Its number has never been used.
    Create(KeyspaceMeta),
    /// Drops the keyspace. Its number is not reused.
    Drop,
    /// Sets its options.
    Options(Vec<u8>),
    /// An edit of its tree.
    TreeEdit(Vec<u8>),
    /// A snapshot of its tree: replaces all earlier edits.
    TreeSnapshot(Vec<u8>),
    /// Its tree has everything up to this number.
    Flushed(Seqno),
    /// It has a range delete.
    RangeDelete(RangeDelete),
    /// The range delete of this number is not needed any more.
    RangeDeleteDone(Seqno),
}

/// The manifest's data about a keyspace, without its tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeyspaceMeta {
    /// The name, unique among existing keyspaces.
    pub(crate) name: String,
    /// The tree's kind.
    pub(crate) kind: String,
    /// The options, opaque to the manifest.
    pub(crate) options: Vec<u8>,
    /// The merge operator's name.
    pub(crate) operator: Option<String>,
}

impl Edit {
    /// Appends the edit's fields.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut number = |tag: u8, value: Option<u64>| {
            if let Some(value) = value {
                out.push(tag);
                put_varint(out, value);
            }
        };
        number(TAG_NEXT_FILE_ID, self.next_file_id.map(|id| id.0));
        number(TAG_JOURNAL_FLOOR, self.journal_floor.map(|seqno| seqno.0));
        number(TAG_LAST_SEQNO, self.last_seqno.map(|seqno| seqno.0));
        number(TAG_NEXT_KEYSPACE_ID, self.next_keyspace_id.map(|id| u64::from(id.0)));
        if let Some(epochs) = &self.epochs {
            out.push(TAG_EPOCHS);
            put_varint(out, epochs.current);
            put_varint(out, epochs.older.len() as u64);
            for (epoch, last) in &epochs.older {
                put_varint(out, *epoch);
                put_varint(out, last.0);
            }
        }
        for edit in &self.keyspaces {
            encode_keyspace(edit, out);
        }
    }

    /// Reads fields to the decoder's end. Also returns, for each change of a keyspace, the file
    /// offset of the bytes that others decode: the tree's edit or the options. (For other changes,
    /// the offset of their end.)
    pub(super) fn decode(decoder: &mut Decoder<'_>) -> Result<(Edit, Vec<u64>)> {
        let mut edit = Edit::default();
        let mut offsets = Vec::new();
        while !decoder.is_empty() {
            let tag = decoder.u8("edit field tag")?;
            match tag {
                TAG_NEXT_FILE_ID => {
                    edit.next_file_id = Some(FileId(decoder.varint("next file id")?));
                }
                TAG_JOURNAL_FLOOR => {
                    edit.journal_floor = Some(Seqno(decoder.varint("journal floor")?));
                }
                TAG_LAST_SEQNO => {
                    edit.last_seqno = Some(Seqno(decoder.varint("last sequence number")?));
                }
                TAG_NEXT_KEYSPACE_ID => edit.next_keyspace_id = Some(keyspace_id(decoder)?),
                TAG_EPOCHS => {
                    let current = decoder.varint("current epoch")?;
                    let count = decoder.count(2, "older epochs")?;
                    let mut older = Vec::with_capacity(count);
                    for _ in 0..count {
                        let epoch = decoder.varint("older epoch")?;
                        older.push((epoch, Seqno(decoder.varint("older epoch's last number")?)));
                    }
                    edit.epochs = Some(Epochs { current, older });
                }
                _ => {
                    let (change, offset) = match tag {
                        TAG_CREATE..=TAG_RANGE_DELETE_DONE => decode_keyspace(tag, decoder)?,
                        _ => return Err(decoder.corrupt("edit field tag", "1 to 13", tag)),
                    };
                    edit.keyspaces.push(change);
                    offsets.push(offset);
                }
            }
        }
        Ok((edit, offsets))
    }
}

fn encode_keyspace(edit: &KeyspaceEdit, out: &mut Vec<u8>) {
    let mut start = |tag: u8| {
        out.push(tag);
        put_varint(out, u64::from(edit.id.0));
    };
    match &edit.change {
        KeyspaceChange::Create(meta) => {
            start(TAG_CREATE);
            put_bytes(out, meta.name.as_bytes());
            put_bytes(out, meta.kind.as_bytes());
            put_bytes(out, &meta.options);
            // An operator's name is never empty, so empty bytes mean no operator.
            put_bytes(out, meta.operator.as_deref().unwrap_or_default().as_bytes());
        }
        KeyspaceChange::Drop => start(TAG_DROP),
        KeyspaceChange::Options(options) => {
            start(TAG_OPTIONS);
            put_bytes(out, options);
        }
        KeyspaceChange::TreeEdit(payload) => {
            start(TAG_TREE_EDIT);
            put_bytes(out, payload);
        }
        KeyspaceChange::TreeSnapshot(payload) => {
            start(TAG_TREE_SNAPSHOT);
            put_bytes(out, payload);
        }
        KeyspaceChange::Flushed(seqno) => {
            start(TAG_FLUSHED);
            put_varint(out, seqno.0);
        }
        KeyspaceChange::RangeDelete(delete) => {
            start(TAG_RANGE_DELETE);
            put_varint(out, delete.seqno.0);
            put_bytes(out, &delete.lower);
            // No upper bound is empty, so empty bytes mean none.
            put_bytes(out, delete.upper.as_deref().unwrap_or_default());
        }
        KeyspaceChange::RangeDeleteDone(seqno) => {
            start(TAG_RANGE_DELETE_DONE);
            put_varint(out, seqno.0);
        }
    }
}

/// Reads a change of a keyspace, with the offset that `Edit::decode` returns.
fn decode_keyspace(tag: u8, decoder: &mut Decoder<'_>) -> Result<(KeyspaceEdit, u64)> {
    let id = keyspace_id(decoder)?;
    let mut offset = None;
    let mut opaque = |decoder: &mut Decoder<'_>, what| {
        let bytes = decoder.byte_string(what)?;
        offset = Some(decoder.offset() - bytes.len() as u64);
        Ok(bytes.to_vec())
    };
    let change = match tag {
        TAG_CREATE => {
            let name = string(decoder, "keyspace name")?;
            let kind = string(decoder, "keyspace kind")?;
            let options = opaque(decoder, "keyspace options")?;
            let operator = string(decoder, "merge operator name")?;
            let operator = (!operator.is_empty()).then_some(operator);
            KeyspaceChange::Create(KeyspaceMeta { name, kind, options, operator })
        }
        TAG_DROP => KeyspaceChange::Drop,
        TAG_OPTIONS => KeyspaceChange::Options(opaque(decoder, "keyspace options")?),
        TAG_TREE_EDIT => KeyspaceChange::TreeEdit(opaque(decoder, "tree edit")?),
        TAG_TREE_SNAPSHOT => KeyspaceChange::TreeSnapshot(opaque(decoder, "tree snapshot")?),
        TAG_FLUSHED => KeyspaceChange::Flushed(Seqno(decoder.varint("flushed sequence number")?)),
        TAG_RANGE_DELETE => {
            let seqno = Seqno(decoder.varint("number of a range delete")?);
            let lower = decoder.byte_string("lower bound of a range delete")?;
            let upper = decoder.byte_string("upper bound of a range delete")?;
            let delete = RangeDelete::of_operation(seqno, lower, upper);
            KeyspaceChange::RangeDelete(delete.ok_or_else(|| {
                let found = format_args!("\"{}\"", upper.escape_ascii());
                let bound = "a key above the first of the range";
                decoder.corrupt("upper bound of a range delete", bound, found)
            })?)
        }
        _ => KeyspaceChange::RangeDeleteDone(Seqno(decoder.varint("number of a range delete")?)),
    };
    Ok((KeyspaceEdit { id, change }, offset.unwrap_or_else(|| decoder.offset())))
}

fn keyspace_id(decoder: &mut Decoder<'_>) -> Result<KeyspaceId> {
    let id = decoder.varint("keyspace id")?;
    match u32::try_from(id) {
        Ok(id) => Ok(KeyspaceId(id)),
        Err(_) => Err(decoder.corrupt("keyspace id", "32 bits", id)),
    }
}

fn string(decoder: &mut Decoder<'_>, what: &'static str) -> Result<String> {
    let bytes = decoder.byte_string(what)?;
    match std::str::from_utf8(bytes) {
        Ok(string) => Ok(string.to_string()),
        Err(error) => Err(decoder.corrupt(what, "UTF-8", error)),
    }
}
