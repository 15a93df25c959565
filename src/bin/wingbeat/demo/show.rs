//! What a person sees of a demo: a bar on a terminal, a line now and then elsewhere.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
const REDRAW_HZ: u8 = 10;

/// Shows progress and tells what happens.
pub struct Show {
    bar: Option<ProgressBar>,
    /// The result goes to standard output alone; everything else to standard error.
    json: bool,
    next_line: Duration,
    /// Arrived flights at the last look, and the rate then.
    rate: Rate,
}

#[derive(Default)]
struct Rate {
    at: Duration,
    arrived: u64,
    per_s: f64,
}

impl Rate {
    /// Flights per second, smoothed over about a second.
    fn update(&mut self, arrived: u64, now: Duration) -> f64 {
        const WINDOW: Duration = Duration::from_millis(500);
        let passed = now.saturating_sub(self.at);
        if passed >= WINDOW {
            let latest = (arrived - self.arrived) as f64 / passed.as_secs_f64();
            self.per_s = if self.at.is_zero() { latest } else { (self.per_s + latest) / 2.0 };
            (self.at, self.arrived) = (now, arrived);
        }
        self.per_s
    }
}

impl Show {
    /// For so many flights.
    pub fn new(flights: u64, json: bool) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(flights), ProgressDrawTarget::stderr_with_hz(REDRAW_HZ));
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} flights  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, json, next_line: LINE_EVERY, rate: Rate::default() }
    }

    /// Tells something that happened.
    pub fn say(&self, text: &str) {
        let write = || {
            // Nobody may be listening any more; that must not end the run with children alive.
            let _ = if self.json { writeln!(std::io::stderr(), "{text}") } else { writeln!(std::io::stdout(), "{text}") };
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Shows how far it is. `shards` says how many each node holds.
    pub fn progress(&mut self, arrived: u64, total: u64, simulated: &str, shards: &str, now: Duration) {
        let per_s = self.rate.update(arrived, now);
        let state = format!("{simulated}  {per_s:.0} flights/s  {shards}");
        match &self.bar {
            Some(bar) => {
                bar.set_position(arrived);
                bar.set_message(state);
            }
            None if now >= self.next_line => {
                self.next_line = now + LINE_EVERY;
                self.say(&format!("{arrived}/{total} flights  {state}"));
            }
            None => {}
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
