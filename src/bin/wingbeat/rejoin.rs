//! A node that was downed starts again as a new member, where `membership.on_downed` says so.

use wingbeat::{Cluster, Config, ShutdownReason, ShutdownReport, config::OnDowned};

/// Members of the last view that the new life asks, beside its own seeds.
const ASKED_MAX: usize = 16;

/// The settings of the next life; `None` if there is none.
///
/// The new life stands on the old one's addresses and asks whom the old one knew. It never forms a cluster of its own: it would be a second
/// one beside that which removed it.
pub fn next_life(cluster: &Cluster, report: &ShutdownReport) -> Option<Config> {
    let mut config = cluster.config().clone();
    if config.membership.on_downed != OnDowned::Rejoin || !matches!(report.reason, ShutdownReason::Downed(_)) {
        return None;
    }
    let me = cluster.addr();
    if config.node.listen.port() == 0 && config.node.advertise.as_ref().is_none_or(|addr| addr.port == 0) {
        config.node.listen.set_port(me.port);
    }
    config.admin.listen = cluster.admin_addr().or(config.admin.listen);
    let mut seeds = config.cluster.seeds.clone();
    seeds.extend(cluster.view().members.iter().filter(|m| m.addr != *me).take(ASKED_MAX).map(|m| m.addr.to_string()));
    seeds.retain(|seed| seed.parse() != Ok(me.clone()));
    let mut asked = Vec::new();
    for seed in seeds {
        if !asked.contains(&seed) {
            asked.push(seed);
        }
    }
    config.cluster.seeds = asked;
    Some(config)
}
