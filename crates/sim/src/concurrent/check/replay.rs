//! Verifies an order for a history by the simplest means: a map of the keys' values. It shares no
//! code with the search for the order.

use std::collections::BTreeMap;

use crate::concurrent::history::{Action, Change, Found, History, Scan, Seen, seen_text};

type State = BTreeMap<(u32, u32), Seen>;

/// Confirms an order: it holds all commits and observers, agrees with time, and explains what each
/// observer saw.
pub(super) fn check(history: &History, order: &[usize]) -> Result<(), String> {
    let operations = &history.operations;
    let mut readers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut points = 0;
    for (op, operation) in operations.iter().enumerate() {
        match &operation.action {
            Action::Commit { accepted: true, .. }
            | Action::Exchange { .. }
            | Action::View { .. } => points += 1,
            Action::Read { view: None, found: Some(_), .. }
            | Action::Scan(Scan { view: None, .. }) => points += 1,
            Action::Read { view: Some(view), .. } | Action::Scan(Scan { view: Some(view), .. }) => {
                readers.entry(*view).or_default().push(op);
            }
            _ => {}
        }
    }
    let mut places = vec![false; operations.len()];
    let mut begun = 0;
    let mut state = State::new();
    for &op in order {
        let operation = &operations[op];
        if std::mem::replace(&mut places[op], true) {
            return Err(format!("#{op} comes twice"));
        }
        if operation.ended < begun {
            return Err(format!("#{op} ended before one that comes before it began"));
        }
        begun = begun.max(operation.begun);
        match &operation.action {
            action @ (Action::Commit { writes, .. } | Action::Exchange { writes, .. }) => {
                sees(&state, action).map_err(|what| format!("#{op}: {what}"))?;
                for write in writes {
                    let place = (write.space, write.key);
                    match write.change {
                        Change::Put(id) => drop(state.insert(place, vec![id])),
                        Change::Delete => drop(state.remove(&place)),
                        Change::Merge(id) => state.entry(place).or_default().push(id),
                    }
                }
            }
            Action::View { view } => {
                for &reader in readers.get(view).into_iter().flatten() {
                    sees(&state, &operations[reader].action)
                        .map_err(|what| format!("#{reader}: {what}"))?;
                }
            }
            action => sees(&state, action).map_err(|what| format!("#{op}: {what}"))?,
        }
    }
    if order.len() == points { Ok(()) } else { Err(format!("{} of {points}", order.len())) }
}

fn sees(state: &State, action: &Action) -> Result<(), String> {
    match action {
        Action::Exchange { saw, .. } => saw.iter().try_for_each(|saw| {
            let held = state.get(&(saw.space, saw.key)).map_or(&[][..], Vec::as_slice);
            match held == saw.seen {
                true => Ok(()),
                false => Err(format!("key {}/{} holds {}", saw.space, saw.key, seen_text(held))),
            }
        }),
        Action::Read { space, found: Some(found), .. } => {
            for (key, seen) in found {
                let held = state.get(&(*space, *key)).map_or(&[][..], Vec::as_slice);
                if held != seen {
                    return Err(format!("key {space}/{key} holds {}", seen_text(held)));
                }
            }
            Ok(())
        }
        Action::Scan(scan) => {
            let upper = scan.upper.max(scan.lower);
            let held = state.range((scan.space, scan.lower)..(scan.space, upper));
            let held: Found = held.map(|((_, key), seen)| (*key, seen.clone())).collect();
            let mut found = scan.back.clone();
            found.reverse();
            let whole = [scan.front.clone(), found.clone()].concat();
            let right = match scan.exhausted {
                true => held == whole,
                false => held.starts_with(&scan.front) && held.ends_with(&found),
            };
            if right { Ok(()) } else { Err("the range holds something else".to_string()) }
        }
        _ => Ok(()),
    }
}
