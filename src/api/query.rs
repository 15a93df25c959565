//! What a region knows of its shards, and what the coordinator does.

use std::time::Duration;

use crossbeam::channel::RecvTimeoutError;

use super::context::resolve;
use crate::{
    Deadline, EntityType, Epoch, NodeId, QueryError, Region, ShardId, ShardKey, TypeId,
    proto::{
        node::{Answer, Command},
        sharding::{ShardState, TableRow},
    },
};

/// A shard, as the coordinator sees it. Counts are reported about once a second.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ShardInfo {
    /// Which.
    pub shard: ShardId,
    /// Its home, or where it is about to be.
    pub owner: Option<NodeId>,
    /// Grows with each assignment; 0 if it never had a home.
    pub epoch: Epoch,
    /// How far it is.
    pub state: ShardState,
    /// Live entities.
    pub entities: u32,
    /// Messages handled per second.
    pub rate_per_s: f32,
}

/// A type in numbers, as the coordinator sees it. Counts of entities are reported about once a second.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct RegionStats {
    /// Shards that have a home.
    pub shards: u32,
    /// Shards whose home is this node.
    pub shards_here: u32,
    /// Shards that are on the move or about to start.
    pub moving: u32,
    /// Live entities in the cluster.
    pub entities: u64,
    /// Live entities on this node.
    pub entities_here: u64,
    /// Messages handled per second in the cluster.
    pub rate_per_s: f64,
}

/// How long this node's own threads may take to answer.
const OWN: Duration = Duration::from_secs(5);

impl<T: EntityType> Region<T> {
    /// The home of the entity with this key, as this node believes now: it may be older than the truth, and is `None` as long as nothing was
    /// sent there from here. Asks the network thread of this node; [`locate`](Self::locate) asks the coordinator.
    ///
    /// # Errors
    /// [`QueryError`]: another shard count is in force than this node registered the type with, this node is shutting down, its network thread does
    /// not answer, or this is a worker thread.
    pub fn owner_of(&self, key: &T::Key) -> Result<Option<NodeId>, QueryError> {
        self.may_count()?;
        let Some(shard) = self.shard_of(key) else { return Ok(None) };
        let shard = ShardKey { ty: TypeId::of(T::TYPE), shard };
        match self.question(move |id| Command::Locate { id, shard }, OWN)? {
            Answer::Located(found) => Ok(found.map(|(home, _)| home)),
            _ => Err(QueryError::Shutdown),
        }
    }

    /// Where the entity with this key lives: its shard, as the coordinator sees it. One that nobody has sent to yet has no home: `owner` is `None`.
    ///
    /// # Errors
    /// [`QueryError`]: another shard count is in force than this node registered the type with, the coordinator did not answer in time or is new, this node is
    /// shutting down, or this is a worker thread.
    pub fn locate(&self, key: &T::Key, deadline: impl Into<Deadline>) -> Result<ShardInfo, QueryError> {
        let rows = self.rows(deadline)?;
        self.may_count()?;
        let shard = self.shard_of(key).ok_or(QueryError::Timeout)?;
        Ok(rows.into_iter().find(|row| row.shard.shard == shard).map_or_else(|| no_home(shard), info))
    }

    /// All shards of the type, as the coordinator sees them, by number. Those that never had a home are among them.
    ///
    /// # Errors
    /// As [`locate`](Self::locate).
    pub fn table(&self, deadline: impl Into<Deadline>) -> Result<Vec<ShardInfo>, QueryError> {
        let rows = self.rows(deadline)?;
        self.may_count()?;
        let count = self.shards().ok_or(QueryError::Timeout)?;
        let mut all: Vec<ShardInfo> = (0..count).map(|n| no_home(ShardId(n))).collect();
        for row in rows {
            if let Some(place) = all.get_mut(row.shard.shard.0 as usize) {
                *place = info(row);
            }
        }
        Ok(all)
    }

    /// The type in numbers: the sums over its shards.
    ///
    /// # Errors
    /// [`QueryError`]: the coordinator did not answer in time or is new, this node is shutting down, or this is a worker thread.
    pub fn stats(&self, deadline: impl Into<Deadline>) -> Result<RegionStats, QueryError> {
        let (rows, me) = (self.rows(deadline)?, self.node().id);
        let mut stats = RegionStats::default();
        for row in rows.iter().filter(|row| row.owner.is_some()) {
            let here = row.owner == Some(me);
            stats.shards += 1;
            stats.shards_here += u32::from(here);
            stats.moving += u32::from(matches!(row.state, ShardState::Moving | ShardState::Starting));
            stats.entities += u64::from(row.entities);
            stats.entities_here += if here { u64::from(row.entities) } else { 0 };
            stats.rate_per_s += f64::from(row.rate_per_s);
        }
        Ok(stats)
    }

    fn rows(&self, deadline: impl Into<Deadline>) -> Result<Vec<TableRow>, QueryError> {
        let ty = TypeId::of(T::TYPE);
        match self.question(move |id| Command::Table { id, ty: Some(ty) }, deadline)? {
            Answer::Table { rows, .. } => Ok(rows),
            Answer::Refused(why) => Err(QueryError::Refused { why }),
            Answer::NotKnown => Err(QueryError::TakingOver),
            _ => Err(QueryError::Timeout),
        }
    }

    /// Whether the shards of the cluster are those that this node counts.
    fn may_count(&self) -> Result<(), QueryError> {
        self.entry().refused().map_or(Ok(()), |why| Err(QueryError::Refused { why }))
    }

    fn may_wait(&self) -> Result<(), QueryError> {
        if super::reference::on_engine_thread() {
            return Err(QueryError::WouldDeadlock);
        }
        self.serves()
    }

    /// Puts a command and waits for its answer.
    fn question(&self, make: impl FnOnce(u64) -> Command + Send + 'static, deadline: impl Into<Deadline>) -> Result<Answer, QueryError> {
        self.may_wait()?;
        self.node().command_and_wait(make, resolve(self.node(), deadline)).map_err(|error| match error {
            RecvTimeoutError::Timeout => QueryError::Timeout,
            RecvTimeoutError::Disconnected => QueryError::Shutdown,
        })
    }
}

fn info(row: TableRow) -> ShardInfo {
    let TableRow { shard, owner, epoch, state, entities, rate_per_s, .. } = row;
    ShardInfo { shard: shard.shard, owner, epoch, state, entities, rate_per_s }
}

fn no_home(shard: ShardId) -> ShardInfo {
    ShardInfo { shard, owner: None, epoch: Epoch::ZERO, state: ShardState::Unowned, entities: 0, rate_per_s: 0.0 }
}
