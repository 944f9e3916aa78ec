//! Small stores answer as a map of all versions does; a few lists of actions, each gate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spinney::TreeKind;
use spinney::vfs::MemoryVfs;
use spinney_sim::action::{
    Action, Change, Direction, Options, Range, Value, View, Write, key_bytes, keyspace_name,
};
use spinney_sim::compare::{self, Extent};
use spinney_sim::keep::Keep;
use spinney_sim::kinds::Kinds;
use spinney_sim::outcome::Outcome;
use spinney_sim::session::Session;
use spinney_sim::sizes::Sizes;

fn agree(total: &Outcome) {
    let told = total.violations.iter().map(|found| format!("{}\n{}\n", found.command, found.what));
    let violations: Vec<String> = told.collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn random_actions_agree_with_the_model() {
    let started = Instant::now();
    let mut total = Outcome::default();
    for seed in 1..=24 {
        if started.elapsed() > Duration::from_secs(15) {
            break;
        }
        for kinds in Kinds::All.runs() {
            total.add(compare::run(seed, kinds, Extent::default(), None));
        }
    }
    agree(&total);
    assert!(total.operations > 3000, "{total:?}");
}

/// Whatever is left out, what is left can be done.
#[test]
fn any_part_of_a_list_agrees_too() {
    let extent = Extent { actions: 400, ..Extent::default() };
    for seed in 1..=12 {
        for step in 2..5 {
            let keep = Keep::new((seed as usize % step..500).step_by(step).collect());
            agree(&compare::run(seed, Kinds::Mixed, extent, Some(&keep)));
        }
    }
}

/// A key is changed behind the model's back: every way to read it tells.
#[test]
fn no_kind_of_read_overlooks_a_lie() {
    let put = |key| {
        let change = Change::Put(Value { number: key, len: 10 });
        Action::Write(Write { keyspace: 0, key, change })
    };
    let scan = |direction| Action::Scan {
        keyspace: 0,
        range: Range { from: Some(1), to: Some(4) },
        view: View::Now,
        direction,
        count: 10,
    };
    let readers = [
        vec![Action::Get { keyspace: 0, key: 2, view: View::Now }],
        vec![Action::MultiGet { keyspace: 0, keys: vec![1, 2], view: View::Now }],
        vec![scan(Direction::Forwards)],
        vec![scan(Direction::Backwards)],
        vec![scan(Direction::BothEnds)],
        vec![
            Action::OpenIterator { slot: 0, keyspace: 0, view: View::Now, range: Range::ALL },
            Action::AdvanceIterator { slot: 0, direction: Direction::Forwards, count: 3 },
        ],
        vec![Action::TakeSnapshot(1), Action::Get { keyspace: 0, key: 2, view: View::Snapshot(1) }],
        vec![Action::CompareAll],
        vec![Action::Checkpoint { compare: true }],
        vec![Action::Reopen { close: true }, Action::CompareAll],
    ];
    for kinds in Kinds::All.runs() {
        for (reader, lost) in readers.iter().flat_map(|reader| [(reader, true), (reader, false)]) {
            let world = compare::world(Arc::new(MemoryVfs::new()));
            let mut session = Session::open(Sizes::new(1, kinds), world, None, vec![]).unwrap();
            let create = Action::CreateKeyspace(0, Options::default());
            session.run(&[vec![create], (0..5).map(put).collect()].concat()).unwrap();
            session.run(reader).unwrap();
            let db = session.database().unwrap();
            let keyspace = db.existing_keyspace(&keyspace_name(0)).unwrap();
            match lost {
                true => keyspace.delete(key_bytes(2)).unwrap(),
                false => keyspace.put(key_bytes(2), "another").unwrap(),
            }
            drop(keyspace);
            let failure = session.run(reader).unwrap_err();
            assert_eq!(failure.action, Some(reader.len() - 1), "{failure}");
            assert!(failure.what.contains("expected"), "{failure}");
        }
    }
}

/// Two tombstones of a key that had no value counted as a dead key of the table that they were in. It was merged again and
/// again, and the store was never idle.
#[test]
fn a_table_with_two_tombstones_of_a_key_is_not_merged_endlessly() {
    agree(&compare::run(13, Kinds::One(TreeKind::Slm), Extent::default(), None));
}
