//! How fast the cores are. On a shared machine somebody who is not in this one's accounts may have the other half of a core: then each instruction takes
//! longer, nothing says so, and figures that are held against each other were taken at different speeds.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use super::one_core;

/// Work is done in so many slices, of which the best counts: this process may have threads of its own there, and a virtual core stands still for a millisecond
/// now and then.
const SLICES: u32 = 8;
const SLICE: Duration = Duration::from_micros(250);

/// What cores have done, in steps per second: good for nothing but to be held against each other.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct CoreSpeed {
    pub slowest: f64,
    pub fastest: f64,
}

impl CoreSpeed {
    /// As of now, of all cores that this process may use, at once: two milliseconds of work. `None` where threads cannot be bound to cores.
    pub fn now() -> Option<Self> {
        let cores = one_core::cores().ok()?;
        let measure = |core| one_core::bind_to(core).ok().map(|()| (0..SLICES).map(|_| steps_per_s()).fold(0.0, f64::max));
        let measured: Option<Vec<f64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = cores.iter().map(|core| scope.spawn(|| measure(*core))).collect();
            threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
        });
        measured?.into_iter().map(|speed| Self { slowest: speed, fastest: speed }).reduce(Self::and)
    }

    /// Both readings in one.
    pub fn and(self, other: Self) -> Self {
        Self { slowest: self.slowest.min(other.slowest), fastest: self.fastest.max(other.fastest) }
    }
}

fn steps_per_s() -> f64 {
    const STEPS: u64 = 1_000;
    let (began, mut done, mut state) = (Instant::now(), 0, [1; 6]);
    while began.elapsed() < SLICE {
        state = black_box(steps(state, STEPS));
        done += STEPS;
    }
    done as f64 / began.elapsed().as_secs_f64()
}

/// Several chains that do not wait for each other: what one of them leaves of a core is what somebody else on the same core would take.
fn steps(mut chains: [u64; 6], count: u64) -> [u64; 6] {
    for step in 0..count {
        for chain in &mut chains {
            *chain = (*chain ^ step).wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
    }
    chains
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn each_core_has_a_speed_and_readings_go_together() {
        let now = CoreSpeed::now().unwrap();
        assert!(now.slowest > 0.0 && now.slowest <= now.fastest, "{now:?}");
        let both = CoreSpeed { slowest: 1.0, fastest: 2.0 }.and(CoreSpeed { slowest: 0.5, fastest: 1.5 });
        assert_eq!(both, CoreSpeed { slowest: 0.5, fastest: 2.0 });
    }
}
