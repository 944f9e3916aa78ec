//! One bad history of each kind, and its good twin.

use super::{Kind, kinds, told_apart};
use crate::concurrent::check::{Verdict, judge};
use crate::concurrent::history::History;

#[test]
fn a_stale_read() {
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         1 2 3 commit 0/1=put:1.2
         2 4 5 read now 0 1=1.1",
        Kind::Circle,
        // It began before the second put had ended.
        "1 0 1 commit 0/1=put:1.1
         1 2 4 commit 0/1=put:1.2
         2 3 5 read now 0 1=1.1",
    );
}

#[test]
fn a_lost_update() {
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         2 2 3 read now 0 1=-",
        Kind::Circle,
        "1 0 2 commit 0/1=put:1.1
         2 1 3 read now 0 1=-",
    );
    // Two overlap; a third that came after both is gone.
    told_apart(
        "1 0 3 commit 0/1=put:1.1
         2 1 2 commit 0/1=put:2.1
         2 4 5 commit 0/1=put:2.2
         3 6 7 read now 0 1=1.1",
        Kind::Circle,
        "1 0 3 commit 0/1=put:1.1
         2 1 2 commit 0/1=put:2.1
         3 6 7 read now 0 1=1.1",
    );
}

#[test]
fn two_conditional_writes_of_one_value() {
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         2 2 5 exchange 0/1=1.1 | 0/1=put:2.1
         3 3 6 exchange 0/1=1.1 | 0/1=put:3.1",
        Kind::Circle,
        "1 0 1 commit 0/1=put:1.1
         2 2 5 exchange 0/1=1.1 | 0/1=put:2.1
         3 3 6 exchange 0/1=2.1 | 0/1=put:3.1",
    );
    // Both insert a key that nobody has deleted.
    told_apart(
        "2 0 3 exchange 0/1=- | 0/1=put:2.1
         3 1 4 exchange 0/1=- | 0/1=put:3.1",
        Kind::Circle,
        "2 0 3 exchange 0/1=- | 0/1=put:2.1
         3 1 4 exchange 0/1=2.1 | 0/1=delete
         3 5 6 exchange 0/1=- | 0/1=put:3.1",
    );
}

#[test]
fn a_write_between_what_was_seen_and_what_was_written() {
    told_apart(
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         2 2 6 exchange 0/1=1.1 0/2=1.2 | 0/2=put:2.1
         1 3 4 commit 0/1=put:1.3
         3 7 8 read now 0 1=1.3 2=2.1
         3 9 10 read now 0 1=1.3 2=1.2",
        Kind::Circle,
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         2 2 6 exchange 0/1=1.1 0/2=1.2 | 0/2=put:2.1
         1 3 4 commit 0/1=put:1.3
         3 7 8 read now 0 1=1.3 2=2.1",
    );
    // Another write of the key was shown before this one, which had seen nothing of it.
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         2 2 9 exchange 0/1=1.1 | 0/2=put:2.1
         1 3 4 commit 0/1=put:1.3
         3 5 6 read now 0 1=1.3 2=-
         3 10 11 read now 0 1=1.3 2=2.1",
        Kind::Circle,
        "1 0 1 commit 0/1=put:1.1
         2 2 9 exchange 0/1=1.1 | 0/2=put:2.1
         1 3 4 commit 0/1=put:1.3
         3 5 6 read now 0 1=1.3 2=2.1
         3 10 11 read now 0 1=1.3 2=2.1",
    );
}

#[test]
fn a_read_from_the_future() {
    told_apart(
        "2 0 1 read now 0 1=1.1
         1 2 3 commit 0/1=put:1.1",
        Kind::Future,
        "2 0 2 read now 0 1=1.1
         1 1 3 commit 0/1=put:1.1",
    );
}

#[test]
fn reads_that_go_back_in_time() {
    told_apart(
        "1 0 9 commit 0/1=put:1.1
         2 1 2 read now 0 1=1.1
         3 3 4 read now 0 1=-",
        Kind::Circle,
        "1 0 9 commit 0/1=put:1.1
         2 1 2 read now 0 1=-
         3 3 4 read now 0 1=1.1",
    );
}

#[test]
fn two_readers_see_two_orders_of_puts() {
    told_apart(
        "1 0 9 commit 0/1=put:1.1
         2 1 10 commit 0/1=put:2.1
         3 2 3 read now 0 1=1.1
         3 5 6 read now 0 1=2.1
         4 4 7 read now 0 1=2.1
         4 8 12 read now 0 1=1.1",
        Kind::Circle,
        "1 0 9 commit 0/1=put:1.1
         2 1 10 commit 0/1=put:2.1
         3 2 3 read now 0 1=1.1
         3 5 6 read now 0 1=2.1
         4 4 7 read now 0 1=1.1
         4 8 12 read now 0 1=2.1",
    );
}

#[test]
fn half_a_batch_in_one_key() {
    told_apart(
        "1 0 3 commit 0/1=put:1.1 0/1=put:1.2
         2 1 2 read now 0 1=1.1",
        Kind::Torn,
        "1 0 3 commit 0/1=put:1.1 0/1=put:1.2
         2 1 2 read now 0 1=1.2",
    );
    told_apart(
        "1 0 3 commit 0/1=put:1.1 0/1=merge:1.2
         2 1 2 read now 0 1=1.1",
        Kind::Torn,
        "1 0 3 commit 0/1=put:1.1 0/1=merge:1.2
         2 1 2 read now 0 1=1.1+1.2",
    );
}

#[test]
fn a_torn_batch() {
    told_apart(
        "1 0 3 commit 0/1=put:1.1 0/2=put:1.2
         2 1 2 read now 0 1=1.1 2=-",
        Kind::Circle,
        // Each key by itself.
        "1 0 5 commit 0/1=put:1.1 0/2=put:1.2
         2 3 4 read now 0 1=1.1
         2 1 2 read now 0 2=-",
    );
    told_apart(
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         1 2 5 commit 0/1=delete 0/2=put:1.3
         2 3 4 read now 0 1=- 2=1.2",
        Kind::Circle,
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         1 2 5 commit 0/1=delete 0/2=put:1.3
         2 3 4 read now 0 1=- 2=1.3",
    );
}

#[test]
fn a_fractured_read_across_keyspaces() {
    told_apart(
        "1 0 5 commit 0/1=put:1.1 1/1=put:1.2
         2 1 2 view 7
         2 3 4 read view:7 0 1=1.1
         3 6 7 read view:7 1 1=-",
        Kind::Circle,
        "1 0 5 commit 0/1=put:1.1 1/1=put:1.2
         2 1 2 view 7
         2 3 4 read view:7 0 1=1.1
         3 6 7 read view:7 1 1=1.2",
    );
}

#[test]
fn a_long_fork() {
    told_apart(
        "1 0 9 commit 0/1=put:1.1
         2 1 10 commit 1/1=put:2.1
         3 2 4 view 1
         4 3 5 view 2
         3 6 7 read view:1 0 1=1.1
         3 8 11 read view:1 1 1=-
         4 12 13 read view:2 0 1=-
         4 14 15 read view:2 1 1=2.1",
        Kind::Circle,
        "1 0 9 commit 0/1=put:1.1
         2 1 10 commit 1/1=put:2.1
         3 2 4 view 1
         4 3 5 view 2
         3 6 7 read view:1 0 1=1.1
         3 8 11 read view:1 1 1=-
         4 12 13 read view:2 0 1=-
         4 14 15 read view:2 1 1=-",
    );
}

#[test]
fn a_snapshot_that_moves() {
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         2 2 3 view 1
         2 4 5 read view:1 0 1=1.1
         1 6 7 commit 0/1=put:1.2
         2 8 9 scan view:1 0 0 9 all 10 1=1.2 |",
        // Two views of it: it has moved.
        Kind::Moved,
        "1 0 1 commit 0/1=put:1.1
         2 2 3 view 1
         2 4 5 read view:1 0 1=1.1
         1 6 7 commit 0/1=put:1.2
         2 8 9 scan view:1 0 0 9 all 10 1=1.1 |",
    );
}

#[test]
fn a_snapshot_that_lacks_what_was_acknowledged_or_has_what_came_later() {
    let good = "1 0 1 commit 0/1=put:1.1
         2 2 3 view 1
         1 4 5 commit 0/1=put:1.2
         2 6 7 read view:1 0 1=1.1";
    told_apart(&good.replace("0 1=1.1", "0 1=-"), Kind::Circle, good);
    told_apart(&good.replace("0 1=1.1", "0 1=1.2"), Kind::Future, good);
}

#[test]
fn an_iterator_that_skips() {
    told_apart(
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2 0/3=put:1.3
         2 2 3 scan now 0 0 9 some 4 1=1.1 3=1.3 |",
        Kind::Circle,
        // It has not come to 2.
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2 0/3=put:1.3
         2 2 3 scan now 0 0 9 some 4 1=1.1 | 3=1.3",
    );
    told_apart(
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         2 2 3 scan now 0 0 9 all 4 1=1.1 |",
        Kind::Circle,
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         2 2 3 scan now 0 0 2 all 4 1=1.1 |",
    );
    told_apart(
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         2 2 3 scan now 0 0 9 some 4 | 1=1.1",
        Kind::Circle,
        "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         2 2 3 scan now 0 0 9 some 4 | 2=1.2 1=1.1",
    );
}

#[test]
fn an_iterator_that_comes_to_a_key_twice_or_out_of_order_or_out_of_range() {
    let good = "1 0 1 commit 0/1=put:1.1 0/2=put:1.2
         2 2 3 scan now 0 0 9 all 4 1=1.1 2=1.2 |";
    let scans = [
        "0 0 9 all 4 1=1.1 1=1.1 2=1.2 |",
        "0 0 9 all 4 2=1.2 1=1.1 |",
        "0 0 9 all 4 1=1.1 | 2=1.2 1=1.1",
        "0 0 9 all 4 | 1=1.1 2=1.2",
        "0 2 9 all 4 1=1.1 2=1.2 |",
        "0 0 2 all 4 1=1.1 2=1.2 |",
    ];
    for scan in scans {
        told_apart(&good.replace("0 0 9 all 4 1=1.1 2=1.2 |", scan), Kind::Iterator, good);
    }
}

#[test]
fn an_iterator_that_brings_a_key_back_or_invents_one() {
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         1 2 3 commit 0/1=delete
         2 4 5 scan now 0 0 9 all 6 1=1.1 |",
        Kind::Circle,
        "1 0 1 commit 0/1=put:1.1
         1 2 3 commit 0/1=delete
         2 4 5 scan now 0 0 9 all 6 |",
    );
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         2 4 5 scan now 0 0 9 all 6 1=1.1 2=1.9 |",
        Kind::Invented,
        "1 0 1 commit 0/1=put:1.1
         2 4 5 scan now 0 0 9 all 6 1=1.1 |",
    );
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         2 4 5 scan now 0 0 9 all 6 1=1.1 2=1.1 |",
        Kind::Invented,
        "1 0 1 commit 0/1=put:1.1
         2 4 5 scan now 0 0 9 all 6 1=1.1 |",
    );
}

/// An iterator reads what was there when it was made, however long it takes.
#[test]
fn an_iterator_that_sees_what_came_while_it_was_held() {
    told_apart(
        "2 0 1 scan now 0 0 9 all 6 1=1.1 |
         1 2 3 commit 0/1=put:1.1",
        Kind::Future,
        "2 0 1 scan now 0 0 9 all 6 |
         1 2 3 commit 0/1=put:1.1",
    );
}

#[test]
fn merge_operands_lost_doubled_and_reordered() {
    let good = "1 0 1 commit 0/1=put:1.1
         1 2 3 commit 0/1=merge:1.2
         1 4 5 commit 0/1=merge:1.3
         2 6 7 read now 0 1=1.1+1.2+1.3";
    let with = |seen: &str| good.replace("1=1.1+1.2+1.3", &format!("1={seen}"));
    told_apart(&with("1.1+1.3"), Kind::Circle, good);
    told_apart(&with("1.1+1.2"), Kind::Circle, good);
    told_apart(&with("1.2+1.3"), Kind::Circle, good);
    told_apart(&with("1.1+1.2+1.2+1.3"), Kind::Operands, good);
    told_apart(&with("1.1+1.3+1.2"), Kind::Circle, good);
    told_apart(&with("1.2+1.1+1.3"), Kind::Operands, good);
    told_apart(&with("1.1+1.2+1.4"), Kind::Invented, good);
    // Two that overlap may be in any order, but in one.
    told_apart(
        "1 0 3 commit 0/1=merge:1.1
         2 1 2 commit 0/1=merge:2.1
         3 4 5 read now 0 1=1.1+2.1
         3 6 7 read now 0 1=2.1+1.1",
        Kind::Operands,
        "1 0 3 commit 0/1=merge:1.1
         2 1 2 commit 0/1=merge:2.1
         3 4 5 read now 0 1=2.1+1.1
         3 6 7 read now 0 1=2.1+1.1",
    );
}

#[test]
fn a_merge_below_which_a_put_or_a_delete_has_come() {
    let good = "1 0 1 commit 0/1=put:1.1
         1 2 3 commit 0/1=delete
         1 4 5 commit 0/1=merge:1.2
         2 6 7 read now 0 1=1.2";
    told_apart(&good.replace("0 1=1.2", "0 1=1.1+1.2"), Kind::Circle, good);
    let good = "1 0 1 commit 0/1=merge:1.1
         1 4 5 commit 0/1=put:1.2
         2 6 7 read now 0 1=1.2";
    told_apart(&good.replace("0 1=1.2", "0 1=1.1+1.2"), Kind::Operands, good);
    // A batch's operands stay together.
    let good = "1 0 3 commit 0/1=merge:1.1 0/1=merge:1.2
         2 1 2 commit 0/1=merge:2.1
         2 6 7 read now 0 1=2.1+1.1+1.2";
    told_apart(&good.replace("2.1+1.1+1.2", "1.1+2.1+1.2"), Kind::Operands, good);
}

#[test]
fn a_refused_write_that_shows() {
    let good = "0 0 1 create 0 passing
         1 2 5 refused 0/1=put:1.1
         2 3 4 read now 0 1=-
         0 4 7 drop 0";
    told_apart(&good.replace("0 1=-", "0 1=1.1"), Kind::Refused, good);
}

#[test]
fn a_keyspace_that_outlives_its_end_or_ends_before() {
    let good = "0 0 1 create 0 passing
         1 2 3 commit 0/1=put:1.1
         0 4 6 drop 0
         1 5 7 commit 0/1=put:1.2
         1 8 9 closed now 0";
    told_apart(&good.replace("1 5 7 commit", "1 7 8 commit"), Kind::Closed, good);
    told_apart(&good.replace("8 9 closed now 0", "8 9 read now 0 1=1.2"), Kind::Closed, good);
    told_apart(&good.replace("1 2 3 commit", "1 2 3 refused"), Kind::Closed, good);
}

/// What was acknowledged is there after the store has been closed and opened again.
#[test]
fn a_commit_that_reopening_loses() {
    let good = "1 0 1 commit 0/1=put:1.1 1/1=put:1.2
         0 2 3 note close
         0 4 5 view 1
         0 6 7 scan view:1 0 0 9 all 8 1=1.1 |
         0 9 10 scan view:1 1 0 9 all 11 1=1.2 |";
    told_apart(&good.replace("11 1=1.2", "11"), Kind::Circle, good);
}

/// A delete that overlaps with much may have come before or after each of it.
#[test]
fn deletes_may_stand_anywhere_in_their_time() {
    told_apart(
        "1 0 1 commit 0/1=put:1.1
         2 2 9 commit 0/1=delete
         3 3 4 read now 0 1=-
         3 5 6 read now 0 1=1.1",
        Kind::Circle,
        "1 0 1 commit 0/1=put:1.1
         2 2 9 commit 0/1=delete
         3 3 4 read now 0 1=1.1
         3 5 6 read now 0 1=-",
    );
    // The one delete cannot stand behind both puts and before both absences.
    told_apart(
        "2 0 20 commit 0/1=delete
         1 1 2 commit 0/1=put:1.1
         3 3 4 read now 0 1=-
         1 5 6 commit 0/1=put:1.2
         3 7 8 read now 0 1=-",
        Kind::Circle,
        "2 0 20 commit 0/1=delete
         4 0 20 commit 0/1=delete
         1 1 2 commit 0/1=put:1.1
         3 3 4 read now 0 1=-
         1 5 6 commit 0/1=put:1.2
         3 7 8 read now 0 1=-",
    );
}

/// Two threads that read both keys and then each write one: nobody has promised that one of them
/// sees the other. Spinney has no transactions that read.
#[test]
fn write_skew_is_allowed() {
    let history = "0 0 1 commit 0/1=put:0.1 0/2=put:0.2
         1 2 4 read now 0 1=0.1 2=0.2
         2 3 5 read now 0 1=0.1 2=0.2
         1 6 8 commit 0/1=put:1.1
         2 7 9 commit 0/2=put:2.1
         3 10 11 read now 0 1=1.1 2=2.1";
    assert_eq!(kinds(history), []);
}

#[test]
fn what_is_odd_by_itself_is_told() {
    assert_eq!(kinds("1 0 1 odd the disk is upside down"), [Kind::Odd]);
    assert_eq!(kinds("1 0 1 read view:5 0 1=-"), [Kind::Odd]);
}

/// A reader of the report sees the operations that contradict each other, and few others.
#[test]
fn a_violation_is_told_in_a_few_lines() {
    let mut text = String::new();
    for count in 0..500 {
        let at = count * 10;
        text += &format!("1 {at} {} commit 0/{}=put:1.{count}\n", at + 1, count % 7);
        let seen = if count == 400 { 300 / 7 * 7 + count % 7 } else { count };
        text += &format!("2 {} {} read now 0 {}=1.{seen}\n", at + 2, at + 3, count % 7);
    }
    let history: History = text.parse().unwrap();
    let Verdict::Broken(violations) = judge(&history) else { panic!("not found") };
    let told = violations[0].tell(&history);
    assert!(violations.len() == 1 && told.lines().count() < 9, "{told}");
    assert!(told.contains("#801: 2 4002 4003 read now 0 1=1.295"), "{told}");
}
