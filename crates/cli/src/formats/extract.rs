//! From a record of the input to the pair that is stored.

use std::ops::Range;

use super::{Format, KeySource, csv, deb822, jsonl};
use crate::spelling::Spelling;

/// How records become pairs.
pub(crate) struct Extractor {
    pub(crate) format: Format,
    pub(crate) key: KeySource,
    /// The one field that is stored instead of the whole record.
    pub(crate) value: Option<String>,
    /// Stands between the fields of a key made of several.
    pub(crate) separator: Vec<u8>,
    pub(crate) delimiter: u8,
    pub(crate) spelling: Spelling,
    /// The input holds pairs as `export --pairs` wrote them.
    pub(crate) pairs: bool,
    /// The names of the CSV columns, once the header has been seen.
    pub(crate) columns: Vec<Vec<u8>>,
}

impl Extractor {
    /// Takes the CSV header.
    pub(crate) fn set_header(&mut self, header: &[u8]) {
        let header = header.strip_prefix(b"\xef\xbb\xbf").unwrap_or(header);
        self.columns = csv::fields(header, self.delimiter);
    }

    /// Whether the first record of each file names the columns.
    pub(crate) fn expects_header(&self) -> bool {
        self.format == Format::Csv && self.key != KeySource::Number
    }

    /// Whether the record holds nothing (an empty line), and so is none.
    pub(crate) fn is_empty(&self, body: &[u8]) -> bool {
        self.key != KeySource::Number && (body.is_empty() || body == b"\r")
    }

    /// Fills in the pair. False for a record that holds nothing (an empty line).
    pub(crate) fn extract(
        &self,
        number: u64,
        raw: &[u8],
        body: Range<usize>,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<bool, String> {
        key.clear();
        value.clear();
        if self.key == KeySource::Number {
            key.extend_from_slice(&number.to_be_bytes());
            value.extend_from_slice(raw);
            return Ok(true);
        }
        let body = &raw[body];
        if self.is_empty(body) {
            return Ok(false);
        }
        match self.format {
            Format::Tsv => self.extract_tsv(body, key, value)?,
            Format::Csv => self.extract_csv(body, key, value)?,
            Format::Jsonl => self.extract_jsonl(body, key, value)?,
            Format::Deb822 => self.extract_deb822(body, key, value)?,
            Format::Lines | Format::Raw => {
                return Err("this format has no fields: only --key line goes with it".to_string());
            }
        }
        if key.is_empty() {
            return Err("its key is empty".to_string());
        }
        Ok(true)
    }

    fn extract_tsv(
        &self,
        body: &[u8],
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), String> {
        let KeySource::Fields(names) = &self.key else {
            let tab = body.iter().position(|&byte| byte == b'\t');
            let tab = tab.ok_or("no tab between key and value")?;
            self.spelling.decode(&body[..tab], key)?;
            return self.spelling.decode(&body[tab + 1..], value);
        };
        let column = |name: &str, out: &mut Vec<u8>| {
            let position = column_number(name)?;
            let text = body.split(|&byte| byte == b'\t').nth(position);
            self.spelling.decode(text.ok_or_else(|| format!("no column {name}"))?, out)
        };
        self.join(names, key, column)?;
        match &self.value {
            Some(name) => column(name, value),
            None => {
                value.extend_from_slice(body);
                Ok(())
            }
        }
    }

    fn extract_csv(
        &self,
        body: &[u8],
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), String> {
        let column = |name: &str, out: &mut Vec<u8>| {
            let named = self.columns.iter().position(|column| column == name.as_bytes());
            let position = named.map_or_else(|| column_number(name), Ok).map_err(|_| {
                format!("the header has no column {name:?}; --key and --value name columns")
            })?;
            let found = csv::nth_field(body, self.delimiter, position, out);
            if found { Ok(()) } else { Err(format!("no column {name:?} in it")) }
        };
        match &self.key {
            KeySource::Fields(names) if !names.is_empty() => self.join(names, key, column)?,
            _ => drop(csv::nth_field(body, self.delimiter, 0, key)),
        }
        match (&self.value, self.pairs) {
            (Some(name), _) => column(name, value),
            (None, true) => column("value", value),
            (None, false) => {
                value.extend_from_slice(body);
                Ok(())
            }
        }
    }

    fn extract_jsonl(
        &self,
        body: &[u8],
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), String> {
        let record = jsonl::parse(body)?;
        if self.pairs {
            return jsonl::read_pair(&record, key, value);
        }
        if let KeySource::Fields(names) = &self.key {
            self.join(names, key, |name, out| jsonl::field(&record, name, out))?;
        }
        match &self.value {
            Some(name) => jsonl::field(&record, name, value),
            None => {
                value.extend_from_slice(body);
                Ok(())
            }
        }
    }

    fn extract_deb822(
        &self,
        body: &[u8],
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), String> {
        let missing = |name: &str| format!("no field {name:?}; --key names others");
        if let KeySource::Fields(names) = &self.key {
            self.join(names, key, |name, out| {
                out.extend_from_slice(deb822::field(body, name).ok_or_else(|| missing(name))?);
                Ok(())
            })?;
        }
        match &self.value {
            Some(name) => {
                let text = deb822::whole_field(body, name).ok_or_else(|| missing(name))?;
                value.extend_from_slice(text);
            }
            None => value.extend_from_slice(body),
        }
        Ok(())
    }

    /// Joins the fields to a key. A field that holds the separator is refused, since two different
    /// records could then give the same key; the last field may, since nothing follows it.
    fn join(
        &self,
        names: &[String],
        key: &mut Vec<u8>,
        mut append: impl FnMut(&str, &mut Vec<u8>) -> Result<(), String>,
    ) -> Result<(), String> {
        for (index, name) in names.iter().enumerate() {
            let start = key.len();
            append(name, key)?;
            if index + 1 == names.len() {
                break;
            }
            if contains(&key[start..], &self.separator) {
                return Err(format!(
                    "field {name:?} contains the separator {:?}; choose another with \
                     --key-separator",
                    String::from_utf8_lossy(&self.separator)
                ));
            }
            key.extend_from_slice(&self.separator);
        }
        Ok(())
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

fn column_number(name: &str) -> Result<usize, String> {
    match name.parse::<usize>() {
        Ok(number) if number > 0 => Ok(number - 1),
        _ => Err(format!("{name:?} is not a column number (they count from 1)")),
    }
}
