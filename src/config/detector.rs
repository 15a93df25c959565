//! `[detector]`

use super::{
    DetectorVerdict, Span,
    setting::{HOUR, MINUTE, Spec, table},
};

table! {
    /// The failure detector (phi accrual).
    DetectorConfig in detector {
        /// A heartbeat goes to each monitored member this often (H).
        heartbeat_interval: Span = Span::secs(1), Spec::span(10, MINUTE).must_match().cost("longer: failures are found later; shorter: more traffic");
        /// Phi at which an observer holds a member unreachable; with `pooled`, which counts missed replies, only where nobody else observes it.
        threshold: f64 = 8.0, Spec::float(1.0, 100.0).cost("fewer false alarms, later detection");
        /// Pause that no member is accused for: a garbage collection, a scheduler's hiccup.
        acceptable_pause: Span = Span::secs(3), Spec::span(10, HOUR).heartbeats(3).cost("every detection takes that much longer");
        /// Least standard deviation assumed of the intervals.
        min_std_deviation: Span = Span::millis(100), Spec::span(1, MINUTE);
        /// Intervals remembered per member.
        window: u16 = 1000, Spec::int(10, 10_000).unit("intervals").cost("8 bytes each per monitored member");
        /// Interval assumed before the first one was measured.
        first_interval: Span = Span::secs(1), Spec::span(10, HOUR).heartbeats(1);
        /// Members that watch each member.
        monitors: u8 = 5, Spec::int(1, 9).unit("members").must_match().cost("traffic grows with it");
        /// How the observers' opinions become the cluster's.
        verdict: DetectorVerdict = DetectorVerdict::Pooled, Spec::any().must_match();
        /// An observer that is itself late accuses nobody for a while.
        local_health: bool = true, Spec::any();
    }
}
