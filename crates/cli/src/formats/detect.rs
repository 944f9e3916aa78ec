//! Guesses a format from a file's name, or from its first bytes, for `--format auto`.

use std::path::Path;

use super::Format;

/// From the name: its extension, an `.lz4` behind it put aside, or Debian's well-known names.
pub(crate) fn from_name(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".lz4").unwrap_or(name);
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("tsv" | "tab") => Some(Format::Tsv),
        Some("csv") => Some(Format::Csv),
        Some("jsonl" | "ndjson") => Some(Format::Jsonl),
        Some("deb822" | "sources") => Some(Format::Deb822),
        _ if name.ends_with("Packages") || name.ends_with("Sources") => Some(Format::Deb822),
        _ => None,
    }
}

/// From the first bytes.
pub(crate) fn from_head(head: &[u8]) -> Option<Format> {
    let line = head.split(|&byte| byte == b'\n').find(|line| !line.trim_ascii().is_empty())?;
    if line.starts_with(b"{") {
        return Some(Format::Jsonl);
    }
    if line.contains(&b'\t') {
        return Some(Format::Tsv);
    }
    let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
    let is_field_name = name.first().is_some_and(u8::is_ascii_alphabetic)
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    if is_field_name && name.len() < line.len() {
        return Some(Format::Deb822);
    }
    line.contains(&b',').then_some(Format::Csv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell() {
        for (name, expected) in [
            ("a/b.tsv", Some(Format::Tsv)),
            ("B.CSV", Some(Format::Csv)),
            ("log.jsonl.lz4", Some(Format::Jsonl)),
            (
                "deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages.lz4",
                Some(Format::Deb822),
            ),
            ("status", None),
            ("data.bin", None),
        ] {
            assert_eq!(from_name(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn first_bytes_tell() {
        for (head, expected) in [
            ("{\"a\":1}\n", Some(Format::Jsonl)),
            ("key\tvalue\n", Some(Format::Tsv)),
            ("\nPackage: apt\nVersion: 1\n", Some(Format::Deb822)),
            ("id,name\n1,a\n", Some(Format::Csv)),
            ("just words", None),
            ("", None),
        ] {
            assert_eq!(from_head(head.as_bytes()), expected, "{head:?}");
        }
    }
}
