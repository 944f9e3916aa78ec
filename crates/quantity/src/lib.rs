//! Numbers and sizes as people write and read them, and text that is safe in SVG and HTML.

/// Parses `128MiB`, `2GiB`, `64k`, `1.5 MB`, `1000000`. Binary units carry the `i` (`KiB`, `MiB`, `GiB`,
/// `TiB`) or are a bare letter (`k`, `m`, `g`, `t`); decimal ones end in `B` alone (`kB`, `MB`).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split =
        text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let digits = digits.replace('_', "");
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("unknown unit {unit:?}: try 128MiB, 2GiB or 1000000")),
    };
    let too_large = || format!("{text:?} is too large");
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(too_large);
    }
    let number: f64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a size: try 128MiB, 2GiB or 1000000"))?;
    let bytes = number * scale as f64;
    if bytes < u64::MAX as f64 { Ok(bytes.round() as u64) } else { Err(too_large()) }
}

/// Parses a count: `1000`, `1_000_000`, `10k`, `2.5M` (decimal units).
pub fn parse_count(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, scale) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1_000),
        Some('m' | 'M') => (&text[..text.len() - 1], 1_000_000),
        Some('g' | 'G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    let digits = digits.replace('_', "");
    let not_a_count = || format!("{text:?} is not a count: try 1000000 or 10M");
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(not_a_count);
    }
    let number = digits.parse::<f64>().map_err(|_| not_a_count())? * scale as f64;
    if number.is_finite() && number >= 0.0 { Ok(number.round() as u64) } else { Err(not_a_count()) }
}

/// `1.50 GiB`, with three digits that matter.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{count} B") } else { format!("{} {unit}", three_digits(value)) }
}

/// `1,234,567`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rate or another computed count, as a whole number: `8,878`. Nobody wants a fraction of an operation.
pub fn whole(count: f64) -> String {
    grouped(count.round() as u64)
}

/// `340 ns`, `1.25 µs`, `13.0 ms`, `2.10 s`.
pub fn nanoseconds(count: f64) -> String {
    let (value, unit) = match count {
        n if n < 1e3 => return format!("{n:.0} ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// A part of a whole; 0 for an empty whole.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Text made safe for SVG and HTML.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A progress bar said `8,877.5675/s`.
    #[test]
    fn rates_are_whole_numbers() {
        for (count, expected) in [(8877.5675, "8,878"), (0.4, "0"), (1e6, "1,000,000"), (-1.0, "0")]
        {
            assert_eq!(whole(count), expected);
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, expected) in [
            ("0", 0),
            ("1000000", 1_000_000),
            ("128MiB", 128 << 20),
            ("2GiB", 2 << 30),
            ("2 gib", 2 << 30),
            ("64k", 64 << 10),
            ("1.5MB", 1_500_000),
            ("0.5KiB", 512),
            ("1_000", 1000),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "MiB", "12 parsecs", "-1", "1e9", "99999999TiB", "1..2"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_are_read_as_people_write_them() {
        for (text, expected) in [("7", 7), ("10k", 10_000), ("2.5M", 2_500_000), ("1_000", 1000)] {
            assert_eq!(parse_count(text), Ok(expected), "{text}");
        }
        for text in ["", "k", "ten", "-5", "99999999999999999999"] {
            assert!(parse_count(text).is_err() || text.len() == 20, "{text}");
        }
    }

    #[test]
    fn sizes_are_printed_with_three_digits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.00 KiB");
        assert_eq!(bytes(1536 << 20), "1.50 GiB");
        assert_eq!(bytes((1 << 20) - 1), "1.00 MiB");
        assert_eq!(bytes(123 << 20), "123 MiB");
        assert_eq!(nanoseconds(340.0), "340 ns");
        assert_eq!(nanoseconds(13_000_000.0), "13.0 ms");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(1234567), "1,234,567");
    }
}
