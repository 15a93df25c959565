//! The lease that decides splits: one for all nodes, out of reach of the scenario's faults.

use super::world::{Inner, World};
use crate::{Time, proto::lease::LeaseCall};

impl World<'_> {
    /// A node asks. The answer takes as long as one from another node.
    pub(super) fn ask_lease(&mut self, index: u32, life: u32, id: u64, call: &LeaseCall) {
        let answer = self.leases.call(Time::from_nanos(self.now), call);
        self.log(38, index, id, || format!("lease: {call:?} gives {answer:?}"));
        if let Some(answer) = answer {
            let there_and_back = self.net.latency(index, index, &mut self.faults) + self.net.latency(index, index, &mut self.faults);
            self.inside(life, self.now + there_and_back, Inner::Lease(id, answer));
        }
    }
}
