//! CSV fields: finding one in a raw record, and writing pairs.

/// The contents of the fields of a raw record: quotes taken off, doubled quotes made single.
pub(crate) fn fields(record: &[u8], delimiter: u8) -> Vec<Vec<u8>> {
    let record = record.strip_suffix(b"\r").unwrap_or(record);
    let mut out = Vec::new();
    let mut rest = record;
    loop {
        let mut contents = Vec::new();
        let after = field(rest, delimiter, &mut contents);
        out.push(contents);
        match after {
            Some(after) => rest = after,
            None => return out,
        }
    }
}

/// Appends the contents of the first field; returns the text after its delimiter, if there is one.
pub(crate) fn field<'a>(record: &'a [u8], delimiter: u8, out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut position = 0;
    if record.first() == Some(&b'"') {
        position = 1;
        while let Some(&byte) = record.get(position) {
            position += 1;
            if byte != b'"' {
                out.push(byte);
            } else if record.get(position) == Some(&b'"') {
                out.push(b'"');
                position += 1;
            } else {
                break;
            }
        }
    }
    // Whatever follows a closing quote is taken as it stands, as other parsers do.
    while let Some(&byte) = record.get(position) {
        position += 1;
        if byte == delimiter {
            return record.get(position..);
        }
        out.push(byte);
    }
    None
}

/// Appends one field's contents of the record by its position; false if there are fewer fields.
pub(crate) fn nth_field(record: &[u8], delimiter: u8, position: usize, out: &mut Vec<u8>) -> bool {
    let mut rest = record.strip_suffix(b"\r").unwrap_or(record);
    let start = out.len();
    for _ in 0..position {
        match field(rest, delimiter, out) {
            Some(after) => rest = after,
            None => {
                out.truncate(start);
                return false;
            }
        }
        out.truncate(start);
    }
    field(rest, delimiter, out);
    true
}

/// Appends a record of these fields, quoted where needed, with its newline.
pub(crate) fn write_fields(
    fields: &[&[u8]],
    delimiter: u8,
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    let mut writer =
        csv::WriterBuilder::new().delimiter(delimiter).buffer_capacity(256).from_writer(out);
    writer.write_record(fields).map_err(std::io::Error::other)?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn fields_are_what_the_csv_crate_reads() {
        let mut random = Rng::with_seed(11);
        for _ in 0..5000 {
            let count = 1 + random.usize(..5);
            let written: Vec<Vec<u8>> = (0..count)
                .map(|_| {
                    let length = random.usize(..6);
                    (0..length).map(|_| b"ab,\"\n; \xff"[random.usize(..8)]).collect()
                })
                .collect();
            let mut record = Vec::new();
            write_fields(&written.iter().map(Vec::as_slice).collect::<Vec<_>>(), b',', &mut record)
                .unwrap();
            let body = record.strip_suffix(b"\n").unwrap();
            assert_eq!(fields(body, b','), written);
            for (position, expected) in written.iter().enumerate() {
                let mut out = b"before".to_vec();
                assert!(nth_field(body, b',', position, &mut out));
                assert_eq!(out.strip_prefix(b"before").unwrap(), expected.as_slice());
            }
            assert!(!nth_field(body, b',', count, &mut Vec::new()));
        }
    }

    #[test]
    fn hand_written_oddities_read_as_the_csv_crate_reads_them() {
        for text in ["a,b", "", ",", "5\" disk,x", "\"a\"b,c", " \"q\",r", "\"a\"\"\",b", "x;\"y\""]
        {
            let mut reader =
                csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
            if let Some(expected) = reader.byte_records().next() {
                let expected: Vec<Vec<u8>> = expected.unwrap().iter().map(<[u8]>::to_vec).collect();
                assert_eq!(fields(text.as_bytes(), b','), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn a_carriage_return_ends_the_last_field() {
        assert_eq!(fields(b"a;b\r", b';'), [b"a".to_vec(), b"b".to_vec()]);
    }
}
