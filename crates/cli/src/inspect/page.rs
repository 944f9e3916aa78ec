//! The tree as one HTML page that needs nothing else: no network, no fonts, no scripts but its own.

use std::fmt::Write as _;

use super::svg::{self, zoom_class};
use super::trunk::{AGE_STEPS, Sums, Trunk, live_bytes, reclaimable_bytes, shown_count};
use crate::spelling::readable;
use spinney_quantity::escaped;
use spinney_quantity::{bytes, grouped, ratio};

pub(super) const STYLE: &str = include_str!("page.css");
/// The pattern of superseded entries.
pub(super) const PATTERNS: &str = "<svg class=\"patterns\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>\
     <pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
     patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"2.4\" height=\"5\"/></pattern>\
     </defs></svg>";
const SCRIPT: &str = include_str!("page.js");
/// Rows of the table of nodes that would give most space back.
const RECLAIM_ROWS: usize = 10;

pub(super) fn page(trunk: &Trunk<'_>, title: &str) -> String {
    let title = escaped(title);
    let mut out = String::with_capacity(256 << 10);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · spinney</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1><p>{} tree of {} level{}</p></header>\n",
        escaped(&trunk.description.kind),
        trunk.levels.len(),
        if trunk.levels.len() == 1 { "" } else { "s" },
    );
    tiles(trunk, &mut out);
    if trunk.levels.is_empty() {
        out.push_str("<p class=\"empty\">The tree is empty.</p>\n");
    } else {
        drawing(trunk, &mut out);
        out.push_str("<div class=\"tables\">\n");
        level_table(trunk, &mut out);
        reclaim_table(trunk, &mut out);
        parameter_table(trunk, &mut out);
        out.push_str("</div>\n");
    }
    let _ = write!(out, "<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn tiles(trunk: &Trunk<'_>, out: &mut String) {
    let (description, total) = (trunk.description, &trunk.total);
    let tiles = [
        ("on disk", bytes(description.disk_bytes), format!("{} tables", grouped(total.tables))),
        (
            "live",
            bytes(description.live_bytes),
            format!("space × {:.2}", ratio(description.disk_bytes, description.live_bytes)),
        ),
        (
            "to reclaim",
            bytes(total.reclaimable_bytes),
            format!(
                "{:.0}% superseded, {:.0}% tombstones",
                ratio(total.superseded, total.entries) * 100.0,
                ratio(total.tombstones, total.entries) * 100.0
            ),
        ),
        ("entries", grouped(total.entries), "all versions".to_string()),
        (
            trunk.node_word(),
            grouped(total.nodes),
            format!("{} {}s", grouped(total.groups), trunk.group_word()),
        ),
    ];
    out.push_str("<section class=\"tiles\">\n");
    for (name, value, note) in tiles {
        let _ = writeln!(
            out,
            "<div><span>{name}</span><strong>{value}</strong><small>{note}</small></div>"
        );
    }
    for (name, count) in &total.counts {
        let _ =
            writeln!(out, "<div><strong>{}</strong></div>", escaped(&shown_count(name, *count)));
    }
    out.push_str("</section>\n");
}

fn drawing(trunk: &Trunk<'_>, out: &mut String) {
    out.push_str(
        "<section class=\"trunk\">\n<div class=\"bar\"><h2>The tree</h2>\
         <div class=\"zoom\" hidden><button data-step=\"-1\" aria-label=\"narrower\">−</button>\
         <output>1×</output><button data-step=\"1\" aria-label=\"wider\">+</button></div></div>\n",
    );
    out.push_str(PATTERNS);
    out.push('\n');
    legend(out);
    out.push_str("<div class=\"scroll\"><div class=\"canvas\" data-zoom=\"1\">\n");
    for (depth, nodes) in trunk.levels.iter().enumerate() {
        let _ = write!(
            out,
            "<div class=\"row\"><span class=\"chip\">{} · {} {}{}</span>",
            trunk.level_name(depth),
            nodes.len(),
            escaped(trunk.node_word()),
            if nodes.len() == 1 { "" } else { "s" },
        );
        out.push_str(&svg::level(trunk, depth));
        out.push_str("</div>\n");
    }
    axis(trunk, out);
    out.push_str("</div></div>\n</section>\n");
}

fn legend(out: &mut String) {
    out.push_str("<ul class=\"legend\"><li>old <span class=\"ages\">");
    for step in 0..AGE_STEPS {
        let _ = write!(out, "<i class=\"age{step}\"></i>");
    }
    out.push_str(
        "</span> new</li>\
         <li><svg width=\"26\" height=\"12\"><rect class=\"age5\" width=\"26\" height=\"12\"/>\
         <rect class=\"superseded\" x=\"10\" width=\"16\" height=\"12\"/></svg> superseded</li>\
         <li><i class=\"tombstones\"></i> tombstones</li>\
         <li><i class=\"maplet\"></i> a maplet, under its bundle</li>\
         <li><i class=\"fill\"></i> live bytes above a child</li>\
         <li>height: bytes; a gap: flushed already</li></ul>\n",
    );
}

/// Keys along the bottom, as many as fit; more as the picture is stretched.
fn axis(trunk: &Trunk<'_>, out: &mut String) {
    let Some(leaves) = trunk.levels.last() else { return };
    let ticks: Vec<(f64, &[u8])> = leaves
        .iter()
        .filter(|placed| !placed.node.lower.is_empty())
        .map(|placed| (placed.extent.left, &*placed.node.lower))
        .collect();
    let common = common_prefix(&ticks);
    out.push_str("<svg class=\"axis\" height=\"34\">");
    // Each class of ticks keeps its distance from the ticks of its own and of all wider classes.
    let mut placed: Vec<f64> = vec![0.0];
    let mut rest = ticks;
    for distance in [0.09, 0.09 / 4.0, 0.09 / 16.0, 0.09 / 64.0] {
        let class = zoom_class(distance, 0.09);
        rest.retain(|(left, key)| {
            if placed.iter().any(|other| (left - other).abs() < distance) || *left > 1.0 - distance
            {
                return true;
            }
            placed.push(*left);
            let label = format!("…{}", readable(&key[common..], 12));
            let label = if common == 0 { readable(key, 13) } else { label };
            let _ = write!(
                out,
                "<g class=\"{class}\"><title>{}</title><line x1=\"{1:.4}%\" x2=\"{1:.4}%\" \
                 y1=\"0\" y2=\"7\"/><text x=\"{1:.4}%\" y=\"20\">{2}</text></g>",
                escaped(&readable(key, 80)),
                left * 100.0,
                escaped(&label),
            );
            false
        });
    }
    out.push_str(
        "<text class=\"end\" x=\"0\" y=\"20\">first</text><text class=\"end last\" \
                  x=\"100%\" y=\"20\">last</text></svg>\n",
    );
    if let (Some(leaf), true) = (leaves.get(1), common > 0) {
        let prefix = readable(leaf.node.lower.get(..common).unwrap_or_default(), 60);
        let _ = writeln!(
            out,
            "<p class=\"axis-note\"><span>Keys on the axis go on from <code>{}</code></span></p>",
            escaped(&prefix)
        );
    }
}

/// How many first bytes all keys share; nothing worth leaving out is 0.
fn common_prefix(ticks: &[(f64, &[u8])]) -> usize {
    let (Some((_, first)), Some((_, last))) = (ticks.first(), ticks.last()) else { return 0 };
    let shared = first.iter().zip(last.iter()).take_while(|(a, b)| a == b).count();
    if shared >= 3 && ticks.len() > 1 { shared } else { 0 }
}

fn level_table(trunk: &Trunk<'_>, out: &mut String) {
    let _ = writeln!(
        out,
        "<section><h2>By level</h2><table><thead><tr><th>level</th><th>{}s</th><th>{}s</th>\
         <th>tables</th><th>live</th><th>entries</th><th>superseded</th><th>tombstones</th>\
         <th>to reclaim</th></tr></thead><tbody>",
        escaped(trunk.node_word()),
        escaped(trunk.group_word()),
    );
    for (depth, nodes) in trunk.levels.iter().enumerate() {
        let sums = Sums::of(nodes.iter().map(|placed| placed.node));
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{:.0}%</td><td>{:.0}%</td><td>{}</td></tr>",
            trunk.level_name(depth),
            grouped(sums.nodes),
            grouped(sums.groups),
            grouped(sums.tables),
            bytes(sums.live_bytes),
            grouped(sums.entries),
            ratio(sums.superseded, sums.entries) * 100.0,
            ratio(sums.tombstones, sums.entries) * 100.0,
            bytes(sums.reclaimable_bytes),
        );
    }
    out.push_str("</tbody></table></section>\n");
}

fn reclaim_table(trunk: &Trunk<'_>, out: &mut String) {
    let mut nodes: Vec<(u64, &spinney::NodeDescription)> = trunk
        .levels
        .iter()
        .flatten()
        .map(|placed| (placed.node.files().map(reclaimable_bytes).sum(), placed.node))
        .filter(|(reclaimable, _)| *reclaimable > 0)
        .collect();
    if nodes.is_empty() {
        return;
    }
    nodes.sort_by_key(|(reclaimable, node)| (std::cmp::Reverse(*reclaimable), node.id));
    out.push_str(
        "<section><h2>Most to reclaim</h2><table><thead><tr><th>node</th><th>height</th>\
         <th>from</th><th>files</th><th>live</th><th>to reclaim</th></tr></thead><tbody>\n",
    );
    for (reclaimable, node) in nodes.into_iter().take(RECLAIM_ROWS) {
        let from =
            if node.lower.is_empty() { "first".to_string() } else { readable(&node.lower, 32) };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"key\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            node.id,
            node.height,
            escaped(&from),
            node.files().count(),
            bytes(live_bytes(node)),
            bytes(reclaimable),
        );
    }
    out.push_str("</tbody></table></section>\n");
}

fn parameter_table(trunk: &Trunk<'_>, out: &mut String) {
    if trunk.description.parameters.is_empty() {
        return;
    }
    out.push_str("<section><h2>Parameters</h2><table><tbody>\n");
    for (name, value) in &trunk.description.parameters {
        let _ = writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), grouped(*value));
    }
    out.push_str("</tbody></table></section>\n");
}

#[cfg(test)]
mod tests {
    use super::super::sample::sample;
    use super::*;
    use spinney::Slice;

    /// Checks that elements nest, and gives how often each occurs.
    fn elements(html: &str) -> std::collections::BTreeMap<String, usize> {
        const VOID: [&str; 2] = ["meta", "!doctype"];
        let mut open: Vec<String> = Vec::new();
        let mut counts = std::collections::BTreeMap::new();
        let mut rest = html;
        while let Some(start) = rest.find('<') {
            let end = start + rest[start..].find('>').expect("a tag ends");
            let tag = &rest[start + 1..end];
            rest = &rest[end + 1..];
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_string();
            if tag.starts_with('/') {
                assert_eq!(
                    open.pop().as_deref(),
                    Some(name.as_str()),
                    "near {}",
                    &rest[..40.min(rest.len())]
                );
                continue;
            }
            *counts.entry(name.clone()).or_default() += 1;
            if ["style", "script"].contains(&name.as_str()) {
                let close = format!("</{name}>");
                rest = &rest[rest.find(&close).expect("it is closed") + close.len()..];
            } else if !tag.ends_with('/') && !VOID.contains(&name.as_str()) {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
        counts
    }

    #[test]
    fn pages_of_any_size_are_well_formed_and_need_nothing_else() {
        for (fanout, height) in [(1, 0), (3, 1), (8, 2), (22, 2)] {
            let description = sample(fanout, height, 7);
            let html = page(&Trunk::new(&description), "my.store");
            let counts = elements(&html);
            assert!(counts["rect"] >= description.nodes.len() * 2);
            assert_eq!(html.matches("class=\"frame\"").count(), description.nodes.len());
            for outside in ["http:", "https:", "src=", "@import", "url(h"] {
                assert!(!html.contains(outside), "{outside}");
            }
            assert!(html.len() < 12 << 20, "{}", html.len());
        }
    }

    #[test]
    fn an_empty_tree_has_a_page() {
        let html = page(&Trunk::new(&spinney::TreeDescription::default()), "s");
        elements(&html);
        assert!(html.contains("The tree is empty"));
    }

    #[test]
    fn names_and_keys_cannot_break_out() {
        let mut description = sample(3, 1, 7);
        let evil = "</title><script>alert(\"x\")</script>&'";
        for node in &mut description.nodes {
            node.lower = Slice::from(evil);
        }
        description.kind = evil.to_string();
        let html = page(&Trunk::new(&description), evil);
        elements(&html);
        assert!(!html.contains("<script>alert"));
    }

    /// Writes pages to look at: `SPINNEY_INSPECT_SAMPLES=DIR cargo test -p spinney-cli samples`.
    #[test]
    fn samples_to_look_at_are_written_where_asked() {
        let Some(directory) = std::env::var_os("SPINNEY_INSPECT_SAMPLES") else { return };
        for (name, fanout, height) in
            [("one", 1, 0), ("few", 5, 1), ("many", 6, 2), ("most", 22, 2)]
        {
            let description = sample(fanout, height, 7);
            let html = page(&Trunk::new(&description), "orders.store · default");
            std::fs::write(std::path::Path::new(&directory).join(format!("{name}.html")), html)
                .unwrap();
        }
    }
}
