//! Which types there are, and who hosts them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    NodeId, TypeId,
    proto::sharding::{SHARDS_MAX, TypeInfo},
};

/// Longest name of a type.
const NAME_BYTES_MAX: usize = 255;
/// Types of a cluster, and of one node.
const TYPES_MAX: usize = 4096;

/// Types in force, and registrations.
#[derive(Debug, Default)]
pub(super) struct Types {
    in_force: BTreeMap<TypeId, TypeInfo>,
    /// Per node the types it may use, and whether it hosts them.
    nodes: BTreeMap<NodeId, BTreeMap<TypeId, bool>>,
}

impl Types {
    /// Takes in what a node uses and hosts, beside what it said before: that only grows, and an older word may come later. Returns what is refused, with both
    /// numbers.
    pub fn register(&mut self, node: NodeId, types: &[TypeInfo]) -> Vec<(TypeId, String)> {
        let mut refused = vec![];
        let mut accepted = self.nodes.remove(&node).unwrap_or_default();
        for info in types {
            match self.objection(info) {
                Some(why) => refused.push((info.ty, why)),
                None if accepted.len() >= TYPES_MAX && !accepted.contains_key(&info.ty) => refused.push((info.ty, too_many(&info.name))),
                // It sends only, and takes whatever number there is.
                None if info.shards == 0 => _ = accepted.entry(info.ty).or_insert(false),
                None => {
                    let known = self.in_force.entry(info.ty).or_insert_with(|| TypeInfo { host: false, ..info.clone() });
                    known.host |= info.host;
                    *accepted.entry(info.ty).or_insert(false) |= info.host;
                }
            }
        }
        self.nodes.insert(node, accepted);
        refused
    }

    fn objection(&self, info: &TypeInfo) -> Option<String> {
        if info.shards == 0 && info.host {
            return Some(format!("type `{}` has 0 shards; at least 1 is needed: set `sharding.shards`", info.name.escape_debug()));
        }
        if info.name.is_empty() || info.name.len() > NAME_BYTES_MAX {
            return Some(format!("the name of a type has {} bytes; 1 to {NAME_BYTES_MAX} are possible", info.name.len()));
        }
        if info.shards > SHARDS_MAX {
            return Some(format!(
                "type `{}` has {} shards; at most {SHARDS_MAX} are possible: set `sharding.shards`",
                info.name.escape_debug(),
                info.shards
            ));
        }
        let Some(known) = self.in_force.get(&info.ty) else {
            return (info.shards > 0 && self.in_force.len() >= TYPES_MAX).then(|| too_many(&info.name));
        };
        if known.name != info.name {
            return Some(format!(
                "the names `{}` and `{}` have the same id {:08x}; rename one of the types",
                info.name.escape_debug(),
                known.name.escape_debug(),
                info.ty.0
            ));
        }
        (info.shards > 0 && known.shards != info.shards).then(|| {
            format!(
                "type `{}` has {} shards here and {} in the cluster, where {} is in force; set the same number on every node",
                info.name.escape_debug(),
                info.shards,
                known.shards,
                known.shards
            )
        })
    }

    /// Why this number of shards is refused, if it is.
    pub fn mismatch(&self, ty: TypeId, shards: u32) -> Option<String> {
        let known = self.in_force.get(&ty)?;
        self.objection(&TypeInfo { shards, ..known.clone() })
    }

    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        self.drop_unused();
    }

    /// A type that no node uses any more may come back with another number of shards.
    fn drop_unused(&mut self) {
        let used: BTreeSet<TypeId> = self.nodes.values().flat_map(|types| types.keys().copied()).collect();
        self.in_force.retain(|ty, _| used.contains(ty));
    }

    pub fn get(&self, ty: TypeId) -> Option<&TypeInfo> {
        self.in_force.get(&ty)
    }

    /// Who announced a type, to host it or to send to it.
    pub fn users(&self, ty: TypeId) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(move |(_, types)| types.contains_key(&ty)).map(|(node, _)| *node)
    }

    pub fn names(&self) -> impl Iterator<Item = &TypeInfo> {
        self.in_force.values()
    }

    pub fn is_registered(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    pub fn hosts(&self, node: NodeId, ty: TypeId) -> bool {
        self.nodes.get(&node).is_some_and(|types| types.get(&ty) == Some(&true))
    }
}

fn too_many(name: &str) -> String {
    format!(
        "type `{}` would be one more than the {TYPES_MAX} that are possible; keep fewer types, with more entities each",
        name.escape_debug()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, shards: u32, host: bool) -> TypeInfo {
        TypeInfo { name: name.into(), ty: TypeId::of(name), shards, host }
    }

    // failures: row 14
    #[test]
    fn a_mismatch_names_the_type_and_both_numbers() {
        let mut types = Types::default();
        let (a, b) = (NodeId::from_raw(1), NodeId::from_raw(2));
        assert!(types.register(a, &[info("cart", 100, true)]).is_empty());
        let refused = types.register(b, &[info("cart", 50, true), info("user", 10, false)]);
        assert_eq!(refused.len(), 1);
        for part in ["`cart`", "50", "100 is in force"] {
            assert!(refused[0].1.contains(part), "{}", refused[0].1);
        }
        assert!(!types.hosts(b, TypeId::of("cart")) && types.is_registered(b));
        assert!(types.mismatch(TypeId::of("cart"), 50).is_some() && types.mismatch(TypeId::of("cart"), 100).is_none());
    }

    #[test]
    fn a_type_nobody_uses_may_change_its_number() {
        let mut types = Types::default();
        let (a, b) = (NodeId::from_raw(1), NodeId::from_raw(2));
        types.register(a, &[info("cart", 100, true)]);
        types.forget(a);
        assert!(types.register(b, &[info("cart", 50, true)]).is_empty());
    }

    #[test]
    fn who_only_sends_needs_no_number_and_sets_none() {
        let mut types = Types::default();
        let (a, b) = (NodeId::from_raw(1), NodeId::from_raw(2));
        assert!(types.register(a, &[info("cart", 0, false)]).is_empty());
        assert!(types.get(TypeId::of("cart")).is_none(), "nobody knows the number");
        assert!(types.register(b, &[info("cart", 100, true)]).is_empty());
        assert_eq!(types.get(TypeId::of("cart")).map(|t| t.shards), Some(100));
        assert_eq!(types.users(TypeId::of("cart")).collect::<Vec<_>>(), [a, b]);
        assert!(types.register(a, &[info("cart", 0, false)]).is_empty(), "and again once it is known");
        assert!(types.register(a, &[info("big", SHARDS_MAX + 1, true)])[0].1.contains("1048576"));
    }

    #[test]
    fn types_are_bounded() {
        let mut types = Types::default();
        let (a, b) = (NodeId::from_raw(1), NodeId::from_raw(2));
        let all = |shards, from: usize, upto: usize| (from..upto).map(|n| info(&format!("t{n}"), shards, shards > 0)).collect::<Vec<_>>();
        assert!(types.register(a, &all(1, 0, TYPES_MAX)).is_empty());
        let refused = types.register(b, &all(1, TYPES_MAX - 1, TYPES_MAX + 2));
        assert_eq!(refused.len(), 2, "those in force are taken: {refused:?}");
        assert!(refused[0].1.contains("`t4096`") && refused[0].1.contains("4096 that are possible"), "{}", refused[0].1);
        assert_eq!(types.register(b, &all(0, 10_000, 10_000 + TYPES_MAX)).len(), 1, "nor may one node use more, with whatever number");
    }

    #[test]
    fn nonsense_is_refused() {
        let mut types = Types::default();
        let twin = TypeInfo { ty: TypeId::of("a"), ..info("b", 5, true) };
        let refused = types.register(NodeId::from_raw(1), &[info("a", 5, true), twin, info("z", 0, true), info(&"x".repeat(256), 1, true)]);
        assert_eq!(refused.len(), 3, "{refused:?}");
    }
}
