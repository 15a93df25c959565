//! Layout of the gossiped state: little-endian, every count bounded before anything is allocated.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    MemberStatus,
    state::{Entry, Gone, Info, MEMBERS_MAX, Mark, Row, State, TOMBSTONES_MAX, Tombstone},
};
use crate::{
    NodeAddr, NodeId, Time,
    id::HOST_BYTES_MAX,
    proto::wire::{Malformed, Reader, Writer},
};

/// Most roles of a node.
pub(crate) const ROLES_MAX: usize = 64;
/// Longest role or version, in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 128;

const STATUSES: [MemberStatus; 6] =
    [MemberStatus::Joining, MemberStatus::WeaklyUp, MemberStatus::Up, MemberStatus::Leaving, MemberStatus::Exiting, MemberStatus::Down];
const GONE: [Gone; 3] = [Gone::Left, Gone::Downed, Gone::Proven];
const MARKS: [Mark; 2] = [Mark::Silent, Mark::Refused];
/// id, host of one byte, port, status, proven, up, joined, counter, no roles, no version.
const MEMBER_BYTES_MIN: usize = 16 + 3 + 2 + 1 + 1 + 4 + 4 + 8 + 1 + 2;

/// Appends a state as it travels; tombstones as ages.
pub(crate) fn encode(w: &mut Writer, state: &State, now: Time) {
    w.u64(state.uid).count(state.members.len());
    for (&id, member) in &state.members {
        w.u128(id.raw()).text(&member.info.addr.host).u16(member.info.addr.port);
        w.u8(position(&STATUSES, &member.status)).u8(u8::from(member.proven)).u32(member.up_number).u32(member.joined);
        w.u64(state.clock.get(id));
        labels(w, &member.info);
    }
    let index: BTreeMap<NodeId, u16> = state.members.keys().zip(0..).map(|(&id, i)| (id, i)).collect();
    w.count(state.rows.len());
    for (observer, row) in &state.rows {
        w.u16(index[observer]).u32(row.version).u16(row.marks.len() as u16);
        for (subject, mark) in &row.marks {
            w.u16(index[subject]).u8(position(&MARKS, mark));
        }
    }
    w.bytes(&seen_bitmap(state));
    w.count(state.tombstones.len());
    for (id, tombstone) in &state.tombstones {
        let age = u32::try_from(now.since(tombstone.since).as_secs()).unwrap_or(u32::MAX);
        w.u128(id.raw()).u8(position(&GONE, &tombstone.how)).u32(age);
    }
}

/// Reads a state. What `known` has already is shared, not built anew.
pub(crate) fn decode(r: &mut Reader<'_>, known: &State, now: Time) -> Result<State, Malformed> {
    let mut state = State { uid: r.u64("uid")?, ..State::default() };
    let members = r.count("members", MEMBER_BYTES_MIN, MEMBERS_MAX)?;
    let mut ids = Vec::with_capacity(members);
    for _ in 0..members {
        let (entry, count) = member(r, known)?;
        let id = entry.info.id;
        if ids.last().is_some_and(|&last| last >= id) {
            return Err(Malformed::Unknown { field: "member order", value: id.incarnation() });
        }
        ids.push(id);
        state.clock.set(id, count);
        state.members.insert(id, entry);
    }
    for _ in 0..r.count("rows", 8, members)? {
        let observer = indexed(r, &ids)?;
        let version = r.u32("row version")?;
        let marks = usize::from(r.u16("marks")?);
        if marks > members {
            return Err(Malformed::TooLarge { field: "marks", value: marks as u64, max: members as u64 });
        }
        let row = state.rows.entry(observer).or_insert_with(|| Row { version, ..Row::default() });
        for _ in 0..marks {
            let subject = indexed(r, &ids)?;
            row.marks.insert(subject, choice(r, "mark", &MARKS)?);
        }
    }
    let bitmap = r.bytes("seen", members.div_ceil(8))?;
    state.seen = from_bitmap(bitmap, &ids).collect();
    for _ in 0..r.count("tombstones", 21, TOMBSTONES_MAX)? {
        let id = NodeId::from_raw(r.u128("tombstone")?);
        let how = choice(r, "tombstone kind", &GONE)?;
        let since = now - Duration::from_secs(u64::from(r.u32("age")?));
        if state.members.contains_key(&id) {
            return Err(Malformed::Unknown { field: "tombstone of a member", value: id.incarnation() });
        }
        state.tombstones.insert(id, Tombstone { how, since });
    }
    Ok(state)
}

/// One bit per member in id order: whether it has seen this version.
pub(crate) fn seen_bitmap(state: &State) -> Vec<u8> {
    let mut bits = vec![0; state.members.len().div_ceil(8)];
    for (i, id) in state.members.keys().enumerate() {
        bits[i / 8] |= u8::from(state.seen.contains(id)) << (i % 8);
    }
    bits
}

/// The members whose bits are set.
pub(crate) fn from_bitmap<'a>(bits: &'a [u8], ids: &'a [NodeId]) -> impl Iterator<Item = NodeId> + 'a {
    ids.iter().enumerate().filter(|(i, _)| bits.get(i / 8).is_some_and(|b| b >> (i % 8) & 1 == 1)).map(|(_, &id)| id)
}

/// Roles and version of a node.
pub(crate) fn labels(w: &mut Writer, info: &Info) {
    w.u8(info.roles.len() as u8);
    for role in info.roles.iter() {
        w.text(role);
    }
    w.text(&info.app_version);
}

/// Whether a joiner's own words about itself keep the limits.
pub(crate) fn fits(info: &Info) -> bool {
    let label = |l: &str| l.len() <= LABEL_BYTES_MAX && !l.chars().any(char::is_control);
    let host = &info.addr.host;
    info.roles.len() <= ROLES_MAX
        && info.roles.iter().all(|r| label(r))
        && label(&info.app_version)
        && !host.is_empty()
        && host.len() <= HOST_BYTES_MAX
        && !host.chars().any(char::is_control)
}

fn member(r: &mut Reader<'_>, known: &State) -> Result<(Entry, u64), Malformed> {
    let id = NodeId::from_raw(r.u128("member")?);
    let (host, port) = (r.text("host", HOST_BYTES_MAX)?, r.u16("port")?);
    let status = choice(r, "status", &STATUSES)?;
    let proven = r.u8("proven")? != 0;
    let (up_number, joined, count) = (r.u32("up number")?, r.u32("joined")?, r.u64("counter")?);
    let roles = usize::from(r.u8("roles")?);
    if roles > ROLES_MAX {
        return Err(Malformed::TooLarge { field: "roles", value: roles as u64, max: ROLES_MAX as u64 });
    }
    let roles = (0..roles).map(|_| r.text("role", LABEL_BYTES_MAX)).collect::<Result<Vec<_>, _>>()?;
    let app_version = r.text("version", LABEL_BYTES_MAX)?;
    let info = match known.members.get(&id) {
        Some(have) if have.info.addr.host == host && have.info.addr.port == port => Arc::clone(&have.info),
        _ => {
            let addr = NodeAddr { host: host.to_owned(), port };
            if addr.hash64() != id.addr_hash() {
                return Err(Malformed::Unknown { field: "id of the address", value: id.addr_hash() });
            }
            Arc::new(Info { id, addr, roles: roles.iter().map(|r| (*r).to_owned()).collect(), app_version: app_version.into() })
        }
    };
    Ok((Entry { info, status, up_number, joined, proven }, count))
}

fn indexed(r: &mut Reader<'_>, ids: &[NodeId]) -> Result<NodeId, Malformed> {
    let i = r.u16("index")?;
    let max = ids.len().saturating_sub(1) as u64;
    ids.get(usize::from(i)).copied().ok_or(Malformed::TooLarge { field: "index", value: u64::from(i), max })
}

fn choice<T: Copy>(r: &mut Reader<'_>, field: &'static str, from: &[T]) -> Result<T, Malformed> {
    let i = r.u8(field)?;
    from.get(usize::from(i)).copied().ok_or(Malformed::Unknown { field, value: u64::from(i) })
}

fn position<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|have| have == one).expect("a removed member is a tombstone, every other value is listed") as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn sample(n: u16) -> State {
        let mut state = State { uid: 7, ..State::default() };
        for port in 1..=n {
            let addr = NodeAddr::new("10.0.0.1", port);
            let id = NodeId::new(&addr, u64::from(port) * 31);
            let info = Info { id, addr, roles: vec!["a".into(), "b".into()].into(), app_version: "1.0".into() };
            let status = STATUSES[usize::from(port) % STATUSES.len()];
            state.members.insert(id, Entry { info: Arc::new(info), status, up_number: 3, joined: 4, proven: port % 2 == 0 });
            state.clock.set(id, u64::from(port % 3));
            if port % 2 == 0 {
                state.seen.insert(id);
            }
        }
        let ids: Vec<NodeId> = state.members.keys().copied().collect();
        if let [a, b, ..] = ids[..] {
            state.rows.insert(a, Row { version: 9, marks: [(b, Mark::Refused)].into() });
        }
        state.tombstones.insert(NodeId::from_raw(5), Tombstone { how: Gone::Left, since: Time::from_nanos(0) });
        state
    }

    fn bytes(state: &State) -> Vec<u8> {
        let mut w = Writer::default();
        encode(&mut w, state, Time::from_nanos(0));
        w.0
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        for n in [0, 1, 2, 9, 30] {
            let state = sample(n);
            let bytes = bytes(&state);
            let mut r = Reader::new(&bytes);
            let back = decode(&mut r, &State::default(), Time::from_nanos(0)).unwrap();
            r.end().unwrap();
            assert_eq!(
                (&back.members, &back.rows, &back.seen, &back.tombstones),
                (&state.members, &state.rows, &state.seen, &state.tombstones)
            );
            assert_eq!(back.digest(), state.digest());
            assert_eq!(super::tests::bytes(&back), bytes);
        }
    }

    // failures: row 2
    #[test]
    fn every_cut_is_an_error() {
        let bytes = bytes(&sample(3));
        for cut in 0..bytes.len() {
            assert!(decode(&mut Reader::new(&bytes[..cut]), &State::default(), Time::ZERO).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn an_id_that_is_not_of_its_address_is_refused() {
        let mut state = sample(1);
        let (_, mut entry) = state.members.pop_first().unwrap();
        let id = NodeId::from_raw(77);
        entry.info = Arc::new(Info { id, ..(*entry.info).clone() });
        state.members.insert(id, entry);
        state.rows.clear();
        let error = decode(&mut Reader::new(&bytes(&state)), &State::default(), Time::ZERO).unwrap_err();
        assert!(matches!(error, Malformed::Unknown { field: "id of the address", .. }), "{error}");
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&mut Reader::new(&bytes), &State::default(), Time::from_nanos(1));
        }

        #[test]
        fn mutated_states_never_panic(n in 0u16..6, at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut bytes = bytes(&sample(n));
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(state) = decode(&mut Reader::new(&bytes), &sample(2), Time::from_nanos(1)) {
                super::tests::bytes(&state);
            }
        }
    }
}
