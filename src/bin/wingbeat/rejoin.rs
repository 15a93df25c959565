//! A node that was downed starts again as a new member, where `membership.on_downed` says so; one that gave way to another cluster does in any case.

use wingbeat::{Cluster, Config, ShutdownReason, ShutdownReport, config::OnDowned};

/// The settings of the next life, which stands on the old one's addresses; `None` if there is none.
pub fn next_life(cluster: &Cluster, report: &ShutdownReport) -> Option<Config> {
    let (me, ended) = (cluster.addr(), cluster.config());
    let mut config = match &report.reason {
        ShutdownReason::Downed(_) if ended.membership.on_downed == OnDowned::Rejoin => {
            ended.rejoining(me, cluster.view().members.iter().map(|m| m.addr.clone()))
        }
        ShutdownReason::Superseded(by) => ended.asking(me, by.iter().cloned()),
        _ => return None,
    };
    if config.node.listen.port() == 0 && config.node.advertise.as_ref().is_none_or(|addr| addr.port == 0) {
        config.node.listen.set_port(me.port);
    }
    config.admin.listen = cluster.admin_addr().or(config.admin.listen);
    Some(config)
}
