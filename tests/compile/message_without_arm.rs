use wingbeat::*;

messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { Tick, GetLegs -> u64 } }

struct PlaneState;

impl Entity for PlaneState {
    type Type = Plane;

    fn handle(&mut self, msg: PlaneMsg, _: &mut Cx<'_, Self>) {
        match msg {
            PlaneMsg::Tick(_) => {}
        }
    }
}

fn main() {}
