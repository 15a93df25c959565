#![deny(unused_must_use)]

use wingbeat::*;

messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { Tick, GetLegs -> u64 } }

struct PlaneState;

impl Entity for PlaneState {
    type Type = Plane;

    fn handle(&mut self, msg: PlaneMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            PlaneMsg::Tick(_) => {
                cx.this().tell(Tick);
            }
            PlaneMsg::GetLegs(_, reply) => {
                cx.defer(reply);
            }
        }
    }
}

fn send(planes: Region<Plane>) {
    planes.batch().push("N1", Tick).send();
}

fn main() {}
