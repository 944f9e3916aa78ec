//! The tree as one SVG file, for documents: the drawing of the page without its tables and its zoom.

use std::fmt::Write as _;

use super::page::{PATTERNS, STYLE};
use super::svg;
use super::trunk::Trunk;
use spinney_quantity::escaped;

const WIDTH_PIXELS: f64 = 960.0;
const HEADING_PIXELS: f64 = 26.0;
const MARGIN_PIXELS: f64 = 10.0;

/// The SVG document.
pub(super) fn picture(trunk: &Trunk<'_>, title: &str) -> String {
    let mut levels = String::new();
    let mut y = HEADING_PIXELS;
    for depth in 0..trunk.levels.len() {
        let level = svg::level(trunk, depth);
        let _ = write!(levels, "<g transform=\"translate(0 {y:.1})\">{level}</g>");
        y += height(&level);
    }
    let height = y + MARGIN_PIXELS;
    let names: Vec<String> = (0..trunk.levels.len()).map(|depth| trunk.level_name(depth)).collect();
    let title = escaped(&format!("{title}: {}", names.join(", ")));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH_PIXELS}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH_PIXELS} {height:.0}\" data-zoom=\"1\" font-family=\"sans-serif\">\n\
         <style>\n{}</style>\n{PATTERNS}\n<rect width=\"100%\" height=\"100%\" fill=\"#faf8f2\"/>\
         <text x=\"7\" y=\"17\" font-size=\"13\" fill=\"#262a20\">{title}</text>\n{levels}</svg>\n",
        style()
    )
}

/// The page's style with its light colours in place of variables, which few viewers of SVG know.
fn style() -> String {
    let (_, rules) = STYLE.split_once("* {").unwrap_or_default();
    let (colours, _) = STYLE.split_once('}').unwrap_or_default();
    let colours = colours.split([';', '\n']).filter_map(|line| line.trim().split_once(": "));
    colours
        .filter(|(name, _)| name.starts_with("--"))
        .fold(format!("* {{{rules}"), |style, (name, value)| {
            style.replace(&format!("var({name})"), value)
        })
}

/// The height that a level's element states.
fn height(level: &str) -> f64 {
    let value = level.split_once("height=\"").and_then(|(_, rest)| rest.split('"').next());
    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::sample::sample;
    use super::*;

    #[test]
    fn every_node_is_inside_the_picture() {
        let description = sample(3, 2, 7);
        let svg = picture(&Trunk::new(&description), "a <store>");
        assert_eq!(svg.matches("class=\"frame\"").count(), description.nodes.len());
        assert!(svg.contains("a &lt;store&gt;") && !svg.contains("NaN"));
        assert!(!svg.contains("var(") && svg.contains(".age8 { fill: #45c377"));
        let heights: Vec<f64> = svg.split("<svg ").skip(1).map(height).collect();
        let levels: f64 = svg.split("<svg class=\"level").skip(1).map(height).sum();
        assert!(heights[0] >= levels && levels > 100.0, "{heights:?}");
    }
}
