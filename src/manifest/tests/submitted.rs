//! Edits and rewrites that have been submitted and wait to be carried out together.

use super::*;

fn submit(manifest: &Manifest, bytes: &[u8], after: Option<Ticket>) -> Option<Ticket> {
    manifest.submit(&tree_edit(0, bytes), after).unwrap()
}

/// The tree of keyspace 0, as the sum of its edits.
fn tree_of(state: &RecoveredState) -> Vec<u8> {
    state.keyspaces[0].tree().into_iter().flat_map(|edit| edit.bytes).collect()
}

fn decision(manifest: &Manifest, ticket: Ticket) -> Option<bool> {
    let decision = manifest.take_decision(ticket)?;
    assert!(matches!(decision, Ok(()) | Err(Error::Full { .. })));
    Some(decision.is_ok())
}

#[test]
fn submitted_edits_share_a_record_and_a_sync() {
    let (vfs, ..) = sample();
    let (manifest, _) = open(&vfs);
    let syncs = vfs.syncs();
    let first = submit(&manifest, b"1", None).unwrap();
    let last = submit(&manifest, b"2", Some(first)).unwrap();
    assert_eq!((vfs.syncs(), decision(&manifest, first)), (syncs, None));
    manifest.wait_for(first).unwrap();
    assert_eq!(vfs.syncs(), syncs + 1);
    assert_eq!((decision(&manifest, first), decision(&manifest, last)), (Some(true), Some(true)));
    assert!(tree_of(&reopened(&vfs, Crash::Power).unwrap()).ends_with(b"12"));
}

/// An edit that was accepted after the refusal of the one it builds on would be in the log alone, and name what no edit
/// defines.
#[test]
fn what_builds_on_a_refused_edit_is_not_accepted() {
    let (vfs, _, before) = sample();
    let (manifest, _) = open(&vfs);
    let first = submit(&manifest, b"1", None).unwrap();
    let last = submit(&manifest, b"2", Some(first)).unwrap();
    vfs.set_full(true);
    manifest.wait_for(last).unwrap();
    vfs.set_full(false);
    assert_eq!(submit(&manifest, b"3", Some(last)), None);
    assert_eq!(decision(&manifest, first), Some(false));
    assert_eq!(submit(&manifest, b"3", Some(last)), None, "the last is not told yet");
    // Others do not build on it.
    manifest.commit(&tree_edit(0, b"4")).unwrap();
    assert_eq!(decision(&manifest, last), Some(false));
    let mut expected = before;
    apply(&mut expected, &tree_edit(0, b"4"));
    assert_eq!(reopened(&vfs, Crash::Power).unwrap(), expected);
}

fn trees(bytes: &[u8]) -> Vec<(KeyspaceId, Vec<u8>)> {
    vec![(KeyspaceId(0), bytes.to_vec()), (KeyspaceId(1), b"tree 1".to_vec())]
}

/// Edits, a rewrite that includes them, and more edits, all of them submitted before any is carried out.
fn submit_around_a_rewrite(manifest: &Manifest) -> Result<bool> {
    let submit = |bytes: &[u8]| manifest.submit(&tree_edit(0, bytes), None);
    let first = submit(b"1")?;
    let submitted = manifest.submit_rewrite(manifest.edits_submitted(), trees(b"whole,1"))?;
    let last = submit(b"2")?;
    for ticket in [first, last].into_iter().flatten() {
        manifest.wait_for(ticket)?;
        manifest.take_decision(ticket).unwrap_or(Ok(()))?;
    }
    submitted.map_or(Ok(false), |submitted| manifest.finish_rewrite(submitted))
}

#[test]
fn a_rewrite_makes_durable_what_it_includes() {
    let (vfs, ..) = sample();
    let (manifest, _) = open(&vfs);
    let syncs = vfs.syncs();
    assert!(submit_around_a_rewrite(&manifest).unwrap());
    assert_eq!(vfs.syncs(), syncs + 2, "the new log, and the edit behind it");
    assert_eq!(manifest.path(), manifest_path(2));
    assert_eq!(tree_of(&reopened(&vfs, Crash::Power).unwrap()), b"whole,12");
}

/// A power loss at each write, and a failure of each: the edits are there up to one of them, and all that were decided.
#[test]
fn a_rewrite_among_submitted_edits_can_be_interrupted_anywhere() {
    let before = tree_of(&sample().2);
    let possible = [before, b"whole,1".to_vec(), b"whole,12".to_vec()];
    fail_everywhere(
        || sample().0,
        |vfs| submit_around_a_rewrite(&open_with(vfs, true)?.0).map(|_| ()),
        |vfs, crash, done| {
            let found = tree_of(&reopened(vfs, crash).unwrap());
            assert!(possible[if done { 2.. } else { 0.. }].contains(&found));
        },
    );
}

/// The edits that a failed rewrite would have had are appended to the old log, before those that came later.
#[test]
fn a_failed_rewrite_loses_no_edit() {
    let (vfs, _, before) = sample();
    let (manifest, _) = open(&vfs);
    vfs.put(&manifest_path(2), b"in the way");
    assert!(submit_around_a_rewrite(&manifest).is_err());
    let mut expected = before;
    apply(&mut expected, &tree_edit(0, b"1"));
    apply(&mut expected, &tree_edit(0, b"2"));
    assert_eq!(reopened(&vfs, Crash::Power).unwrap(), expected);
    assert!(manifest.rewrite(manifest.edits_submitted(), &trees(b"whole,12")).unwrap());
}

/// A rewrite waits behind a record that is refused. Its trees have the refused edit, so it does not take place.
#[test]
fn a_rewrite_that_includes_a_refused_edit_has_no_effect() {
    let (vfs, _, before) = sample();
    let (manifest, _) = open(&vfs);
    let first = submit(&manifest, b"1", None).unwrap();
    let begun = manifest.begin_round();
    let submitted = manifest.submit_rewrite(manifest.edits_submitted(), trees(b"whole,1")).unwrap();
    vfs.set_full(true);
    manifest.end_round(begun);
    vfs.set_full(false);
    assert!(!manifest.finish_rewrite(submitted.unwrap()).unwrap());
    assert_eq!(decision(&manifest, first), Some(false));
    assert_eq!(manifest.path(), manifest_path(1));
    assert_eq!(reopened(&vfs, Crash::Power).unwrap(), before);
}
