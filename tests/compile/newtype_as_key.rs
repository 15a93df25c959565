#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tail(String);

wingbeat::messages! { pub enum PlaneMsg for Plane(Tail) = "fleet.plane" { Tick } }

fn main() {}
