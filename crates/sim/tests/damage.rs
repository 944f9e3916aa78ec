//! Short runs of the regimes of damage: bit flips, and inputs that are nearly right.

use spinney_sim::bitflip::{self, Extent};
use spinney_sim::fuzz;
use spinney_sim::image::Form;
use spinney_sim::kinds::Kinds;
use spinney_sim::outcome::Outcome;

fn assert_none(outcome: &Outcome) {
    let said = outcome.violations.iter().map(|v| format!("{}\n{}\n", v.command, v.what));
    let said: String = said.collect();
    assert!(outcome.violations.is_empty(), "\n{said}");
}

#[test]
fn flipped_bits_are_told_or_harmless() {
    for kinds in Kinds::All.runs() {
        let mut total = Outcome::default();
        for (form, seed) in Form::ALL.into_iter().zip(1..) {
            // Stores of the kind for tests are small.
            let every = if kinds.is_for_tests() { 1500 } else { 3000 };
            let extent = Extent { every, form: Some(form), ..Extent::default() };
            let outcome = bitflip::run(seed, kinds, extent, None, &mut |_| true);
            assert!(outcome.state_count() > 20, "{form}: {outcome:?}");
            total.add(outcome);
        }
        assert_none(&total);
        let tally = bitflip::tally(&total);
        let data = if kinds.is_for_tests() { "pool" } else { "table" };
        assert!(tally.contains_key("journal") && tally.contains_key(data), "{tally:?}");
    }
}

#[test]
fn nearly_right_inputs_are_decoded_or_refused() {
    for target in fuzz::targets() {
        let extent = fuzz::Extent { seed: 1, first: 0, cases: 150 };
        let outcome = fuzz::run(&target, extent, |_| true);
        assert_eq!(outcome.state_count(), 150, "{}", target.name);
        assert_none(&outcome);
    }
}

/// A page that holds a value of 34 KB was flipped in its last part, and the error named the page:
/// too far before the damage for the judge, who had thought no structure longer than 32 KiB.
#[test]
fn damage_within_a_long_value_is_named_by_its_page() {
    use spinney_sim::image::Image;
    let kinds = Kinds::All.runs()[0];
    let form = Form::KilledAgain;
    let holds_one =
        |seed: &u64| Image::build(kinds, form, *seed).expect("a store").value_bytes_max > 33 << 10;
    let seed = (39..200).find(holds_one).expect("a store with a long value");
    let extent = Extent { every: 499, form: Some(form), ..Extent::default() };
    let outcome = bitflip::run(seed, kinds, extent, None, &mut |_| true);
    assert!(outcome.state_count() > 50, "{outcome:?}");
    assert_none(&outcome);
}

/// A judge that finds nothing wrong with anything would pass the tests above: a store that lost a
/// commit, or that holds what it never held, is told from one that did not.
#[test]
fn wrong_answers_are_found_wrong() {
    use spinney_sim::damage::judge;
    use spinney_sim::image::Image;
    let kinds = Kinds::All.runs()[0];
    let image = Image::build(kinds, Form::Settled, 5).expect("a store");
    assert!(judge(&image, &image.files, &[]).is_ok());
    let mut older = image.clone();
    let lost = (0..image.expected).rev().find(|&k| image.states[k] != image.states[image.expected]);
    older.expected = lost.expect("a state that differs");
    assert!(judge(&older, &image.files, &[]).is_err(), "holds more than it should");
    let mut newer = image.clone();
    let mut contents = (*image.states[image.expected]).clone();
    let pairs = contents.values_mut().next().expect("a keyspace");
    pairs.insert(b"key".to_vec(), b"never written".to_vec());
    newer.states.push(contents.into());
    newer.expected = newer.states.len() - 1;
    assert!(judge(&newer, &image.files, &[]).is_err(), "holds less than it should");
}

/// A power loss had torn one journal shard, and the last record of another was flipped. That
/// commits were missing was known from the manifest; but the error spoke of the shard that a crash
/// had torn, as the first that seemed so, and not of the damaged one.
#[test]
fn of_two_shards_that_seem_torn_both_are_named() {
    let kinds = Kinds::All.runs()[0];
    let extent = Extent { every: 40, form: Some(Form::PowerLost), ..Extent::default() };
    let outcome = bitflip::run(532, kinds, extent, None, &mut |_| true);
    assert!(outcome.state_count() > 200, "{outcome:?}");
    assert_none(&outcome);
}

/// The last record of a journal shard was damaged. It looked torn, as what a crash interrupts does,
/// and the replay ended before it. The manifest knew that more had been durable; but the error
/// spoke of a missing file and named none.
#[test]
fn a_durable_record_that_seems_torn_is_named() {
    let flip = "journal-00000002-00-00000001.log:2691:7".parse().unwrap();
    let extent = Extent { form: Some(Form::KilledAgain), ..Extent::default() };
    let outcome = bitflip::run(1005, Kinds::All.runs()[0], extent, Some(&flip), &mut |_| true);
    assert_eq!(outcome.state_count(), 1, "{outcome:?}");
    assert_none(&outcome);
}

fn try_store(input: &str) {
    let targets = fuzz::targets();
    let store = targets.iter().find(|target| target.name == "store").expect("the target");
    let input = fuzz::from_hex(input).expect("an input");
    fuzz::try_case(store, &input).unwrap_or_else(|what| panic!("{what}"));
}

/// A segment of a journal was replaced, and with it went synced commits. The tree of one keyspace
/// was ahead and had them, the others had not, and nothing was said: the store held what it had
/// never held. The manifest tells how far trees rely on the journal, so opening is refused.
#[test]
fn keyspaces_are_not_apart_after_a_journal_has_lost_what_was_synced() {
    try_store("04070d000000000e00");
}

/// One file was damaged in two places and the error named the second; the judge knew of the first
/// alone.
#[test]
fn an_error_may_name_any_of_several_damages() {
    try_store("0000000000000000000000000000ee0000");
}

/// The last records of a manifest were overwritten with zeros and looked torn. What they had said
/// let segments of the journal go, and opening spoke of a journal that begins at commit 194, not of
/// the manifest.
#[test]
fn a_manifest_that_lost_its_end_is_named_before_the_journal_that_relied_on_it() {
    try_store("0d0212000000fe0000");
}

/// The power failed, so `DURABLE` was as old as the store, and the manifest lost its end as well: a dropped keyspace was
/// back, beside commits that came after the drop. Dropping makes `DURABLE` durable, so opening is refused. Where that file
/// is gone too, nothing tells it: then the keyspace may be back, empty.
#[test]
fn a_dropped_keyspace_is_not_back_when_a_manifest_loses_its_end() {
    use spinney_sim::damage::{Damage, FileClass, judge};
    use spinney_sim::image::Image;
    for kinds in Kinds::of_products() {
        let image = Image::build(kinds, Form::PowerLost, 77).expect("a store");
        let files = image.files.list(&image.dir);
        let is = |class| files.iter().find(|path| FileClass::of(path) == class);
        let (manifest, durable) = (is(FileClass::Manifest), is(FileClass::Durable));
        let (manifest, durable) = (manifest.expect("a manifest"), durable.expect("its end"));
        let whole = image.files.content(manifest).expect("a manifest").len();
        let gone = |path: &std::path::PathBuf| Damage {
            path: path.clone(),
            bytes: 0..u64::MAX,
            in_place: false,
        };
        for cut in (0..whole).step_by(5) {
            let mut files = image.files.clone();
            files.content_mut(manifest).expect("a manifest").set_len(cut);
            let told = judge(&image, &files, &[gone(manifest)]);
            told.unwrap_or_else(|what| panic!("{kinds}: cut to {cut} of {whole}: {what}"));
            files.content_mut(durable).expect("its end").set_len(0);
            let told = judge(&image, &files, &[gone(manifest), gone(durable)]);
            told.unwrap_or_else(|what| panic!("{kinds}: cut to {cut}, without end: {what}"));
        }
    }
}
