//! `[entities]`

use super::{
    setting::{Spec, table},
    value::Rule,
};

table! {
    /// The built-in entity types of `wingbeat node`.
    EntitiesConfig in entities {
        /// Built-in types whose state survives the node's death; needs node.data_dir.
        durable: Vec<String> = vec![], Spec::text(Rule::Label).unused();
    }
}
