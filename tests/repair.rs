//! Repair: whatever is damaged, what can be read comes out, nothing is invented, and the report says
//! where something may be missing.

#[macro_use]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use common::{
    Calls, Random, WatchedVfs, assert_sound, contents, copy, files, flip, pairs, store_path,
    with_fanout,
};
use spinney::vfs::{Access, MemoryVfs, Vfs};
use spinney::{
    Builder, Database, Error, KeyspaceOptions, MIB, MergeOperator, PersistentMemory, Repair,
    RepairBasis, RepairReport, TreeKind,
};

of_every_kind! {
    a_sound_store_is_copied_exactly a_store_without_superblock_and_manifest_comes_back
    damage_of_every_file_loses_no_more_than_the_report_says
    a_manifest_that_lost_its_end_gives_everything_back a_table_of_an_unknown_keyspace_is_no_orphan
    a_damaged_manifest_keeps_tombstones a_repair_in_place_keeps_the_original_aside
    doubtful_pairs_can_be_left_out what_is_no_store_is_refused
    operands_without_their_operator_are_copied_as_they_are a_repair_that_fails_leaves_nothing
}

/// The values that each key has had, oldest first; `None` where it was deleted.
type History = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

struct Made {
    vfs: MemoryVfs,
    histories: BTreeMap<&'static str, History>,
}

fn builder(vfs: &MemoryVfs, path: &Path) -> Builder {
    Database::builder(path)
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(2 * MIB)
        .memtable_bytes(12 << 10)
        .deterministic(5)
}

/// A store of three keyspaces with overwrites, deletes, merges and large values, of which a part is in the
/// journal alone; dead or closed.
fn made(kind: TreeKind, closed: bool) -> Made {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs, &store_path()).open().unwrap();
    let plain = db.keyspace("plain", with_fanout(KeyspaceOptions::new(kind), 3)).unwrap();
    let sums = KeyspaceOptions::new(kind).merge_operator("append");
    let sums = db.keyspace("sums", sums).unwrap();
    let large = db.keyspace("large", KeyspaceOptions::new(kind).blob_bytes_min(300)).unwrap();
    let mut histories: BTreeMap<&'static str, History> = BTreeMap::new();
    let mut random = Random(kind as u64 + 77);
    let dropped = db.keyspace("dropped", KeyspaceOptions::new(kind)).unwrap();
    for i in 0..300 {
        dropped.put(format!("{i}"), vec![1; 60]).unwrap();
    }
    dropped.flush().unwrap();
    db.drop_keyspace("dropped").unwrap();
    drop(dropped);
    for i in 0..6000u64 {
        let key = format!("key {:05}", random.below(1500)).into_bytes();
        let history = histories.entry("plain").or_default().entry(key.clone()).or_default();
        if random.below(6) == 0 {
            plain.delete(&key).unwrap();
            history.push(None);
        } else {
            let value = format!("{i} of {}", String::from_utf8_lossy(&key)).into_bytes();
            plain.put(&key, &value).unwrap();
            history.push(Some(value));
        }
        if i % 10 == 0 {
            let key = format!("sum {:03}", random.below(100)).into_bytes();
            let history = histories.entry("sums").or_default().entry(key.clone()).or_default();
            let mut value = history.last().cloned().flatten().unwrap_or_default();
            let operand = format!("{i};").into_bytes();
            sums.merge(&key, &operand).unwrap();
            value.extend_from_slice(&operand);
            history.push(Some(value));
        }
        if i % 25 == 0 {
            let key = format!("large {:03}", random.below(120)).into_bytes();
            let bytes = 200 + random.below(9000) as usize;
            let value = random.bytes(bytes);
            large.put(&key, &value).unwrap();
            histories.entry("large").or_default().entry(key).or_default().push(Some(value));
        }
        if i < 5000 {
            while random.below(3) > 0 && db.step().unwrap() {}
        }
    }
    if !closed {
        return Made { vfs: copy(&vfs, &store_path()), histories };
    }
    drop((plain, sums, large));
    db.close().unwrap();
    Made { vfs, histories }
}

fn repair(vfs: &MemoryVfs, strict: bool) -> spinney::Result<(RepairReport, Database)> {
    let target = Path::new("/repaired");
    let report = Repair::new(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(2 * MIB)
        .deterministic(6)
        .without_doubtful(strict)
        .into_new(target)?;
    Ok((report, builder(vfs, target).open().unwrap()))
}

fn current(history: &History) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let now = history
        .iter()
        .filter_map(|(key, values)| Some((key.clone(), values.last().cloned().flatten()?)));
    now.collect()
}

fn found(db: &Database, name: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    match db.existing_keyspace(name) {
        Ok(keyspace) => pairs(keyspace.iter()).into_iter().collect(),
        Err(_) => BTreeMap::new(),
    }
}

/// Holds the result against what was written; returns how many pairs are as they were, and how many there
/// should be.
fn judge(
    made: &Made,
    report: &RepairReport,
    db: &Database,
    strict: bool,
    story: &str,
) -> (usize, usize) {
    assert_sound(db);
    let (mut right, mut all) = (0, 0);
    for (name, history) in &made.histories {
        let (now, found) = (current(history), found(db, name));
        let keys: BTreeSet<&Vec<u8>> = now.keys().chain(found.keys()).collect();
        for key in keys {
            let (expected, got) = (now.get(key), found.get(key));
            all += usize::from(expected.is_some());
            if expected == got {
                right += usize::from(expected.is_some());
                continue;
            }
            let declared = report.journal_incomplete
                || report.basis == RepairBasis::Files
                || report.damage.iter().any(|it| it.keyspace == **name && it.range.contains(key));
            let shown = String::from_utf8_lossy(key);
            assert!(declared, "{story}: {name} {shown:?} is wrong outside of\n{report:#?}");
            let Some(got) = got else { continue };
            // Never something that the key has not had. (Operands whose base is lost make what it never had.)
            let had = history[key].iter().flatten().any(|value| value == got);
            assert!(had || *name == "sums", "{story}: {name} {shown:?} never had that value");
            let in_range =
                report.damage.iter().any(|it| it.keyspace == **name && it.range.contains(key));
            assert!(!(strict && in_range), "{story}: {name} {shown:?} is doubtful and there");
        }
    }
    (right, all)
}

fn a_sound_store_is_copied_exactly(kind: TreeKind) {
    for closed in [true, false] {
        let made = made(kind, closed);
        let before: Vec<_> = files(&made.vfs, &store_path());
        let (report, db) = repair(&made.vfs, false).unwrap();
        assert!(report.is_exact() && report.problems.is_empty(), "{report:#?}");
        assert_eq!(report.basis, RepairBasis::Manifest);
        let (right, all) = judge(&made, &report, &db, false, "sound");
        assert_eq!(right, all);
        let names = report.keyspaces.iter().map(|keyspace| keyspace.name.as_str());
        assert!(names.eq(["plain", "sums", "large"]));
        assert_eq!(files(&made.vfs, &store_path()), before);
    }
}

fn a_store_without_superblock_and_manifest_comes_back(kind: TreeKind) {
    let made = made(kind, false);
    for (name, _) in files(&made.vfs, &store_path()) {
        if name == "SPINNEY" || name.starts_with("manifest-") {
            made.vfs.remove(&store_path().join(name)).unwrap();
        }
    }
    let (report, db) = repair(&made.vfs, false).unwrap();
    assert_eq!(report.basis, RepairBasis::Files);
    assert!(report.may_resurrect() && !report.problems.is_empty());
    let (right, all) = judge(&made, &report, &db, false, "no manifest");
    assert_eq!(right, all, "{report:#?}");
    let plain = db.existing_keyspace("plain").unwrap();
    assert_eq!(plain.options(), with_fanout(KeyspaceOptions::new(kind), 3));
    let sums = db.existing_keyspace("sums").unwrap();
    assert_eq!(sums.options(), KeyspaceOptions::new(kind).merge_operator("append"));
}

fn zero_page(vfs: &MemoryVfs, path: &Path, offset: u64) {
    let len = vfs.open(path, Access::Buffered, false).unwrap().len().unwrap();
    let bytes = (len - offset).min(4096) as usize;
    vfs.open(path, Access::Buffered, true).unwrap().write_at(offset, &vec![0; bytes]).unwrap();
}

/// So many pairs of 35 bytes are in a leaf at most. No damage within a page costs more.
const LEAF_PAIRS_MAX: usize = 110;

fn damage_of_every_file_loses_no_more_than_the_report_says(kind: TreeKind) {
    let made = made(kind, false);
    let mut random = Random(9);
    let (mut right, mut all) = (0, 0);
    for (name, len) in files(&made.vfs, &store_path()) {
        if name == "LOCK" || len == 0 {
            continue;
        }
        for damage in ["flipped", "zeroed", "cut", "gone"] {
            // Each file meets two of them or so.
            if random.below(3) > 0 {
                continue;
            }
            let vfs = copy(&made.vfs, &store_path());
            let path = store_path().join(&name);
            // Where journal segments are filled.
            let end = contents(&vfs, &path).iter().rposition(|&byte| byte != 0).unwrap_or(0) as u64;
            let at = random.below(end + 1);
            match damage {
                "flipped" => flip(&vfs, &path, at),
                "zeroed" => zero_page(&vfs, &path, at / 4096 * 4096),
                "cut" => vfs.open(&path, Access::Buffered, true).unwrap().truncate(at).unwrap(),
                _ => vfs.remove(&path).unwrap(),
            }
            let strict = random.below(2) == 0;
            let story = format!("{name} {damage} at {at}, strict: {strict}");
            let (report, db) = match repair(&vfs, strict) {
                Ok(found) => found,
                Err(error) => panic!("{story}: {error}"),
            };
            // Zeros at the end of a journal look like what was never written, as for every opening.
            let mut report = report;
            report.journal_incomplete |= name.starts_with("journal") && damage != "flipped";
            let (some, most) = judge(&made, &report, &db, strict, &story);
            let is_data = name.ends_with("table") || name.ends_with("blob");
            if is_data && damage != "gone" && damage != "cut" && !strict {
                assert!(most - some <= LEAF_PAIRS_MAX, "{story}: {some} of {most}: {report:#?}");
            }
            // What follows a gap in the journal is doubtful, however much that is: only data files are counted. Nor can
            // what was in a file that is gone or cut be had again: one table may have a third of all pairs.
            if !strict && is_data && damage != "gone" && damage != "cut" {
                right += some;
                all += most;
            }
        }
    }
    println!("{right} of {all} pairs");
    // Some fifteen pages are damaged, and whether they are leaves is chance: with `slm`, two were.
    let least_permille = if kind == TreeKind::Slm { 990 } else { 995 };
    assert!(right * 1000 >= all * least_permille, "{right} of {all}");
}

/// Repairing a closed store of 200,000 pairs whose manifest had been cut to its first records gave an empty store:
/// the tables that the manifest did not name were not looked at. They are, where the manifest is proven to be
/// short (by `DURABLE`, by a table of a keyspace that it does not know, by a later epoch's journal), or names none of
/// them.
fn a_manifest_that_lost_its_end_gives_everything_back(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs, &store_path()).memtable_bytes(MIB).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let expected: BTreeMap<Vec<u8>, Vec<u8>> = (0..3000u32)
        .map(|i| (format!("key {i:05}").into_bytes(), format!("value {i}").into_bytes()))
        .collect();
    expected.iter().for_each(|(key, value)| items.put(key, value).unwrap());
    items.flush().unwrap();
    drop(items);
    db.close().unwrap();
    // What the journal held is in a table, and its segments go.
    builder(&vfs, &store_path()).open().unwrap().close().unwrap();
    let manifest = store_path().join("manifest-00000001");
    let bytes = contents(&vfs, &manifest);
    let mut cuts = vec![40];
    while let Some(&at) = cuts.last()
        && let Some(length) = bytes.get(at + 8..at + 12)
    {
        cuts.push(
            at + 16 + (u32::from_le_bytes(length.try_into().unwrap()) as usize).next_multiple_of(8),
        );
    }
    assert_eq!(cuts.pop(), Some(bytes.len()));
    for what in ["all", "without DURABLE", "without DURABLE and journal"] {
        let mut from_files = 0;
        for &cut in &cuts {
            let context = format!("cut to {cut} of {} bytes, {what}", bytes.len());
            let damaged = copy(&vfs, &store_path());
            damaged.open(&manifest, Access::Buffered, true).unwrap().truncate(cut as u64).unwrap();
            for (name, _) in files(&damaged, &store_path()) {
                if what != "all" && name == "DURABLE"
                    || what.ends_with("journal") && name.starts_with("journal-")
                {
                    damaged.remove(&store_path().join(name)).unwrap();
                }
            }
            let before = files(&damaged, &store_path());
            let (report, db) = repair(&damaged, false).unwrap();
            assert!(found(&db, "items") == expected, "{context}: {report:#?}");
            assert_eq!(files(&damaged, &store_path()), before, "{context}");
            if report.basis == RepairBasis::Files {
                from_files += 1;
                assert!(!report.problems.is_empty(), "{context}: {report:#?}");
            }
            if let Err(error) = builder(&damaged, &store_path()).open() {
                assert!(error.is_corruption(), "{context}: {error}");
                assert_eq!(files(&damaged, &store_path()), before, "{context}");
            } else {
                assert!(what != "all", "{context}: it opened");
            }
        }
        assert!(from_files >= 4, "{from_files} of {} cuts, {what}", cuts.len());
    }
}

/// A table of a keyspace that the manifest has never heard of was removed for an orphan. It proves that the
/// manifest has lost its end, with nothing else left to tell of it.
fn a_table_of_an_unknown_keyspace_is_no_orphan(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs, &store_path()).open().unwrap();
    let manifest = store_path().join("manifest-00000001");
    let before = contents(&vfs, &manifest).len() as u64;
    let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    items.put("key", "value").unwrap();
    items.flush().unwrap();
    drop(items);
    db.close().unwrap();
    for (name, _) in files(&vfs, &store_path()) {
        if name == "DURABLE" || name.starts_with("journal-") {
            vfs.remove(&store_path().join(name)).unwrap();
        }
    }
    vfs.open(&manifest, Access::Buffered, true).unwrap().truncate(before).unwrap();
    let left = files(&vfs, &store_path());
    let here = || builder(&vfs, &store_path());
    for error in [here().open_read_only(), here().open()].map(Result::unwrap_err) {
        let Error::Corruption { file, offset, .. } = &error else { panic!("{error}") };
        assert_eq!((file, *offset), (&manifest, before), "{error}");
        let text = error.to_string();
        assert!(text.contains("\"items\"") && text.contains("`spinney repair`"), "{text}");
    }
    assert_eq!(files(&vfs, &store_path()), left);
    let (report, db) = repair(&vfs, false).unwrap();
    assert_eq!(report.basis, RepairBasis::Files);
    assert_eq!(found(&db, "items").len(), 1);
}

fn a_damaged_manifest_keeps_tombstones(kind: TreeKind) {
    let made = made(kind, true);
    let name = files(&made.vfs, &store_path())
        .into_iter()
        .find(|(name, _)| name.starts_with("manifest-"))
        .unwrap();
    flip(&made.vfs, &store_path().join(name.0), 48);
    let opened = builder(&made.vfs, &store_path()).open();
    assert!(matches!(opened, Err(Error::Corruption { .. })));
    let (report, db) = repair(&made.vfs, false).unwrap();
    assert_eq!(report.basis, RepairBasis::Files);
    let (right, all) = judge(&made, &report, &db, false, "manifest");
    assert_eq!(right, all);
    // Most of what was deleted stays so: tombstones count as versions.
    let plain = &made.histories["plain"];
    let deleted = plain.values().filter(|values| values.last() == Some(&None)).count();
    let found = found(&db, "plain");
    let back = plain
        .iter()
        .filter(|(key, values)| values.last() == Some(&None) && found.contains_key(*key))
        .count();
    assert!(deleted > 100 && back * 10 <= deleted, "{back} of {deleted} are back");
}

fn a_repair_in_place_keeps_the_original_aside(kind: TreeKind) {
    let made = made(kind, true);
    made.vfs.remove(&store_path().join("SPINNEY")).unwrap();
    let before = files(&made.vfs, &store_path());
    let in_place = || Repair::new(store_path()).vfs(Arc::new(made.vfs.clone())).deterministic(6);
    let report = in_place().in_place().unwrap();
    assert_eq!(report.keyspaces.len(), 3);
    let db = builder(&made.vfs, &store_path()).open().unwrap();
    let (right, all) = judge(&made, &report, &db, false, "in place");
    assert_eq!(right, all);
    let aside = format!("{}.damaged", store_path().display());
    assert_eq!(files(&made.vfs, aside.as_ref()), before);
    drop(db);
    assert!(matches!(in_place().in_place(), Err(Error::Conflict { .. })));
}

/// A reader opens files again by name: after the exchange these were the new store's, and two reads of five failed.
#[test]
fn a_store_that_is_being_read_is_not_repaired_in_place() {
    let Made { vfs, .. } = made(TreeKind::Stb, true);
    let reader = builder(&vfs, &store_path()).open_read_only().unwrap();
    let repair = || Repair::new(store_path()).vfs(Arc::new(vfs.clone())).deterministic(6);
    assert!(matches!(repair().in_place(), Err(Error::Locked { .. })));
    drop(reader);
    repair().in_place().unwrap();
}

fn doubtful_pairs_can_be_left_out(kind: TreeKind) {
    let made = made(kind, true);
    let (table, _) = files(&made.vfs, &store_path())
        .into_iter()
        .filter(|(name, _)| name.ends_with(".table"))
        .max_by_key(|(_, len)| *len)
        .unwrap();
    flip(&made.vfs, &store_path().join(&table), 4096 + 100);
    let (report, db) = repair(&made.vfs, true).unwrap();
    judge(&made, &report, &db, true, "strict");
    let damage = &report.damage[0];
    assert!(damage.range.upper.is_some() && !damage.range.lower.is_empty());
    let Error::Corruption { file, offset, .. } = &damage.error else { panic!("{damage:?}") };
    assert_eq!((file, *offset), (&store_path().join(table), 4096));
}

fn what_is_no_store_is_refused(kind: TreeKind) {
    let made = made(kind, true);
    let vfs = Arc::new(made.vfs.clone());
    made.vfs.create_dir_all("/empty".as_ref()).unwrap();
    for source in ["/empty", "/none"] {
        let refused = Repair::new(source).vfs(vfs.clone()).into_new("/target");
        assert!(matches!(refused, Err(Error::NotAStore { .. })), "{refused:?}");
    }
    let refused = Repair::new(store_path()).vfs(vfs.clone()).into_new(store_path());
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    let open = builder(&made.vfs, &store_path()).open().unwrap();
    let refused = Repair::new(store_path()).vfs(vfs).into_new("/target");
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    drop(open);
    assert!(!made.vfs.exists("/target".as_ref()).unwrap());
}

/// Joins operands with commas.
struct Join;

impl MergeOperator for Join {
    fn name(&self) -> &str {
        "join"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, String> {
        let all: Vec<&[u8]> = existing.iter().copied().chain(operands.iter().copied()).collect();
        Ok(all.join(&b','))
    }
}

/// One keyspace whose operator the command does not have was `Conflict`, and no keyspace was repaired.
fn operands_without_their_operator_are_copied_as_they_are(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let with_join =
        |path: &Path| builder(&vfs, path).merge_operator(Arc::new(Join)).open().unwrap();
    let db = with_join(&store_path());
    let plain = db.keyspace("plain", KeyspaceOptions::new(kind)).unwrap();
    let options = KeyspaceOptions::new(kind).merge_operator("join").blob_bytes_min(300);
    let joined = db.keyspace("joined", options).unwrap();
    plain.put("a", "1").unwrap();
    for i in 0..300u64 {
        let key = format!("key {i:03}");
        joined.put(&key, vec![b'p'; 200 + i as usize]).unwrap();
        match i % 4 {
            0 => joined.delete(&key).unwrap(),
            1 => {}
            _ => joined.merge(&key, vec![b'm'; 500 + i as usize]).unwrap(),
        }
        if i % 4 == 3 {
            joined.delete(&key).unwrap();
            joined.merge(&key, "one").unwrap();
            joined.merge(&key, "two").unwrap();
        }
        if i == 200 {
            joined.flush().unwrap();
        }
    }
    let expected = pairs(joined.iter());
    drop((plain, joined));
    db.close().unwrap();
    let repair = |target: &str| {
        let repair = Repair::new(store_path()).vfs(Arc::new(vfs.clone())).deterministic(6);
        (repair.memory_budget(2 * MIB), Path::new(target).to_path_buf())
    };
    let (without, target) = repair("/without");
    let report = without.into_new(&target).unwrap();
    assert!(report.is_exact() && report.problems.is_empty(), "{report:#?}");
    let [plain, joined] = &report.keyspaces[..] else { panic!("{report:#?}") };
    assert_eq!((plain.pairs, plain.keys_not_folded), (1, 0));
    // What was folded before it got into a table is a pair, and so is what has never been merged into.
    assert_eq!(joined.pairs + joined.keys_not_folded, 225);
    assert!(joined.pairs >= 75 && joined.keys_not_folded > 0, "{joined:?}");
    let why = joined.not_folded.as_ref().unwrap().to_string();
    assert!(why.contains("\"join\"") && why.contains("not registered"), "{why}");
    // Who has the operator finds everything.
    let db = with_join(&target);
    assert_sound(&db);
    assert_eq!(pairs(db.existing_keyspace("joined").unwrap().iter()), expected);
    db.close().unwrap();
    let (with, target) = repair("/with");
    let report = with.merge_operator(Arc::new(Join)).into_new(&target).unwrap();
    assert_eq!((report.keyspaces[1].pairs, report.keyspaces[1].keys_not_folded), (225, 0));
    let db = with_join(&target);
    assert_eq!(pairs(db.existing_keyspace("joined").unwrap().iter()), expected);
}

/// On a full device the target was left with 46,682 pairs of 200,000; it opened as a store like any other, and the
/// repair could not be tried again, since it was not empty.
fn a_repair_that_fails_leaves_nothing(kind: TreeKind) {
    let made = made(kind, true);
    let vfs = WatchedVfs::new(made.vfs.clone());
    let target = Path::new("/new/repaired");
    vfs.create_dir_all(target.parent().unwrap()).unwrap();
    let repair = || {
        let repair = Repair::new(store_path()).vfs(Arc::new(vfs.clone())).deterministic(6);
        repair.memory_budget(2 * MIB).into_new(target)
    };
    let remove = |dir: &Path| {
        for name in vfs.read_names(dir).unwrap() {
            vfs.remove(&dir.join(name)).unwrap();
        }
        vfs.remove_dir(dir).unwrap();
    };
    let (mut clean, mut told) = (0, 0);
    for round in 1.. {
        let existed = round % 2 == 0;
        if existed {
            vfs.create_dir_all(target).unwrap();
        }
        // One call, or all from there on: then nothing can be removed either.
        let count = if round % 3 == 0 { u64::MAX } else { 1 };
        vfs.fail(Calls::Changes, round * round, count, std::io::ErrorKind::StorageFull);
        let result = repair();
        vfs.mend();
        let left = vfs.read_names("/new".as_ref()).unwrap();
        match result {
            Ok(_) => {
                assert_eq!(left, ["repaired"]);
                remove(target);
                if vfs.failed() == 0 {
                    break;
                }
                continue;
            }
            Err(error) if left.iter().any(|name| name == "repaired.repairing") => {
                told += 1;
                assert!(error.to_string().contains("remove /new/repaired.repairing"), "{error}");
                remove("/new/repaired.repairing".as_ref());
            }
            Err(error) => {
                clean += 1;
                assert!(matches!(error, Error::Full { .. } | Error::Conflict { .. }), "{error:?}");
            }
        }
        if vfs.exists(target).unwrap() {
            assert!(vfs.read_names(target).unwrap().is_empty(), "round {round}");
            vfs.remove_dir(target).unwrap();
        }
    }
    assert!(clean > 3 && told > 1, "{clean} clean, {told} told");
    let report = repair().unwrap();
    let db = builder(&made.vfs, target).open().unwrap();
    let (right, all) = judge(&made, &report, &db, false, "after a failure");
    assert_eq!(right, all);
}

/// `repair big big/inner` made the new store among the files of the damaged one.
#[test]
fn the_source_is_no_place_for_the_result() {
    let made = made(TreeKind::default(), true);
    let before = files(&made.vfs, &store_path());
    let inner = store_path().join("inner");
    let refused = Repair::new(store_path()).vfs(Arc::new(made.vfs.clone())).into_new(inner);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    assert_eq!(files(&made.vfs, &store_path()), before);
    // A file is no place either, and no source.
    let file = store_path().join("SPINNEY");
    let refused = Repair::new(store_path()).vfs(Arc::new(made.vfs.clone())).into_new(&file);
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    let refused = Repair::new(&file).vfs(Arc::new(made.vfs.clone())).into_new("/target");
    assert!(matches!(refused, Err(Error::NotAStore { .. })), "{refused:?}");
}

/// Two renames put the new store in the place of the old one: a crash in between left no store there.
#[test]
fn a_repair_in_place_exchanges_the_directories_where_it_can() {
    let aside = format!("{}.damaged", store_path().display());
    let in_place =
        |vfs: Arc<dyn Vfs>| Repair::new(store_path()).vfs(vfs).deterministic(6).in_place();
    // This file system exchanges: at no time is the place empty.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Database::builder(&path).open().unwrap();
    db.keyspace("items", KeyspaceOptions::stb()).unwrap().put("a", "1").unwrap();
    db.close().unwrap();
    // With a slash at its end the name was that of a directory inside the store.
    let report = Repair::new(format!("{}/", path.display())).in_place().unwrap();
    assert!(report.is_exact(), "{report:?}");
    let names = std::fs::read_dir(dir.path()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["store", "store.damaged"]);
    // One that does not renames twice, and back if the second fails.
    let made = made(TreeKind::default(), true);
    let before = files(&made.vfs, &store_path());
    let vfs = WatchedVfs::new(made.vfs.clone());
    vfs.trace();
    let copied = WatchedVfs::new(copy(&made.vfs, &store_path()));
    in_place(Arc::new(copied.clone())).unwrap();
    let changes = copied.count(Calls::Changes);
    // The last three changes are the two renames and the sync of the directory.
    vfs.fail(Calls::Changes, changes - 1, 1, std::io::ErrorKind::PermissionDenied);
    let failed = in_place(Arc::new(vfs.clone()));
    assert!(failed.is_err() && vfs.failed() == 1, "{failed:?}");
    assert_eq!(files(&made.vfs, &store_path()), before);
    let parent = made.vfs.read_names(store_path().parent().unwrap()).unwrap();
    assert!(!parent.iter().any(|name| name.contains("store.")), "{parent:?}");
    vfs.mend();
    in_place(Arc::new(vfs.clone())).unwrap();
    assert_eq!(files(&made.vfs, aside.as_ref()), before);
}

/// A power loss may leave `DURABLE` as closing the store last synced it, and a table whose removal was not durable yet. The
/// manifest, which had gone on and named no table any more, was taken for a cut one, and the table's pairs, deleted long
/// since, came back.
#[test]
fn deleted_pairs_do_not_come_back_after_a_power_loss() {
    deleted_pairs_stay_deleted(false);
    deleted_pairs_stay_deleted(true);
}

fn deleted_pairs_stay_deleted(is_rewritten: bool) {
    let vfs = MemoryVfs::new();
    let open = || builder(&vfs, &store_path()).memtable_bytes(64 << 10).open().unwrap();
    let db = open();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    (0..300u64).for_each(|n| items.put(n.to_be_bytes(), [1; 100]).unwrap());
    items.flush().unwrap();
    drop(items);
    db.close().unwrap();
    let before = copy(&vfs, &store_path());
    let db = open();
    let items = db.existing_keyspace("items").unwrap();
    (0..300u64).for_each(|n| items.delete(n.to_be_bytes()).unwrap());
    // Until the journal has none of these any more.
    (0..3000u64).for_each(|n| items.delete([&[9; 50][..], &n.to_be_bytes()].concat()).unwrap());
    items.compact(..).unwrap();
    db.wait_idle().unwrap();
    if is_rewritten {
        // (A larger manifest than that of many small changes is written anew.)
        let manifest = || {
            let names = files(&vfs, &store_path()).into_iter().map(|(name, _)| name);
            names.filter(|name| name.starts_with("manifest-")).max().unwrap()
        };
        let first = manifest();
        for n in 0..3000u64 {
            if manifest() != first {
                break;
            }
            db.keyspace(&format!("{n:0200}"), KeyspaceOptions::stb()).unwrap();
            db.drop_keyspace(&format!("{n:0200}")).unwrap();
            db.wait_idle().unwrap();
        }
        assert_ne!(manifest(), first, "the manifest was not written anew");
    }
    db.sync().unwrap();
    let crashed = copy(&vfs, &store_path());
    drop((items, db));
    for (name, _) in files(&before, &store_path()) {
        if name.ends_with(".table") || name.ends_with(".maplet") || name == "DURABLE" {
            let path = store_path().join(&name);
            let _ = crashed.remove(&path);
            let file = crashed.create(&path, Access::Buffered).unwrap();
            file.write_at(0, &contents(&before, &path)).unwrap();
        }
    }
    let opened = builder(&copy(&crashed, &store_path()), &store_path()).open().unwrap();
    assert_eq!(opened.existing_keyspace("items").unwrap().count(..).unwrap(), 0);
    let repair = Repair::new(store_path()).vfs(Arc::new(crashed.clone())).deterministic(6);
    let report = repair.into_new(Path::new("/repaired")).unwrap();
    let db = builder(&crashed, Path::new("/repaired")).open().unwrap();
    let pairs = db.existing_keyspace("items").map_or(0, |items| items.count(..).unwrap());
    assert_eq!(pairs, 0, "basis {:?}", report.basis);
}

/// If the superblock, the manifest and the store's file of its memory were lost, a repair took any memory for the
/// store's, without a word. If the file of a memory was damaged, it did not ask the segments there. Without the
/// repair of this, the last result has no problem that tells of `/other`, and the others are no errors.
#[test]
fn a_repair_asks_the_segments_whose_memory_it_is() {
    let vfs = MemoryVfs::new();
    let memory = || PersistentMemory::at("/others");
    let of_store = builder(&vfs, Path::new("/store"));
    let of_other = builder(&vfs, Path::new("/other")).deterministic(6).persistent_memory(memory());
    for builder in [of_store, of_other] {
        let db = builder.open().unwrap();
        let items = db.keyspace("items", KeyspaceOptions::new(TreeKind::default())).unwrap();
        items.put("flushed", "value").unwrap();
        items.flush().unwrap();
        items.put("key", "value").unwrap();
    }
    let repair = |to: &str| {
        let repair = Repair::new("/store").vfs(Arc::new(vfs.clone())).deterministic(5);
        repair.persistent_memory(memory()).into_new(to)
    };
    let assert_refused = || {
        let result = repair("/none");
        assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
    };
    let remove = |parts: &[&str]| {
        for name in vfs.read_names(Path::new("/store")).unwrap() {
            if parts.iter().any(|part| name.starts_with(part)) {
                vfs.remove(&Path::new("/store").join(name)).unwrap();
            }
        }
    };
    let file = Path::new("/others/MEMORY");
    flip(&vfs, file, 30);
    // The superblock says the number, then the store's segments.
    assert_refused();
    remove(&["SPINNEY", "manifest-"]);
    assert_refused();
    flip(&vfs, file, 30);
    assert_refused();
    remove(&["journal-"]);
    let report = repair("/repaired").unwrap();
    let is_told = |problem: &Error| problem.to_string().contains("that of /other;");
    assert!(report.problems.iter().any(is_told) && !report.is_exact(), "{report:?}");
}
