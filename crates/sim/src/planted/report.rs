//! The results of the searches, as a table and as the final line of JSON.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use spinney::planted::Bug;

use super::search::{Ended, Search};

/// The searches of each bug.
pub(super) struct Score {
    bugs: Vec<Bug>,
    ended: BTreeMap<&'static str, Vec<Ended>>,
    states: u64,
    clean_states: u64,
    false_alarms: Vec<String>,
    verbose: bool,
}

impl Score {
    pub(super) fn new(bugs: Vec<Bug>, verbose: bool) -> Score {
        Score {
            bugs,
            ended: BTreeMap::new(),
            states: 0,
            clean_states: 0,
            false_alarms: Vec::new(),
            verbose,
        }
    }

    /// Adds a search for a bug.
    pub(super) fn add(&mut self, search: &Search, ended: Ended) {
        let Some(bug) = search.bug else { return };
        self.states += ended.states;
        self.ended.entry(bug.name()).or_default().push(ended);
    }

    /// Adds a search without a bug.
    pub(super) fn add_clean(&mut self, search: &Search, ended: Ended) {
        self.clean_states += ended.states;
        if let Some((regime, what)) = ended.found {
            self.false_alarms.push(format!("{regime}, from seed {}: {what}", search.seed));
        }
    }

    /// A line for each bug that was found: its name, the regime that found it most often, and the first of its rounds
    /// that did. Of several first seeds, the round is of any: a search that begins with another one finds the bug later.
    pub(super) fn finders(&self) -> String {
        let mut lines = String::new();
        for bug in &self.bugs {
            let ended = self.ended.get(bug.name()).map_or(&[][..], Vec::as_slice);
            let regimes: Vec<&str> = ended.iter().filter_map(regime_of).collect();
            if let Some(regime) = most_frequent(&regimes) {
                let its = ended.iter().filter(|ended| regime_of(ended) == Some(regime));
                let round = its.map(|ended| ended.rounds.saturating_sub(1)).min().unwrap_or(0);
                lines.push_str(&format!("{} {regime} {round}\n", bug.name()));
            }
        }
        lines
    }

    /// Prints everything; fails if a bug was missed or there was a false alarm.
    pub(super) fn print(&self, seed: u64, elapsed: Duration) -> ExitCode {
        let mut missed = Vec::new();
        let mut states_to_find = Vec::new();
        println!("{:28} {:9} {:>9} {:>8} {:>6}", "bug", "module", "regime", "states", "s");
        for bug in &self.bugs {
            let none = Vec::new();
            let ended = self.ended.get(bug.name()).unwrap_or(&none);
            let found: Vec<&Ended> = ended.iter().filter(|ended| ended.found.is_some()).collect();
            let seconds = median(found.iter().map(|ended| (ended.seconds * 1e3) as u64)) as f64;
            let states = median(found.iter().map(|ended| ended.states));
            let regimes: Vec<&str> = found.iter().copied().filter_map(regime_of).collect();
            let mut regime = most_frequent(&regimes).unwrap_or("-").to_string();
            if found.len() < ended.len() || found.is_empty() {
                missed.push(bug.name());
                let undecided = ended.iter().any(|ended| ended.is_undecided);
                let why = if undecided { "TOO SLOW" } else { "MISSED" };
                regime = format!("{why} {}/{}", found.len(), ended.len());
            } else {
                states_to_find.push(states);
            }
            let (name, module, seconds) = (bug.name(), bug.module(), seconds / 1e3);
            println!("{name:28} {module:9} {regime:>9} {states:8} {seconds:6.1}");
            if self.verbose {
                let told = found.first().and_then(|ended| ended.found.as_ref());
                told.into_iter()
                    .for_each(|(_, what)| println!("    {}", what.replace('\n', "\n    ")));
            }
        }
        self.false_alarms.iter().for_each(|what| println!("without any bug: {what}"));
        let (total, found) = (self.bugs.len(), self.bugs.len() - missed.len());
        println!("{found} of {total} found; {} states without a bug", self.clean_states);
        let line = json!({
            "regime": "planted",
            "seed": seed,
            "total": total,
            "found": found,
            "missed": missed,
            "median_states": median(states_to_find.into_iter()),
            "states": self.states + self.clean_states,
            "clean_states": self.clean_states,
            "operations": self.states + self.clean_states,
            "violations": missed.len() + self.false_alarms.len(),
            "seconds": elapsed.as_secs_f64().round(),
        });
        println!("{line}");
        match missed.is_empty() && self.false_alarms.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

fn regime_of(ended: &Ended) -> Option<&str> {
    ended.found.as_ref().map(|(regime, _)| regime.as_str())
}

fn median(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}

fn most_frequent<'a>(names: &[&'a str]) -> Option<&'a str> {
    let count = |name: &&&str| names.iter().filter(|other| other == name).count();
    names.iter().max_by_key(count).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_most_frequent() {
        assert_eq!(median([3, 1, 2].into_iter()), 2);
        assert_eq!(median([].into_iter()), 0);
        assert_eq!(most_frequent(&["a", "b", "b"]), Some("b"));
        assert_eq!(most_frequent(&[]), None);
    }
}
