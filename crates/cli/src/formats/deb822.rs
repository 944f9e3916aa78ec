//! Debian control stanzas: finding a field.

/// The field's text on its first line, without the space around it. Names match in any case.
pub(crate) fn field<'a>(stanza: &'a [u8], name: &str) -> Option<&'a [u8]> {
    stanza.split(|&byte| byte == b'\n').find_map(|line| {
        let (head, rest) = line.split_at_checked(name.len())?;
        let text = rest.strip_prefix(b":")?;
        head.eq_ignore_ascii_case(name.as_bytes()).then(|| text.trim_ascii())
    })
}

/// The field's whole text: its lines, continuation lines included, as they stand.
pub(crate) fn whole_field<'a>(stanza: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let first = field(stanza, name)?;
    let start = first.as_ptr() as usize - stanza.as_ptr() as usize;
    let text = stanza.get(start..)?;
    let mut end = 0;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        if end > 0 && !matches!(line.first(), Some(b' ' | b'\t')) {
            break;
        }
        end += line.len();
    }
    Some(text[..end].trim_ascii_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANZA: &[u8] =
        b"Package: apt\nversion:  2.6.1 \nVersion-Next: 3\nDescription: tool\n for \
        packages\n Package: no\nEmpty:\nArchitecture: amd64";

    #[test]
    fn fields_are_found_by_their_whole_name_in_any_case() {
        assert_eq!(field(STANZA, "Package"), Some(&b"apt"[..]));
        assert_eq!(field(STANZA, "Version"), Some(&b"2.6.1"[..]));
        assert_eq!(field(STANZA, "ARCHITECTURE"), Some(&b"amd64"[..]));
        assert_eq!(field(STANZA, "Empty"), Some(&b""[..]));
        assert_eq!(field(STANZA, "Pack"), None);
        assert_eq!(field(STANZA, "Source"), None);
    }

    #[test]
    fn a_whole_field_has_its_continuation_lines() {
        assert_eq!(
            whole_field(STANZA, "Description"),
            Some(&b"tool\n for packages\n Package: no"[..])
        );
        assert_eq!(whole_field(STANZA, "Architecture"), Some(&b"amd64"[..]));
    }
}
