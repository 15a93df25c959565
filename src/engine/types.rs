//! Entity types as the engine knows them, and their published routing words.

use std::{
    any::TypeId as RustTypeId,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::{Condvar, Mutex};

use crate::{
    CodecError, NodeId, PanicInfo, ShardId, ShardKey, TypeId, Wire,
    engine::{
        clock::Waited,
        letter::Letter,
        node::{Job, Node},
        out::Out,
        parcel::EngineParcel,
    },
    proto::{
        handoff::{Ask, DropReason, Word},
        shard::{Directive, Parcel, Place, StartCause, StopReason, Turn, TypeOptions, Wish},
        sharding::{Shards, UNSIZED},
    },
};

/// Makes the entities of one type. Called on worker threads.
pub trait TypeHost: Send + Sync {
    /// Makes the instance of `key`; `state` is what its predecessor handed over, and from where.
    fn start(&self, turn: &mut Env<'_>, key: &[u8], cause: StartCause, state: Option<(&[u8], NodeId)>)
    -> Result<Box<dyn Instance>, String>;
    /// How its entities are run here.
    fn options(&self) -> TypeOptions {
        TypeOptions::default()
    }
    /// What becomes of an entity after a panic.
    fn supervise(&self, panic: &PanicInfo, restarts: u32) -> Directive {
        let _ = (panic, restarts);
        Directive::Restart
    }
    /// The name of a message, by its number.
    fn message_name(&self, variant: u16) -> &'static str;
    /// A key as its type writes it; `None` if it cannot be read.
    fn key_text(&self, key: &[u8]) -> Option<String>;
}

/// The message of a turn.
pub enum Mail<'m, 'r> {
    /// On its own, with who waits for an answer, and the newest version of that which is read there.
    Parcel(&'m mut Option<EngineParcel>, Option<&'m Ask>, u8),
    /// Where its sender has put it.
    Letter(&'m mut Letter<'r>),
}

/// The message, if it is a parcel, or encoded.
#[inline(never)]
fn read<M: Wire>(letter: Option<&mut Letter<'_>>, parcel: Option<&mut Option<EngineParcel>>) -> Result<M, CodecError> {
    let encoded = match (letter, &parcel) {
        (Some(letter), _) => letter.message(),
        (None, Some(parcel)) => parcel.as_ref().and_then(EngineParcel::encoded),
        (None, None) => None,
    };
    if let Some(mut bytes) = encoded {
        return M::decode(*M::VERSIONS.end(), &mut bytes);
    }
    let taken = parcel.and_then(EngineParcel::take_from);
    taken.ok_or_else(|| CodecError::Decode(format!("no message, or one of another type than `{}`", M::NAME)))
}

impl<'m, 'r> Mail<'m, 'r> {
    /// One on its own, with who waits for its answer.
    pub fn parcel(parcel: &'m mut Option<EngineParcel>, ask: &'m Option<Ask>) -> Self {
        let reads = parcel.as_ref().map_or(0, EngineParcel::reads);
        Self::Parcel(parcel, ask.as_ref(), reads)
    }

    /// Who waits for an answer, and the newest version of it that is read there.
    #[inline]
    pub fn asker(&self) -> (Option<&'m Ask>, u8) {
        match self {
            Self::Parcel(_, ask, reads) => (*ask, *reads),
            Self::Letter(letter) => letter.asker(),
        }
    }

    /// Encodes a message that was sent on this node, so that it can be tried again. One that has no encoding is tried once; and so is a letter,
    /// which is not made of messages that are to be kept.
    pub fn keep(&mut self, shard: ShardKey) {
        if let Self::Parcel(parcel, ..) = self
            && let Some(typed @ EngineParcel::Typed { .. }) = &**parcel
            && let Ok(envelope) = typed.to_envelope(shard)
        {
            let hash = typed.hash();
            **parcel = Some(EngineParcel::Wire { envelope, hash });
        }
    }

    /// Gives the message to `f`, with who waits for an answer and the newest version of it that is read there. An encoded message stays in its
    /// place, and so does what cannot be read.
    ///
    /// It is not returned, because each stop of a value on its way from the ring to the handler costs as much as the rest of a short turn.
    #[inline(always)]
    pub fn hand_to<M: Wire, R>(&mut self, f: impl FnOnce(M, Option<&'m Ask>, u8) -> R) -> Result<R, CodecError> {
        let (ask, reads) = self.asker();
        let (letter, parcel) = match self {
            Self::Letter(letter) => (Some(&mut **letter), None),
            Self::Parcel(parcel, ..) => (None, Some(&mut **parcel)),
        };
        Letter::hand_to(letter, |message| f(message, ask, reads), |letter| read(letter, parcel))
    }

    /// What is left of it.
    pub fn left(&mut self) -> Option<EngineParcel> {
        match self {
            Self::Parcel(parcel, ..) => parcel.take(),
            Self::Letter(letter) => letter.lift(),
        }
    }
}

/// A live entity. Lives and dies on one worker thread.
pub trait Instance {
    /// One message, one turn. What is left of `mail` can be given to another instance should this one fail.
    fn handle(&mut self, turn: &mut Env<'_>, mail: &mut Mail<'_, '_>) -> Turn;
    /// Appends the state for the next owner; false if there is none.
    fn hand_over(&mut self, turn: &mut Env<'_>, out: &mut Vec<u8>) -> Result<bool, Box<str>>;
    /// Canonical bytes of its key.
    fn key(&self) -> Vec<u8>;
    /// The user's value, for tests.
    fn entity(&self) -> &dyn std::any::Any;
    /// Last call.
    fn stop(self: Box<Self>, turn: &mut Env<'_>, why: StopReason);
}

/// What surrounds a turn.
pub struct Env<'a> {
    /// The node.
    pub node: &'a Arc<Node>,
    /// Where and when.
    pub at: &'a Place,
    /// The worker's way out.
    pub out: &'a mut Out,
}

impl Env<'_> {
    /// An instance was none in the end, as it did not take the state that it was given: what it had set up for itself is not for the next one.
    pub fn discard(&mut self, key: &[u8]) {
        self.out.start_failed(self.node, self.at.shard, key);
        for wish in std::mem::take(&mut self.out.wishes) {
            if let Wish::Own(parcel) | Wish::Stash(parcel) = wish {
                self.node.bury(self.at.shard, &parcel, DropReason::Stopped);
            }
        }
    }
}

/// How the coordinator took a type in.
#[derive(Clone, PartialEq, Debug)]
pub enum Standing {
    /// Not heard yet.
    Asked,
    /// Taken in.
    Ready,
    /// Refused there: why.
    Refused(String),
}

/// The canonical bytes of a key that people have typed; `Err`: why it is none.
#[cfg(feature = "admin")]
pub type ReadKey = fn(&str) -> Result<Vec<u8>, String>;

/// One entity type on this node.
pub struct TypeEntry {
    /// On the wire.
    pub id: TypeId,
    /// Stable name.
    pub name: Arc<str>,
    /// What a host on this node has said; 0 if none has.
    declared: AtomicU32,
    /// Which Rust type declared it, so that two types cannot share a name.
    pub declared_by: RustTypeId,
    /// Reads its keys, as people type them.
    #[cfg(feature = "admin")]
    pub read_key: ReadKey,
    /// What makes its entities, from when it is hosted here until the node has stopped: what a factory keeps may keep the node.
    host: Mutex<Option<Arc<dyn TypeHost>>>,
    /// How they are run, once it is hosted here.
    options: OnceLock<TypeOptions>,
    /// Messages are kept until their handlers have returned.
    keeps: AtomicBool,
    standing: Mutex<Standing>,
    standing_changed: Condvar,
    /// One for each shard, once their number is known. Set on the network thread, behind what waited for the number, unless it was known
    /// before anything was sent.
    words: OnceLock<Words>,
    /// Who wants to hear that a shard's link has room again.
    waiters: Mutex<Vec<(ShardId, Job)>>,
}

/// The routing words of a type's shards.
struct Words {
    shards: Shards,
    words: Box<[AtomicU64]>,
}

impl Words {
    /// The word of that shard, if there is such a one.
    #[inline]
    fn of(&self, shard: ShardId) -> Option<&AtomicU64> {
        self.words.get(shard.0 as usize)
    }

    fn count(&self) -> u32 {
        self.words.len() as u32
    }
}

/// The bytes of a key for people: as text, if they are that.
pub fn show_bytes(key: &[u8]) -> String {
    std::str::from_utf8(key).map_or_else(|_| key.escape_ascii().to_string(), |text| text.escape_debug().to_string())
}

impl TypeEntry {
    /// A key for people: as its type writes it where that is hosted, else its bytes.
    pub fn show_key(&self, key: &[u8]) -> String {
        let text = self.host().and_then(|host| host.key_text(key));
        text.map_or_else(|| show_bytes(key), |text| text.escape_debug().to_string())
    }

    /// A type that is not hosted yet; every shard elsewhere. `shards` is 0 if the coordinator is to say the number.
    pub fn new(name: &str, shards: u32, declared_by: RustTypeId) -> Self {
        let entry = Self {
            id: TypeId::of(name),
            name: name.into(),
            declared: AtomicU32::new(shards),
            declared_by,
            #[cfg(feature = "admin")]
            read_key: |text| Ok(text.as_bytes().to_vec()),
            host: Mutex::new(None),
            options: OnceLock::new(),
            keeps: AtomicBool::new(false),
            standing: Mutex::new(Standing::Asked),
            standing_changed: Condvar::new(),
            words: OnceLock::new(),
            waiters: Mutex::default(),
        };
        if shards > 0 {
            entry.set_shards(shards);
        }
        entry
    }

    /// The same, with the keys that it has.
    #[cfg(feature = "admin")]
    pub fn with_keys(self, read_key: ReadKey) -> Self {
        Self { read_key, ..self }
    }

    /// Has the type hosted here. `Err`: it is already.
    pub fn set_host(&self, host: Arc<dyn TypeHost>) -> Result<(), Arc<dyn TypeHost>> {
        let options = host.options();
        if self.options.set(options).is_err() {
            return Err(host);
        }
        *self.host.lock() = Some(host);
        self.keeps.store(options.attempts > 1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the type is hosted here, or was when the node stopped.
    pub fn is_hosted(&self) -> bool {
        self.options.get().is_some()
    }

    /// What makes its entities here. For each of their starts, not for each message.
    pub fn host(&self) -> Option<Arc<dyn TypeHost>> {
        self.host.lock().clone()
    }

    /// No more entities start here. For the caller to drop, without a lock, as it is the user's.
    pub fn take_host(&self) -> Option<Arc<dyn TypeHost>> {
        self.host.lock().take()
    }

    /// Whether messages are kept until their handlers have returned.
    #[inline]
    pub fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// How its entities are run here.
    pub fn options(&self) -> TypeOptions {
        self.options.get().copied().unwrap_or_default()
    }

    /// Number of shards; `None` as long as this node has not heard it.
    pub fn shards(&self) -> Option<u32> {
        // A host's number is in force here before producers can see it.
        self.words.get().map(Words::count).or_else(|| Some(self.declared.load(Ordering::Acquire)).filter(|n| *n > 0))
    }

    /// The number that a host of this node brings: `Err` has another one that stands.
    pub fn declare(&self, shards: u32) -> Result<(), u32> {
        let standing = match self.words.get() {
            Some(words) => words.count(),
            None => match self.declared.compare_exchange(0, shards, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => shards,
                Err(standing) => standing,
            },
        };
        if standing == shards { Ok(()) } else { Err(standing) }
    }

    /// From now on messages go to their shards. Network thread only, once anything may have been sent.
    pub fn set_shards(&self, shards: u32) {
        self.words.get_or_init(|| Words { shards: Shards::new(shards), words: (0..shards).map(|_| AtomicU64::new(0)).collect() });
    }

    /// What the coordinator said.
    pub fn standing(&self) -> Standing {
        self.standing.lock().clone()
    }

    /// Why the coordinator refused the type as it is registered here, if it did: the number of shards here is not the one in force then.
    pub fn refused(&self) -> Option<String> {
        match self.standing() {
            Standing::Refused(why) => Some(why),
            Standing::Asked | Standing::Ready => None,
        }
    }

    /// Network thread only.
    pub fn set_standing(&self, standing: Standing) {
        *self.standing.lock() = standing;
        self.standing_changed.notify_all();
    }

    /// Wakes who waits for the standing, as the node serves no more. Nobody falls asleep between a look at that and this.
    pub fn wake(&self) {
        drop(self.standing.lock());
        self.standing_changed.notify_all();
    }

    /// Waits until the coordinator has said something, at most until `deadline`, and as long as the node serves.
    pub fn wait_standing(&self, node: &Node, deadline: crate::Time) -> Standing {
        let said = || Some(self.standing.lock().clone()).filter(|standing| *standing != Standing::Asked || !node.serves());
        match node.clock.wait(deadline, said) {
            Waited::Found(standing) => return standing,
            Waited::Late => return Standing::Asked,
            Waited::Machine => {}
        }
        let mut standing = self.standing.lock();
        while *standing == Standing::Asked && node.serves() {
            let left = deadline.since(node.now());
            if left.is_zero() {
                break;
            }
            self.standing_changed.wait_for(&mut standing, left);
        }
        standing.clone()
    }

    /// The shard of a key with this hash; [`UNSIZED`] as long as their number is not known.
    #[inline]
    pub fn shard_of(&self, hash: u64) -> ShardKey {
        ShardKey { ty: self.id, shard: self.words.get().map_or(UNSIZED, |words| words.shards.of(hash)) }
    }

    /// The shard of a key with this hash, and its routing word.
    #[inline]
    pub fn route(&self, hash: u64) -> (ShardKey, Word) {
        let Some(words) = self.words.get() else { return (ShardKey { ty: self.id, shard: UNSIZED }, Word::ELSEWHERE) };
        let shard = words.shards.of(hash);
        let word = words.of(shard).map_or(0, |word| word.load(Ordering::Acquire));
        (ShardKey { ty: self.id, shard }, Word::from_bits(word))
    }

    /// The shard's routing word: one load. Elsewhere if there is no such shard.
    #[inline]
    pub fn word(&self, shard: ShardId) -> Word {
        let word = self.words.get().and_then(|words| words.of(shard));
        word.map_or(Word::ELSEWHERE, |word| Word::from_bits(word.load(Ordering::Acquire)))
    }

    /// Publishes a routing word. Network thread only. False if the type has no such shard.
    pub fn publish(&self, shard: ShardId, word: Word) -> bool {
        let published = self.words.get().and_then(|words| words.of(shard)).map(|w| w.store(word.bits(), Ordering::Release));
        if word != Word::NO_ROOM {
            self.call_waiters(|waiting| waiting == shard);
        }
        published.is_some()
    }

    /// Runs `job` when the shard's word says no more that there is no room. `Err` gives it back: it does not say so, but this.
    pub fn when_room(&self, shard: ShardId, job: Job) -> Result<(), (Word, Job)> {
        let mut waiters = self.waiters.lock();
        // Under the lock that a publisher takes after the word: it either finds this waiter, or is seen here.
        match self.word(shard) {
            Word::NO_ROOM => {
                waiters.push((shard, job));
                Ok(())
            }
            word => Err((word, job)),
        }
    }

    /// Runs the jobs of those who wait for room in these shards.
    pub fn call_waiters(&self, of: impl Fn(ShardId) -> bool) {
        let mut waiters = self.waiters.lock();
        if waiters.is_empty() {
            return;
        }
        let (called, left) = std::mem::take(&mut *waiters).into_iter().partition(|(shard, _)| of(*shard));
        *waiters = left;
        drop(waiters);
        let called: Vec<(ShardId, Job)> = called;
        called.into_iter().for_each(|(_, job)| job());
    }
}

/// The types that a worker knows. Few, and looked up for every message: a walk is faster than a search.
#[derive(Default)]
pub struct Types {
    entries: Vec<Arc<TypeEntry>>,
    /// One of them wants its messages kept.
    any_keeps: bool,
}

impl Types {
    /// The one with that id.
    #[inline]
    pub fn get(&self, ty: TypeId) -> Option<&Arc<TypeEntry>> {
        self.entries.iter().find(|entry| entry.id == ty)
    }

    /// Takes one in, in the place of an older entry.
    pub fn insert(&mut self, entry: Arc<TypeEntry>) {
        self.entries.retain(|old| old.id != entry.id);
        self.entries.push(entry);
        self.any_keeps = self.entries.iter().any(|entry| entry.keeps());
    }

    /// Whether messages of some type must be.
    #[inline]
    pub const fn any_keeps(&self) -> bool {
        self.any_keeps
    }

    /// Whether messages of that type must be kept until their handlers have returned.
    #[inline]
    pub fn keeps(&self, ty: TypeId) -> bool {
        self.any_keeps && self.get(ty).is_some_and(|entry| entry.keeps())
    }
}
