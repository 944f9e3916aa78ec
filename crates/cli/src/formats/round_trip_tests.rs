//! The promise of `import` and `export`, held against a map in place of a store.

use std::collections::BTreeMap;

use super::extract::Extractor;
use super::split::Splitter;
use super::write::PairWriter;
use super::{Format, KeySource};
use crate::spelling::Spelling;
use fastrand::Rng;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

struct Run {
    format: Format,
    key: Option<&'static str>,
    spelling: Spelling,
    pairs: bool,
}

impl Run {
    fn import(&self, text: &[u8]) -> (Pairs, Option<Vec<u8>>) {
        let mut extractor = Extractor {
            format: self.format,
            key: KeySource::new(self.format, self.key),
            value: None,
            separator: b"/".to_vec(),
            delimiter: b',',
            spelling: self.spelling,
            pairs: self.pairs,
            columns: Vec::new(),
        };
        let splitter = Splitter::new(self.format, b',');
        let (mut input, mut raw, mut number) = (text, Vec::new(), 0);
        let (mut map, mut header) = (BTreeMap::new(), None);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while let Some(body) = splitter.next(&mut input, &mut raw).unwrap() {
            if extractor.expects_header() && header.is_none() {
                extractor.set_header(&raw[body.clone()]);
                header = Some(raw[body].to_vec());
                continue;
            }
            number += 1;
            if extractor.extract(number, &raw, body, &mut key, &mut value).unwrap() {
                assert_eq!(map.insert(key.clone(), value.clone()), None, "keys are unique here");
            }
        }
        (map, header)
    }

    fn export(&self, format: Format, map: &Pairs, header: Option<&[u8]>) -> Vec<u8> {
        let writer =
            PairWriter { format, spelling: self.spelling, delimiter: b',', pairs: self.pairs };
        let (mut out, mut line) = (Vec::new(), Vec::new());
        writer.begin(header, &mut out).unwrap();
        for (key, value) in map {
            writer.write(key, value, &mut line, &mut out).unwrap();
        }
        out
    }

    /// Same records in, same records out; and importing the export gives the same map.
    fn check(&self, text: &[u8], separator: &str) {
        let (map, header) = self.import(text);
        let out = self.export(self.format, &map, header.as_deref());
        assert_eq!(sorted(&out, separator), sorted(text, separator));
        assert_eq!(self.import(&out).0, map);
    }
}

fn sorted(text: &[u8], separator: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(text).into_owned();
    let mut records: Vec<String> = text
        .split(separator)
        .map(|record| record.trim_matches('\n').to_string())
        .filter(|record| !record.is_empty())
        .collect();
    records.sort();
    records
}

fn run(format: Format) -> Run {
    Run { format, key: None, spelling: Spelling::Plain, pairs: false }
}

#[test]
fn tsv_comes_back() {
    run(Format::Tsv).check(b"b\t2\ta\nc\t\na\t1\r\nkey with spaces\t\xff\n", "\n");
}

#[test]
fn csv_comes_back_with_its_header() {
    let text = b"id,name,text\n3,c,\"x, \"\"y\"\"\"\n1,a,plain\n\"2\",b,5\" disk\n";
    run(Format::Csv).check(text, "\n");
    let by_name = Run { key: Some("name"), ..run(Format::Csv) };
    by_name.check(text, "\n");
    assert!(by_name.import(text).0.contains_key(b"b".as_slice()));
    let composite = Run { key: Some("name,id"), ..run(Format::Csv) };
    assert!(composite.import(text).0.contains_key(b"b/2".as_slice()));
}

#[test]
fn jsonl_comes_back_with_its_spacing_and_its_numbers() {
    let text = b"{\"key\": \"b\", \"n\": 1.0e2 }\n{\"n\":1,\"key\":12}\n\n{\"key\":\"\\u0061\"}";
    run(Format::Jsonl).check(text, "\n");
}

#[test]
fn deb822_comes_back() {
    let text = b"Package: b\nVersion: 1\nArchitecture: all\nDescription: x\n y\n .\n z\n\n\
        Package: a\nArchitecture: amd64\nVersion: 2\n\n\nPackage: a\nVersion: 2\nArchitecture: i386\n";
    run(Format::Deb822).check(text, "\n\n");
    assert!(run(Format::Deb822).import(text).0.contains_key(b"a/2/i386".as_slice()));
}

#[test]
fn keyed_by_number_any_input_comes_back_byte_for_byte() {
    let mut random = Rng::with_seed(5);
    for _ in 0..500 {
        let length = random.usize(..60);
        let text: Vec<u8> = (0..length).map(|_| b"ab:,\"\n\n\r\t {"[random.usize(..11)]).collect();
        for format in
            [Format::Tsv, Format::Csv, Format::Jsonl, Format::Deb822, Format::Lines, Format::Raw]
        {
            let numbered = Run { key: Some("line"), ..run(format) };
            let mut text = text.clone();
            if format == Format::Csv && !ends_outside_quotes(&text) {
                text.push(b'"');
            }
            let (map, header) = numbered.import(&text);
            assert_eq!(header, None);
            assert_eq!(numbered.export(Format::Raw, &map, None), text, "{format:?}");
        }
    }
}

/// Whether the input is one that CSV takes: an open quote at its end is an error.
fn ends_outside_quotes(text: &[u8]) -> bool {
    let (mut input, mut raw) = (text, Vec::new());
    loop {
        match Splitter::new(Format::Csv, b',').next(&mut input, &mut raw) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

#[test]
fn pairs_of_any_bytes_come_back_from_every_format_that_holds_them() {
    let mut random = Rng::with_seed(9);
    let mut map = BTreeMap::new();
    for _ in 0..500 {
        let mut draw =
            |length: u64| -> Vec<u8> { (0..length).map(|_| random.u8(..) & 0x8f).collect() };
        let (key, value) = (draw(6), draw(20));
        map.insert(key, value);
    }
    for (format, spelling, pairs) in [
        (Format::Tsv, Spelling::Escape, false),
        (Format::Tsv, Spelling::Hex, false),
        (Format::Csv, Spelling::Plain, true),
        (Format::Jsonl, Spelling::Plain, true),
    ] {
        let run = Run { format, key: None, spelling, pairs };
        let text = run.export(format, &map, None);
        assert_eq!(run.import(&text).0, map, "{format:?} {spelling:?}");
    }
}

#[test]
fn what_has_no_key_is_refused() {
    let extract = |format, key: Option<&str>, text: &[u8]| {
        let extractor = Extractor {
            format,
            key: KeySource::new(format, key),
            value: None,
            separator: b"/".to_vec(),
            delimiter: b',',
            spelling: Spelling::Plain,
            pairs: false,
            columns: vec![b"id".to_vec()],
        };
        extractor.extract(1, text, 0..text.len(), &mut Vec::new(), &mut Vec::new())
    };
    assert!(extract(Format::Tsv, None, b"no tab").is_err());
    assert!(extract(Format::Tsv, None, b"\tno key").is_err());
    assert!(extract(Format::Csv, Some("none"), b"1,2").is_err());
    assert!(extract(Format::Jsonl, None, b"{\"id\":1}").is_err());
    assert!(extract(Format::Jsonl, None, b"not json").is_err());
    assert!(extract(Format::Deb822, None, b"Package: a\nVersion: 1").is_err());
    assert!(
        extract(Format::Deb822, Some("Package,Version"), b"Package: a/b\nVersion: 1").is_err(),
        "the separator within a field would make keys ambiguous"
    );
    assert_eq!(extract(Format::Tsv, None, b""), Ok(false));
}
