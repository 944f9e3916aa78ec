//! Numbers of pictures and tables with their units, and the places of an axis that deserve a mark.

use spinney_quantity::{bytes, nanoseconds};

/// The unit of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Operations, records, ratios: the axis or the title says which.
    Plain,
    Bytes,
    Nanoseconds,
}

impl Unit {
    /// The unit of a field of the document, by the ending of its name.
    pub(super) fn of_field(name: &str) -> Unit {
        if name.ends_with("_nanoseconds") {
            Unit::Nanoseconds
        } else if name.ends_with("_bytes")
            || name.starts_with("bytes_") && !name.contains("_per_")
            || ["resident_bytes_peak", "disk_bytes_read_per_operation"].contains(&name)
        {
            Unit::Bytes
        } else {
            Unit::Plain
        }
    }

    /// The number with its unit: `100 ms`, `1.50 GiB`, `1.25 M`.
    pub(super) fn text(self, value: f64) -> String {
        match self {
            Unit::Plain => short(value),
            // Half a byte is one that an average has.
            Unit::Bytes if value < 100.0 && value.fract() != 0.0 => format!("{value:.1} B"),
            Unit::Bytes => bytes(value.max(0.0).round() as u64),
            Unit::Nanoseconds => nanoseconds(value),
        }
    }

    /// As [`Unit::text`], for a mark of an axis: without digits that say nothing.
    pub(crate) fn mark(self, value: f64) -> String {
        let text = self.text(value);
        match text.split_once(' ') {
            Some((number, unit)) => format!("{} {unit}", plain(number)),
            None => plain(&text).to_string(),
        }
    }

    /// Steps between the marks of an axis: 1, 2 or 5 of something that people count in.
    fn steps(self) -> impl Iterator<Item = f64> {
        let base: f64 = if self == Unit::Bytes { 2.0 } else { 10.0 };
        let factors: &[f64] = if self == Unit::Bytes { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = if self == Unit::Bytes { 0 } else { -9 };
        (first..64)
            .flat_map(move |power| factors.iter().map(move |factor| factor * base.powi(power)))
    }

    /// The marks of an axis from 0 to `most` or a little further: three to six, at whole steps.
    pub(super) fn marks(self, most: f64) -> Vec<f64> {
        let step = self.steps().find(|step| most / step <= 5.0).unwrap_or(most.max(1.0));
        let count = (most / step).ceil().max(1.0) as u32;
        (0..=count).map(|number| f64::from(number) * step).collect()
    }
}

fn plain(number: &str) -> &str {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    }
}

/// `1.25 M`, `37.0 k`, `0.0123`.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e9 => format!("{:.3} G", value / 1e9),
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 1e3 => format!("{:.1} k", value / 1e3),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(unit: Unit, most: f64) -> Vec<String> {
        unit.marks(most).into_iter().map(|mark| unit.mark(mark)).collect()
    }

    /// Axes had marks such as 2.10 and 4.20, or "100.00 M ns".
    #[test]
    fn marks_are_round_and_have_units() {
        assert_eq!(texts(Unit::Plain, 8.4), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(texts(Unit::Plain, 1_310_000.0), ["0", "500 k", "1 M", "1.5 M"]);
        assert_eq!(texts(Unit::Plain, 0.9), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(
            texts(Unit::Nanoseconds, 9e7),
            ["0 ns", "20 ms", "40 ms", "60 ms", "80 ms", "100 ms"]
        );
        assert_eq!(
            texts(Unit::Bytes, 3e8),
            ["0 B", "64 MiB", "128 MiB", "192 MiB", "256 MiB", "320 MiB"]
        );
        assert_eq!(Unit::Nanoseconds.mark(1e8), "100 ms");
        for most in [0.0, 1e-12, 3.0, 7e15] {
            let marks = Unit::Plain.marks(most);
            assert!(
                marks.len() >= 2 && marks.len() <= 7 && marks[marks.len() - 1] >= most,
                "{marks:?}"
            );
        }
    }

    #[test]
    fn fields_have_the_unit_that_their_name_ends_in() {
        for (name, unit) in [
            ("latency_max_nanoseconds", Unit::Nanoseconds),
            ("memory_bytes", Unit::Bytes),
            ("resident_bytes_peak", Unit::Bytes),
            ("bytes_written_per_user_byte", Unit::Plain),
            ("operations_per_second", Unit::Plain),
        ] {
            assert_eq!(Unit::of_field(name), unit, "{name}");
        }
    }
}
