wingbeat::messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { Tick } }

fn send(planes: wingbeat::Region<Plane>) {
    let _ = planes.get(7);
}

fn main() {}
