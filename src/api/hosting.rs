//! From typed entities to what the engine runs.

use std::{sync::Arc, time::Duration};

use crate::{
    CodecError, Cx, Entity, EntityKey, EntityType, HandedOver, Handoff, KeyOf, MsgOf, NodeId, PanicInfo, StartCause, StopReason,
    engine::{
        panics,
        parcel::{Answered, Key, with_scratch},
        types::{Env, Instance, Mail, TypeHost},
    },
    proto::{
        handoff::{DropReason, ReplyBody},
        shard::{Directive, Turn, TypeOptions, Wish},
    },
};

/// The user's factory: called on a worker for each entity that comes to life there.
pub(crate) type Factory<E> = Arc<dyn Fn(&KeyOf<E>) -> E + Send + Sync>;

/// Makes entities of `E` with the user's factory.
struct HostOf<E: Entity> {
    factory: Factory<E>,
    options: TypeOptions,
}

/// What a node runs the entities of `E` with.
pub(crate) fn host_of<E: Entity>(factory: Factory<E>, options: TypeOptions) -> Arc<dyn TypeHost> {
    Arc::new(HostOf::<E> { factory, options })
}

struct Live<E: Entity> {
    entity: E,
    id: KeyOf<E>,
    cause: StartCause,
}

impl<E: Entity> TypeHost for HostOf<E> {
    fn start(
        &self,
        turn: &mut Env<'_>,
        key: &[u8],
        cause: StartCause,
        state: Option<(&[u8], NodeId)>,
    ) -> Result<Box<dyn Instance>, String> {
        let id = KeyOf::<E>::read_from(key).map_err(|e| format!("the key cannot be read: {e}"))?;
        let mut live = Box::new(Live { entity: (self.factory)(&id), id, cause });
        let mut leaves = false;
        if let Some((state, from)) = state {
            let (adopted, ends) = live.with(turn, |entity, cx| (entity.adopted(HandedOver { state, from }, cx), cx.turn()));
            match (adopted, ends) {
                (_, Turn::Failed) => return Err("it gave up when it was to take over".to_owned()),
                (Ok(()), ends) => leaves = ends == Turn::Passivate,
                (Err(why), _) => {
                    tracing::error!(target: "wingbeat::engine", entity_type = E::Type::TYPE, shard = turn.at.shard.shard.0, %from, %why,
                        "an entity did not take the state that was handed over, and starts as new");
                    turn.node.metrics.shared.adoptions_failed.add(1);
                    turn.discard(key);
                    live.entity = (self.factory)(&live.id);
                }
            }
        }
        let ends = live.with(turn, |entity, cx| {
            entity.started(cx);
            cx.turn()
        });
        match ends {
            Turn::Failed => return Err("it gave up when it started".to_owned()),
            Turn::Passivate => leaves = true,
            Turn::Continue => {}
        }
        // Behind the message that it was started for: that would start another one, and so on.
        if leaves {
            turn.out.wishes.push(Wish::Idle(Some(Duration::ZERO)));
        }
        Ok(live)
    }

    fn options(&self) -> TypeOptions {
        self.options
    }

    fn supervise(&self, panic: &PanicInfo, restarts: u32) -> Directive {
        E::supervise(panic, restarts)
    }

    fn message_name(&self, variant: u16) -> &'static str {
        E::Type::MESSAGES.get(usize::from(variant)).copied().unwrap_or("a message")
    }

    fn key_text(&self, key: &[u8]) -> Option<String> {
        // Of the user's making, for a line in a log: that must not end a thread.
        panics::caught(|| Some(KeyOf::<E>::read_from(key).ok()?.to_string())).flatten()
    }
}

impl<E: Entity> Live<E> {
    fn with<R>(&mut self, env: &mut Env<'_>, f: impl FnOnce(&mut E, &mut Cx<'_, E>) -> R) -> R {
        let mut cx = Cx::new(&self.id, self.cause, None, 0, env);
        f(&mut self.entity, &mut cx)
    }
}

impl<E: Entity> Instance for Live<E> {
    fn handle(&mut self, env: &mut Env<'_>, mail: &mut Mail<'_, '_>) -> Turn {
        let turn = mail.hand_to(|msg: MsgOf<E>, ask, reads| {
            env.out.handling = E::Type::variant(&msg);
            let mut cx = Cx::new(&self.id, self.cause, ask, reads, env);
            self.entity.handle(msg, &mut cx);
            cx.finish()
        });
        turn.unwrap_or_else(|error| unreadable(env, mail, E::Type::TYPE, &error))
    }

    fn hand_over(&mut self, env: &mut Env<'_>, out: &mut Vec<u8>) -> Result<bool, Box<str>> {
        env.out.states.begin();
        let Handoff { given } = self.with(env, |entity, cx| entity.handoff(cx)).map_err(|why| why.to_string())?;
        let Some(given) = given else { return Ok(false) };
        match env.out.states.take(given, out) {
            true => Ok(true),
            false => Err("its `Handoff` was made in another turn; `cx.hand_over` makes one for each".into()),
        }
    }

    fn key(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32);
        self.id.write_to(&mut bytes);
        bytes
    }

    fn entity(&self) -> &dyn std::any::Any {
        &self.entity
    }

    fn stop(mut self: Box<Self>, env: &mut Env<'_>, why: StopReason) {
        self.with(env, |entity, cx| entity.stopped(why, cx));
    }
}

/// A message that cannot be read ends here; the entity lives on.
#[cold]
fn unreadable(env: &mut Env<'_>, mail: &mut Mail<'_, '_>, entity_type: &str, error: &CodecError) -> Turn {
    let reason = match error {
        CodecError::UnknownMessage { .. } => DropReason::UnknownMessage,
        _ => DropReason::Undecodable,
    };
    if let Some(kept_back) = env.node.unreadable_log.pass(env.node.now()) {
        tracing::warn!(target: "wingbeat::engine", entity_type, shard = env.at.shard.shard.0, %error, kept_back, "a message could not be read; lines like this come once a second at most");
    }
    if let Some(parcel) = mail.left() {
        env.node.bury(env.at.shard, &parcel, reason);
    }
    if let (Some(ask), _) = mail.asker() {
        env.out.answer(*ask, Answered::Wire(ReplyBody::Dropped(reason)));
    }
    Turn::Continue
}

/// The key of an entity reference: canonical bytes and hash.
pub(crate) fn key_of<K: EntityKey>(key: &K) -> Key {
    with_scratch(|bytes| {
        key.write_to(bytes);
        Key::new(bytes)
    })
}
