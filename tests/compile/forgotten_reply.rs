#![deny(unused_variables)]

use wingbeat::*;

messages! { pub enum CounterMsg for Counter(String) = "shop.counter" { Total -> u64 } }

struct CounterState;

impl Entity for CounterState {
    type Type = Counter;

    fn handle(&mut self, msg: CounterMsg, _: &mut Cx<'_, Self>) {
        match msg {
            CounterMsg::Total(Total, reply) => {}
        }
    }
}

fn main() {}
