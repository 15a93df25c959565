//! Line charts as SVG text: what a report needs of them and no more.

use std::fmt::Write;

/// A line of a chart.
pub struct Series {
    /// What it is, for the legend. Empty: one of many whose shape is enough, drawn in grey behind those with a name.
    pub label: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    fn is_named(&self) -> bool {
        !self.label.is_empty()
    }
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
/// Without the legend.
const HEIGHT: f64 = 394.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 350.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#3a7d44", "#7d4f9e", "#b8860b", "#444444"];
/// Of the first lines, of those for which no new colour is left, and so on.
const DASHES: [&str; 3] = ["none", "7 4", "2 3"];
/// Of lines without a name.
const UNNAMED: &str = "#cccccc";
/// A row of the legend.
const ROW: f64 = 20.0;
/// The widest that a character of a label is expected to be.
const CHARACTER: f64 = 7.0;
/// The piece of line beside a label, with the room around it.
const SAMPLE: f64 = 30.0;
/// Between two labels.
const GAP: f64 = 16.0;
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
        let shown: Vec<Vec<(f64, f64)>> = self.series.iter().map(|series| self.shown(series)).collect();
        let all = || shown.iter().flatten().copied();
        let right = all().map(|(x, _)| x).fold(0.0, f64::max);
        let (low, high) = all().fold((f64::MAX, f64::MIN), |(low, high), (_, y)| (low.min(y), high.max(y)));
        let (places, rows) = self.legend();
        let mut out = String::new();
        self.frame(HEIGHT + ROW * rows, &mut out);
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
        let mut draw = |style: &str, points: &[(f64, f64)]| {
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", px(*x), py(*y))).collect();
            let _ = writeln!(out, r#"<polyline fill="none" {style} points="{}"/>"#, path.join(" "));
        };
        let (named, unnamed): (Vec<_>, Vec<_>) = self.series.iter().zip(&shown).partition(|(series, _)| series.is_named());
        for (_, points) in unnamed {
            draw(&format!(r#"stroke="{UNNAMED}""#), points);
        }
        for (number, (_, points)) in named.iter().enumerate() {
            draw(&style(number), points);
        }
        for (number, ((series, _), (x, y))) in named.iter().zip(places).enumerate() {
            let _ = writeln!(out, r#"<path d="M{x:.1} {:.1}h{:.1}" {}/>"#, y - 4.0, SAMPLE - 6.0, style(number));
            text(&mut out, x + SAMPLE, y, "start", &series.label);
        }
        out.push_str("</svg>\n");
        out
    }

    /// Points that can be drawn, in units of the axes.
    fn shown(&self, series: &Series) -> Vec<(f64, f64)> {
        let drawable = |(x, y): &(f64, f64)| (y.is_finite() && *y > 0.0).then(|| Some((self.at(*x)?, y.log10()))).flatten();
        series.points.iter().filter_map(drawable).collect()
    }

    /// Where the labels of the named series stand, row by row, and how many rows that makes.
    fn legend(&self) -> (Vec<(f64, f64)>, f64) {
        let (mut x, mut row) = (LEFT, 0.0);
        let mut places = vec![];
        for series in self.series.iter().filter(|series| series.is_named()) {
            let width = SAMPLE + CHARACTER * series.label.chars().count() as f64;
            if x > LEFT && x + width > RIGHT {
                (x, row) = (LEFT, row + 1.0);
            }
            places.push((x, HEIGHT + ROW * row + 14.0));
            x += width + GAP;
        }
        (places, row + 1.0)
    }

    fn frame(&self, height: f64, out: &mut String) {
        let _ = writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{height}" fill="white"/>"#
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

/// What tells a named line from the others.
fn style(number: usize) -> String {
    let (colour, dash) = (COLOURS[number % COLOURS.len()], DASHES[number / COLOURS.len() % DASHES.len()]);
    format!(r#"stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}""#)
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

    /// An attribute of each tag that starts so.
    fn attributes<'a>(svg: &'a str, tag: &str, name: &str) -> Vec<&'a str> {
        let of = |rest: &'a str| rest.split_once('>').unwrap().0.split_once(&format!(" {name}=\"")).unwrap().1.split('"').next().unwrap();
        svg.split(tag).skip(1).map(of).collect()
    }

    #[test]
    fn a_legend_of_many_lies_within_the_picture_and_tells_them_apart() {
        let all = |n: usize| (0..n).map(|at| Series { label: format!("remote-ask-{at:03}"), points: vec![(0.0, 1.0), (1.0, 9.0)] });
        let svg = chart(Across::Linear, all(18).collect()).svg();
        let height: f64 = attributes(&svg, "<svg", "viewBox")[0].split(' ').nth(3).unwrap().parse().unwrap();
        let at = |name: &str| attributes(&svg, "<text", name).into_iter().map(|at| at.parse::<f64>().unwrap()).collect::<Vec<_>>();
        let places: Vec<_> = at("x").into_iter().zip(at("y")).filter(|(_, y)| *y > BOTTOM + 40.0).collect();
        assert_eq!(places.len(), 18);
        assert!(places.iter().all(|(x, y)| x + 14.0 * CHARACTER <= WIDTH && *y < height), "{places:?} in {height}");
        let apart = places.iter().enumerate().all(|(n, a)| places[..n].iter().all(|b| a.1 != b.1 || (a.0 - b.0).abs() > 14.0 * CHARACTER));
        assert!(apart, "{places:?}");
        let lines = attributes(&svg, "<polyline", "stroke").into_iter().zip(attributes(&svg, "<polyline", "stroke-dasharray"));
        assert_eq!(lines.collect::<std::collections::BTreeSet<_>>().len(), 18);
    }

    #[test]
    fn series_without_a_name_lie_in_grey_behind_the_others() {
        let series = |label: &str| Series { label: label.into(), points: vec![(0.0, 1.0), (1.0, 9.0)] };
        let svg = chart(Across::Linear, vec![series("first"), series(""), series(""), series("last")]).svg();
        assert_eq!(attributes(&svg, "<polyline", "stroke"), [UNNAMED, UNNAMED, COLOURS[0], COLOURS[1]]);
        assert!(svg.contains(">first<") && svg.contains(">last<") && !svg.contains("></text>"));
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
