use wingbeat::*;

messages! { pub enum CounterMsg for Counter(String) = "shop.counter" { Total -> u64 } }

struct CounterState;

impl Entity for CounterState {
    type Type = Counter;

    fn handle(&mut self, msg: CounterMsg, cx: &mut Cx<'_, Self>) {
        let CounterMsg::Total(_, reply) = msg;
        cx.reply(reply, 7);
        cx.reply(reply, 8);
    }
}

fn main() {}
