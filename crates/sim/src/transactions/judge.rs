//! What is wrong with a history.

use std::collections::{BTreeMap, BTreeSet};

use spinney::Isolation;

use super::Judged;
use super::graph::{Edge, Graph};
use super::history::{End, Key, Transaction};

/// A list at the end: its appends, and for each the transaction that made it.
struct List {
    ids: Vec<u32>,
    writers: Vec<usize>,
}

/// Judges a history by the lists as they were at its end.
pub(super) fn judge(
    transactions: &[Transaction],
    lists: &[(Key, Vec<u32>)],
    isolation: Isolation,
) -> Judged {
    let writers = writers(transactions)?;
    let lists = lists_by_writer(transactions, lists, &writers)?;
    for transaction in transactions {
        check_reads(transaction, transactions, &lists)?;
    }
    let graph = dependencies(transactions, &lists);
    let (circle, stride) = match isolation {
        Isolation::Snapshot => (graph.without_skew().circle(), 2),
        _ => (graph.circle(), 1),
    };
    let Some(circle) = circle else { return Ok(()) };
    let told = circle.into_iter().map(|(node, edge)| match transactions.get(node / stride) {
        Some(transaction) => format!("{transaction} {edge:?}"),
        None => "(earlier)".to_string(),
    });
    Err(format!("no order explains: {}", told.collect::<Vec<_>>().join(" -> ")))
}

/// Who made each append.
fn writers(transactions: &[Transaction]) -> Result<BTreeMap<u32, usize>, String> {
    let mut writers = BTreeMap::new();
    for (number, transaction) in transactions.iter().enumerate() {
        for (_, id) in &transaction.appends {
            if writers.insert(*id, number).is_some() {
                return Err(format!("append {id} was made twice: the regime is wrong"));
            }
        }
    }
    Ok(writers)
}

/// The lists with their writers. Everything in them has been committed, once, and nothing is missing; what a transaction
/// appended to a list is together and in order.
fn lists_by_writer(
    transactions: &[Transaction],
    lists: &[(Key, Vec<u32>)],
    writers: &BTreeMap<u32, usize>,
) -> Result<BTreeMap<Key, List>, String> {
    let mut appended: BTreeMap<(usize, Key), Vec<u32>> = BTreeMap::new();
    let committed = transactions
        .iter()
        .enumerate()
        .filter(|(_, transaction)| transaction.end == End::Committed);
    for (number, transaction) in committed {
        for (key, id) in &transaction.appends {
            appended.entry((number, *key)).or_default().push(*id);
        }
    }
    let mut by_writer = BTreeMap::new();
    for (key, ids) in lists {
        let mut of_list = Vec::with_capacity(ids.len());
        let mut rest = &ids[..];
        while let Some(id) = rest.first() {
            let Some(&writer) = writers.get(id) else {
                return Err(format!("{key:?} has append {id}, which nobody made"));
            };
            let Some(theirs) = appended.remove(&(writer, *key)) else {
                let writer = &transactions[writer];
                return Err(format!(
                    "{key:?} has append {id} of {writer}, which is not to be seen"
                ));
            };
            if !rest.starts_with(&theirs) {
                let writer = &transactions[writer];
                return Err(format!("{key:?} has a part of the appends of {writer}: {ids:?}"));
            }
            of_list.extend(theirs.iter().map(|_| writer));
            rest = &rest[theirs.len()..];
        }
        by_writer.insert(*key, List { ids: ids.clone(), writers: of_list });
    }
    match appended.into_iter().next() {
        None => Ok(by_writer),
        Some(((writer, key), ids)) => {
            Err(format!("{key:?} lacks the appends {ids:?} of {}", transactions[writer]))
        }
    }
}

/// What was read of a list is what it once was: a part from its beginning, with whole transactions.
fn check_reads(
    transaction: &Transaction,
    transactions: &[Transaction],
    lists: &BTreeMap<Key, List>,
) -> Judged {
    for (key, read) in &transaction.reads {
        let list = &lists[key];
        if !list.ids.starts_with(read) {
            return Err(format!("{transaction} has read {read:?}, and the list is {:?}", list.ids));
        }
        let (last, next) = (read.len().checked_sub(1), list.writers.get(read.len()));
        let is_torn = last.is_some_and(|last| list.writers.get(last) == next);
        if let (true, Some(next)) = (is_torn, next) {
            let writer = &transactions[*next];
            return Err(format!("{transaction} has read a part of the appends of {writer}"));
        }
    }
    Ok(())
}

/// Which committed transaction depends on which.
fn dependencies(transactions: &[Transaction], lists: &BTreeMap<Key, List>) -> Graph {
    // Behind the transactions: a node for each moment at which one has ended.
    let is_committed = |number: &usize| transactions[*number].end == End::Committed;
    let committed: Vec<usize> = (0..transactions.len()).filter(is_committed).collect();
    let mut by_end = committed.clone();
    by_end.sort_unstable_by_key(|number| transactions[*number].ended);
    let mut graph = Graph::new(transactions.len() + by_end.len());
    for list in lists.values() {
        for pair in list.writers.windows(2) {
            graph.add(pair[0], Edge::Append, pair[1]);
        }
    }
    for &number in &committed {
        let reads: BTreeSet<_> =
            transactions[number].reads.iter().map(|(key, read)| (*key, read.len())).collect();
        for (key, len) in reads {
            let list = &lists[&key];
            if let Some(last) = len.checked_sub(1) {
                graph.add(list.writers[last], Edge::Read, number);
            }
            if let Some(next) = list.writers.get(len) {
                graph.add(number, Edge::Unseen, *next);
            }
        }
    }
    let moment = |at: usize| transactions.len() + at;
    for (at, &number) in by_end.iter().enumerate() {
        graph.add(number, Edge::Time, moment(at));
        if at > 0 {
            graph.add(moment(at - 1), Edge::Time, moment(at));
        }
    }
    for &number in &committed {
        let begun = transactions[number].begun;
        let before = by_end.partition_point(|other| transactions[*other].ended < begun);
        if let Some(last) = before.checked_sub(1) {
            graph.add(moment(last), Edge::Time, number);
        }
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Key = Key { space: 0, key: 0 };
    const Y: Key = Key { space: 1, key: 0 };

    /// A transaction that is concurrent with all others.
    fn of(reads: &[(Key, &[u32])], appends: &[(Key, u32)]) -> Transaction {
        let reads = reads.iter().map(|(key, list)| (*key, list.to_vec())).collect();
        Transaction { begun: 0, ended: 99, end: End::Committed, reads, appends: appends.to_vec() }
    }

    fn told(transactions: &[Transaction], x: &[u32], y: &[u32], isolation: Isolation) -> String {
        let lists = [(X, x.to_vec()), (Y, y.to_vec())];
        judge(transactions, &lists, isolation).err().unwrap_or_default()
    }

    /// The anomalies by the names that the literature gives them, each made by hand.
    #[test]
    fn every_anomaly_is_told() {
        use Isolation::{Serializable, Snapshot};
        let both = [Serializable, Snapshot];
        for isolation in both {
            let told = |transactions: &[Transaction], x: &[u32], y: &[u32]| {
                told(transactions, x, y, isolation)
            };
            let order = "no order explains";
            // G0: two orders of two writers.
            let (one, other) = (of(&[], &[(X, 1), (Y, 1 + 10)]), of(&[], &[(X, 2), (Y, 12)]));
            assert!(told(&[one.clone(), other.clone()], &[1, 2], &[12, 11]).contains(order));
            assert_eq!(told(&[one, other], &[1, 2], &[11, 12]), "");
            // G1a: a read of what was not committed.
            let aborted = Transaction { end: End::Aborted, ..of(&[], &[(X, 1)]) };
            let reader = of(&[(X, &[1])], &[]);
            assert!(told(&[aborted.clone(), reader], &[], &[]).contains("has read"));
            assert!(told(&[aborted], &[1], &[]).contains("not to be seen"));
            // G1b: a read of a part.
            let (writer, reader) = (of(&[], &[(X, 1), (X, 2)]), of(&[(X, &[1])], &[]));
            assert!(told(&[writer, reader], &[1, 2], &[]).contains("a part"));
            // G1c: each has read the other's writes.
            let one = of(&[(Y, &[2])], &[(X, 1)]);
            let other = of(&[(X, &[1])], &[(Y, 2)]);
            assert!(told(&[one, other], &[1], &[2]).contains(order));
            // Lost update: both appended to what they read.
            let (one, other) = (of(&[(X, &[])], &[(X, 1)]), of(&[(X, &[])], &[(X, 2)]));
            assert!(told(&[one, other], &[1, 2], &[]).contains(order));
            // Read skew: one half of what was written together.
            let (writer, reader) = (of(&[], &[(X, 1), (Y, 2)]), of(&[(X, &[1]), (Y, &[])], &[]));
            assert!(told(&[writer, reader], &[1], &[2]).contains(order));
            // A commit that was lost, and one that a later reader does not see.
            assert!(told(&[of(&[], &[(X, 1)])], &[], &[]).contains("lacks"));
            let early = Transaction { ended: 1, ..of(&[], &[(X, 1)]) };
            let late = Transaction { begun: 2, ..of(&[(X, &[])], &[]) };
            assert!(told(&[early, late], &[1], &[]).contains(order));
        }
        // Long fork: two readers see two writes in different orders.
        let writers = [of(&[], &[(X, 1)]), of(&[], &[(Y, 2)])];
        let readers = [of(&[(X, &[1]), (Y, &[])], &[]), of(&[(X, &[]), (Y, &[2])], &[])];
        let fork = [writers, readers].concat();
        assert!(both.iter().all(|it| told(&fork, &[1], &[2], *it).contains("no order explains")));
        // Write skew, which snapshot isolation allows.
        let skew = [of(&[(X, &[])], &[(Y, 2)]), of(&[(Y, &[])], &[(X, 1)])];
        assert!(told(&skew, &[1], &[2], Serializable).contains("no order explains"));
        assert_eq!(told(&skew, &[1], &[2], Snapshot), "");
    }
}
