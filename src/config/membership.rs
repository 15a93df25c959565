//! `[membership]`

use super::{
    OnDowned, Span,
    setting::{DAY, HOUR, MINUTE, Spec, table},
};

table! {
    /// Gossip and the life cycle of members.
    MembershipConfig in membership {
        /// A round of gossip goes out this often (T); three times as often while fewer than half have seen the state.
        gossip_interval: Span = Span::secs(1), Spec::span(10, MINUTE).must_match().cost("longer: news spreads slower; shorter: more traffic");
        /// Silence of all seeds after which the first seed forms a new cluster.
        seed_timeout: Span = Span::secs(5), Spec::span(10, HOUR).gossips(5).cost("a new cluster starts that much later; too short splits a restart of all");
        /// Pause between two attempts to join.
        join_retry: Span = Span::secs(1), Spec::span(10, HOUR).gossips(1);
        /// Members after the leader that gossip turns to more often.
        deputies: u8 = 2, Spec::int(0, 32).unit("members").must_match();
        /// Time without convergence after which a joining member is weakly up: shown as there, and sent to, but without shards.
        weakly_up_after: Option<Span> = Some(Span::secs(7)), Spec::span(10, DAY).gossips(7);
        /// Unreachable members are downed after this time, whichever side of a split they are on.
        auto_down_after: Option<Span> = None, Spec::span(100, DAY).must_match().cost("both sides of a split go on: entities run twice");
        /// Joins proceed, on a side that would live, though members that the cluster holds unreachable have not seen them.
        converge_past_unreachable: bool = false, Spec::any().must_match();
        /// Gossip older than this is dropped on arrival.
        gossip_ttl: Span = Span::secs(2), Spec::span(10, HOUR).gossips(2).cost("shorter: slow links lose answers; longer: old news is taken in");
        /// Share of rounds that go to a member that has not seen the state.
        unseen_probability: f64 = 0.8, Spec::float(0.0, 1.0);
        /// Members above which that share falls.
        reduce_above: u32 = 400, Spec::int(2, 100_000).unit("members");
        /// Removed members are remembered this long, so that old gossip does not bring them back.
        tombstones: Span = Span::millis(DAY), Spec::span(MINUTE, 30 * DAY).cost("each takes 24 bytes of every full state");
        /// What a node process does when it was downed: ends with status 3, or starts again as a new member.
        on_downed: OnDowned = OnDowned::Stop, Spec::any();
        /// Largest datagram; more goes over TCP.
        max_datagram: u16 = 1200, Spec::int(576, 65_507).unit("bytes").cost("above the path's MTU a lost fragment loses all of it");
    }
}
