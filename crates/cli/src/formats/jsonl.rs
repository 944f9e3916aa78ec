//! JSON lines: finding a field, and spelling pairs of any bytes as JSON.
//!
//! Invariants:
//! 1. `read_pair(write_pair(key, value)) == (key, value)` for any bytes.
//! 2. Numbers keep their digits: two different numbers never give the same key.

use serde_json::{Map, Value};

/// The member as the bytes of a key or value: a string's text, or a number's or boolean's spelling.
/// A name that starts with `/` is a JSON pointer.
pub(crate) fn field(record: &Value, name: &str, out: &mut Vec<u8>) -> Result<(), String> {
    let member = if name.starts_with('/') { record.pointer(name) } else { record.get(name) };
    match member {
        Some(Value::String(text)) => out.extend_from_slice(text.as_bytes()),
        Some(Value::Number(number)) => out.extend_from_slice(number.to_string().as_bytes()),
        Some(Value::Bool(truth)) => out.extend_from_slice(truth.to_string().as_bytes()),
        Some(_) => return Err(format!("member {name:?} is neither a string nor a number")),
        None => return Err(format!("no member {name:?}; --key names another")),
    }
    Ok(())
}

/// Parses a record.
pub(crate) fn parse(record: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(record).map_err(|error| format!("not JSON: {error}"))
}

/// Whether a stored value is a JSON text that fits a line as it is.
pub(crate) fn is_json_line(value: &[u8]) -> bool {
    let line = value.strip_suffix(b"\n").unwrap_or(value);
    matches!(line.trim_ascii_start().first(), Some(b'{' | b'['))
        && !line.contains(&b'\n')
        && parse(line).is_ok()
}

/// Appends `{"key":…,"value":…}`; bytes that are not UTF-8 are written in hex as `key_hex`, `value_hex`.
pub(crate) fn write_pair(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let mut object = Map::new();
    for (name, bytes) in [("key", key), ("value", value)] {
        match std::str::from_utf8(bytes) {
            Ok(text) => object.insert(name.to_string(), Value::from(text)),
            Err(_) => {
                let mut hex = Vec::new();
                crate::spelling::Spelling::Hex.encode(bytes, &mut hex);
                object.insert(format!("{name}_hex"), Value::from(String::from_utf8_lossy(&hex)))
            }
        };
    }
    out.extend_from_slice(Value::Object(object).to_string().as_bytes());
}

/// Reads the output of `write_pair`.
pub(crate) fn read_pair(
    record: &Value,
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
) -> Result<(), String> {
    for (name, out) in [("key", key), ("value", value)] {
        match record.get(format!("{name}_hex")) {
            Some(Value::String(hex)) => {
                crate::spelling::Spelling::Hex.decode(hex.as_bytes(), out)?;
            }
            Some(_) => return Err(format!("member \"{name}_hex\" is not a string")),
            None => field(record, name, out)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn pairs_of_any_bytes_come_back() {
        let mut random = Rng::with_seed(2);
        for round in 0..2000_u64 {
            let mut draw = || -> Vec<u8> {
                let length = random.usize(..20);
                let high = if round % 2 == 0 { 128 } else { 256 };
                (0..length).map(|_| random.u64(..high) as u8).collect()
            };
            let (key, value) = (draw(), draw());
            let mut line = Vec::new();
            write_pair(&key, &value, &mut line);
            assert!(!line.contains(&b'\n') && is_json_line(&line));
            let (mut key_back, mut value_back) = (Vec::new(), Vec::new());
            read_pair(&parse(&line).unwrap(), &mut key_back, &mut value_back).unwrap();
            assert_eq!((key_back, value_back), (key, value));
        }
    }

    #[test]
    fn fields_are_found_by_name_and_by_pointer() {
        let record = parse(br#"{"id":12345678901234567890123,"a":{"b":"x"},"t":true}"#).unwrap();
        let text = |name| {
            let mut out = Vec::new();
            field(&record, name, &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        assert_eq!(text("id").unwrap(), "12345678901234567890123");
        assert_eq!(text("/a/b").unwrap(), "x");
        assert_eq!(text("t").unwrap(), "true");
        assert!(text("a").is_err() && text("none").is_err());
    }

    #[test]
    fn only_json_texts_of_one_line_pass_as_they_are() {
        assert!(is_json_line(b" {\"a\": 1}") && is_json_line(b"[1]\n"));
        for value in [&b"1"[..], b"{", b"{\"a\":\n1}", b"", b"text"] {
            assert!(!is_json_line(value), "{value:?}");
        }
    }
}
