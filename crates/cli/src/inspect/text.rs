//! The tree as text.

use std::fmt::Write as _;

use spinney::{FileDescription, GroupDescription, NodeDescription};

use super::trunk::{
    AGE_STEPS, PlacedNode, Sums, Trunk, has_own, live_bytes, reclaimable_bytes, shown_count,
};
use crate::spelling::readable;
use spinney_quantity::{bytes, grouped, ratio};

const BAR_CELLS: usize = 16;
const KEY_CHARACTERS: usize = 28;
/// Colours of a 256-colour terminal for ages, the oldest first.
const AGE_COLOURS: [u8; AGE_STEPS as usize] = [94, 130, 136, 172, 178, 184, 148, 113, 84];

/// How to write it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) branches: bool,
    pub(super) nodes_max: usize,
    pub(super) colours: bool,
}

pub(super) fn text(trunk: &Trunk<'_>, title: &str, style: Style) -> String {
    let mut out = String::new();
    let (description, total) = (trunk.description, &trunk.total);
    let _ = writeln!(out, "{title} · {}", description.kind);
    let _ = writeln!(
        out,
        "{} on disk, about {} live (× {:.2}); {} tables, {} entries, {} tombstones, {} superseded",
        bytes(description.disk_bytes),
        bytes(description.live_bytes),
        ratio(description.disk_bytes, description.live_bytes),
        grouped(total.tables),
        grouped(total.entries),
        percent(total.tombstones, total.entries),
        percent(total.superseded, total.entries),
    );
    let counts = total.counts.iter().map(|(name, count)| shown_count(name, *count));
    let _ = writeln!(
        out,
        "{} {}s in {} levels, {} {}s{}, about {} to reclaim",
        grouped(total.nodes),
        trunk.node_word(),
        trunk.levels.len(),
        grouped(total.groups),
        trunk.group_word(),
        counts.map(|count| format!(", {count}")).collect::<String>(),
        bytes(total.reclaimable_bytes),
    );
    for (name, value) in &description.parameters {
        let _ = writeln!(out, "  {name} = {}", grouped(*value));
    }
    if trunk.levels.is_empty() {
        out.push_str("the tree is empty\n");
    } else {
        let _ = writeln!(out, "bars: old {} new; ▒ superseded, ✕ tombstones\n", ages(style));
    }
    for depth in 0..trunk.levels.len() {
        level(trunk, depth, style, &mut out);
    }
    out
}

fn ages(style: Style) -> String {
    (0..AGE_STEPS).map(|step| coloured("█", step, style)).collect()
}

fn coloured(text: &str, age_step: u64, style: Style) -> String {
    if !style.colours || text.is_empty() {
        return text.to_string();
    }
    let colour = AGE_COLOURS.get(age_step as usize).copied().unwrap_or(84);
    format!("\x1b[38;5;{colour}m{text}\x1b[0m")
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0}%", ratio(part, whole) * 100.0)
}

fn level(trunk: &Trunk<'_>, depth: usize, style: Style, out: &mut String) {
    let nodes = &trunk.levels[depth];
    let sums = Sums::of(nodes.iter().map(|placed| placed.node));
    let _ = writeln!(
        out,
        "── {}: {} {}{}, {} live, {} to reclaim",
        trunk.level_name(depth),
        nodes.len(),
        trunk.node_word(),
        if nodes.len() == 1 { "" } else { "s" },
        bytes(sums.live_bytes),
        bytes(sums.reclaimable_bytes),
    );
    let level_bytes_max = nodes.iter().map(|placed| live_bytes(placed.node)).max().unwrap_or(0);
    for placed in nodes.iter().take(style.nodes_max) {
        node(trunk, placed, level_bytes_max, style, out);
    }
    if nodes.len() > style.nodes_max {
        let _ =
            writeln!(out, "   … and {} more; --nodes 0 shows all", nodes.len() - style.nodes_max);
    }
    out.push('\n');
}

fn range(node: &NodeDescription) -> String {
    let lower = if node.lower.is_empty() {
        "first".to_string()
    } else {
        readable(&node.lower, KEY_CHARACTERS)
    };
    let upper = node.upper.as_ref().map_or("last".to_string(), |key| readable(key, KEY_CHARACTERS));
    format!("{lower} … {upper}")
}

fn node(
    trunk: &Trunk<'_>,
    placed: &PlacedNode<'_>,
    bytes_max: u64,
    style: Style,
    out: &mut String,
) {
    let node = placed.node;
    let total = live_bytes(node);
    let _ = writeln!(
        out,
        "{} {:<6} {:<BAR_CELLS$}  {:>9}  {}",
        trunk.node_word(),
        node.id,
        bar(total, bytes_max),
        bytes(total),
        range(node)
    );
    if node.height > 0 {
        pivots(node, out);
    }
    for (position, group) in node.groups.iter().enumerate().rev() {
        match &group.files[..] {
            [file] if !has_own(group) => branch_line(trunk, file, position == 0, style, out),
            _ => bundle_lines(trunk, node, position, group, style, out),
        }
    }
}

/// One cell a pivot: how much waits there for a flush.
fn pivots(node: &NodeDescription, out: &mut String) {
    let most = node.children.iter().map(|pivot| pivot.live_bytes).max().unwrap_or(0);
    let waiting: u64 = node.children.iter().map(|pivot| pivot.live_bytes).sum();
    let cells: String = node.children.iter().map(|pivot| eighth(pivot.live_bytes, most)).collect();
    let children = node.children.len();
    let pivots = format!("{children} pivots, {} live above their children", bytes(waiting));
    let _ = writeln!(out, "  ├ {pivots:<72}  {cells}");
}

fn bundle_lines(
    trunk: &Trunk<'_>,
    node: &NodeDescription,
    position: usize,
    bundle: &GroupDescription,
    style: Style,
    out: &mut String,
) {
    let bundle_bytes: u64 = bundle.files.iter().map(|branch| branch.live_bytes).sum();
    let node_max = node
        .groups
        .iter()
        .map(|bundle| bundle.files.iter().map(|branch| branch.live_bytes).sum::<u64>())
        .max()
        .unwrap_or(0);
    let newest = bundle.files.iter().map(|branch| trunk.age_step(branch)).max().unwrap_or(0);
    let corner = if position == 0 && !style.branches { '└' } else { '├' };
    let drawn = bar(bundle_bytes, node_max);
    let padding = " ".repeat(BAR_CELLS - drawn.chars().count());
    let mut contents = match bundle.files.len() {
        1 => "1 file".to_string(),
        files => format!("{files} files"),
    };
    for (name, count) in bundle.counts.iter().filter(|(name, _)| name.ends_with("_bytes")) {
        let _ = write!(contents, ", {}", shown_count(name, *count));
    }
    let _ = write!(
        out,
        "  {corner} {} {:<6} {}{padding}  {:>9}  {:<29}",
        bundle.label,
        bundle.id,
        coloured(&drawn, newest, style),
        bytes(bundle_bytes),
        contents,
    );
    if node.children.len() > 1 {
        // A cell a pivot, under those of the line above all bundles: where the bundle is live.
        let live = node.children.iter().map(|pivot| pivot.first_group <= position);
        let cells: String = live.map(|live| if live { '━' } else { '·' }).collect();
        let _ = write!(out, "  {cells}");
    }
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
    if style.branches {
        for (index, branch) in bundle.files.iter().enumerate().rev() {
            branch_line(trunk, branch, position == 0 && index == 0, style, out);
        }
    }
}

fn branch_line(
    trunk: &Trunk<'_>,
    branch: &FileDescription,
    last: bool,
    style: Style,
    out: &mut String,
) {
    let cells = bar(branch.live_bytes, trunk.branch_live_bytes_max).chars().count();
    let of_cells = |part: u64| (ratio(part, branch.entries) * cells as f64).round() as usize;
    let tombstones = of_cells(branch.count("tombstones")).min(cells);
    let superseded = of_cells(branch.count("superseded")).min(cells - tombstones);
    let drawn = format!(
        "{}{}{}",
        "✕".repeat(tombstones),
        "█".repeat(cells - tombstones - superseded),
        "▒".repeat(superseded)
    );
    let _ = writeln!(
        out,
        "  {} · {} {:<6} {}{}  {:>9}  {} entries, {} superseded, {} tombstones, {} to reclaim",
        if last { '└' } else { '│' },
        branch.label,
        branch.id,
        coloured(&drawn, trunk.age_step(branch), style),
        " ".repeat(BAR_CELLS.saturating_sub(cells)),
        bytes(branch.live_bytes),
        grouped(branch.entries),
        percent(branch.count("superseded"), branch.entries),
        percent(branch.count("tombstones"), branch.entries),
        bytes(reclaimable_bytes(branch)),
    );
}

/// A bar of up to `BAR_CELLS` cells; whatever is not nothing has one.
fn bar(part: u64, whole: u64) -> String {
    let cells = (ratio(part, whole).min(1.0) * BAR_CELLS as f64).round() as usize;
    "█".repeat(cells.max(usize::from(part > 0)))
}

fn eighth(part: u64, whole: u64) -> char {
    const CELLS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let step = (ratio(part, whole).min(1.0) * 8.0).ceil() as usize;
    CELLS[step.min(8)]
}

#[cfg(test)]
mod tests {
    use super::super::sample::sample;
    use super::*;

    fn style(branches: bool, nodes_max: usize) -> Style {
        Style { branches, nodes_max, colours: false }
    }

    #[test]
    fn every_node_bundle_and_branch_has_its_line() {
        let description = sample(4, 2, 1);
        let text = text(&Trunk::new(&description), "my.store", style(true, usize::MAX));
        let count = |start: &str| text.lines().filter(|line| line.contains(start)).count();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("node ")).count(),
            description.nodes.len()
        );
        assert_eq!(
            count("bundle "),
            description.nodes.iter().map(|node| node.groups.len()).sum::<usize>()
        );
        assert_eq!(
            count("· table "),
            description.nodes.iter().flat_map(NodeDescription::files).count()
        );
        assert!(!text.contains('\x1b'));
    }

    /// Guards have neither bundles nor maplets to be drawn, but all their fragments.
    #[test]
    fn every_guard_and_fragment_has_its_line() {
        let mut description = sample(4, 2, 1);
        for node in &mut description.nodes {
            node.label = "guard".to_string();
            let files = node.groups.drain(..).flat_map(|group| group.files).collect::<Vec<_>>();
            node.groups.extend(files.into_iter().map(|file| GroupDescription {
                label: "fragment".to_string(),
                files: vec![file],
                ..GroupDescription::default()
            }));
        }
        let text = text(&Trunk::new(&description), "my.store", style(false, usize::MAX));
        let count = |start: &str| text.lines().filter(|line| line.contains(start)).count();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("guard ")).count(),
            description.nodes.len()
        );
        assert_eq!(
            count("· table "),
            description.nodes.iter().flat_map(NodeDescription::files).count()
        );
        assert_eq!(count("bundle") + count("maplet") + count("node"), 0);
    }

    #[test]
    fn many_nodes_are_cut_with_a_hint() {
        let description = sample(30, 1, 1);
        let text = text(&Trunk::new(&description), "s", style(false, 10));
        assert!(text.contains("… and 20 more"));
    }

    #[test]
    fn an_empty_tree_says_so() {
        let description = spinney::TreeDescription::default();
        assert!(text(&Trunk::new(&description), "s", style(true, 10)).contains("empty"));
    }

    #[test]
    fn colours_are_only_for_terminals() {
        let description = sample(2, 1, 1);
        let colourful = Style { colours: true, ..style(false, 10) };
        assert!(text(&Trunk::new(&description), "s", colourful).contains("\x1b[38;5;"));
    }
}
