//! Announcing this node's types to the authority, until it has taken them in.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ShardKey, Time, TypeId,
    proto::{
        region::ASK_RETRY,
        shard::ShardCommand,
        sharding::{ControlFrame, SHARDS_MAX, TypeInfo},
    },
};

use super::{Due, Effect, Members, NodeCore};

/// What this node uses and hosts, and what the authority has said of it.
#[derive(Debug, Default)]
pub(super) struct Registration {
    types: Vec<TypeInfo>,
    /// How many types stood in the announcement of each number: the newest has all.
    counts: Vec<usize>,
    /// The newest one that was answered.
    answered: Option<u64>,
    told: BTreeMap<TypeId, Result<(), String>>,
}

impl Registration {
    pub fn types(&self) -> &[TypeInfo] {
        &self.types
    }

    fn find(&self, ty: TypeId) -> Option<&TypeInfo> {
        self.types.iter().find(|t| t.ty == ty)
    }

    /// Whether this node uses or hosts the type.
    pub fn is_known(&self, ty: TypeId) -> bool {
        self.find(ty).is_some()
    }

    /// Whether it hosts the type, and that may have the shard.
    pub fn hosts(&self, shard: ShardKey) -> bool {
        self.find(shard.ty).is_some_and(|t| t.host && (t.shards == 0 || shard.shard.0 < t.shards))
    }

    /// Number of shards of a type of this node; 0 if it is not registered here, or not known yet.
    pub fn shards(&self, ty: TypeId) -> u32 {
        self.find(ty).map_or(0, |t| t.shards)
    }

    /// Its name, or its id if the name is not known here.
    pub fn name(&self, ty: TypeId) -> Arc<str> {
        self.find(ty).map_or_else(|| format!("{:08x}", ty.0).into(), |t| t.name.as_str().into())
    }

    /// Number of the newest announcement; 0 before there is any.
    pub fn number(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Something of the types is new: they are announced anew.
    fn changed(&mut self) {
        self.counts.push(self.types.len());
    }

    /// The authority has answered the newest announcement.
    fn is_answered(&self) -> bool {
        self.answered == Some(self.number())
    }

    fn waits_for_number(&self) -> bool {
        self.types.iter().any(|t| t.shards == 0)
    }

    /// Another authority knows nothing of this node.
    pub fn forget(&mut self) {
        self.answered = None;
    }
}

impl<M: Members> NodeCore<M> {
    pub(super) fn add_type(&mut self, now: Time, info: TypeInfo) {
        let host = info.host;
        match self.registration.types.iter_mut().find(|t| t.ty == info.ty) {
            Some(known) if known.name != info.name => {
                let why =
                    format!("the names `{}` and `{}` have the same id {:08x}; rename one of the types", info.name, known.name, info.ty.0);
                return self.effects.push_back(Effect::TypeReady { ty: info.ty, result: Err(why) });
            }
            Some(known) if known.shards != info.shards && known.shards > 0 && info.shards > 0 => {
                let why =
                    format!("type `{}` is registered here with {} shards; it cannot have {} as well", info.name, known.shards, info.shards);
                return self.effects.push_back(Effect::TypeReady { ty: info.ty, result: Err(why) });
            }
            Some(known) => {
                known.host |= info.host;
                self.registration.told.remove(&info.ty);
            }
            None => self.registration.types.push(TypeInfo { shards: 0, ..info.clone() }),
        }
        self.set_number(now, info.ty, info.shards);
        self.registration.changed();
        if host {
            self.tell_workers(&ShardCommand::Host { ty: info.ty });
        }
        self.register(now);
    }

    /// The authority has said a number of shards. Taken by a type that waited for one.
    pub(super) fn adopt_number(&mut self, now: Time, ty: TypeId, shards: u32) {
        if self.set_number(now, ty, shards) {
            self.registration.told.insert(ty, Ok(()));
            self.effects.push_back(Effect::TypeReady { ty, result: Ok(()) });
        }
    }

    /// The number of shards of a type is known: what waited for it goes on its way, and producers may send by shard. False if it was known
    /// before, or cannot be.
    fn set_number(&mut self, now: Time, ty: TypeId, shards: u32) -> bool {
        let known = self.registration.types.iter_mut().find(|t| t.ty == ty && t.shards == 0);
        let Some(known) = known.filter(|_| (1..=SHARDS_MAX).contains(&shards)) else { return false };
        known.shards = shards;
        self.with_region(|region, peers, out| region.sized(now, ty, shards, peers, out));
        self.effects.push_back(Effect::TypeSized { ty, shards });
        true
    }

    /// Announces the types if the authority does not know them all, or has not said all numbers of shards: its word may have been lost.
    pub(super) fn register(&mut self, now: Time) {
        if self.ended || self.authority.is_none() || (self.registration.is_answered() && !self.registration.waits_for_number()) {
            return self.timers.clear(Due::Register);
        }
        self.timers.set(Due::Register, now + ASK_RETRY);
        self.tell_authority(ControlFrame::Register { number: self.registration.number(), types: self.registration.types.clone() });
    }

    pub(super) fn registered(&mut self, now: Time, number: u64, refused: Vec<(TypeId, String)>) {
        let number = number.min(self.registration.number());
        self.registration.answered = self.registration.answered.max(Some(number));
        let newest = self.registration.answered.unwrap_or(0).checked_sub(1).and_then(|at| usize::try_from(at).ok());
        let answered = newest.and_then(|at| self.registration.counts.get(at)).copied().unwrap_or(0);
        // A type whose number of shards is not in force yet is taken in once it is.
        let accepted: Vec<_> = self.registration.types[..answered].iter().filter(|t| t.shards > 0).map(|t| t.ty).collect();
        let accepted = accepted.into_iter().filter(|ty| refused.iter().all(|(r, _)| r != ty)).map(|ty| (ty, Ok(())));
        let refused = refused.iter().filter(|(ty, _)| self.registration.is_known(*ty)).map(|(ty, why)| (*ty, Err(why.clone())));
        let results: Vec<_> = accepted.chain(refused).collect();
        for (ty, result) in results {
            if self.registration.told.get(&ty) != Some(&result) {
                self.registration.told.insert(ty, result.clone());
                let refused = result.is_err();
                self.with_region(|region, _, out| region.set_refused(ty, refused, out));
                self.effects.push_back(Effect::TypeReady { ty, result });
            }
        }
        if self.registration.is_answered() && self.registration.waits_for_number() {
            return self.timers.set(Due::Register, now + ASK_RETRY);
        }
        // Was it the answer to an earlier announcement, the newest is repeated: its own answer may have been lost.
        self.register(now);
    }
}
