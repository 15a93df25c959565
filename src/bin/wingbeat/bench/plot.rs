//! Line charts as SVG text: what a report needs of them and no more.

use std::fmt::Write;

/// A line of a chart.
pub struct Series {
    /// What it is, for the legend.
    pub label: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// What the horizontal axis shows.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Across {
    /// Shares below 1, each nine as wide as the one before.
    Percentiles,
    /// Numbers from zero on.
    Linear,
}

/// A chart; its vertical axis is logarithmic.
pub struct Chart {
    pub title: String,
    pub across: Across,
    pub across_label: String,
    pub up_label: String,
    pub series: Vec<Series>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 350.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#3a7d44", "#7d4f9e", "#b8860b", "#444444"];
/// Shares beyond this are drawn at it: six nines are more than a run of seconds has values for.
const NINES_MAX: f64 = 6.0;

impl Chart {
    /// Where a point lies from left to right, in units of the axis; `None` for what cannot be shown.
    fn at(&self, x: f64) -> Option<f64> {
        match self.across {
            Across::Percentiles => (0.0..=1.0).contains(&x).then(|| (-(1.0 - x).log10()).clamp(0.0, NINES_MAX)),
            Across::Linear => (x.is_finite() && x >= 0.0).then_some(x),
        }
    }

    /// The chart; without any points an empty frame that says so.
    pub fn svg(&self) -> String {
        let shown: Vec<(usize, Vec<(f64, f64)>)> = self.series.iter().map(|s| self.shown(s)).enumerate().collect();
        let all = || shown.iter().flat_map(|(_, points)| points.iter().copied());
        let right = all().map(|(x, _)| x).fold(0.0, f64::max);
        let (low, high) = all().fold((f64::MAX, f64::MIN), |(low, high), (_, y)| (low.min(y), high.max(y)));
        let mut out = String::new();
        self.frame(&mut out);
        if low > high {
            text(&mut out, (LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0, "middle", "nothing was measured");
            out.push_str("</svg>\n");
            return out;
        }
        let (floor, ceiling) = (low.floor(), high.ceil().max(low.floor() + 1.0));
        let right = if right > 0.0 { right } else { 1.0 };
        let px = |x: f64| LEFT + x / right * (RIGHT - LEFT);
        let py = |y: f64| BOTTOM - (y - floor) / (ceiling - floor) * (BOTTOM - TOP);
        for decade in floor as i32..=ceiling as i32 {
            let y = py(f64::from(decade));
            line(&mut out, (LEFT, y), (RIGHT, y));
            text(&mut out, LEFT - 6.0, y + 4.0, "end", &short(10f64.powi(decade)));
        }
        for (x, label) in self.ticks(right) {
            line(&mut out, (px(x), TOP), (px(x), BOTTOM));
            text(&mut out, px(x), BOTTOM + 18.0, "middle", &label);
        }
        for (number, points) in &shown {
            let colour = COLOURS[number % COLOURS.len()];
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", px(*x), py(*y))).collect();
            let _ = writeln!(out, r#"<polyline fill="none" stroke="{colour}" stroke-width="2" points="{}"/>"#, path.join(" "));
            let x = LEFT + 132.0 * *number as f64;
            let _ = writeln!(out, r#"<rect x="{x:.0}" y="{:.0}" width="12" height="12" fill="{colour}"/>"#, HEIGHT - 22.0);
            text(&mut out, x + 17.0, HEIGHT - 12.0, "start", &self.series[*number].label);
        }
        out.push_str("</svg>\n");
        out
    }

    /// Points that can be drawn, in units of the axes.
    fn shown(&self, series: &Series) -> Vec<(f64, f64)> {
        let drawable = |(x, y): &(f64, f64)| (y.is_finite() && *y > 0.0).then(|| Some((self.at(*x)?, y.log10()))).flatten();
        series.points.iter().filter_map(drawable).collect()
    }

    fn frame(&self, out: &mut String) {
        let _ = writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#
        );
        let _ = writeln!(out, r#"<text x="{LEFT}" y="20" font-size="15">{}</text>"#, escaped(&self.title));
        text(out, LEFT, 40.0, "start", &self.up_label);
        text(out, RIGHT, BOTTOM + 36.0, "end", &self.across_label);
    }

    /// Where the horizontal axis is marked, and how.
    fn ticks(&self, right: f64) -> Vec<(f64, String)> {
        match self.across {
            Across::Percentiles => (0..=right as u32)
                .map(|nines| {
                    (
                        f64::from(nines),
                        if nines == 0 { "0 %".to_owned() } else { format!("{} %", 100.0 - 100.0 / 10f64.powi(nines as i32)) },
                    )
                })
                .collect(),
            Across::Linear => (0..=4).map(|n| f64::from(n) * right / 4.0).map(|x| (x, short(x))).collect(),
        }
    }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(out, r##"<path d="M{:.1} {:.1}L{:.1} {:.1}" stroke="#dddddd"/>"##, from.0, from.1, to.0, to.1);
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(text));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number as people write it on an axis.
fn short(value: f64) -> String {
    let trimmed = |scaled: f64, unit: &str| {
        let text = format!("{scaled:.1}");
        format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match value {
        v if v >= 1e6 => trimmed(v / 1e6, "M"),
        v if v >= 1e3 => trimmed(v / 1e3, "k"),
        v if v >= 1.0 || v == 0.0 => trimmed(v, ""),
        v => format!("{v}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(across: Across, series: Vec<Series>) -> Chart {
        Chart { title: "a < b".into(), across, across_label: "x".into(), up_label: "us".into(), series }
    }

    /// Coordinates of each line of a chart.
    fn lines(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let pair = |p: &str| p.split_once(',').map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap())).unwrap();
        let points = |part: &str| part.split('"').next().unwrap().split_whitespace().map(pair).collect();
        svg.split("points=\"").skip(1).map(points).collect()
    }

    #[test]
    fn each_series_is_a_line_within_the_frame() {
        let series = |label: &str, points: &[(f64, f64)]| Series { label: label.into(), points: points.to_vec() };
        let svg = chart(
            Across::Percentiles,
            vec![series("one", &[(0.0, 5.0), (0.5, 9.0), (0.99, 40.0), (1.0, 3000.0)]), series("two", &[(0.0, 1.0), (0.9, 2.0)])],
        )
        .svg();
        let lines = lines(&svg);
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2]);
        for (x, y) in lines.iter().flatten() {
            assert!((LEFT..=RIGHT).contains(x) && (TOP..=BOTTOM).contains(y), "{x},{y}");
        }
        // Higher values are further up, larger shares further right.
        assert!(lines[0].windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 >= w[1].1));
        assert!(svg.contains(">one<") && svg.contains(">two<") && svg.contains("99.9 %"));
    }

    #[test]
    fn titles_are_escaped_and_tags_are_closed() {
        let svg = chart(Across::Linear, vec![Series { label: "a&b".into(), points: vec![(0.0, 1.0), (5000.0, 10.0)] }]).svg();
        assert!(svg.contains("a &lt; b") && svg.contains("a&amp;b") && svg.contains(">5k<"));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let odd = vec![(f64::NAN, 1.0), (1.0, 0.0), (2.0, f64::INFINITY), (-1.0, 3.0)];
        let svg = chart(Across::Linear, vec![Series { label: "odd".into(), points: odd }]).svg();
        assert!(svg.contains("nothing was measured") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
