//! Settings that are one of a few words.

macro_rules! choices {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// The words of all values, in the order of the declaration.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// Its word in files.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            pub(super) fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl super::value::Choice for $name {
            const WORDS: &'static [&'static str] = Self::WORDS;

            fn of(word: &str) -> Option<Self> {
                Self::from_word(word)
            }

            fn word(&self) -> &'static str {
                Self::word(*self)
            }
        }
    };
}

choices! {
    /// A set of defaults for an environment.
    Preset {
        /// One data centre.
        #[default]
        Lan = "lan",
        /// Several regions: longer intervals, a more patient detector.
        Wan = "wan",
        /// Loopback: fast intervals, proof of death.
        LocalTest = "local_test",
    }
}
choices! {
    /// What a node that was downed does.
    OnDowned {
        /// Its process ends.
        #[default]
        Stop = "stop",
        /// It starts again under a new incarnation.
        Rejoin = "rejoin",
    }
}
choices! {
    /// How observers' rows become the cluster's verdict.
    DetectorVerdict {
        /// Runs of missed replies, pooled.
        #[default]
        Pooled = "pooled",
        /// A majority of the monitors.
        Quorum = "quorum",
        /// One observer suffices.
        One = "one",
    }
}
choices! {
    /// Which side of a split lives.
    DowningStrategy {
        /// The larger side; of two equal ones that with the lowest address.
        #[default]
        KeepMajority = "keep-majority",
        /// The side with at least `downing.quorum_size` members.
        StaticQuorum = "static-quorum",
        /// The side with the oldest member.
        KeepOldest = "keep-oldest",
        /// The side with `downing.referee`.
        KeepReferee = "keep-referee",
        /// Neither.
        DownAll = "down-all",
        /// The side that gets an outside lease; the larger side asks first.
        LeaseMajority = "lease-majority",
        /// Nobody is downed but by an operator.
        None = "none",
    }
}
choices! {
    /// How idle threads wait.
    Idle {
        /// Yields, then parks.
        #[default]
        Balanced = "balanced",
        /// Spins for a moment where there are four cores, yields for 20 ms, then parks.
        LowLatency = "low_latency",
        /// Parks at once.
        LowCpu = "low_cpu",
    }
}
choices! {
    /// Where shards go.
    Allocation {
        /// To the node that has the fewest.
        #[default]
        LeastShards = "least-shards",
        /// By consistent hash over the nodes.
        ConsistentHash = "consistent-hash",
    }
}
choices! {
    /// What starts again by itself after a move or a crash.
    Remember {
        /// Nothing: an entity starts with its first message.
        #[default]
        No = "no",
        /// Shards, not their entities.
        Shards = "shards",
        /// Every entity that was live.
        Entities = "entities",
    }
}
