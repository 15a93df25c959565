use wingbeat::*;

messages! { pub enum PlaneMsg for Plane(String) = "fleet.plane" { Tick } }

fn host(cluster: Cluster) {
    let _ = cluster.host::<Plane>(HostOptions::new(), |_| Plane);
}

fn main() {}
