//! Keys and states of entities on their way, one behind the other: a shard has many, and most of them are small.

use super::transfer::TRANSFER_BYTES;

/// The first byte of a record.
pub(super) const ENTITY: u8 = 1;
/// That of one that was taken.
const TAKEN: u8 = 0;

/// Records as they travel: a kind byte, the key behind its length in a byte, the state behind its length in four.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct States {
    bytes: Vec<u8>,
    count: usize,
    /// Where the record begins that was added last.
    last: usize,
}

/// One entity's.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Record<'a> {
    pub key: &'a [u8],
    pub state: &'a [u8],
    /// All of it.
    pub bytes: &'a [u8],
    taken: bool,
}

impl States {
    /// Adds a key and the state that `write` appends, unless it says that there is none: false.
    pub fn add(&mut self, key: &[u8], write: impl FnOnce(&mut Vec<u8>) -> Result<bool, Box<str>>) -> Result<bool, Box<str>> {
        let before = self.bytes.len();
        let key_len = u8::try_from(key.len()).expect("keys are at most 255 bytes long, or they would not have fitted an envelope");
        self.bytes.extend_from_slice(&[ENTITY, key_len]);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(&[0; 4]);
        let behind = self.bytes.len();
        let mut given = write(&mut self.bytes);
        if self.bytes.len() - before > TRANSFER_BYTES {
            given = Err(format!("it has {} bytes, and no more than {TRANSFER_BYTES} move at once", self.bytes.len() - behind).into());
        }
        if given == Ok(true) {
            (self.count, self.last) = (self.count + 1, before);
            self.set_length(behind);
        } else {
            self.bytes.truncate(before);
        }
        given
    }

    pub fn push(&mut self, key: &[u8], state: &[u8]) {
        let added = self.add(key, |out| {
            out.extend_from_slice(state);
            Ok(true)
        });
        debug_assert_eq!(added, Ok(true), "nothing fails");
    }

    /// Adds the records that stand at the front, one behind the other: how many bytes they are.
    pub fn take_front(&mut self, bytes: &[u8]) -> usize {
        let mut end = 0;
        while let Some(record) = Record::at(bytes, end).filter(|record| !record.taken) {
            (self.count, self.last) = (self.count + 1, self.bytes.len() + end);
            end += record.bytes.len();
        }
        self.bytes.extend_from_slice(&bytes[..end]);
        end
    }

    /// More of the state that was added last. False if none was.
    pub fn extend_last(&mut self, part: &[u8]) -> bool {
        let Some(record) = self.at(self.last) else { return false };
        let behind = self.bytes.len() - record.state.len();
        self.bytes.extend_from_slice(part);
        self.set_length(behind);
        true
    }

    /// The last state begins there and ends with the bytes.
    fn set_length(&mut self, begins: usize) {
        let length = u32::try_from(self.bytes.len() - begins).expect("states that travel are bounded far below 4 GiB");
        self.bytes[begins - 4..begins].copy_from_slice(&length.to_le_bytes());
    }

    /// Of all records.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The records, of which none was taken.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// How many were added.
    pub fn len(&self) -> usize {
        self.count
    }

    /// All records, as many as fit into so many bytes at a time; one that is larger comes alone. For those of which none was taken.
    pub fn runs(&self, most: usize) -> impl Iterator<Item = &[u8]> {
        let mut begin = 0;
        std::iter::from_fn(move || {
            let mut end = begin;
            while let Some(record) = self.at(end).filter(|record| end == begin || end + record.bytes.len() - begin <= most) {
                end += record.bytes.len();
            }
            let run = &self.bytes[begin..end];
            begin = end;
            (!run.is_empty()).then_some(run)
        })
    }

    /// Those that were not taken.
    pub fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        self.from(0).filter(|record| !record.taken)
    }

    /// All records from that one on.
    fn from(&self, mut at: usize) -> impl Iterator<Item = Record<'_>> {
        std::iter::from_fn(move || {
            let record = self.at(at)?;
            at += record.bytes.len();
            Some(record)
        })
    }

    /// Takes the first record from `at` on that was not taken, and moves `at` behind it.
    pub fn take_next(&mut self, at: &mut usize) -> Option<Record<'_>> {
        loop {
            let record = self.at(*at)?;
            let (begins, taken) = (*at, record.taken);
            *at += record.bytes.len();
            if !taken {
                return self.take_at(begins);
            }
        }
    }

    /// Takes the record of `key`, if there is one from `at` on that was not taken. How many were looked at.
    pub fn take(&mut self, mut at: usize, key: &[u8]) -> (Option<Record<'_>>, usize) {
        let mut looked_at = 0;
        while let Some(record) = self.at(at) {
            looked_at += 1;
            if !record.taken && record.key == key {
                return (self.take_at(at), looked_at);
            }
            at += record.bytes.len();
        }
        (None, looked_at)
    }

    fn take_at(&mut self, at: usize) -> Option<Record<'_>> {
        self.bytes[at] = TAKEN;
        self.at(at)
    }

    fn at(&self, at: usize) -> Option<Record<'_>> {
        Record::at(&self.bytes, at)
    }
}

impl<'a> Record<'a> {
    /// The record that begins there, if one does.
    #[inline]
    pub fn at(bytes: &'a [u8], at: usize) -> Option<Self> {
        let rest = bytes.get(at..)?;
        let &[kind @ (ENTITY | TAKEN), key_len, ref tail @ ..] = rest else { return None };
        let (key, tail) = tail.split_at_checked(usize::from(key_len))?;
        let (length, tail) = tail.split_first_chunk()?;
        let state = tail.get(..u32::from_le_bytes(*length) as usize)?;
        Some(Self { key, state, bytes: &rest[..2 + key.len() + 4 + state.len()], taken: kind == TAKEN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(all: &[(&[u8], &[u8])]) -> States {
        all.iter().fold(States::default(), |mut states, (key, state)| {
            states.push(key, state);
            states
        })
    }

    fn left(states: &States) -> Vec<(&[u8], &[u8])> {
        states.iter().map(|record| (record.key, record.state)).collect()
    }

    #[test]
    fn what_is_added_is_there_in_order() {
        let mut all = states(&[(b"a", b"one"), (b"", b""), (&[7; 255], &[8; 300])]);
        assert!(all.extend_last(b"more") && all.len() == 3);
        assert_eq!(left(&all), [(&b"a"[..], &b"one"[..]), (b"", b""), (&[7; 255], &[&[8; 300][..], b"more"].concat())]);
        assert_eq!(all.iter().map(|record| record.bytes.len()).sum::<usize>(), all.bytes());
        assert!(!States::default().extend_last(b"more"));
    }

    #[test]
    fn runs_are_cut_between_records() {
        let all = states(&[(b"a", b"1"), (b"b", b"2"), (b"c", &[3; 40]), (b"d", b"4")]);
        assert_eq!(all.runs(16).map(<[u8]>::len).collect::<Vec<_>>(), [16, 47, 8]);
        assert_eq!(all.runs(15).map(<[u8]>::len).collect::<Vec<_>>(), [8, 8, 47, 8]);
        let mut again = States::default();
        all.runs(16).for_each(|run| assert_eq!(again.take_front(run), run.len()));
        assert_eq!(again, all);
    }

    #[test]
    fn only_whole_records_are_taken_from_the_front() {
        let all = states(&[(b"a", b"1"), (b"b", b"2")]);
        let bytes: Vec<u8> = all.runs(100).flatten().copied().collect();
        for cut in 0..=bytes.len() {
            let mut some = States::default();
            assert_eq!(some.take_front(&bytes[..cut]), cut / 8 * 8);
            assert_eq!(some.len(), cut / 8);
        }
        let mut none = States::default();
        assert_eq!((none.take_front(&[TAKEN, 0, 0, 0, 0, 0]), none.len()), (0, 0), "what was taken does not travel");
    }

    #[test]
    fn a_state_that_is_too_large_to_move_is_refused_and_leaves_nothing() {
        let mut all = states(&[(b"a", b"one")]);
        let before = all.clone();
        let why = all.add(b"b", |out| {
            out.resize(out.len() + TRANSFER_BYTES, 0);
            Ok(true)
        });
        assert!(why.is_err_and(|why| why.contains("268435456 bytes")));
        assert_eq!(all, before);
    }

    #[test]
    fn an_entity_without_a_state_leaves_nothing() {
        let mut all = states(&[(b"a", b"one")]);
        let before = all.clone();
        assert_eq!(all.add(b"b", |out| Ok(out.len() > 100)), Ok(false));
        let failing = |out: &mut Vec<u8>| {
            out.push(1);
            Err("no".into())
        };
        assert_eq!(all.add(b"b", failing), Err("no".into()));
        assert_eq!(all, before);
        assert!(all.extend_last(b"!") && left(&all) == [(&b"a"[..], &b"one!"[..])], "the last one is still the last");
    }

    #[test]
    fn each_is_taken_once() {
        let mut all = states(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")]);
        assert_eq!(all.take(0, b"c").0.map(|record| (record.key, record.state)), Some((&b"c"[..], &b"3"[..])));
        assert_eq!(all.take(0, b"c"), (None, 4));
        assert_eq!(all.take(0, b"x"), (None, 4));
        let mut at = 0;
        for key in [b"a", b"b", b"d"] {
            assert_eq!(all.take_next(&mut at).map(|record| record.key), Some(&key[..]));
        }
        assert_eq!(all.take_next(&mut at), None);
        assert_eq!((left(&all).len(), all.len()), (0, 4));
    }
}
