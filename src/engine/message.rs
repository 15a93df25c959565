//! A typed message whose type its carrier does not know, kept in place if it is small.
//!
//! A box that is freed on another thread than the one that made it costs 200 to 240 ns; copying 80 bytes costs less than ten. So a message
//! of up to [`INLINE_BYTES`] travels inside its parcel, and only larger ones are boxed.

use std::{any::TypeId, fmt, mem::MaybeUninit, ptr};

use crate::{CodecError, Wire};

/// Words kept in place.
const WORDS: usize = 10;
/// Larger messages, and those that want more than the alignment of a word, are boxed.
pub const INLINE_BYTES: usize = WORDS * 8;

type Room = MaybeUninit<[u64; WORDS]>;

/// What the carrier can do with the message, for each type of message once.
pub struct Table {
    type_id: TypeId,
    /// Bytes of the value itself.
    pub size: usize,
    /// The room holds a live message of the table's type.
    encode: unsafe fn(&Room, &mut Vec<u8>) -> Result<(), CodecError>,
    /// The room holds a live message of the table's type, and is not used afterwards.
    drop: unsafe fn(&mut Room),
    /// A live message of the table's type stands there, and is not used afterwards.
    lift: unsafe fn(*mut u8) -> Room,
    /// A live message of the table's type stands there, and is not used afterwards.
    pub drop_at: unsafe fn(*mut u8),
}

impl Table {
    /// That of messages of type `M`.
    pub fn of<M: Wire>() -> &'static Self {
        Stored::<M>::TABLE
    }

    /// Whether there is a table, and its messages are of type `M`.
    #[inline]
    pub fn is_for<M: Wire>(table: Option<&Self>) -> bool {
        // Not only by where the table stands: each part of the program that was compiled on its own has one for the type.
        table.map_or(ptr::null(), ptr::from_ref) == ptr::from_ref(Self::of::<M>())
            || table.is_some_and(|table| table.type_id == TypeId::of::<M>())
    }
}

/// Where a message of type `M` is.
struct Stored<M>(std::marker::PhantomData<M>);

impl<M: Wire> Stored<M> {
    const INLINE: bool = size_of::<M>() <= INLINE_BYTES && align_of::<M>() <= align_of::<Room>();

    const TABLE: &'static Table = &Table {
        type_id: TypeId::of::<M>(),
        size: size_of::<M>(),
        encode: Self::encode,
        drop: Self::drop,
        lift: Self::lift,
        drop_at: Self::drop_at,
    };

    fn put(message: M) -> Room {
        let mut room = Room::uninit();
        if Self::INLINE {
            // SAFETY: the room is as large and as aligned as `M` needs, as `INLINE` says, and nothing is in it.
            unsafe { room.as_mut_ptr().cast::<M>().write(message) }
        } else {
            // SAFETY: a room is larger than one pointer and aligned for it, and nothing is in it.
            unsafe { room.as_mut_ptr().cast::<Box<M>>().write(Box::new(message)) }
        }
        room
    }

    /// # Safety
    /// The room was made by `put` of this very type, and is not used afterwards.
    unsafe fn take(room: &Room) -> M {
        if Self::INLINE {
            // SAFETY: `put` wrote an `M` here; the caller uses the room no more, so the value exists once.
            unsafe { room.as_ptr().cast::<M>().read() }
        } else {
            // SAFETY: `put` wrote a box here; the caller uses the room no more, so the box exists once.
            *unsafe { room.as_ptr().cast::<Box<M>>().read() }
        }
    }

    /// # Safety
    /// The room was made by `put` of this very type, and nothing was taken from it.
    unsafe fn encode(room: &Room, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let message: &M = if Self::INLINE {
            // SAFETY: `put` wrote an `M` here, which lives as long as the room is borrowed.
            unsafe { &*room.as_ptr().cast::<M>() }
        } else {
            // SAFETY: `put` wrote a box here, which lives as long as the room is borrowed.
            unsafe { &*room.as_ptr().cast::<Box<M>>() }
        };
        message.encode(*M::VERSIONS.end(), out)
    }

    /// # Safety
    /// An `M` lives there, which is not used afterwards.
    unsafe fn lift(place: *mut u8) -> Room {
        // SAFETY: the caller gives the `M` there away.
        Self::put(unsafe { place.cast::<M>().read() })
    }

    /// # Safety
    /// As `lift`.
    unsafe fn drop_at(place: *mut u8) {
        // SAFETY: the caller gives the `M` there away.
        drop(unsafe { place.cast::<M>().read() });
    }

    /// # Safety
    /// As `take`.
    unsafe fn drop(room: &mut Room) {
        // SAFETY: the caller keeps the contract of `take`, which is the same.
        drop(unsafe { Self::take(room) });
    }
}

/// One message, or one answer, of any type that can travel.
pub struct AnyMessage {
    table: &'static Table,
    /// Holds a live value of the table's type, until `take` or `drop`.
    room: Room,
}

// SAFETY: what is inside is an `M: Wire`, and `Wire` demands `Send`.
unsafe impl Send for AnyMessage {}

impl AnyMessage {
    /// Takes a message in.
    pub fn new<M: Wire>(message: M) -> Self {
        Self { table: Stored::<M>::TABLE, room: Stored::put(message) }
    }

    /// Takes the message in that stands there.
    ///
    /// # Safety
    /// A live message of the table's type stands there, and is not used afterwards.
    pub unsafe fn lift(table: &'static Table, place: *mut u8) -> Self {
        // SAFETY: the caller's promise is that of `lift`.
        Self { table, room: unsafe { (table.lift)(place) } }
    }

    /// The message, if it is an `M`.
    pub fn take<M: Wire>(self) -> Result<M, Self> {
        if !self.is::<M>() {
            return Err(self);
        }
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the table's type is `M`, so `new::<M>` filled the room; `this` is neither used nor dropped afterwards.
        Ok(unsafe { Stored::<M>::take(&this.room) })
    }

    /// Whether it is an `M`.
    pub fn is<M: Wire>(&self) -> bool {
        Table::is_for::<M>(Some(self.table))
    }

    /// Appends its encoding.
    pub fn encode_to(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        // SAFETY: room and table were made together, and the value lives until `self` is taken or dropped.
        unsafe { (self.table.encode)(&self.room, out) }
    }

    /// Bytes of the value itself, for bounds.
    pub fn size(&self) -> usize {
        self.table.size
    }
}

impl Drop for AnyMessage {
    fn drop(&mut self) {
        // SAFETY: room and table were made together; the value is live, because `take` forgets `self`, and nobody comes after `drop`.
        unsafe { (self.table.drop)(&mut self.room) }
    }
}

impl fmt::Debug for AnyMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyMessage").field("size", &self.table.size).finish_non_exhaustive()
    }
}

// The unsafe above is for an interpreter to judge: `cargo +nightly miri test --lib engine::message`.
#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;

    /// `WORDS` words beside what counts its owners.
    pub struct Counted<const WORDS: usize>(pub Arc<()>, pub [u64; WORDS]);

    impl<const WORDS: usize> Wire for Counted<WORDS> {
        const NAME: &'static str = "counted";

        fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
            let Self(_owner, words) = self;
            out.extend(words.iter().map(|word| *word as u8));
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            Err(CodecError::Decode("not needed".into()))
        }
    }

    #[repr(align(64))]
    struct Aligned(u8);

    impl Wire for Aligned {
        const NAME: &'static str = "aligned";

        fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
            assert_eq!(std::ptr::from_ref(self) as usize % 64, 0);
            out.push(self.0);
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            Err(CodecError::Decode("not needed".into()))
        }
    }

    fn lives_once<const WORDS: usize>() {
        let alive = Arc::new(());
        let message = || AnyMessage::new(Counted(alive.clone(), [7; WORDS]));
        let mut bytes = vec![];
        let one = message();
        one.encode_to(&mut bytes).unwrap();
        assert_eq!(bytes, [7; WORDS]);
        drop(one);
        assert_eq!(Arc::strong_count(&alive), 1, "dropped once");
        let taken = message().take::<Counted<WORDS>>().unwrap_or_else(|_| unreachable!("it is of this type"));
        assert_eq!((taken.1, Arc::strong_count(&alive)), ([7; WORDS], 2), "taken, and not dropped beside");
        drop(taken);
        let back = message().take::<Aligned>().err().expect("it is of another type");
        assert_eq!(Arc::strong_count(&alive), 2, "given back whole");
        std::thread::spawn(move || drop(back)).join().unwrap();
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_message_is_dropped_or_taken_exactly_once() {
        const { assert!(Stored::<Counted<9>>::INLINE && !Stored::<Counted<10>>::INLINE) };
        lives_once::<0>();
        lives_once::<9>();
        lives_once::<10>();
        lives_once::<100>();
    }

    #[test]
    fn alignment_is_kept() {
        let message = AnyMessage::new(Aligned(3));
        let moved = Box::new((0u8, message));
        let mut bytes = vec![];
        moved.1.encode_to(&mut bytes).unwrap();
        assert_eq!((bytes, moved.1.size()), (vec![3], 64));
    }
}
