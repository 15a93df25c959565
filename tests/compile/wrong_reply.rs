use wingbeat::*;

#[derive(serde::Serialize, serde::Deserialize)]
pub struct Status;
wire!(Status = "fleet.status");
messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { GetStatus -> Status } }

struct PlaneState;

impl Entity for PlaneState {
    type Type = Plane;

    fn handle(&mut self, msg: PlaneMsg, cx: &mut Cx<'_, Self>) {
        let PlaneMsg::GetStatus(_, reply) = msg;
        cx.reply(reply, 7u64);
    }
}

fn main() {}
