pub struct Status;

wingbeat::messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { GetStatus -> Status } }

fn main() {}
