//! The targets of `spinney-sim fuzz` under libFuzzer. The decoders and what they are asked are the same;
//! what libFuzzer adds is that it looks which branches an input takes.

pub use libfuzzer_sys;
use spinney_sim::fuzz::targets;

/// The entry point of the target of that name.
///
/// # Panics
/// If there is none, and whenever the target fails.
pub fn run(name: &str, data: &[u8]) {
    thread_local! {
        static TARGETS: Vec<spinney::fuzz::Target> = targets();
    }
    TARGETS.with(|targets| {
        let target = targets.iter().find(|target| target.name == name);
        (target.expect("a target that `spinney-sim fuzz --list` names").run)(data);
    });
}

/// Makes a program of a target.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            $crate::run($name, data);
        });
    };
}
