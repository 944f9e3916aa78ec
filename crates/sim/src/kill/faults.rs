//! Faults that `strace` injects into a child: a failing system call, or death in one. No tracer
//! sees operations of io_uring, so these children do not use it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::random::Random;

/// What becomes of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Error(&'static str),
    Kill,
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    calls: &'static str,
    effect: Effect,
    /// The first call that it meets, of each thread.
    when: usize,
    /// Whether it meets all later ones too.
    stays: bool,
}

const SYNCS: &str = "fdatasync,fsync,msync";
const WRITES: &str = "write,pwrite64";
const ROOM: &str = "fallocate,ftruncate";
const NAMES: &str = "rename,renameat,renameat2,unlink,unlinkat,link,linkat,mkdir";

impl Fault {
    /// One of those there are.
    pub fn random(random: &mut Random) -> Fault {
        let (calls, effect) = match random.below(10) {
            0 => (SYNCS, Effect::Error("EIO")),
            1 => (SYNCS, Effect::Error("ENOSPC")),
            2 => ("pwrite64", Effect::Error("EIO")),
            3 => ("pwrite64", Effect::Error("ENOSPC")),
            4 => (ROOM, Effect::Error("ENOSPC")),
            5 => (NAMES, Effect::Error("EIO")),
            6 => (SYNCS, Effect::Kill),
            7 => (WRITES, Effect::Kill),
            8 => (ROOM, Effect::Kill),
            _ => (NAMES, Effect::Kill),
        };
        let most = [3, 12, 60][random.below(3)];
        Fault { calls, effect, when: 1 + random.below(most), stays: random.one_in(3) }
    }

    /// What it is called in the figures.
    pub fn name(&self) -> &'static str {
        match (self.effect, self.calls) {
            (Effect::Kill, SYNCS) => "killed in a sync",
            (Effect::Kill, WRITES) => "killed in a write",
            (Effect::Kill, ROOM) => "killed in making room",
            (Effect::Kill, _) => "killed in changing names",
            (Effect::Error("EIO"), SYNCS) => "syncs fail",
            (Effect::Error(_), SYNCS) => "syncs find no room",
            (Effect::Error(_), ROOM) => "no room is given",
            (Effect::Error(_), NAMES) => "names cannot be changed",
            (Effect::Error("EIO"), _) => "writes fail",
            (Effect::Error(_), _) => "writes find no room",
        }
    }

    /// The command that runs `program` with the fault.
    pub fn command(&self, program: &Path) -> Command {
        let Fault { calls, when, .. } = self;
        let stays = if self.stays { "+" } else { "" };
        let what = match self.effect {
            Effect::Error(error) => format!("inject={calls}:error={error}:when={when}{stays}"),
            Effect::Kill => format!("inject={calls}:signal=KILL:when={when}"),
        };
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null"]);
        command.arg("-e").arg(format!("trace={calls}")).arg("-e").arg(what);
        command.arg("--seccomp-bpf");
        command.arg(program).stderr(Stdio::null());
        command
    }
}

/// Why there can be no faults here; none if there can.
pub fn missing() -> Option<String> {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "--seccomp-bpf", "-e", "trace=pwrite64"]);
    command.args(["-e", "inject=pwrite64:error=EIO:when=1", "true"]);
    match command.stdin(Stdio::null()).output() {
        Err(error) => Some(format!("strace: {error}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Some(format!("strace may not trace here: {}", said.trim()))
        }
    }
}
