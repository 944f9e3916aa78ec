//! The options of a keyspace: those of every keyspace, and those that its tree kind has alone.
//!
//! Invariants:
//! 1. An option that the kind does not have is refused by [`KeyspaceOptions::check`] before anything is stored.
//! 2. What is stored says each option once: [`KeyspaceOptions::decode`] takes what `encode` writes and
//!    nothing else.
//! 3. Files tell by themselves how they are to be read. Of the options, only the fixed ones ([`FIXED`]) decide what stored
//!    data means; all others can be changed while the keyspace is in use.

use std::path::Path;

use super::kinds::TreeKind;
use super::own_options::{FANOUT_MAX, OwnOption, OwnValues, WITHOUT_SEEK_COMPACTION};
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, Result};
use crate::base::limits::INLINE_BYTES_MAX;
use crate::cache::Compression as PageCompression;
use crate::manifest::KeyspaceMeta;

/// How a keyspace's pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all: a point read is one 4 KiB read.
    #[default]
    None,
    /// LZ4, in pages of up to 16 KiB.
    Lz4,
}

impl Compression {
    pub(crate) fn page_compression(self) -> PageCompression {
        match self {
            Compression::None => PageCompression::None,
            Compression::Lz4 => PageCompression::Lz4,
        }
    }
}

/// The only form in which options are stored. Before it there were 1 to 3, of unpublished builds.
const OPTIONS_VERSION: u8 = 4;

/// A blob pointer is always shorter.
const BLOB_BYTES_MIN_LEAST: u32 = 64;

/// The options that are fixed when a keyspace is created.
const FIXED: [&str; 2] = ["kind", "merge_operator"];

/// The options of a keyspace, which are kept in the store. Opening a keyspace with other options than it has is a
/// [`Error::Conflict`].
///
/// The tree kind and the merge operator are fixed when the keyspace is created.
/// [`Keyspace::alter`](crate::Keyspace::alter) changes all others.
///
/// Some options are of some tree kinds alone. A keyspace of another kind cannot be opened with them: that is
/// [`Error::InvalidArgument`], which says the kinds that have the option.
///
/// ```
/// use spinney::{Compression, KeyspaceOptions};
/// let options = KeyspaceOptions::stb().compression(Compression::Lz4).merge_operator("u64_add");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceOptions {
    pub(crate) kind: TreeKind,
    pub(crate) compression: Compression,
    pub(crate) merge_operator: Option<String>,
    pub(crate) blob_bytes_min: u32,
    pub(crate) space_amplification_max_percent: u32,
    pub(crate) own: OwnValues,
}

impl KeyspaceOptions {
    /// A keyspace of the given kind with that kind's defaults.
    pub fn new(kind: TreeKind) -> KeyspaceOptions {
        KeyspaceOptions {
            kind,
            compression: Compression::None,
            merge_operator: None,
            blob_bytes_min: kind.blob_bytes_min(),
            space_amplification_max_percent: kind.space_amplification_max_percent(),
            own: OwnValues::default(),
        }
    }

    /// Compresses pages.
    pub fn compression(mut self, compression: Compression) -> KeyspaceOptions {
        self.compression = compression;
        self
    }

    /// Folds `merge` operands with the operator registered under this name.
    pub fn merge_operator(mut self, name: &str) -> KeyspaceOptions {
        self.merge_operator = Some(name.to_string());
        self
    }

    /// Values and merge operands of at least this many bytes are stored in blob files, which compactions do not
    /// copy. Default 4096, for `slm` 8192; at least 64 and at most 1 MiB (other numbers count as the nearest of these).
    pub fn blob_bytes_min(mut self, bytes: u32) -> KeyspaceOptions {
        self.blob_bytes_min = bytes.clamp(BLOB_BYTES_MIN_LEAST, INLINE_BYTES_MAX);
        self
    }

    /// The most children of a trunk node or guard (0, the default: the tree's own choice). Small
    /// numbers are for tests; a trunk takes at least 3. An option of the kinds `stb`, `flsm` and `tph`.
    pub fn fanout_max(self, fanout: u32) -> KeyspaceOptions {
        self.own(&FANOUT_MAX, fanout)
    }

    /// Whether key ranges that iterators have read from many tables are merged in the background (the default).
    /// [`Builder::seek_compaction`](crate::Builder::seek_compaction) turns it off for all keyspaces of an open store.
    pub fn seek_compaction(self, compaction: bool) -> KeyspaceOptions {
        self.own(&WITHOUT_SEEK_COMPACTION, u32::from(!compaction))
    }

    /// Returns true unless seek compaction is turned off.
    pub(crate) fn has_seek_compaction(&self) -> bool {
        self.own.get(&WITHOUT_SEEK_COMPACTION) == 0
    }

    /// Reclaims space, at the cost of more writing, whenever disk space exceeds this many times the
    /// live data. Where entries leave more than 6% of their pages unused (three values of 1 KiB in 4
    /// KiB), that unused space counts as live. Default 1.27 (`flsm`: 1.3, `tph` and `slm`: 1.33); at least 1.1.
    ///
    /// In `stb` and `tph`, the target is up to 0.13 higher while the data that is written replaces nothing, until nobody has
    /// written for some seconds or somebody waits for background work.
    #[expect(clippy::manual_clamp, reason = "`clamp` would keep a NaN, which would become 0")]
    pub fn space_amplification_max(mut self, times: f64) -> KeyspaceOptions {
        self.space_amplification_max_percent = (times.max(1.1).min(100.0) * 100.0).round() as u32;
        self
    }

    /// Sets an option that only some kinds have.
    pub(super) fn own(mut self, option: &OwnOption, value: u32) -> KeyspaceOptions {
        self.own.set(option, value);
        self
    }

    /// Sets an option of the keyspace's kind by its name, as a command line has it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the kind has no such option; it says which it has.
    ///
    /// ```
    /// use spinney::KeyspaceOptions;
    /// let options = KeyspaceOptions::flsm().kind_option("tables_per_guard_max", 4)?;
    /// assert_eq!(options, KeyspaceOptions::flsm().tables_per_guard_max(4));
    /// # Ok::<(), spinney::Error>(())
    /// ```
    pub fn kind_option(self, name: &str, value: u32) -> Result<KeyspaceOptions> {
        let options = self.kind.own_options();
        match options.iter().find(|option| option.name == name) {
            Some(option) => Ok(self.own(option, value)),
            None => Err(unknown_option(self.kind, name)),
        }
    }

    /// The tree that holds the keyspace.
    pub fn kind(&self) -> TreeKind {
        self.kind
    }

    /// Refuses options that the kind does not have.
    pub(crate) fn check(&self) -> Result<()> {
        let has = |name: &str| self.kind.own_options().iter().any(|option| option.name == name);
        match self.own.names().find(|name| !has(name)) {
            Some(name) => Err(unknown_option(self.kind, name)),
            None => Ok(()),
        }
    }

    /// All options that a keyspace of this kind has, by name, and their values. The first two, kind and merge operator,
    /// are fixed when the keyspace is created.
    ///
    /// ```
    /// use spinney::KeyspaceOptions;
    /// let values = KeyspaceOptions::stb().fanout_max(4).values();
    /// assert_eq!(values[0], ("kind", "stb".to_string()));
    /// assert_eq!(values[5], ("fanout_max", "4".to_string()));
    /// ```
    pub fn values(&self) -> Vec<(&'static str, String)> {
        self.values_as(self.kind)
    }

    /// The same, with the own options of a kind.
    fn values_as(&self, kind: TreeKind) -> Vec<(&'static str, String)> {
        let percent = f64::from(self.space_amplification_max_percent);
        let operator = match &self.merge_operator {
            Some(name) => format!("{name:?}"),
            None => "none".to_string(),
        };
        let mut values = vec![
            ("kind", self.kind.to_string()),
            ("merge_operator", operator),
            ("compression", format!("{:?}", self.compression).to_lowercase()),
            ("blob_bytes_min", self.blob_bytes_min.to_string()),
            ("space_amplification_max", (percent / 100.0).to_string()),
        ];
        let own = kind.own_options().iter();
        values.extend(own.map(|option| (option.name, (option.show)(self.own.get(option)))));
        values
    }

    /// Returns true for an option that is fixed when a keyspace is created.
    pub(crate) fn is_fixed(option: &str) -> bool {
        FIXED.contains(&option)
    }

    /// Refuses to change these options of a keyspace to others if that is not possible.
    pub(crate) fn check_change(&self, keyspace: &str, to: &KeyspaceOptions) -> Result<()> {
        match self.difference(to) {
            Some((option, has, wanted)) if KeyspaceOptions::is_fixed(option) => {
                Err(Error::invalid(format!(
                    "{option} of keyspace {keyspace:?} is {has}, and cannot become {wanted}: it is fixed when \
                     the keyspace is created; create a keyspace with it and copy the pairs"
                )))
            }
            _ => to.check(),
        }
    }

    /// The first option in which `other` differs: its name, its value here, and its value there. The fixed options
    /// come first.
    ///
    /// ```
    /// use spinney::KeyspaceOptions;
    /// let (a, b) = (KeyspaceOptions::stb().fanout_max(4), KeyspaceOptions::stb().fanout_max(8));
    /// assert_eq!(a.difference(&b), Some(("fanout_max", "4".to_string(), "8".to_string())));
    /// ```
    pub fn difference(&self, other: &KeyspaceOptions) -> Option<(&'static str, String, String)> {
        let mut values = self.values_as(self.kind).into_iter().zip(other.values_as(self.kind));
        let differs = values.find(|(here, there)| here != there);
        differs.map(|((name, here), (_, there))| (name, here, there))
    }

    /// What the manifest keeps of a keyspace of this name with these options.
    pub(crate) fn meta(&self, name: &str) -> KeyspaceMeta {
        KeyspaceMeta {
            name: name.to_string(),
            kind: self.kind.name().to_string(),
            options: self.encode(),
            operator: self.merge_operator.clone(),
        }
    }

    /// The stored form (`docs/format/keyspace-options.md`).
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![OPTIONS_VERSION, self.compression.page_compression() as u8];
        put_varint(&mut out, u64::from(self.blob_bytes_min));
        put_varint(&mut out, u64::from(self.space_amplification_max_percent));
        let options = self.kind.own_options().iter().copied();
        let mut chosen: Vec<(u32, u32)> = options
            .map(|option| (option.tag, self.own.get(option)))
            .filter(|(_, value)| *value != 0)
            .collect();
        chosen.sort_unstable();
        put_varint(&mut out, chosen.len() as u64);
        for (tag, value) in chosen {
            put_varint(&mut out, u64::from(tag));
            put_varint(&mut out, u64::from(value));
        }
        out
    }

    /// Reads what `encode` has written, which begins at an offset of a file.
    pub(crate) fn decode(
        kind: TreeKind,
        merge_operator: Option<String>,
        bytes: &[u8],
        (file, offset): (&Path, u64),
    ) -> Result<KeyspaceOptions> {
        let mut decoder = Decoder::new(bytes, file, offset);
        let version = decoder.u8("keyspace options version")?;
        if version != OPTIONS_VERSION {
            return Err(Error::UnsupportedVersion {
                file: file.to_path_buf(),
                found: u32::from(version),
                supported: u32::from(OPTIONS_VERSION),
            });
        }
        let tag = decoder.u8("keyspace compression")?;
        let compression = match PageCompression::from_tag(tag) {
            Some(PageCompression::None) => Compression::None,
            Some(PageCompression::Lz4) => Compression::Lz4,
            None => return Err(decoder.corrupt("keyspace compression", "0 or 1", tag)),
        };
        let number = |decoder: &mut Decoder<'_>, what| -> Result<u32> {
            let n = decoder.varint(what)?;
            u32::try_from(n).map_err(|_| decoder.corrupt(what, "a 32-bit number", n))
        };
        let mut options = KeyspaceOptions {
            kind,
            compression,
            merge_operator,
            blob_bytes_min: number(&mut decoder, "blob_bytes_min")?
                .clamp(BLOB_BYTES_MIN_LEAST, INLINE_BYTES_MAX),
            space_amplification_max_percent: number(&mut decoder, "space_amplification_max")?,
            own: OwnValues::default(),
        };
        let mut least_tag = 0;
        for _ in 0..number(&mut decoder, "number of options of the tree kind")? {
            let tag = number(&mut decoder, "option tag")?;
            if tag < least_tag {
                return Err(decoder.corrupt(
                    "option tag",
                    format_args!("{least_tag} or more"),
                    tag,
                ));
            }
            least_tag = tag.saturating_add(1);
            let Some(option) = kind.own_options().iter().find(|option| option.tag == tag) else {
                let known = format_args!("a tag that tree kind {kind} has");
                return Err(decoder.corrupt("option tag", known, tag));
            };
            let value = number(&mut decoder, option.name)?;
            if value == 0 || (option.nearest)(value) != value {
                let nearest = (option.nearest)(value.max(1));
                return Err(decoder.corrupt(option.name, nearest, value));
            }
            options.own.set(option, value);
        }
        if !decoder.is_empty() {
            return Err(decoder.corrupt("keyspace options", "their end", "more bytes"));
        }
        Ok(options)
    }
}

/// An option that a keyspace of a kind cannot have.
fn unknown_option(kind: TreeKind, name: &str) -> Error {
    let list = |names: Vec<&str>| match names[..] {
        [] => "none".to_string(),
        _ => names.join(", "),
    };
    let own = kind.own_options().iter().map(|option| option.name).collect();
    let has = |other: &TreeKind| other.own_options().iter().any(|option| option.name == name);
    let others =
        TreeKind::ALL.iter().filter(|other| has(other)).map(|other| other.name()).collect();
    Error::invalid(format!(
        "a keyspace of kind {kind} has no option {name}; leave it out (options of {kind}: {}; kinds with \
         {name}: {})",
        list(own),
        list(others)
    ))
}

impl TreeKind {
    /// The options that keyspaces of this kind have beyond those of every keyspace: name and description.
    /// [`KeyspaceOptions::kind_option`] takes them.
    ///
    /// ```
    /// let names: Vec<&str> = spinney::TreeKind::Flsm.options().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["fanout_max", "tables_per_guard_max", "without_filters", "without_seek_compaction"]);
    /// ```
    pub fn options(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.own_options().iter().map(|option| (option.name, option.about))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::documented::hex_block;

    /// The bytes of the `nth` hex block of the format's page.
    fn documented(nth: usize) -> Vec<u8> {
        hex_block(include_str!("../../docs/format/keyspace-options.md"), nth)
    }

    fn decode(bytes: &[u8]) -> Result<KeyspaceOptions> {
        KeyspaceOptions::decode(TreeKind::Stb, None, bytes, (Path::new("manifest-00000001"), 0))
    }

    #[test]
    fn the_documented_options_are_what_is_written_and_read() {
        let plain = KeyspaceOptions::stb().blob_bytes_min(4096).space_amplification_max(1.3);
        let chosen = KeyspaceOptions::stb()
            .compression(Compression::Lz4)
            .blob_bytes_min(300)
            .fanout_max(8)
            .space_amplification_max(1.25);
        let guards = KeyspaceOptions::flsm().tables_per_guard_max(4).filters(false);
        let unmerged = KeyspaceOptions::stb().space_amplification_max(1.3).seek_compaction(false);
        for (nth, options) in [(0, plain), (1, chosen), (2, guards), (3, unmerged)] {
            assert_eq!(options.encode(), documented(nth));
            let place = (Path::new("manifest-00000001"), 0);
            let decoded = KeyspaceOptions::decode(options.kind, None, &documented(nth), place);
            assert_eq!(decoded.unwrap(), options);
        }
    }

    #[test]
    fn the_merge_operator_is_kept_beside_them() {
        let options = KeyspaceOptions::stb().merge_operator("u64_add");
        let decoded = KeyspaceOptions::decode(
            TreeKind::Stb,
            Some("u64_add".to_string()),
            &options.encode(),
            (Path::new("manifest-00000001"), 0),
        );
        assert_eq!(decoded.unwrap(), options);
    }

    /// They were kept and ignored, and then made opening the keyspace again a conflict.
    #[test]
    fn options_of_another_kind_are_refused() {
        let refused = |options: KeyspaceOptions| options.check().unwrap_err().to_string();
        let guards = refused(KeyspaceOptions::stb().tables_per_guard_max(3));
        assert!(guards.contains("no option tables_per_guard_max"), "{guards}");
        assert!(
            guards.contains("options of stb: fanout_max, without_seek_compaction;"),
            "{guards}"
        );
        assert!(guards.contains("kinds with tables_per_guard_max: flsm)"), "{guards}");
        assert!(refused(KeyspaceOptions::stb().filters(false)).contains("no option without"));
        KeyspaceOptions::stb().filters(true).fanout_max(4).check().unwrap();
        KeyspaceOptions::flsm().filters(false).tables_per_guard_max(3).check().unwrap();
        let db = crate::Database::builder_in_memory().deterministic(1).open().unwrap();
        // Also where the keyspace exists.
        for _ in 0..2 {
            let created = db.keyspace("items", KeyspaceOptions::stb().filters(false));
            assert!(matches!(created, Err(Error::InvalidArgument { .. })));
            db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        }
    }

    /// Who asked for other options than a keyspace has was shown both structures whole.
    #[test]
    fn what_differs_is_named_with_both_values() {
        let plain = KeyspaceOptions::flsm();
        let others = [
            (KeyspaceOptions::flsm().compression(Compression::Lz4), "compression", "none", "lz4"),
            (plain.clone().merge_operator("append"), "merge_operator", "none", "\"append\""),
            (plain.clone().blob_bytes_min(300), "blob_bytes_min", "4096", "300"),
            (plain.clone().fanout_max(3), "fanout_max", "the tree's own choice", "3"),
            (
                plain.clone().tables_per_guard_max(4),
                "tables_per_guard_max",
                "the tree's own choice",
                "4",
            ),
            (plain.clone().filters(false), "without_filters", "false", "true"),
            (plain.clone().space_amplification_max(1.5), "space_amplification_max", "1.3", "1.5"),
            (KeyspaceOptions::stb(), "kind", "flsm", "stb"),
        ];
        for (other, name, here, there) in others {
            let expected = Some((name, here.to_string(), there.to_string()));
            assert_eq!(plain.difference(&other), expected);
        }
        assert_eq!(plain.difference(&KeyspaceOptions::flsm()), None);
    }

    #[test]
    fn options_that_cannot_be_are_refused() {
        let bytes = documented(0);
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).unwrap_err().is_corruption(), "{len} bytes");
        }
        assert!(decode(&[&*bytes, &[0]].concat()).unwrap_err().is_corruption());
        let wrong: [&[u8]; 7] = [
            // A compression that is none.
            &[4, 2, 64, 110, 0],
            // 2^32 is one too many.
            &[4, 0, 0x80, 0x80, 0x80, 0x80, 0x10, 110, 0],
            // Of two options, one is missing.
            &[4, 0, 64, 110, 2, 1, 3],
            // Twice the same, one of another kind, a default, and one out of its range.
            &[4, 0, 64, 110, 2, 1, 3, 1, 3],
            &[4, 0, 64, 110, 1, 2, 3],
            &[4, 0, 64, 110, 1, 1, 0],
            &[4, 0, 64, 110, 1, 1, 1],
        ];
        for bytes in wrong {
            assert!(decode(bytes).unwrap_err().is_corruption(), "{bytes:?}");
        }
        decode(&[4, 0, 64, 110, 1, 1, 2]).unwrap();
        for version in [1, 3, 5] {
            let other = decode(&[version, 0, 64, 110, 0]).unwrap_err();
            assert!(matches!(other, Error::UnsupportedVersion { supported: 4, .. }));
        }
    }

    #[test]
    fn out_of_range_choices_are_brought_into_range() {
        let options = KeyspaceOptions::stb().fanout_max(1).blob_bytes_min(0);
        let options = options.space_amplification_max(0.5);
        assert_eq!((options.own.get(&FANOUT_MAX), options.blob_bytes_min), (2, 64));
        assert_eq!(options.space_amplification_max_percent, 110);
    }
}
