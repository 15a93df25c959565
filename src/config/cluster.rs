//! `[cluster]`

use super::{
    Preset, RoleMin,
    setting::{Spec, table},
    value::Rule,
};

table! {
    /// Who belongs together, and how they find each other.
    ClusterConfig in cluster {
        /// Name of the cluster; nodes of another name are refused.
        name: String = "wingbeat".into(), Spec::text(Rule::Name).must_match();
        /// Addresses asked at start, in order; all nodes may share one list. The node whose own address comes first may form a new cluster. A name with several addresses stands for all of them.
        seeds: Vec<String> = vec![], Spec::text(Rule::Addr);
        /// What this node is for; entity types can be bound to a role.
        roles: Vec<String> = vec![], Spec::text(Rule::Label);
        /// Version of the application, shown in the list of members.
        app_version: String = String::new(), Spec::text(Rule::OptionalName);
        /// Members that must have joined before the first ones become up.
        min_members: u32 = 1, Spec::int(1, 10_000).unit("members").cost("nothing runs before that many nodes are there");
        /// Members of a role that must have joined before the first ones become up, as `"role=number"`.
        min_members_of: Vec<RoleMin> = vec![], Spec::int(1, 10_000).cost("nothing runs before they are there");
        /// Set of defaults that everything else is laid over.
        preset: Preset = Preset::Lan, Spec::any();
    }
}
