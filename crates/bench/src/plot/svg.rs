//! Bars and lines as SVG.

use std::fmt::Write as _;

use spinney_quantity::escaped;

use super::unit::Unit;

/// One bar with its spread.
#[derive(Debug, Clone)]
pub(super) struct Bar {
    pub(super) engine: String,
    pub(super) value: f64,
    pub(super) spread: Option<(f64, f64)>,
    /// The value with its unit.
    pub(super) text: String,
}

/// One engine's line.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) engine: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Colours that can be told apart, also by most who cannot tell red from green (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#555555"];
const WIDTH: f64 = 720.0;
const LABEL_PIXELS: f64 = 150.0;
const TEXT_PIXELS: f64 = 190.0;
const BAR_PIXELS: f64 = 16.0;

fn begin(width: f64, height: f64, title: &str) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" width=\"{width}\" \
         height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    text(&mut out, 8.0, 20.0, "start", 15.0, title);
    out
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: f64, what: &str) {
    let _ = write!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        escaped(what)
    );
}

fn colour(engines: &[String], engine: &str) -> &'static str {
    let place = engines.iter().position(|known| known == engine).unwrap_or(0);
    COLOURS[place % COLOURS.len()]
}

/// Horizontal bars, a panel with a scale of its own for each group; whiskers from the least to the most.
pub(super) fn bars(title: &str, engines: &[String], groups: &[(String, Vec<Bar>)]) -> String {
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = 34.0 + groups.len() as f64 * 26.0 + rows as f64 * (BAR_PIXELS + 4.0) + 8.0;
    let mut out = begin(WIDTH, height, title);
    let mut y = 34.0;
    for (name, bars) in groups {
        text(&mut out, 8.0, y + 14.0, "start", 13.0, name);
        y += 20.0;
        let tops = bars.iter().map(|bar| bar.spread.map_or(bar.value, |(_, most)| most));
        let largest = tops.fold(0.0, f64::max).max(1e-12);
        let scale = (WIDTH - LABEL_PIXELS - TEXT_PIXELS) / largest;
        for bar in bars {
            text(&mut out, LABEL_PIXELS - 6.0, y + 12.5, "end", 12.0, &bar.engine);
            let width = (bar.value * scale).max(0.5);
            let _ = write!(
                out,
                "<rect x=\"{LABEL_PIXELS}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR_PIXELS}\" \
                 fill=\"{}\"/>",
                colour(engines, &bar.engine)
            );
            let mut end = width;
            if let Some((least, most)) = bar.spread.filter(|(least, most)| most > least) {
                let (from, to) = (LABEL_PIXELS + least * scale, LABEL_PIXELS + most * scale);
                let middle = y + BAR_PIXELS / 2.0;
                let _ = write!(
                    out,
                    "<path d=\"M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v6M{to:.1} {:.1}v6\" \
                     stroke=\"#222\" fill=\"none\"/>",
                    middle - 3.0,
                    middle - 3.0
                );
                end = end.max(most * scale);
            }
            text(&mut out, LABEL_PIXELS + end + 6.0, y + 12.5, "start", 12.0, &bar.text);
            y += BAR_PIXELS + 4.0;
        }
        y += 6.0;
    }
    out.push_str("</svg>");
    out
}

/// How an axis runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    /// From 0.
    Linear,
    /// By powers of ten; values that are not above 0 are omitted.
    Logarithmic,
}

struct Scale {
    axis: Axis,
    unit: Unit,
    from: f64,
    to: f64,
    pixels: (f64, f64),
}

impl Scale {
    fn new(axis: Axis, unit: Unit, values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Scale {
        let fits = |value: &f64| value.is_finite() && (axis == Axis::Linear || *value > 0.0);
        let (least, most) = values
            .filter(fits)
            .fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        let (from, to) = match axis {
            _ if least > most => (0.0, 1.0),
            // Nothing that is drawn lies below 0.
            Axis::Linear => (0.0, unit.marks(most).last().copied().unwrap_or(most)),
            Axis::Logarithmic => {
                let (from, to) = (least.log10().floor(), most.log10().ceil());
                (from, to.max(from + 1.0))
            }
        };
        Scale { axis, unit, from, to, pixels }
    }

    fn place(&self, value: f64) -> Option<f64> {
        let value = match self.axis {
            Axis::Linear => value,
            Axis::Logarithmic if value > 0.0 => value.log10(),
            Axis::Logarithmic => return None,
        };
        let part = (value - self.from) / (self.to - self.from);
        Some(self.pixels.0 + part * (self.pixels.1 - self.pixels.0))
    }

    fn marks(&self) -> Vec<f64> {
        match self.axis {
            Axis::Linear => self.unit.marks(self.to),
            Axis::Logarithmic => {
                (self.from as i32..=self.to as i32).map(|power| 10_f64.powi(power)).collect()
            }
        }
    }
}

/// Lines over a common axis, with a legend.
pub(super) fn lines(
    title: &str,
    (x_name, x_axis): (&str, Axis),
    (y_name, y_axis, y_unit): (&str, Axis, Unit),
    engines: &[String],
    lines: &[Line],
) -> String {
    let height = 330.0 + lines.len() as f64 * 16.0;
    let mut out = begin(WIDTH, height, title);
    let (left, right, top, bottom) = (70.0, WIDTH - 20.0, 50.0, 270.0);
    let points = || lines.iter().flat_map(|line| &line.points);
    let x = Scale::new(x_axis, Unit::Plain, points().map(|point| point.0), (left, right));
    let y = Scale::new(y_axis, y_unit, points().map(|point| point.1), (bottom, top));
    text(&mut out, left, 42.0, "start", 12.0, y_name);
    text(&mut out, (left + right) / 2.0, bottom + 34.0, "middle", 12.0, x_name);
    for mark in y.marks() {
        if let Some(at) = y.place(mark) {
            let _ = write!(out, "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ddd\"/>");
            text(&mut out, left - 6.0, at + 4.0, "end", 11.0, &y_unit.mark(mark));
        }
    }
    for mark in x.marks() {
        if let Some(at) = x.place(mark) {
            let _ = write!(out, "<path d=\"M{at:.1} {bottom}v4\" stroke=\"#888\"/>");
            text(&mut out, at, bottom + 17.0, "middle", 11.0, &Unit::Plain.mark(mark));
        }
    }
    for (row, line) in lines.iter().enumerate() {
        let colour = colour(engines, &line.engine);
        let places: Vec<(f64, f64)> = line
            .points
            .iter()
            .filter_map(|point| Some((x.place(point.0)?, y.place(point.1)?)))
            .collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        if places.len() <= 20 {
            for (x, y) in &places {
                let _ =
                    write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
        let at = bottom + 54.0 + row as f64 * 16.0;
        let _ = write!(
            out,
            "<rect x=\"{left}\" y=\"{:.1}\" width=\"22\" height=\"4\" fill=\"{colour}\"/>",
            at - 6.0
        );
        text(&mut out, left + 30.0, at, "start", 12.0, &line.engine);
    }
    out.push_str("</svg>");
    out
}
