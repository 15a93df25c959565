use wingbeat::*;

messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { Tick } }
messages! { pub enum TruckMsg for Truck(u64) = "fleet.truck" { Pump { plane: EntityRef<Plane> } } }

fn main() {}
