//! One level of a tree as SVG.
//!
//! Invariants:
//! 1. Across, everything is in percent of the key space, so that a level can be stretched (zoomed)
//!    without its text; down, everything is in pixels.
//! 2. A bundle is drawn where it is live and nowhere else.

use std::fmt::Write as _;

use spinney::{FileDescription, GroupDescription, NodeDescription};

use super::trunk::{
    Extent, PlacedNode, Trunk, has_own, live_bytes, reclaimable_bytes, shown_count,
};
use crate::spelling::readable;
use spinney_quantity::escaped;
use spinney_quantity::{bytes, grouped, ratio};

const LINK_PIXELS: f64 = 26.0;
const HEAD_PIXELS: f64 = 17.0;
const BRANCH_PIXELS_MIN: f64 = 5.0;
const BRANCH_PIXELS_MAX: f64 = 30.0;
const MAPLET_PIXELS: f64 = 2.5;
const BUNDLE_GAP_PIXELS: f64 = 5.0;
const FILL_PIXELS: f64 = 24.0;

/// The class that hides a label until the picture is stretched enough for it.
pub(super) fn zoom_class(width: f64, least: f64) -> &'static str {
    match width {
        w if w >= least => "z1",
        w if w >= least / 4.0 => "z4",
        w if w >= least / 16.0 => "z16",
        w if w >= least / 64.0 => "z64",
        _ => "z256",
    }
}

/// Draws the level; gives the SVG element.
pub(super) fn level(trunk: &Trunk<'_>, depth: usize) -> String {
    let nodes = &trunk.levels[depth];
    let top = if depth == 0 { 2.0 } else { LINK_PIXELS };
    let stack = nodes.iter().map(|placed| stack_pixels(trunk, placed.node)).fold(0.0, f64::max);
    let has_fill = nodes.iter().any(|placed| placed.node.height > 0);
    let node_pixels = HEAD_PIXELS + stack + if has_fill { FILL_PIXELS } else { 3.0 };
    let fill_max = nodes
        .iter()
        .flat_map(|placed| &placed.node.children)
        .map(|pivot| pivot.live_bytes)
        .max()
        .unwrap_or(0);
    let density = match nodes.len() {
        0..=60 => "few",
        61..=160 => "some",
        _ => "many",
    };
    let mut out = String::new();
    let _ =
        write!(out, "<svg class=\"level {density}\" height=\"{:.1}\">", top + node_pixels + 2.0);
    for placed in nodes {
        let drawing = NodeDrawing { trunk, placed, top, node_pixels, fill_max };
        drawing.draw(depth > 0, &mut out);
    }
    out.push_str("</svg>");
    out
}

fn branch_pixels(trunk: &Trunk<'_>, branch: &FileDescription) -> f64 {
    let part = ratio(branch.live_bytes, trunk.branch_live_bytes_max).min(1.0).sqrt();
    BRANCH_PIXELS_MIN + (BRANCH_PIXELS_MAX - BRANCH_PIXELS_MIN) * part
}

fn stack_pixels(trunk: &Trunk<'_>, node: &NodeDescription) -> f64 {
    let drawn: f64 = node.files().map(|branch| branch_pixels(trunk, branch) + 1.0).sum();
    drawn + node.groups.len() as f64 * (MAPLET_PIXELS + BUNDLE_GAP_PIXELS)
}

fn percent(part: f64) -> String {
    format!("{:.4}%", part * 100.0)
}

struct NodeDrawing<'a> {
    trunk: &'a Trunk<'a>,
    placed: &'a PlacedNode<'a>,
    top: f64,
    node_pixels: f64,
    fill_max: u64,
}

impl NodeDrawing<'_> {
    fn draw(&self, linked: bool, out: &mut String) {
        let (node, extent) = (self.placed.node, self.placed.extent);
        let _ = write!(
            out,
            "<g class=\"node\" data-left=\"{:.6}\" data-width=\"{:.6}\">",
            extent.left, extent.width
        );
        if linked {
            let middle = percent(extent.left + extent.width / 2.0);
            let _ = write!(
                out,
                "<line class=\"link\" x1=\"{middle}\" x2=\"{middle}\" y1=\"0\" y2=\"{:.1}\"/>",
                self.top
            );
        }
        let _ = write!(
            out,
            "<rect class=\"frame\" x=\"{}\" y=\"{:.1}\" width=\"{}\" height=\"{:.1}\" rx=\"3\">\
             <title>{}</title></rect>",
            percent(extent.left),
            self.top,
            percent(extent.width),
            self.node_pixels,
            escaped(&self.node_note()),
        );
        // A nested SVG clips its label at the node's edge.
        let _ = write!(
            out,
            "<svg class=\"label {}\" x=\"{}\" y=\"{:.1}\" width=\"{}\" height=\"{HEAD_PIXELS}\">\
             <text x=\"7\" y=\"12.5\"><tspan class=\"name\">{}</tspan>  {}</text></svg>",
            zoom_class(extent.width, 0.065),
            percent(extent.left),
            self.top,
            percent(extent.width),
            node.id,
            bytes(live_bytes(node)),
        );
        let mut y = self.top + HEAD_PIXELS;
        // The newest on top, where new data comes in.
        for (position, bundle) in node.groups.iter().enumerate().rev() {
            let runs = self.live_runs(position);
            for branch in bundle.files.iter().rev() {
                let height = branch_pixels(self.trunk, branch);
                self.branch(branch, bundle, &runs, y, height, out);
                y += height + 1.0;
            }
            let counts = bundle.counts.iter().map(|(name, count)| shown_count(name, *count));
            let note = counts.map(|count| format!("\n{count}")).collect::<String>();
            for run in runs.iter().filter(|_| has_own(bundle)) {
                let _ = write!(
                    out,
                    "<rect class=\"maplet\" x=\"{}\" y=\"{y:.1}\" width=\"{}\" \
                     height=\"{MAPLET_PIXELS}\"><title>{} {}{}</title></rect>",
                    percent(run.left),
                    percent(run.width),
                    escaped(&bundle.label),
                    bundle.id,
                    escaped(&note),
                );
            }
            y += MAPLET_PIXELS + BUNDLE_GAP_PIXELS;
        }
        if node.height > 0 {
            self.fill_bars(out);
        }
        // Drawn last, so that what lies in two neighbouring nodes does not run together.
        let _ = write!(
            out,
            "<rect class=\"edge\" x=\"{}\" y=\"{:.1}\" width=\"{}\" height=\"{:.1}\" rx=\"3\"/></g>",
            percent(extent.left),
            self.top,
            percent(extent.width),
            self.node_pixels,
        );
    }

    fn branch(
        &self,
        branch: &FileDescription,
        bundle: &GroupDescription,
        runs: &[Extent],
        y: f64,
        height: f64,
        out: &mut String,
    ) {
        let part = |count: u64| ratio(count, branch.entries).min(1.0);
        let tombstones = part(branch.count("tombstones"));
        let superseded = part(branch.count("superseded")).min(1.0 - tombstones);
        let note = escaped(&self.branch_note(branch, bundle));
        for run in runs {
            let rectangle = |class: &str, left: f64, width: f64| {
                format!(
                    "<rect class=\"{class}\" x=\"{}\" y=\"{y:.1}\" width=\"{}\" height=\"{height:.1}\"/>",
                    percent(left),
                    percent(width)
                )
            };
            let _ = write!(out, "<g class=\"branch\"><title>{note}</title>");
            out.push_str(&rectangle(
                &format!("age{}", self.trunk.age_step(branch)),
                run.left,
                run.width,
            ));
            if tombstones > 0.0 {
                out.push_str(&rectangle("tombstones", run.left, run.width * tombstones));
            }
            if superseded > 0.0 {
                let left = run.left + run.width * (1.0 - superseded);
                out.push_str(&rectangle("superseded", left, run.width * superseded));
            }
            out.push_str("</g>");
        }
    }

    /// The stretches of the node's range where the bundle is live.
    fn live_runs(&self, position: usize) -> Vec<Extent> {
        let mut runs: Vec<Extent> = Vec::new();
        let mut previous_live = false;
        for (pivot, extent) in self.placed.node.children.iter().zip(&self.placed.pivots) {
            let live = pivot.first_group <= position;
            match runs.last_mut() {
                Some(run) if live && previous_live => run.width += extent.width,
                _ if live => runs.push(*extent),
                _ => {}
            }
            previous_live = live;
        }
        if self.placed.node.children.is_empty() {
            runs.push(self.placed.extent);
        }
        runs
    }

    /// How much lies above each child: what the next flush would move.
    fn fill_bars(&self, out: &mut String) {
        let bottom = self.top + self.node_pixels - 3.0;
        for (pivot, extent) in self.placed.node.children.iter().zip(&self.placed.pivots) {
            let height = (FILL_PIXELS - 6.0) * ratio(pivot.live_bytes, self.fill_max);
            let child = pivot.node.map_or("no child".to_string(), |id| format!("child {id}"));
            let _ = write!(
                out,
                "<g class=\"pivot\"><title>{}</title><rect class=\"reach\" x=\"{}\" y=\"{:.1}\" \
                 width=\"{}\" height=\"{:.1}\"/><rect class=\"fill\" x=\"{}\" y=\"{:.1}\" \
                 width=\"{}\" height=\"{:.1}\"/></g>",
                escaped(&format!(
                    "pivot {}\n{child}\n{} live above it, {} entries",
                    shown(&pivot.lower),
                    bytes(pivot.live_bytes),
                    grouped(pivot.live_entries),
                )),
                percent(extent.left),
                bottom - FILL_PIXELS + 6.0,
                percent(extent.width),
                FILL_PIXELS - 6.0,
                percent(extent.left + extent.width * 0.06),
                bottom - height,
                percent(extent.width * 0.88),
                height,
            );
        }
    }

    fn node_note(&self) -> String {
        let node = self.placed.node;
        let reclaimable = node.files().map(reclaimable_bytes).sum();
        format!(
            "{} {}, {}\nfrom {}\nto {}\n{} children, {} {}s, {} files\n{} live in it\n\
             about {} to reclaim",
            node.label,
            node.id,
            if node.height == 0 {
                "on the last level".to_string()
            } else {
                format!("height {}", node.height)
            },
            shown(&node.lower),
            node.upper.as_ref().map_or("the last key".to_string(), |key| readable(key, 60)),
            node.children.iter().filter(|child| child.node.is_some()).count(),
            node.groups.len(),
            self.trunk.group_word(),
            node.files().count(),
            bytes(live_bytes(node)),
            bytes(reclaimable),
        )
    }

    fn branch_note(&self, branch: &FileDescription, bundle: &GroupDescription) -> String {
        format!(
            "{} {} in {} {}\n{} in this node, {} in the file\n{} entries\n\
             {} superseded ({:.0}%)\n{} tombstones ({:.0}%)\nsequence numbers {} to {}",
            branch.label,
            branch.id,
            bundle.label,
            bundle.id,
            bytes(branch.live_bytes),
            bytes(branch.bytes),
            grouped(branch.entries),
            grouped(branch.count("superseded")),
            ratio(branch.count("superseded"), branch.entries) * 100.0,
            grouped(branch.count("tombstones")),
            ratio(branch.count("tombstones"), branch.entries) * 100.0,
            grouped(branch.seqno_min),
            grouped(branch.seqno_max),
        )
    }
}

fn shown(lower: &[u8]) -> String {
    if lower.is_empty() { "the first key".to_string() } else { readable(lower, 60) }
}
