//! The measured entity once more, with messages that are declared by `messages!` and written by serde and postcard. As many bytes as those of the
//! fixed layout: words would shrink, as postcard writes small numbers short.

use wingbeat::{Cx, Entity};

use super::entity::Told;

wingbeat::messages! {
    /// Its messages.
    pub enum DerivedMsg for Derived(u64) = "bench.derived" {
        DerivedNote { bytes: [[u8; 32]; 2] },
        DerivedCount -> u64,
    }
}

impl Told for Derived {
    type Note = DerivedNote;
    type Count = DerivedCount;

    fn note(number: u64) -> DerivedNote {
        let mut bytes = [[0; 32]; 2];
        for word in bytes.as_flattened_mut().chunks_exact_mut(8) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        DerivedNote { bytes }
    }

    fn count() -> DerivedCount {
        DerivedCount {}
    }
}

/// Counts what it gets.
#[derive(Default)]
pub struct DerivedEntity {
    notes: u64,
    sum: u64,
}

impl Entity for DerivedEntity {
    type Type = Derived;

    fn handle(&mut self, msg: DerivedMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            DerivedMsg::DerivedNote(note) => {
                self.notes += 1;
                self.sum = self.sum.wrapping_add(note.bytes[0].iter().map(|byte| u64::from(*byte)).sum());
            }
            DerivedMsg::DerivedCount(_, reply) => cx.reply(reply, self.notes),
        }
    }
}

#[cfg(test)]
mod tests {
    use wingbeat::{Message, Wire};

    use super::{super::entity::PAYLOAD_BYTES, *};

    #[test]
    fn it_is_as_long_as_the_one_of_fixed_layout() {
        for number in [0, u64::MAX] {
            let mut bytes = Vec::new();
            Derived::note(number).into_msg().encode(1, &mut bytes).unwrap();
            assert!((PAYLOAD_BYTES + 1..=PAYLOAD_BYTES + 2).contains(&bytes.len()), "{}", bytes.len());
        }
    }
}
