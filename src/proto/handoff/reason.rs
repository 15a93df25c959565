//! Why an accepted message was not handled.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$m:meta])* $name:ident = $label:literal, $code:literal, $text:literal;)+) => {
        /// Why a message that had been accepted was not handled; counted, in dead letters, and in `AskError::Dropped`.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum DropReason { $($(#[$m])* #[error($text)] $name),+ }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
            /// Label of the counter.
            pub const fn label(self) -> &'static str { match self { $(Self::$name => $label),+ } }
            /// Stable code; never reused.
            pub const fn code(self) -> &'static str { match self { $(Self::$name => $code),+ } }
        }
    };
}

reasons! {
    /// The entity's mailbox had no room.
    MailboxFull = "mailbox_full", "E-DROP-001", "mailbox full";
    /// The buffer for shards without a known home had no room.
    BufferFull = "buffer_full", "E-DROP-002", "buffer for unknown homes full";
    /// The buffer of a moving shard had no room.
    MoveBufferFull = "move_buffer_full", "E-DROP-003", "buffer of a moving shard full";
    /// The link to the home broke with the message under way.
    LinkLost = "link_lost", "E-DROP-005", "link lost";
    /// No member hosts the type.
    NoHost = "no_host", "E-DROP-006", "no node hosts the type";
    /// The home was removed, and its state with it: what was sent by routes to it ends there.
    HomeLost = "home_lost", "E-DROP-007", "the owner was removed";
    /// The home does not know the type.
    UnknownType = "unknown_type", "E-DROP-008", "the owner does not know the type";
    /// The home does not know the message.
    UnknownMessage = "unknown_message", "E-DROP-009", "the owner does not know the message";
    /// The bytes are no message.
    Undecodable = "undecodable", "E-DROP-010", "undecodable";
    /// Past its deadline before it ran.
    Expired = "expired", "E-DROP-011", "past its deadline";
    /// The entity keeps failing to start.
    CircuitOpen = "circuit_open", "E-DROP-012", "the entity keeps failing to start";
    /// The handler panicked on it too often.
    Poison = "poison", "E-DROP-013", "panicked too often on it";
    /// The entity stopped.
    Stopped = "stopped", "E-DROP-014", "entity stopped";
    /// The node lost its right to run the shard.
    Fenced = "fenced", "E-DROP-015", "the owner lost its right to run";
    /// The shard could not stop in time.
    HandoffTimeout = "handoff_timeout", "E-DROP-016", "handoff timed out";
    /// The message carries no key that can travel.
    Unaddressed = "unaddressed", "E-DROP-017", "no usable key";
    /// The node is shutting down.
    Shutdown = "shutdown", "E-DROP-018", "shutting down";
    /// Arrived behind the end of its path, which its sender had given up.
    Late = "late", "E-DROP-019", "arrived after its path was closed";
    /// The sender's node was removed.
    SenderRemoved = "sender_removed", "E-DROP-020", "the sender's node was removed";
    /// Was being forwarded to a node that was removed.
    RouteLost = "route_lost", "E-DROP-021", "was forwarded to a node that was removed";
    /// Held behind a fence, and the room for that was used up.
    HeldFull = "held_full", "E-DROP-022", "room for held messages used up";
    /// The peer does not read fast enough.
    NoCredit = "no_credit", "E-DROP-023", "the link to the owner has no room";
    /// A memory budget is reached, or a queue of a node is full that an entity passed it on by.
    Overloaded = "overloaded", "E-DROP-024", "a memory budget or a queue on the way is used up";
    /// What the entity put aside had no room for more.
    StashFull = "stash_full", "E-DROP-004", "stash full";
    /// Longer than a message may be: passed on by an entity, or sent within the node, where nothing bounds it, and on its way out of that.
    TooLarge = "too_large", "E-DROP-025", "longer than a message may be";
    /// The coordinator refused the type as this node registered it: with another number of shards, say.
    TypeRefused = "type_refused", "E-DROP-026", "the coordinator refused the type as this node registered it";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn labels_and_codes_are_unique() {
        let labels: BTreeSet<_> = DropReason::ALL.iter().map(|r| r.label()).collect();
        let codes: BTreeSet<_> = DropReason::ALL.iter().map(|r| r.code()).collect();
        assert_eq!((labels.len(), codes.len()), (DropReason::ALL.len(), DropReason::ALL.len()));
    }
}
