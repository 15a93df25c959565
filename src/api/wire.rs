//! Values that cross node boundaries.

use std::{collections::BTreeMap, fmt, marker::PhantomData, ops::RangeInclusive};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

use super::CodecError;

/// A value that crosses node boundaries: messages, replies, topic values and states that move. [`wire!`](crate::wire) implements it over serde.
///
/// Numbers but `u8`, `usize` and `isize`, `bool`, `char`, `String`, `Vec<u8>`, `Duration` and `()` have it, and so have lists, options, results, pairs
/// and ordered maps of what has it. Fields of messages need only serde.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot cross the network yet",
    label = "not `Wire`",
    note = "derive serde's `Serialize` and `Deserialize` for `{Self}` and add `wire!({Self} = \"your.stable.name\");`, or implement `wingbeat::Wire` by hand; a type of another crate goes into a struct of yours"
)]
pub trait Wire: Sized + Send + Sync + 'static {
    /// Stable name. Renaming the Rust type does not change it.
    const NAME: &'static str;
    /// Versions this build reads and writes; two nodes use the highest they share, and refuse each other's value when there is none.
    const VERSIONS: RangeInclusive<u16> = 1..=1;
    /// What identifies the type on the wire: composed from its parts, so that `Option<A>` and `Option<B>` differ.
    const ID: u64 = wire_id(Self::NAME, &[]);
    /// Appends `self` in the layout of `version`, which is one of [`VERSIONS`](Self::VERSIONS).
    ///
    /// It must not send: it may run in the middle of a send, where another one is refused with [`Refusal::Shutdown`](crate::Refusal::Shutdown). Nor must
    /// the `Drop` of a message, which runs there as well.
    ///
    /// # Errors
    /// [`CodecError`]: the value has no encoding, and `out` is as before. A `tell` or `ask` of it is then refused with
    /// [`Refusal::Encode`](crate::Refusal::Encode).
    fn encode(&self, version: u16, out: &mut Vec<u8>) -> Result<(), CodecError>;
    /// Takes one value from the front of `input` and leaves the rest.
    ///
    /// # Errors
    /// [`CodecError`]: the bytes are no value of this type in that layout. They come from another process: anything may be in them.
    fn decode(version: u16, input: &mut &[u8]) -> Result<Self, CodecError>;
}

/// The id of a type with this name and these parts.
pub const fn wire_id(name: &str, parts: &[u64]) -> u64 {
    // FNV-1a over the name: a loop that a constant may run.
    let (name, mut hash, mut i) = (name.as_bytes(), 0xcbf2_9ce4_8422_2325_u64, 0);
    while i < name.len() {
        hash = (hash ^ name[i] as u64).wrapping_mul(0x100_0000_01b3);
        i += 1;
    }
    i = 0;
    while i < parts.len() {
        hash = (hash.rotate_left(5) ^ parts[i]).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        i += 1;
    }
    hash
}

/// Implements [`Wire`] over serde, under a stable name: `wire!(Receipt = "shop.receipt");`.
///
/// After a change of layout keep the old type: `wire!(Receipt = "shop.receipt" @ 2 { 1 => ReceiptV1 })` reads and writes version 1 through `From`
/// in both directions. Versions go from 1 to 255, and each from the lowest that is kept on must be there. They are of answers, published values and moving
/// states: inside of a message the type is as serde has it, and may only grow by [`Added`](crate::Added) fields.
///
/// The format (postcard) does not say what it holds: `#[serde(untagged)]`, `flatten` and `skip_serializing_if` cannot be read back.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use wingbeat::Wire;
///
/// #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
/// struct Receipt {
///     cents: u64,
/// }
/// wingbeat::wire!(Receipt = "shop.receipt");
///
/// let mut bytes = vec![];
/// Receipt { cents: 1999 }.encode(1, &mut bytes)?;
/// assert_eq!(Receipt::decode(1, &mut bytes.as_slice())?, Receipt { cents: 1999 });
/// # Ok::<(), wingbeat::CodecError>(())
/// ```
#[macro_export]
macro_rules! wire {
    ($($t:ty = $name:literal $(@ $now:literal { $($version:literal => $old:ty),+ $(,)? })?),+ $(,)?) => { $(
        impl $crate::Wire for $t {
            const NAME: &'static str = $name;
            $(const VERSIONS: ::std::ops::RangeInclusive<u16> = $crate::__private::versions(&[$($version),+], $now);)?

            fn encode(&self, version: u16, out: &mut ::std::vec::Vec<u8>) -> ::std::result::Result<(), $crate::CodecError> {
                $crate::__private::check_version::<Self>(version)?;
                $($(
                    if version == $version {
                        return $crate::__private::encode(&<$old as ::std::convert::From<$t>>::from(::std::clone::Clone::clone(self)), out);
                    }
                )+)?
                $crate::__private::encode(self, out)
            }

            fn decode(version: u16, input: &mut &[u8]) -> ::std::result::Result<Self, $crate::CodecError> {
                $crate::__private::check_version::<Self>(version)?;
                $($(
                    if version == $version {
                        return $crate::__private::decode::<$old>(input).map(<$t as ::std::convert::From<$old>>::from);
                    }
                )+)?
                $crate::__private::decode(input)
            }
        }
        $(const _: ::std::ops::RangeInclusive<u16> = $crate::__private::versions(&[$($version),+], $now);)?
    )+ };
}

/// A field added to a message that is already in use.
///
/// Put it last in its message, behind earlier `Added` fields. Nodes of before skip it; where they leave it out it reads as the default. It is not for
/// the elements of a list, which have no end of their own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Added<T>(pub T);

impl<T> From<T> for Added<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T: Serialize> Serialize for Added<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_some(&self.0)
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Added<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        private::tag_may_be_absent(true);
        deserializer.deserialize_option(AddedVisitor(PhantomData))
    }
}

struct AddedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for AddedVisitor<T> {
    type Value = Added<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or nothing")
    }

    fn visit_none<E: de::Error>(self) -> Result<Added<T>, E> {
        private::tag_may_be_absent(false);
        Ok(Added::default())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Added<T>, E> {
        self.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Added<T>, D::Error> {
        private::tag_may_be_absent(false);
        T::deserialize(deserializer).map(Added)
    }
}

macro_rules! by_serde {
    ($($t:ty = $name:literal),+ $(,)?) => { $(
        impl Wire for $t {
            const NAME: &'static str = $name;

            fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
                private::encode(self, out)
            }

            fn decode(_: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
                private::decode(input)
            }
        }
    )+ };
}
// Not `u8`: a list of those is written as bytes. Not `usize`: it differs from machine to machine.
by_serde!(
    () = "()",
    bool = "bool",
    char = "char",
    u16 = "u16",
    u32 = "u32",
    u64 = "u64",
    u128 = "u128",
    i8 = "i8",
    i16 = "i16",
    i32 = "i32",
    i64 = "i64",
    i128 = "i128",
    f32 = "f32",
    f64 = "f64",
    String = "str",
    std::time::Duration = "duration",
);

impl Wire for Vec<u8> {
    const NAME: &'static str = "bytes";

    fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        private::encode(serde_bytes::Bytes::new(self), out)
    }

    fn decode(_: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        private::decode::<serde_bytes::ByteBuf>(input).map(serde_bytes::ByteBuf::into_vec)
    }
}

impl<T: Wire> Wire for Vec<T> {
    const NAME: &'static str = "list";
    const VERSIONS: RangeInclusive<u16> = T::VERSIONS;
    const ID: u64 = wire_id(Self::NAME, &[T::ID]);

    fn encode(&self, version: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let start = out.len();
        private::encode(&(self.len() as u64), out)?;
        let first = out.len();
        for item in self {
            if let Err(error) = item.encode(version, out) {
                out.truncate(start);
                return Err(error);
            }
        }
        if self.len() > out.len() - first {
            let why = format!("a list of {} elements without bytes: its length would be all there is to check it by", self.len());
            out.truncate(start);
            return Err(CodecError::Encode(why));
        }
        Ok(())
    }

    fn decode(version: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        let claimed = private::decode::<u64>(input)?;
        // Every element has at least one byte.
        let count = usize::try_from(claimed)
            .ok()
            .filter(|&count| count <= input.len())
            .ok_or_else(|| CodecError::Decode(format!("a list of {claimed} elements in {} bytes", input.len())))?;
        // Room is made for few at first: an element in memory may be larger than its bytes.
        let mut list = Self::with_capacity(count.min(1024));
        for _ in 0..count {
            list.push(T::decode(version, input)?);
        }
        Ok(list)
    }
}

impl<T: Wire> Wire for Option<T> {
    const NAME: &'static str = "option";
    const VERSIONS: RangeInclusive<u16> = T::VERSIONS;
    const ID: u64 = wire_id(Self::NAME, &[T::ID]);

    fn encode(&self, version: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            None => out.push(0),
            Some(value) => private::tagged(1, value, version, out)?,
        }
        Ok(())
    }

    fn decode(version: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        match private::tag(input)? {
            0 => Ok(None),
            1 => T::decode(version, input).map(Some),
            other => Err(CodecError::Decode(format!("{other} where 0 or 1 marks an option"))),
        }
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    const NAME: &'static str = "result";
    const VERSIONS: RangeInclusive<u16> = private::versions_of_two::<T, E>();
    const ID: u64 = wire_id(Self::NAME, &[T::ID, E::ID]);

    fn encode(&self, version: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            Ok(value) => private::tagged(0, value, private::version_in::<T>(version), out),
            Err(error) => private::tagged(1, error, private::version_in::<E>(version), out),
        }
    }

    fn decode(version: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        match private::tag(input)? {
            0 => T::decode(private::version_in::<T>(version), input).map(Ok),
            1 => E::decode(private::version_in::<E>(version), input).map(Err),
            other => Err(CodecError::Decode(format!("{other} where 0 or 1 marks a result"))),
        }
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    const NAME: &'static str = "map";
    const VERSIONS: RangeInclusive<u16> = private::versions_of_two::<K, V>();
    const ID: u64 = wire_id(Self::NAME, &[K::ID, V::ID]);

    fn encode(&self, version: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let start = out.len();
        private::encode(&(self.len() as u64), out)?;
        let (of_key, of_value) = (private::version_in::<K>(version), private::version_in::<V>(version));
        let done = self.iter().try_for_each(|(key, value)| {
            key.encode(of_key, out)?;
            value.encode(of_value, out)
        });
        done.inspect_err(|_| out.truncate(start))
    }

    fn decode(version: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        let claimed = private::decode::<u64>(input)?;
        let (of_key, of_value) = (private::version_in::<K>(version), private::version_in::<V>(version));
        let mut map = Self::new();
        for _ in 0..claimed {
            // Where neither key nor value has bytes there is at most one entry, so that what was claimed costs no more than what was sent.
            if map.insert(K::decode(of_key, input)?, V::decode(of_value, input)?).is_some() {
                return Err(CodecError::Decode("a map has a key twice".to_owned()));
            }
        }
        Ok(map)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const NAME: &'static str = "pair";
    const VERSIONS: RangeInclusive<u16> = private::versions_of_two::<A, B>();
    const ID: u64 = wire_id(Self::NAME, &[A::ID, B::ID]);

    fn encode(&self, version: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let start = out.len();
        self.0.encode(private::version_in::<A>(version), out)?;
        self.1.encode(private::version_in::<B>(version), out).inspect_err(|_| out.truncate(start))
    }

    fn decode(version: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        Ok((A::decode(private::version_in::<A>(version), input)?, B::decode(private::version_in::<B>(version), input)?))
    }
}

/// Appends the value in each version that this build writes, newest first: version 1 byte, length 4 bytes, value.
pub(crate) fn encode_versions<V: Wire>(value: &V, out: &mut Vec<u8>) -> Result<(), CodecError> {
    for version in V::VERSIONS.rev() {
        out.push(crate::engine::parcel::version_byte(version));
        let at = out.len();
        out.extend([0; 4]);
        value.encode(version, out)?;
        let length = u32::try_from(out.len() - at - 4).map_err(|_| CodecError::Encode(format!("`{}` has more than 4 GiB", V::NAME)))?;
        out[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }
    Ok(())
}

/// The value in the newest version that this build reads.
pub(crate) fn decode_versions<V: Wire>(mut input: &[u8]) -> Result<V, CodecError> {
    let mut newest = 0;
    while let Some((version, rest)) = input.split_first() {
        let version = u16::from(*version);
        let parts = rest.split_first_chunk().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        let (mut value, rest) = parts.ok_or_else(|| CodecError::Decode(format!("`{}` is cut off", V::NAME)))?;
        if V::VERSIONS.contains(&version) {
            return V::decode(version, &mut value);
        }
        newest = newest.max(version);
        input = rest;
    }
    Err(CodecError::Version { name: V::NAME, ours: V::VERSIONS, theirs: newest })
}

/// What the macros expand to. Not part of the interface.
pub mod private {
    use std::{cell::Cell, ops::RangeInclusive};

    use postcard::{Deserializer, de_flavors, ser_flavors};
    pub use serde;
    use serde::{Serialize, de::DeserializeOwned};

    use super::{CodecError, Wire};
    pub use crate::api::key::FromText;

    /// Appends the value; on an error `out` is as before.
    pub fn encode<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let start = out.len();
        postcard::serialize_with_flavor(value, Append(out)).map_err(|e| {
            out.truncate(start);
            CodecError::Encode(e.to_string())
        })
    }

    /// Takes a value from the front of `input`.
    pub fn decode<T: DeserializeOwned>(input: &mut &[u8]) -> Result<T, CodecError> {
        // What another format announced and did not use up must not reach this value.
        TAG_MAY_BE_ABSENT.set(false);
        let mut deserializer = Deserializer::from_flavor(Input(input));
        let value = T::deserialize(&mut deserializer).map_err(|e| CodecError::Decode(e.to_string()))?;
        *input = deserializer.finalize().map_err(|e| CodecError::Decode(e.to_string()))?;
        Ok(value)
    }

    /// Appends the number of a message and its payload; on an error `out` is as before.
    pub fn message<T: Serialize>(number: u16, payload: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let start = out.len();
        out.extend_from_slice(&number.to_le_bytes());
        encode(payload, out).inspect_err(|_| out.truncate(start))
    }

    /// Takes the number of a message.
    pub fn variant(input: &mut &[u8]) -> Result<u16, CodecError> {
        let (number, rest) =
            input.split_first_chunk().ok_or_else(|| CodecError::Decode(format!("{} bytes, a message has at least 2", input.len())))?;
        *input = rest;
        Ok(u16::from_le_bytes(*number))
    }

    /// From the lowest of the old versions to the present one: each between them must be there, as two nodes use the highest that both have.
    pub const fn versions(old: &[u16], now: u16) -> RangeInclusive<u16> {
        let (mut lowest, mut i) = (now, 0);
        while i < old.len() {
            assert!(old[i] < now, "a version that is kept must be lower than the present one");
            let mut other = 0;
            while other < i {
                assert!(old[other] != old[i], "a version stands there twice");
                other += 1;
            }
            lowest = if old[i] < lowest { old[i] } else { lowest };
            i += 1;
        }
        assert!(lowest > 0, "versions begin at 1");
        assert!(now <= u8::MAX as u16, "versions go to 255");
        assert!(old.len() == (now - lowest) as usize, "a version is left out: keep each from the lowest one on");
        RangeInclusive::new(lowest, now)
    }

    /// Refuses a version that `T` does not have.
    pub fn check_version<T: Wire>(version: u16) -> Result<(), CodecError> {
        if T::VERSIONS.contains(&version) { Ok(()) } else { Err(CodecError::Version { name: T::NAME, ours: T::VERSIONS, theirs: version }) }
    }

    /// Versions of a type made of two: those of the part that has more than the first.
    pub(super) const fn versions_of_two<A: Wire, B: Wire>() -> RangeInclusive<u16> {
        let a = is_first_only(&A::VERSIONS);
        assert!(
            a || is_first_only(&B::VERSIONS),
            "only one part of a pair or result may have versions: put both into a struct of your own"
        );
        if a { B::VERSIONS } else { A::VERSIONS }
    }

    const fn is_first_only(versions: &RangeInclusive<u16>) -> bool {
        *versions.start() == 1 && *versions.end() == 1
    }

    /// The version in which a part of a type with `version` is written.
    pub(super) fn version_in<T: Wire>(version: u16) -> u16 {
        if is_first_only(&T::VERSIONS) { 1 } else { version }
    }

    pub(super) fn tagged<T: Wire>(tag: u8, value: &T, version: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.push(tag);
        value.encode(version, out).inspect_err(|_| {
            out.pop();
        })
    }

    pub(super) fn tag(input: &mut &[u8]) -> Result<u8, CodecError> {
        let (&tag, rest) = input.split_first().ok_or_else(|| CodecError::Decode("ends before a tag".into()))?;
        *input = rest;
        Ok(tag)
    }

    thread_local! {
        /// The byte that is read next is the tag of an `Added`, which may be missing and then reads as 0. Serde has no way to ask whether there is
        /// more, and padding a short input with zeros would complete fields that were cut off; this way nothing but an `Added` can be absent.
        static TAG_MAY_BE_ABSENT: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn tag_may_be_absent(may: bool) {
        TAG_MAY_BE_ABSENT.set(may);
    }

    /// Reads a slice to whose end `Added` fields may be missing.
    struct Input<'a>(&'a [u8]);

    impl<'a> de_flavors::Flavor<'a> for Input<'a> {
        type Remainder = &'a [u8];
        type Source = &'a [u8];

        #[inline]
        fn pop(&mut self) -> postcard::Result<u8> {
            if let Some((&byte, rest)) = self.0.split_first() {
                self.0 = rest;
                return Ok(byte);
            }
            if TAG_MAY_BE_ABSENT.replace(false) { Ok(0) } else { Err(postcard::Error::DeserializeUnexpectedEnd) }
        }

        #[inline]
        fn size_hint(&self) -> Option<usize> {
            Some(self.0.len())
        }

        #[inline]
        fn try_take_n(&mut self, n: usize) -> postcard::Result<&'a [u8]> {
            let (taken, rest) = self.0.split_at_checked(n).ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
            self.0 = rest;
            Ok(taken)
        }

        fn finalize(self) -> postcard::Result<&'a [u8]> {
            Ok(self.0)
        }
    }

    struct Append<'a>(&'a mut Vec<u8>);

    impl ser_flavors::Flavor for Append<'_> {
        type Output = ();

        #[inline]
        fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
            self.0.push(byte);
            Ok(())
        }

        #[inline]
        fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }

        fn finalize(self) -> postcard::Result<()> {
            Ok(())
        }
    }
}
