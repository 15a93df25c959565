//! Columns for people: aligned, coloured only on a terminal.

use std::io::IsTerminal;

use serde_json::Value;

/// A column: its heading, and what a row shows in it.
pub struct Column<'a> {
    heading: &'static str,
    cell: Box<dyn Fn(&Value) -> String + 'a>,
}

/// A column that shows a field as it is.
pub fn field(heading: &'static str, name: &'static str) -> Column<'static> {
    column(heading, move |row| shown(&row[name]))
}

/// A column that shows something made of the row.
pub fn column<'a>(heading: &'static str, cell: impl Fn(&Value) -> String + 'a) -> Column<'a> {
    Column { heading, cell: Box::new(cell) }
}

/// A value as a cell shows it: what is not known is a dash.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::String(text) if text.is_empty() => "-".into(),
        Value::String(text) => text.chars().flat_map(visible).collect(),
        Value::Array(items) if items.is_empty() => "-".into(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Control characters as escapes: what a node says must not drive a terminal.
fn visible(char: char) -> Vec<char> {
    if char.is_control() { char.escape_default().collect() } else { vec![char] }
}

/// The rows as text, one line each, with a line of headings.
pub fn render(columns: &[Column<'_>], rows: &[Value], colour: bool) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| columns.iter().map(|column| (column.cell)(row)).collect()).collect();
    let width = |index: usize| {
        let longest = cells.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
        longest.max(columns[index].heading.chars().count())
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let right: Vec<bool> = (0..columns.len()).map(|index| !cells.is_empty() && cells.iter().all(|row| is_number(&row[index]))).collect();
    let line = |texts: Vec<&str>| {
        let padded = texts.iter().zip(&widths).zip(&right).map(|((text, &width), &right)| match right {
            true => format!("{text:>width$}"),
            false => format!("{text:<width$}"),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut out = paint(&line(columns.iter().map(|column| column.heading).collect()), "1", colour);
    for row in &cells {
        out.push('\n');
        out.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    out
}

/// Text in a colour of the terminal (a code of SGR), where colours are wanted.
pub fn paint(text: &str, code: &str, colour: bool) -> String {
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Whether standard output is a terminal whose user did not turn colours off.
pub fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn is_number(cell: &str) -> bool {
    cell == "-" || cell.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_and_numbers_stand_to_the_right() {
        let rows =
            [json!({"addr": "127.0.0.1:7301", "shards": 7}), json!({"addr": "b:1", "shards": 100}), json!({"addr": "", "shards": null})];
        let text = render(&[field("NODE", "addr"), field("SHARDS", "shards")], &rows, false);
        assert_eq!(text, "NODE            SHARDS\n127.0.0.1:7301       7\nb:1                100\n-                    -");
    }

    #[test]
    fn what_a_node_says_cannot_drive_the_terminal() {
        assert_eq!(shown(&json!("a\u{1b}[31m")), "a\\u{1b}[31m");
        assert_eq!(shown(&json!(["x", "y"])), "x,y");
    }

    #[test]
    fn colour_is_added_only_where_wanted() {
        assert_eq!(paint("x", "1", false), "x");
        assert_eq!(paint("x", "1", true), "\x1b[1mx\x1b[0m");
    }
}
