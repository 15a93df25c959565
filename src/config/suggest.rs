//! "Did you mean": the nearest of some names.

/// The name that `given` most likely stands for, if one is close enough.
pub(super) fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nobody mistypes that much, and the work grows with the square of the length.
    if given.len() > 128 {
        return None;
    }
    let given = given.to_ascii_lowercase().replace('-', "_");
    let allowed = (given.chars().count() / 3).clamp(1, 4);
    names
        .into_iter()
        .map(|name| (distance(&given, &name.to_ascii_lowercase().replace('-', "_")), name))
        .filter(|(d, _)| *d <= allowed)
        .min()
        .map(|(_, n)| n)
}

/// Insertions, deletions, replacements and swaps of neighbours that make `b` of `a` (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let (mut before, mut last) = (vec![0; b.len() + 1], (0..=b.len()).collect::<Vec<_>>());
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let cost = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + cost);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_literature() {
        for (a, b, d) in
            [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("ab", "ba", 1), ("intervall", "interval", 1), ("ca", "abc", 3)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (d, d), "{a} {b}");
        }
    }

    #[test]
    fn what_is_far_is_not_suggested() {
        let names = ["gossip_interval", "gossip_ttl", "seed_timeout"];
        assert_eq!(nearest("gosip_intervall", names), Some("gossip_interval"));
        assert_eq!(nearest("Gossip-TTL", names), Some("gossip_ttl"));
        assert_eq!(nearest("bananas", names), None);
        assert_eq!(nearest(&"x".repeat(100_000), names), None);
    }
}
