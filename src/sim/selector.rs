//! Which nodes (or shards) an action means: contracts.md, "Selectors".

use std::fmt;

use crate::proto::rng::Rng;

/// A set of nodes, resolved when the action happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// These indices.
    List(Vec<u32>),
    /// From .. to (excluded).
    Range(u32, u32),
    /// So many of the running ones, drawn from the seed.
    Random(u32),
    /// The leader, as the first live node sees it.
    Leader,
    /// The oldest member.
    Oldest,
    /// The youngest member.
    Youngest,
    /// Where the coordinator of the shards runs.
    Coordinator,
    /// All nodes of a region.
    Region(u32),
    /// So many of the running ones, side by side on the ring by which members observe each other, from a place drawn from the seed.
    Ring(u32),
    /// All.
    All,
    /// The first without the second.
    Minus(Box<Selector>, Box<Selector>),
}

/// What a selector needs to know of the world. Where there are no members, nobody is anything among them.
pub trait Scene {
    /// Number of nodes (or shards) there are.
    fn count(&self) -> u32;
    /// Whether it runs.
    fn running(&self, index: u32) -> bool;
    /// Its region.
    fn region(&self, index: u32) -> u32;
    /// The leader, if any.
    fn leader(&self) -> Option<u32> {
        None
    }
    /// Members by age, oldest first.
    fn by_age(&self) -> Vec<u32> {
        vec![]
    }
    /// Node of the coordinator.
    fn coordinator(&self) -> Option<u32> {
        None
    }
    /// The running ones in the order of the observers' ring.
    fn by_place(&self) -> Vec<u32> {
        vec![]
    }
}

impl Selector {
    /// Parses the text form. `count`: indices must lie below it.
    pub fn parse(text: &str, count: u32) -> Result<Self, String> {
        if let Some((a, b)) = text.split_once(" - ") {
            if b.contains(" - ") {
                return Err(format!("selector \"{text}\" takes away more than once; write \"a - b\""));
            }
            return Ok(Self::Minus(Box::new(Self::parse(a.trim(), count)?), Box::new(Self::parse(b.trim(), count)?)));
        }
        let text = text.trim();
        let index = |t: &str| -> Result<u32, String> {
            let i = t.trim().parse::<u32>().map_err(|_| {
                format!(
                    "\"{text}\" is no selector; write \"3\", \"3,7\", \"10..20\", \"random:10\", \"leader\", \"oldest\", \"youngest\", \"coordinator\", \"region:1\", \"ring:10\", \"all\" or \"a - b\""
                )
            })?;
            if i < count { Ok(i) } else { Err(format!("selector \"{text}\": {i} is outside 0..{count}")) }
        };
        match text {
            "all" => return Ok(Self::All),
            "leader" => return Ok(Self::Leader),
            "oldest" => return Ok(Self::Oldest),
            "youngest" => return Ok(Self::Youngest),
            "coordinator" => return Ok(Self::Coordinator),
            _ => {}
        }
        for (prefix, drawn) in [("random:", Self::Random as fn(u32) -> Self), ("ring:", Self::Ring)] {
            if let Some(n) = text.strip_prefix(prefix) {
                let n = n.parse::<u32>().map_err(|_| format!("selector \"{text}\": write \"{prefix}\" and a number"))?;
                if n > count {
                    return Err(format!("selector \"{text}\": there are only {count}"));
                }
                return Ok(drawn(n));
            }
        }
        if let Some(r) = text.strip_prefix("region:") {
            return r.parse().map(Self::Region).map_err(|_| format!("selector \"{text}\": write \"region:\" and a number"));
        }
        if let Some((a, b)) = text.split_once("..") {
            let a = index(a)?;
            let b = b.trim().parse::<u32>().map_err(|_| format!("selector \"{text}\": no number after the dots"))?;
            if b > count || b < a {
                return Err(format!("selector \"{text}\": the range must end from {a} to {count}"));
            }
            return Ok(Self::Range(a, b));
        }
        Ok(Self::List(text.split(',').map(index).collect::<Result<_, _>>()?))
    }

    /// The indices meant now, ascending, without doubles.
    pub fn resolve(&self, scene: &impl Scene, rng: &mut Rng) -> Vec<u32> {
        let mut all = match self {
            Self::List(l) => l.clone(),
            Self::Range(a, b) => (*a..*b).collect(),
            Self::Random(n) => draw((0..scene.count()).filter(|i| scene.running(*i)).collect(), *n, rng),
            Self::Leader => scene.leader().into_iter().collect(),
            Self::Oldest => scene.by_age().first().copied().into_iter().collect(),
            Self::Youngest => scene.by_age().last().copied().into_iter().collect(),
            Self::Coordinator => scene.coordinator().into_iter().collect(),
            Self::Region(r) => (0..scene.count()).filter(|i| scene.region(*i) == *r).collect(),
            Self::Ring(n) => {
                let mut all = scene.by_place();
                let first = rng.index(all.len()).unwrap_or(0);
                all.rotate_left(first);
                all.truncate(*n as usize);
                all
            }
            Self::All => (0..scene.count()).collect(),
            // A draw is made among what is left, so that "random:3 - leader" still gives three.
            Self::Minus(a, b) => {
                let without = b.resolve(scene, rng);
                match **a {
                    Self::Random(n) => {
                        draw((0..scene.count()).filter(|i| scene.running(*i) && without.binary_search(i).is_err()).collect(), n, rng)
                    }
                    _ => a.resolve(scene, rng).into_iter().filter(|i| without.binary_search(i).is_err()).collect(),
                }
            }
        };
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The indices meant whatever happens in the run; `None` if that depends on the run or on the regions.
    pub(super) fn fixed(&self, count: u32) -> Option<Vec<u32>> {
        match self {
            Self::List(l) => Some(l.clone()),
            Self::Range(a, b) => Some((*a..*b).collect()),
            Self::All => Some((0..count).collect()),
            Self::Minus(a, b) => {
                let without = b.fixed(count)?;
                Some(a.fixed(count)?.into_iter().filter(|i| !without.contains(i)).collect())
            }
            _ => None,
        }
    }

    /// The highest region named.
    pub(super) fn top_region(&self) -> Option<u32> {
        match self {
            Self::Region(r) => Some(*r),
            Self::Minus(a, b) => a.top_region().max(b.top_region()),
            _ => None,
        }
    }

    /// Whether it means somebody before anything runs: by number, by lot or by region.
    pub(super) fn fits_unborn(&self) -> bool {
        match self {
            Self::List(_) | Self::Range(..) | Self::Random(_) | Self::Region(_) | Self::All => true,
            Self::Minus(a, b) => a.fits_unborn() && b.fits_unborn(),
            _ => false,
        }
    }

    /// Whether it can mean shards: by number or by lot, not by what a node is.
    pub(super) fn fits_shards(&self) -> bool {
        match self {
            Self::List(_) | Self::Range(..) | Self::Random(_) | Self::All => true,
            Self::Minus(a, b) => a.fits_shards() && b.fits_shards(),
            _ => false,
        }
    }

    /// Whether the set is everything.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(l) => f.write_str(&l.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
            Self::Range(a, b) => write!(f, "{a}..{b}"),
            Self::Random(n) => write!(f, "random:{n}"),
            Self::Leader => f.write_str("leader"),
            Self::Oldest => f.write_str("oldest"),
            Self::Youngest => f.write_str("youngest"),
            Self::Coordinator => f.write_str("coordinator"),
            Self::Region(r) => write!(f, "region:{r}"),
            Self::Ring(n) => write!(f, "ring:{n}"),
            Self::All => f.write_str("all"),
            Self::Minus(a, b) => write!(f, "{a} - {b}"),
        }
    }
}

fn draw(mut from: Vec<u32>, n: u32, rng: &mut Rng) -> Vec<u32> {
    let n = (n as usize).min(from.len());
    for i in 0..n {
        let j = i + rng.below((from.len() - i) as u64) as usize;
        from.swap(i, j);
    }
    from.truncate(n);
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ten;
    impl Scene for Ten {
        fn count(&self) -> u32 {
            10
        }
        fn running(&self, index: u32) -> bool {
            index != 4
        }
        fn region(&self, index: u32) -> u32 {
            index % 2
        }
        fn leader(&self) -> Option<u32> {
            Some(0)
        }
        fn by_age(&self) -> Vec<u32> {
            vec![3, 0, 9]
        }
        fn coordinator(&self) -> Option<u32> {
            Some(3)
        }
        fn by_place(&self) -> Vec<u32> {
            vec![6, 0, 3, 9, 1, 7, 2, 8, 5]
        }
    }

    fn resolve(text: &str) -> Vec<u32> {
        Selector::parse(text, 10).unwrap().resolve(&Ten, &mut Rng::new(1))
    }

    #[test]
    fn each_form_means_what_the_contract_says() {
        assert_eq!(resolve("3"), [3]);
        assert_eq!(resolve("7,3"), [3, 7]);
        assert_eq!(resolve("2..5"), [2, 3, 4]);
        assert_eq!(
            (resolve("leader"), resolve("oldest"), resolve("youngest"), resolve("coordinator")),
            (vec![0], vec![3], vec![9], vec![3])
        );
        assert_eq!(resolve("region:1"), [1, 3, 5, 7, 9]);
        assert_eq!(resolve("all - 2..9"), [0, 1, 9]);
        let three = resolve("ring:3");
        let places = Ten.by_place().repeat(2);
        assert!(places.windows(3).any(|side_by_side| side_by_side.iter().all(|i| three.contains(i))), "{three:?}");
        assert_eq!(resolve("ring:10").len(), 9, "of the running ones");
        assert_eq!(resolve("random:9"), [0, 1, 2, 3, 5, 6, 7, 8, 9], "of the running ones");
        let without = resolve("random:8 - leader");
        assert!(without.len() == 8 && !without.contains(&0), "{without:?}");
    }

    #[test]
    fn bad_selectors_say_why() {
        for (text, why) in [
            ("12", "outside 0..10"),
            ("5..12", "must end"),
            ("random:11", "only 10"),
            ("ring:11", "only 10"),
            ("ring:x", "number"),
            ("x", "no selector"),
            ("region:x", "number"),
            ("1 - 2 - 3", "once"),
        ] {
            let error = Selector::parse(text, 10).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn text_forms_round_trip() {
        for text in ["3,7", "2..5", "random:4", "all - leader", "region:1", "ring:4"] {
            assert_eq!(Selector::parse(text, 10).unwrap().to_string(), text);
        }
    }
}
