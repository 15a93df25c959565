//! One entity per aircraft adds up its flights: `cargo run --example flights`.
//!
//! The whole of a service in one file: the protocol, the entity, a node, and a caller. Start more nodes with the first one's address as their
//! seed, and the aircraft spread over them; nothing below changes.

#![allow(missing_docs, reason = "an example explains itself")]

use std::{error::Error, io::Write, time::Duration};

use wingbeat::*;

/// A few flights that left New York in January 2013: tail number, from, to, miles, minutes late.
const FLIGHTS: &str = "N14228 EWR IAH 1400 2,N24211 LGA IAH 1416 4,N619AA JFK MIA 1089 2,N804JB JFK BQN 1576 -1,\
    N804JB JFK LAX 2475 -4,N804JB JFK SFO 2586 -4,N24211 EWR AUS 1504 2,N14228 EWR MIA 1085 -5";

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sums {
    pub flights: u32,
    pub miles: u32,
    pub minutes_late: i32,
    pub at: String,
}
wire!(Sums = "example.sums");

messages! {
    pub enum AircraftMsg for Aircraft(String) = "example.aircraft" {
        Flew { to: String, miles: u32, minutes_late: i32 },
        GetSums -> Sums,
    }
}

#[derive(Default)]
struct AircraftState(Sums);

impl Entity for AircraftState {
    type Type = Aircraft;

    fn handle(&mut self, msg: AircraftMsg, cx: &mut Cx<'_, Self>) {
        let Self(sums) = self;
        match msg {
            AircraftMsg::Flew(Flew { to, miles, minutes_late }) => {
                (sums.flights, sums.miles, sums.minutes_late, sums.at) =
                    (sums.flights + 1, sums.miles + miles, sums.minutes_late + minutes_late, to);
            }
            AircraftMsg::GetSums(GetSums, reply) => cx.reply(reply, sums.clone()),
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&self.0)
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.0 = state.decode()?;
        Ok(())
    }
}

/// Everything `main` does.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::builder("flights").listen("127.0.0.1:0".parse()?).start()?;
    let fleet = cluster.host::<AircraftState>(HostOptions::new(), |_tail| AircraftState::default())?;
    fleet.wait_ready(Duration::from_secs(30))?;
    for row in FLIGHTS.split(',') {
        let [tail, _from, to, miles, late] = row.split(' ').collect::<Vec<_>>()[..] else { return Err("a row has five columns".into()) };
        fleet.get(tail).tell(Flew { to: to.into(), miles: miles.parse()?, minutes_late: late.parse()? })?;
    }
    for tail in ["N14228", "N24211", "N619AA", "N804JB"] {
        let Sums { flights, miles, minutes_late, at } = fleet.get(tail).ask(GetSums, Duration::from_secs(5))?;
        writeln!(out, "{tail} flew {flights} times, {miles} miles, {minutes_late} minutes late in all, last to {at}")?;
    }
    Ok(())
}

#[allow(dead_code, reason = "a test calls `run` alone")]
fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}
