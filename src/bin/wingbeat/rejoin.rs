//! A node that was downed starts again as a new member, where `membership.on_downed` says so.

use wingbeat::{Cluster, Config, ShutdownReason, ShutdownReport, config::OnDowned};

/// The settings of the next life, which stands on the old one's addresses; `None` if there is none. `configured`: those of the process.
pub fn next_life(configured: &Config, cluster: &Cluster, report: &ShutdownReport) -> Option<Config> {
    let me = cluster.addr();
    if configured.membership.on_downed != OnDowned::Rejoin || !matches!(report.reason, ShutdownReason::Downed(_)) {
        return None;
    }
    let mut config = configured.rejoining(me, cluster.view().members.iter().map(|m| m.addr.clone()));
    if config.node.listen.port() == 0 && config.node.advertise.as_ref().is_none_or(|addr| addr.port == 0) {
        config.node.listen.set_port(me.port);
    }
    config.admin.listen = cluster.admin_addr().or(config.admin.listen);
    Some(config)
}
