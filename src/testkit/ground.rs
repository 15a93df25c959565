//! What the lone entities of one thread have in common: their clock, and a node that sends and runs nothing.

use std::{
    any::Any,
    cell::{Cell, OnceCell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, Weak},
};

use crossbeam::channel::{Receiver, unbounded};

use super::{solo::drain, time::Ticker};
use crate::{
    Config, Entity, EntityRef, EntityType, IntoKey, KeyOf, NodeAddr,
    api::Factory,
    config::{Preset, Workers},
    engine::{
        lane::{Bell, Door, Ring},
        node::{Job, Node, ToNet},
        types::TypeEntry,
    },
    proto::membership::Identity,
};

/// Settings of nodes that are no members of anything.
pub(super) fn config() -> Arc<Config> {
    let mut config = Config::preset(Preset::LocalTest);
    config.node.workers = Workers::Count(1);
    Arc::new(config)
}

/// What the lone entities of one thread share.
pub(super) struct Ground {
    pub time: Arc<Ticker>,
    pub node: Arc<Node>,
    pub jobs: Receiver<Job>,
    rings: RefCell<Vec<Ring<ToNet>>>,
    /// Homes of entities so far.
    homes: Cell<u64>,
    /// Their nodes, as far as they live.
    living: RefCell<Vec<Weak<Node>>>,
    /// Types that references were made for: each home knows them.
    known: RefCell<Vec<fn() -> TypeEntry>>,
}

thread_local! {
    static GROUND: OnceCell<Rc<Ground>> = const { OnceCell::new() };
    static FACTORIES: RefCell<BTreeMap<u64, Rc<dyn Any>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Ground {
    /// The calling thread's.
    pub fn of_thread() -> Rc<Self> {
        GROUND.with(|ground| ground.get_or_init(|| Rc::new(Self::new())).clone())
    }

    fn new() -> Self {
        let time = Ticker::new();
        let me = Identity { addr: NodeAddr::new("test", 1), incarnation: 0 };
        let (helper, jobs) = unbounded();
        let door = Door::new(Arc::new(Bell::new(|| {})));
        let node = Arc::new(Node::new(config(), me, Box::new([]), door, helper, None, time.clock()));
        Self { time, node, jobs, rings: RefCell::default(), homes: Cell::new(0), living: RefCell::default(), known: RefCell::default() }
    }

    /// A number for a home.
    pub fn next_home(&self) -> u64 {
        self.homes.set(self.homes.get() + 1);
        self.homes.get()
    }

    /// Takes a home in, which knows its own type already.
    pub fn welcome(&self, node: &Arc<Node>) {
        self.known.borrow().iter().for_each(|make| drop(node.enter_type(make())));
        let mut living = self.living.borrow_mut();
        living.retain(|home| home.strong_count() > 0);
        living.push(Arc::downgrade(node));
    }

    /// Makes a type known to all homes. Called in the middle of a turn, if a factory makes the reference.
    fn introduce(&self, make: fn() -> TypeEntry) {
        if self.node.type_entry(make().id).is_some() {
            return;
        }
        self.node.enter_type(make());
        self.living.borrow().iter().filter_map(Weak::upgrade).for_each(|home| drop(home.enter_type(make())));
        self.known.borrow_mut().push(make);
    }

    /// What was sent through its node since the last time.
    pub fn drain(&self) -> Vec<ToNet> {
        drain(&self.node, &mut self.rings.borrow_mut())
    }
}

/// A reference that sends through this node, which needs no registration of its type.
pub(super) fn reference_on<T: EntityType>(node: &Arc<Node>, key: T::Key) -> EntityRef<T> {
    let entry = TypeEntry::new(T::TYPE, 0, std::any::TypeId::of::<T>());
    EntityRef::new(node.clone(), Arc::new(entry), key)
}

/// Where a [`Solo`](crate::testkit::Solo) sends: what it tells goes nowhere but into [`sent_to`](crate::testkit::Solo::sent_to), and what it
/// asks is answered by [`answer`](crate::testkit::Solo::answer). For the factory of an entity that has references in its state.
///
/// Lone entities know its type from then on, as if their nodes had a proxy for it. Belongs to the thread that makes it.
pub fn reference<T: EntityType>(key: impl IntoKey<T::Key>) -> EntityRef<T> {
    let ground = Ground::of_thread();
    ground.introduce(|| TypeEntry::new(T::TYPE, 0, std::any::TypeId::of::<T>()));
    reference_on(&ground.node, key.into_key())
}

/// A factory that need not be `Send`, as hosts want one: it works on the calling thread, which keeps it.
pub(super) fn local_factory<E: Entity>(f: impl Fn(&KeyOf<E>) -> E + 'static) -> Factory<E> {
    type Local<E> = Box<dyn Fn(&KeyOf<E>) -> E>;
    let local: Rc<dyn Any> = Rc::new(Box::new(f) as Local<E>);
    let number = FACTORIES.with_borrow_mut(|all| {
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, local);
        number
    });
    let kept = Kept(number);
    Arc::new(move |key| {
        let local = kept.factory().expect("a lone entity lives and dies on the thread that made it, and its factory with it");
        local.downcast_ref::<Local<E>>().expect("the number is that of a factory of this entity")(key)
    })
}

/// Forgets the factory at its end.
struct Kept(u64);

impl Kept {
    fn factory(&self) -> Option<Rc<dyn Any>> {
        FACTORIES.with_borrow(|all| all.get(&self.0).cloned())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Fails only while the thread is torn down, and all factories with it.
        let local = FACTORIES.try_with(|all| all.borrow_mut().remove(&self.0));
        drop(local);
    }
}
