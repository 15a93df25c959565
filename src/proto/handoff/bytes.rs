//! The bytes of a message on its way between threads, in place if they are few.

use std::{fmt, ops::Deref};

/// Bytes kept in place: a message of 64 bytes, with its key and what its codec adds.
const INLINE: usize = 94;

/// Immutable bytes. Up to 94 of them stand in place: what one thread allocates and another frees costs more than copying them.
#[derive(Clone)]
pub struct Bytes(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Bytes {
    fn from(from: &[u8]) -> Self {
        let mut bytes = [0; INLINE];
        match bytes.get_mut(..from.len()) {
            Some(room) => {
                room.copy_from_slice(from);
                Self(Repr::Inline { len: from.len() as u8, bytes })
            }
            None => Self(Repr::Heap(from.into())),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(from: Vec<u8>) -> Self {
        if from.len() <= INLINE { from.as_slice().into() } else { Self(Repr::Heap(from.into_boxed_slice())) }
    }
}

impl serde::Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_come_back() {
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1, 1000] {
            let raw: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let (copied, taken) = (Bytes::from(&raw[..]), Bytes::from(raw.clone()));
            assert_eq!((&*copied, &copied), (&raw[..], &taken));
            assert_eq!(matches!(copied.0, Repr::Inline { .. }), len <= INLINE);
        }
        assert_ne!(Bytes::from(&b"a"[..]), Bytes::from(&b"b"[..]));
    }

    #[test]
    fn it_is_no_larger_than_what_it_holds_rounded_up() {
        assert_eq!(size_of::<Bytes>(), 96);
    }
}
