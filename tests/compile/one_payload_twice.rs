wingbeat::messages! { pub enum CounterMsg for Counter(String) = "shop.counter" { Add(u64), Take(u64) } }

fn main() {}
