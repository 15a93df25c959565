use std::time::Duration;

wingbeat::messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { Tick } }

fn send(planes: wingbeat::Region<Plane>) {
    let _ = planes.get("N1").ask(Tick, Duration::from_secs(1));
}

fn main() {}
