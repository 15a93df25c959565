//! From typed entities to what the engine runs.

use std::sync::Arc;

use crate::{
    CodecError, Cx, Entity, EntityKey, EntityType, HandedOver, KeyOf, MsgOf, NodeId, PanicInfo, ShardKey, StartCause, StopReason, Wire,
    engine::{
        parcel::{Answered, EngineParcel, Key, message_of},
        types::{Env, Instance, TypeHost},
    },
    proto::{
        handoff::{DropReason, ReplyBody},
        shard::{Directive, Parcel, Turn, TypeOptions},
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
        if let Some((state, from)) = state {
            let adopted = live.with(turn, |entity, cx| entity.adopted(HandedOver { state, from }, cx));
            if let Err(why) = adopted {
                tracing::error!(target: "wingbeat::engine", entity_type = E::Type::TYPE, shard = turn.at.shard.shard.0, %from, %why,
                    "an entity did not take the state that was handed over, and starts as new");
                turn.node.metrics.shared.adoptions_failed.add(1);
                live.entity = (self.factory)(&live.id);
            }
        }
        let gave_up = live.with(turn, |entity, cx| {
            entity.started(cx);
            cx.gave_up()
        });
        if gave_up { Err("it gave up when it started".to_owned()) } else { Ok(live) }
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
}

impl<E: Entity> Live<E> {
    fn with<R>(&mut self, env: &mut Env<'_>, f: impl FnOnce(&mut E, &mut Cx<'_, E>) -> R) -> R {
        let mut cx = Cx::new(&self.id, self.cause, None, 0, env);
        f(&mut self.entity, &mut cx)
    }
}

impl<E: Entity> Instance for Live<E> {
    fn handle(&mut self, env: &mut Env<'_>, parcel: &mut Option<EngineParcel>) -> Turn {
        if env.out.keep {
            keep_encoded(env.at.shard, parcel);
        }
        let (ask, reads) = parcel.as_ref().map_or((None, 0), |parcel| (parcel.ask(), parcel.reads()));
        let msg = match take::<MsgOf<E>>(parcel) {
            Ok(msg) => msg,
            Err(error) => {
                let reason = match error {
                    CodecError::UnknownMessage { .. } => DropReason::UnknownMessage,
                    _ => DropReason::Undecodable,
                };
                tracing::warn!(target: "wingbeat::engine", entity_type = E::Type::TYPE, shard = env.at.shard.shard.0, %error, "a message could not be read");
                if let Some(parcel) = parcel {
                    env.node.bury(env.at.shard, parcel, reason);
                }
                if let Some(ask) = ask {
                    env.out.answer(ask, Answered::Wire(ReplyBody::Dropped(reason)));
                }
                return Turn::Continue;
            }
        };
        env.out.handling = E::Type::variant(&msg);
        let mut cx = Cx::new(&self.id, self.cause, ask, reads, env);
        self.entity.handle(msg, &mut cx);
        cx.finish()
    }

    fn hand_over(&mut self, env: &mut Env<'_>) -> Result<Option<Vec<u8>>, String> {
        self.with(env, |entity, cx| entity.handoff(cx)).map(|h| h.state).map_err(|f| f.to_string())
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

/// The message of a parcel. An encoded one stays in its place, and so does what cannot be read.
fn take<M: Wire>(parcel: &mut Option<EngineParcel>) -> Result<M, CodecError> {
    if let Some(EngineParcel::Wire { envelope, .. }) = parcel {
        return M::decode(*M::VERSIONS.end(), &mut message_of(envelope));
    }
    match parcel.take() {
        Some(EngineParcel::Typed { msg, key, ask, reads }) => msg.take().map_err(|msg| {
            *parcel = Some(EngineParcel::Typed { msg, key, ask, reads });
            CodecError::Decode(format!("a message of another type than `{}`", M::NAME))
        }),
        _ => Err(CodecError::Decode("no message".to_owned())),
    }
}

/// Encodes a message that was sent on this node, so that it can be tried again. One that has no encoding is tried once.
fn keep_encoded(shard: ShardKey, parcel: &mut Option<EngineParcel>) {
    if let Some(typed @ EngineParcel::Typed { .. }) = parcel
        && let Ok(envelope) = typed.to_envelope(shard)
    {
        let hash = typed.hash();
        *parcel = Some(EngineParcel::Wire { envelope, hash });
    }
}

/// The key of an entity reference: canonical bytes and hash.
pub(crate) fn key_of<K: EntityKey>(key: &K) -> Key {
    let mut bytes = Vec::with_capacity(32);
    key.write_to(&mut bytes);
    Key::new(&bytes)
}
