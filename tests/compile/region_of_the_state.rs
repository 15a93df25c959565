use wingbeat::*;

struct PlaneState;

fn send(cluster: Cluster) {
    let _ = cluster.proxy::<PlaneState>();
}

fn main() {}
