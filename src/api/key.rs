//! Keys of entities, and addresses of entities as data.

use std::{
    borrow::Cow,
    convert::Infallible,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{CodecError, EntityType, Message};

/// Longest key, in canonical bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// Identifies an entity within its type.
///
/// The library hashes the bytes of [`write_to`](Self::write_to) with XXH3-64 (seed 0); there are at most [`KEY_BYTES_MAX`] of them. Integers write
/// their little-endian bytes, text its UTF-8. The text form is what people type in tools and URLs. Implemented for integers and `String`; newtypes
/// use [`key!`](crate::key).
///
/// | key | canonical bytes | XXH3-64 |
/// | --- | --- | --- |
/// | `1u64` | `01 00 00 00 00 00 00 00` | `0x2fbc593564db792e` |
/// | `"N14228"` | `4e 31 34 32 32 38` | `0x045bf808ce8196a6` |
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the key of an entity",
    label = "not an `EntityKey`",
    note = "keys are `u32`, `u64`, `u128`, `i64`, `String`, or a newtype declared with `wingbeat::key! {{ pub struct {Self}(String); }}`"
)]
pub trait EntityKey: Clone + Eq + Hash + fmt::Debug + fmt::Display + FromStr + Send + Sync + 'static {
    /// Appends the canonical bytes: equal keys write equal bytes, different keys different ones.
    fn write_to(&self, out: &mut Vec<u8>);
    /// The key that wrote exactly these bytes.
    ///
    /// # Errors
    /// [`CodecError`]: no key writes these bytes. Messages with them are dropped as undecodable.
    fn read_from(bytes: &[u8]) -> Result<Self, CodecError>;
}

/// The canonical bytes of a key in its text form. `Err`: why it is none.
#[cfg(feature = "admin")]
pub(crate) fn read_typed<K: EntityKey>(text: &str) -> Result<Vec<u8>, String> {
    let key: K = text.parse().map_err(|_| format!("`{}` is no key of this type", text.escape_debug()))?;
    let mut bytes = vec![];
    key.write_to(&mut bytes);
    Ok(bytes)
}

macro_rules! integer_keys {
    ($($t:ty),+) => { $(
        impl EntityKey for $t {
            #[inline]
            fn write_to(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read_from(bytes: &[u8]) -> Result<Self, CodecError> {
                let bytes = bytes.try_into().map_err(|_| {
                    CodecError::Decode(format!("a key of type {} has {} bytes, got {}", stringify!($t), size_of::<$t>(), bytes.len()))
                })?;
                Ok(Self::from_le_bytes(bytes))
            }
        }
    )+ };
}
integer_keys!(u32, u64, u128, i64);

impl EntityKey for String {
    fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn read_from(bytes: &[u8]) -> Result<Self, CodecError> {
        std::str::from_utf8(bytes).map(Self::from).map_err(|e| CodecError::Decode(format!("a text key is not UTF-8: {e}")))
    }
}

/// The key of singletons: there is one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Singleton;

impl fmt::Display for Singleton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("singleton")
    }
}

impl FromStr for Singleton {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self, CodecError> {
        match text {
            "singleton" => Ok(Self),
            other => Err(CodecError::Decode(format!("`{}` is not `singleton`, the only key there is", other.escape_debug()))),
        }
    }
}

impl EntityKey for Singleton {
    fn write_to(&self, out: &mut Vec<u8>) {
        out.push(1);
    }

    fn read_from(bytes: &[u8]) -> Result<Self, CodecError> {
        if bytes == [1] { Ok(Self) } else { Err(CodecError::Decode("not the key of a singleton".to_owned())) }
    }
}

/// What [`EntityId::new`] and a region's `get` take: a key, a reference to one, or `&str` where the key is text.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of this entity type: its key is `{K}`",
    label = "expected `{K}`",
    note = "give a `{K}`, a `&{K}`, or `&str` where the key is text"
)]
pub trait IntoKey<K> {
    /// The key.
    fn into_key(self) -> K;
}

impl<K: EntityKey> IntoKey<K> for K {
    fn into_key(self) -> K {
        self
    }
}

impl<K: EntityKey> IntoKey<K> for &K {
    fn into_key(self) -> K {
        self.clone()
    }
}

impl IntoKey<String> for &str {
    fn into_key(self) -> String {
        self.into()
    }
}

/// Declares a newtype with everything a key needs: `key! { pub struct PlaneId(String); }`.
///
/// ```
/// wingbeat::key! {
///     /// A tail number.
///     pub struct PlaneId(String);
/// }
/// let id: PlaneId = "N14228".parse()?;
/// assert_eq!(id.to_string(), "N14228");
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[macro_export]
macro_rules! key {
    ($(#[$meta:meta])* $vis:vis struct $name:ident($inner:ty);) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        $vis struct $name(
            /// What the key wraps.
            pub $inner,
        );

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = <$inner as ::std::str::FromStr>::Err;

            fn from_str(text: &str) -> ::std::result::Result<Self, Self::Err> {
                text.parse().map($name)
            }
        }

        impl $crate::EntityKey for $name {
            fn write_to(&self, out: &mut ::std::vec::Vec<u8>) {
                $crate::EntityKey::write_to(&self.0, out)
            }

            fn read_from(bytes: &[u8]) -> ::std::result::Result<Self, $crate::CodecError> {
                $crate::EntityKey::read_from(bytes).map($name)
            }
        }

        impl ::std::convert::From<$inner> for $name {
            fn from(inner: $inner) -> Self {
                $name(inner)
            }
        }

        impl<'a> $crate::IntoKey<$name> for &'a str
        where
            $name: $crate::__private::FromText<'a>,
        {
            fn into_key(self) -> $name {
                $crate::__private::FromText::from_text(self)
            }
        }
    };
}

/// Text that is always a key. The lifetime keeps the compiler from judging `key!`'s bound before it is used.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "text is not always a `{Self}`",
    label = "not a key of this entity type",
    note = "give a `{Self}`, for instance by `text.parse()?`"
)]
pub trait FromText<'a>: Sized {
    /// The key that this text is.
    fn from_text(text: &'a str) -> Self;
}

impl<'a, K: FromStr<Err = Infallible>> FromText<'a> for K {
    fn from_text(text: &'a str) -> Self {
        text.parse().unwrap_or_else(|never| match never {})
    }
}

/// The address of an entity as data: put this, not a reference, into messages. Its text form is the key's.
pub struct EntityId<T: EntityType> {
    key: T::Key,
}

impl<T: EntityType> EntityId<T> {
    /// The entity with this key.
    pub fn new(key: impl IntoKey<T::Key>) -> Self {
        Self { key: key.into_key() }
    }

    /// Its key.
    pub fn key(&self) -> &T::Key {
        &self.key
    }
}

impl<T: EntityType> Clone for EntityId<T> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone() }
    }
}

impl<T: EntityType> PartialEq for EntityId<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T: EntityType> Eq for EntityId<T> {}

impl<T: EntityType> Hash for EntityId<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl<T: EntityType> fmt::Debug for EntityId<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?})", T::TYPE, self.key)
    }
}

impl<T: EntityType> fmt::Display for EntityId<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.key, f)
    }
}

impl<T: EntityType> FromStr for EntityId<T> {
    type Err = <T::Key as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(|key| Self { key })
    }
}

impl<T: EntityType> Serialize for EntityId<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.collect_str(&self.key);
        }
        let mut bytes = Vec::with_capacity(16);
        self.key.write_to(&mut bytes);
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de, T: EntityType> Deserialize<'de> for EntityId<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            return text.parse().map_err(|_| de::Error::custom(format_args!("`{}` is no key of {}", text.escape_debug(), T::TYPE)));
        }
        // One that is too long is read, as it was written: a state that holds it must not be lost. Whoever sends to it is refused.
        let bytes: Cow<'de, [u8]> = serde_bytes::deserialize(deserializer)?;
        T::Key::read_from(&bytes).map(|key| Self { key }).map_err(de::Error::custom)
    }
}

/// A message that says which entity it is for.
pub trait Addressed<T: EntityType> {
    /// Key and message.
    ///
    /// # Errors
    /// The message, when it has no key: it is then refused as [`Unaddressed`](crate::Refusal::Unaddressed).
    fn address(self) -> Result<(T::Key, T::Msg), T::Msg>;
}

impl<T: EntityType, M: Message<T>> Addressed<T> for (T::Key, M) {
    fn address(self) -> Result<(T::Key, T::Msg), T::Msg> {
        Ok((self.0, self.1.into_msg()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::messages! { pub enum PostMsg for Post(String) = "key.post" { Go } }

    #[test]
    fn an_id_is_read_as_it_was_written_however_long_its_key_is() {
        let id = EntityId::<Post>::new("x".repeat(KEY_BYTES_MAX + 45));
        let bytes = postcard::to_allocvec(&id).unwrap();
        assert_eq!(postcard::from_bytes::<EntityId<Post>>(&bytes).unwrap().key(), id.key(), "a state that holds it is not lost");
    }

    fn round<K: EntityKey>(key: K) -> K {
        let mut bytes = vec![];
        key.write_to(&mut bytes);
        K::read_from(&bytes).unwrap()
    }

    fn hash(key: impl EntityKey) -> u64 {
        let mut bytes = vec![];
        key.write_to(&mut bytes);
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    crate::key! { struct Tail(String); }
    crate::key! { struct Number(u64); }

    #[test]
    fn keys_are_what_their_bytes_say() {
        assert_eq!(round(7u32), 7);
        assert_eq!(round(u64::MAX), u64::MAX);
        assert_eq!(round(u128::MAX - 1), u128::MAX - 1);
        assert_eq!(round(i64::MIN), i64::MIN);
        assert_eq!(round(String::from("Zürich")), "Zürich");
        assert_eq!(round(Tail("N1".into())), Tail("N1".into()));
        assert_eq!(round(Number(9)), Number(9));
    }

    #[test]
    fn a_newtype_takes_the_place_of_what_it_wraps() {
        assert_eq!(IntoKey::<Tail>::into_key("N1"), Tail("N1".into()));
        assert_eq!(IntoKey::<Tail>::into_key(Tail::from(String::from("N1"))).to_string(), "N1");
        assert_eq!("17".parse::<Number>(), Ok(Number(17)));
        assert!("x".parse::<Number>().is_err());
    }

    #[test]
    fn bytes_that_no_key_wrote_are_refused() {
        assert_eq!(u64::read_from(&[1, 2, 3]).unwrap_err().to_string(), "decode: a key of type u64 has 8 bytes, got 3");
        assert!(String::read_from(&[0xff]).unwrap_err().to_string().contains("not UTF-8"));
    }

    #[test]
    fn the_hashes_of_keys_are_those_of_the_documentation() {
        assert_eq!(hash(1u64), 0x2fbc_5935_64db_792e);
        assert_eq!(hash(String::from("N14228")), 0x045b_f808_ce81_96a6);
    }
}
