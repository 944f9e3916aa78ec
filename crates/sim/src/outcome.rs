//! The result of a regime: what was judged, and the violations.

use std::any::Any;
use std::collections::BTreeMap;

use crate::kinds::Kinds;

/// Something promised that is not so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// The command that shows it again.
    pub command: String,
}

/// What has been judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many states, by what made them.
    pub states: BTreeMap<String, u64>,
    /// What else was counted, for the last line.
    pub counts: BTreeMap<String, u64>,
    /// How many operations were done on stores to get there.
    pub operations: u64,
    /// What was wrong.
    pub violations: Vec<Violation>,
}

impl Outcome {
    /// How many states, all together.
    pub fn state_count(&self) -> u64 {
        self.states.values().sum()
    }

    /// Counts one more state.
    pub fn count(&mut self, made_by: impl Into<String>) {
        *self.states.entry(made_by.into()).or_default() += 1;
    }

    /// Adds another outcome.
    pub fn add(&mut self, other: Outcome) {
        for (made_by, count) in other.states {
            *self.states.entry(made_by).or_default() += count;
        }
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.operations += other.operations;
        self.violations.extend(other.violations);
    }
}

/// One of the things that a regime tries: what was wrong, if anything.
pub type Scenario = fn(u64, Kinds) -> Result<(), String>;

/// Carries out a regime that is a list of scenarios, each by `judge`. Planted bugs of threads leave
/// their windows open meanwhile.
pub fn of_scenarios(
    regime: &str,
    (seed, kinds): (u64, Kinds),
    scenarios: &[(&str, Scenario)],
    judge: impl Fn(Scenario) -> Result<(), String>,
) -> Outcome {
    #[cfg(planted)]
    spinney::planted::leave_windows_open(true);
    let mut outcome = Outcome::default();
    for &(name, scenario) in scenarios {
        outcome.count(name);
        outcome.operations += 1;
        if let Err(what) = judge(scenario) {
            let command = format!("spinney-sim {regime} --kind {kinds} --seed {seed} --runs 1");
            outcome.violations.push(Violation { what: format!("{name}: {what}"), command });
        }
    }
    #[cfg(planted)]
    spinney::planted::leave_windows_open(false);
    outcome
}

/// What a caught panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without words"))
}
