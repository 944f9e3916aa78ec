//! A set of action numbers as text: `3,17-19`, or `-` for none.

use std::fmt;
use std::str::FromStr;

/// Numbers of a list's members, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep(Vec<usize>);

impl Keep {
    /// These numbers.
    pub fn new(mut numbers: Vec<usize>) -> Keep {
        numbers.sort_unstable();
        numbers.dedup();
        Keep(numbers)
    }

    /// The numbers.
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// The members of `list` that have these numbers.
    pub fn of<T: Clone>(&self, list: &[T]) -> Vec<T> {
        self.0.iter().filter_map(|&number| list.get(number).cloned()).collect()
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        let runs = self.0.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            run => format!("{}", run[0]),
        });
        f.write_str(&runs.collect::<Vec<String>>().join(","))
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Keep, String> {
        let mut numbers = Vec::new();
        for part in text.split(',').filter(|part| !matches!(*part, "" | "-")) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse::<usize>(), last.parse::<usize>()) {
                (Ok(first), Ok(last)) if first <= last && last - first < 1 << 24 => {
                    numbers.extend(first..=last);
                }
                _ => return Err(format!("{part:?} is neither a number nor two with a dash")),
            }
        }
        Ok(Keep::new(numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (numbers, text) in [
            (vec![], "-"),
            (vec![7], "7"),
            (vec![19, 3, 17, 18, 3], "3,17-19"),
            (vec![0, 1, 3, 4], "0-1,3-4"),
        ] {
            let keep = Keep::new(numbers);
            assert_eq!(keep.to_string(), text);
            assert_eq!(text.parse(), Ok(keep));
        }
        assert!("3-1".parse::<Keep>().is_err() && "x".parse::<Keep>().is_err());
        assert_eq!(Keep::new(vec![0, 2, 9]).of(&["a", "b", "c"]), ["a", "c"]);
    }
}
