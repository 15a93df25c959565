//! Counters by stable name.

macro_rules! counters {
    ($($variant:ident => $name:literal),+ $(,)?) => {
        /// What is counted.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub(crate) enum Count { $($variant),+ }
        const NAMES: &[&str] = &[$($name),+];
    };
}

counters! {
    DatagramsIn => "datagrams_in",
    DatagramsOut => "datagrams_out",
    BytesOut => "datagram_bytes_out",
    FramesOut => "frames_out",
    DropTruncated => "datagrams_dropped_truncated",
    DropMagic => "datagrams_dropped_magic",
    DropVersion => "datagrams_dropped_version",
    DropKey => "datagrams_dropped_key",
    DropCluster => "datagrams_dropped_other_cluster",
    DropNotMember => "datagrams_dropped_not_a_member_yet",
    DropSender => "datagrams_dropped_unknown_sender",
    DropRemoved => "datagrams_dropped_removed_sender",
    DropReplay => "datagrams_dropped_replayed",
    DropMalformed => "datagrams_dropped_malformed",
    DropPart => "datagram_parts_dropped_unknown_kind",
    FrameMalformed => "frames_dropped_malformed",
    FrameForeign => "frames_dropped_other_cluster",
    FrameStranger => "frames_dropped_unknown_sender",
    GossipSame => "gossip_same",
    GossipNewer => "gossip_newer",
    GossipMerged => "gossip_merged",
    GossipExpired => "gossip_dropped_older_than_ttl",
    GossipUnasked => "gossip_dropped_unasked",
    GossipMissed => "gossip_misses",
    Introduced => "gossip_introductions",
    StatusSent => "gossip_status_sent",
    AskSent => "gossip_asks_sent",
    DeltaSent => "gossip_deltas_sent",
    StateSent => "gossip_state_sent",
    StateByLink => "gossip_state_by_link",
    Adopted => "gossip_orphans_adopted",
    BeatsSent => "heartbeats_sent",
    BeatsRepeated => "heartbeats_repeated",
    BeatsAnswered => "heartbeats_answered",
    RepliesTaken => "heartbeat_replies",
    RepliesStray => "heartbeat_replies_unmatched",
    HintsSent => "hints_sent",
    HintsStray => "hints_dropped_no_subject",
    UdpBlocked => "udp_blocked",
    Sick => "detector_unheard",
    Late => "detector_late_wakeups",
    JoinsAdmitted => "joins_admitted",
    JoinsRefused => "joins_refused",
    LeaveForced => "leave_forced",
}

/// The values.
#[derive(Clone, Debug)]
pub(crate) struct Counters([u64; NAMES.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; NAMES.len()])
    }
}

impl Counters {
    pub(crate) fn add(&mut self, what: Count) {
        self.add_n(what, 1);
    }

    pub(crate) fn add_n(&mut self, what: Count, n: u64) {
        self.0[what as usize] += n;
    }

    pub(crate) fn sum(&self, of: &[Count]) -> u64 {
        of.iter().map(|what| self.0[*what as usize]).sum()
    }

    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        NAMES.iter().copied().zip(self.0).collect()
    }

    #[cfg(test)]
    pub(crate) fn get(&self, what: Count) -> u64 {
        self.0[what as usize]
    }
}
