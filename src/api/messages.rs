//! Entity types and their messages, as senders know them.

use std::{fmt, marker::PhantomData};

use super::{EntityKey, Wire};

/// What a *sender* knows of an entity: name, key, messages.
///
/// [`messages!`](crate::messages) declares it; it needs no implementation of the entity.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an entity type",
    label = "expected the name that `messages!` declares after `for`",
    note = "regions and references name the protocol (`Region<Plane>`), not the struct that implements it"
)]
pub trait EntityType: Sized + 'static {
    /// Stable name.
    const TYPE: &'static str;
    /// Names of the messages, for tools.
    const MESSAGES: &'static [&'static str] = &[];
    /// What tells entities of this type apart.
    type Key: EntityKey;
    /// All its messages.
    type Msg: Wire + Message<Self>;

    /// Where the message's name stands in [`MESSAGES`](Self::MESSAGES), for reports.
    fn variant(msg: &Self::Msg) -> u16 {
        let _ = msg;
        u16::MAX
    }
}

/// `Self` may be sent to entities of type `T`.
#[diagnostic::on_unimplemented(
    message = "`{T}` does not understand `{Self}`",
    label = "not a message of `{T}`",
    note = "add `{Self}` to the `messages!` block of `{T}`"
)]
pub trait Message<T: EntityType>: Sized {
    /// The message as one of the type's.
    fn into_msg(self) -> T::Msg;
}

/// `Self` may be asked of entities of type `T`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be asked of `{T}`",
    label = "no reply is declared for this message",
    note = "write `{Self} -> ReplyType` in the `messages!` block of `{T}`, or use `tell`"
)]
pub trait Request<T: EntityType>: Message<T> {
    /// What answers it.
    type Reply: Wire;
}

/// Second field of a request's variant.
///
/// Zero bytes, not on the wire, not a handle: it only lets the compiler check that a handler gives the declared type, at most once, and that one which
/// drops it warns as an unused variable. It belongs to the turn it arrived in.
pub struct ReplyTag<V>(PhantomData<fn() -> V>);

impl<V> Default for ReplyTag<V> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<V> Clone for ReplyTag<V> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<V> PartialEq for ReplyTag<V> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<V> Eq for ReplyTag<V> {}

impl<V> fmt::Debug for ReplyTag<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyTag")
    }
}

/// Declares an entity type, the enum of its messages, and their payloads.
///
/// `Name` and `Name { fields }` also declare a struct of that name with public fields, `Clone`, `Debug` and serde; `Name(Type)` takes a type of yours.
/// A message's number on the wire is its position: add new ones at the end, never reorder.
///
/// ```
/// # #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)] pub struct Status { pub legs: u32 }
/// # wingbeat::wire!(Status = "fleet.status");
/// wingbeat::messages! {
///     pub enum PlaneMsg for Plane(String) = "fleet.plane" {
///         Departed { origin: String, delay_min: i32 },
///         GetStatus -> Status,
///         Tick,
///     }
/// }
///
/// fn handle(message: PlaneMsg) {
///     match message {
///         PlaneMsg::Departed(Departed { origin, delay_min }) => println!("left {origin}, {delay_min} min late"),
///         PlaneMsg::GetStatus(GetStatus, reply) => drop(reply), // `cx.reply(reply, status)` in an entity
///         PlaneMsg::Tick(_) => {}
///     }
/// }
/// ```
#[macro_export]
macro_rules! messages {
    ($(#[$meta:meta])* $vis:vis enum $name:ident for $tag:ident($key:ty) = $wire:literal {
        $( $(#[$vmeta:meta])* $var:ident $( ( $ty:ty ) )? $( { $($fields:tt)* } )? $( -> $reply:ty )? ),+ $(,)?
    }) => {
        $(#[$meta])*
        #[allow(missing_docs, clippy::large_enum_variant)]
        $vis enum $name { $( $var($crate::__payload!($var $(($ty))?) $(, $crate::ReplyTag<$reply>)?) ),+ }

        #[doc = ::std::concat!("Entity type `", $wire, "`.")]
        #[derive(Debug)]
        $vis struct $tag;

        impl $crate::EntityType for $tag {
            const TYPE: &'static str = $wire;
            const MESSAGES: &'static [&'static str] = &[$(::std::stringify!($var)),+];
            type Key = $key;
            type Msg = $name;

            fn variant(msg: &$name) -> u16 {
                #[repr(u16)]
                enum At { $($var),+ }
                match msg {
                    $( $name::$var(..) => At::$var as u16, )+
                }
            }
        }

        impl $crate::Message<$tag> for $name {
            fn into_msg(self) -> $name {
                self
            }
        }

        $(
            $crate::__declare!([$(#[$vmeta])*] $vis $var $(($ty))? $({ $($fields)* })?);

            impl $crate::Message<$tag> for $crate::__payload!($var $(($ty))?) {
                fn into_msg(self) -> $name {
                    $name::$var(self $(, $crate::ReplyTag::<$reply>::default())?)
                }
            }

            $crate::__request!($tag [$var $(($ty))?] $($reply)?);
        )+

        impl $crate::Wire for $name {
            const NAME: &'static str = $wire;

            fn encode(&self, _: u16, out: &mut ::std::vec::Vec<u8>) -> ::std::result::Result<(), $crate::CodecError> {
                #[repr(u16)]
                enum At { $($var),+ }
                match self {
                    $( $name::$var(payload, ..) => $crate::__private::message(At::$var as u16, payload, out), )+
                }
            }

            fn decode(_: u16, input: &mut &[u8]) -> ::std::result::Result<Self, $crate::CodecError> {
                #[allow(non_upper_case_globals)]
                mod at {
                    #[repr(u16)]
                    enum At { $($var),+ }
                    $( pub const $var: u16 = At::$var as u16; )+
                }
                match $crate::__private::variant(input)? {
                    $( at::$var => $crate::__private::decode::<$crate::__payload!($var $(($ty))?)>(input)
                        .map(|payload| $crate::Message::<$tag>::into_msg(payload)), )+
                    unknown => ::std::result::Result::Err($crate::CodecError::UnknownMessage { entity_type: $wire.into(), variant: unknown }),
                }
            }
        }
    };
}

/// The payload's type: the declared struct, or the given type.
#[doc(hidden)]
#[macro_export]
macro_rules! __payload {
    ($var:ident) => {
        $var
    };
    ($var:ident ($ty:ty)) => {
        $ty
    };
}

/// What has a reply can be asked.
#[doc(hidden)]
#[macro_export]
macro_rules! __request {
    ($tag:ident [$($payload:tt)*]) => {};
    ($tag:ident [$($payload:tt)*] $reply:ty) => {
        impl $crate::Request<$tag> for $crate::__payload!($($payload)*) {
            type Reply = $reply;
        }
    };
}

/// The payload's struct, unless it is a given type.
#[doc(hidden)]
#[macro_export]
macro_rules! __declare {
    ([$($meta:tt)*] $vis:vis $var:ident) => {
        $($meta)*
        #[derive(Clone, Debug, $crate::__private::serde::Serialize, $crate::__private::serde::Deserialize)]
        #[serde(crate = "::wingbeat::__private::serde")]
        #[allow(missing_docs)]
        $vis struct $var;
    };
    ([$($meta:tt)*] $vis:vis $var:ident { $($(#[$fmeta:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $($meta)*
        #[derive(Clone, Debug, $crate::__private::serde::Serialize, $crate::__private::serde::Deserialize)]
        #[serde(crate = "::wingbeat::__private::serde")]
        #[allow(missing_docs)]
        $vis struct $var { $($(#[$fmeta])* pub $field: $ty),* }
    };
    ([$($meta:tt)*] $vis:vis $var:ident ($ty:ty)) => {};
}
