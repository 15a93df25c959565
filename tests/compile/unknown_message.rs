wingbeat::messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { Tick } }
wingbeat::messages! { pub enum CounterMsg for Counter(u64) = "shop.counter" { Add { n: u64 } } }

fn send(planes: wingbeat::Region<Plane>) {
    let _ = planes.get("N1").tell(Add { n: 1 });
}

fn main() {}
