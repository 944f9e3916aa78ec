//! What handles offer beyond reads and writes: batches by themselves, durability of single writes, counts.

use std::ops::Bound;

use spinney::{Batch, BatchOperation, Database, Durability, Error, Keyspace, KeyspaceOptions};

fn store() -> (Database, Keyspace) {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb().merge_operator("append")).unwrap();
    (db, items)
}

#[test]
fn a_batch_is_made_alone_read_back_written_twice_and_cleared() {
    let (db, items) = store();
    let mut batch = Batch::new().durability(Durability::Sync);
    batch.put(&items, "a", "1");
    batch.delete(&items, "b");
    batch.merge(&items, "c", "x");
    let keyspace = "items";
    let expected = [
        BatchOperation::Put { keyspace, key: b"a", value: b"1" },
        BatchOperation::Delete { keyspace, key: b"b" },
        BatchOperation::Merge { keyspace, key: b"c", operand: b"x" },
    ];
    assert!(batch.iter().eq(expected));
    assert_eq!((batch.len(), batch.bytes()), (3, 5));
    db.write(&batch).unwrap();
    db.write(&batch.clone()).unwrap();
    assert_eq!(items.get("a").unwrap().unwrap(), b"1");
    assert_eq!(items.get("c").unwrap().unwrap(), b"xx");
    assert_eq!(db.stats().commits_sync, 2);
    batch.clear();
    assert!(batch.is_empty() && batch.bytes() == 0 && batch.iter().next().is_none());
    batch.put(&items, "d", "4");
    batch.commit().unwrap();
    assert_eq!(items.get("d").unwrap().unwrap(), b"4");
    assert_eq!(db.stats().commits_sync, 3, "the durability stays");
}

#[test]
fn a_batch_of_another_store_is_refused_and_writes_nothing() {
    let (db, items) = store();
    let (other, others) = store();
    let mut batch = Batch::new();
    batch.put(&items, "a", "1");
    assert!(matches!(other.write(&batch), Err(Error::InvalidArgument { .. })));
    batch.put(&others, "a", "1");
    assert!(matches!(db.write(&batch), Err(Error::InvalidArgument { .. })));
    assert!(matches!(batch.clone().commit(), Err(Error::InvalidArgument { .. })));
    assert_eq!((items.count(..).unwrap(), others.count(..).unwrap()), (0, 0));
    // Cleared, it forgets the stranger.
    batch.clear();
    batch.put(&items, "b", "2");
    db.write(&batch).unwrap();
    Batch::new().commit().unwrap();
    other.write(&Batch::new()).unwrap();
}

#[test]
fn single_writes_take_a_durability() {
    let (db, items) = store();
    items.put_with("a", "1", Durability::Sync).unwrap();
    items.merge_with("a", "2", Durability::Sync).unwrap();
    items.delete_with("b", Durability::Sync).unwrap();
    items.put_with("c", "3", Durability::Buffered).unwrap();
    assert_eq!(db.stats().commits_sync, 3);
    assert_eq!(items.get("a").unwrap().unwrap(), b"12");
}

#[test]
fn counts_are_of_keys_not_of_versions() {
    let (db, items) = store();
    for round in 0..3 {
        for number in 0..100u32 {
            items.put(number.to_be_bytes(), [round]).unwrap();
        }
        items.flush().unwrap();
    }
    let before = db.snapshot();
    items.delete(7u32.to_be_bytes()).unwrap();
    assert_eq!(items.count(..).unwrap(), 99);
    assert_eq!(before.count(&items, ..).unwrap(), 100);
    let bounds: (Bound<&[u8]>, Bound<&[u8]>) =
        (Bound::Excluded(&[0, 0, 0, 5]), Bound::Included(&[0, 0, 0, 9]));
    assert_eq!(items.count(bounds).unwrap(), 3);
}
