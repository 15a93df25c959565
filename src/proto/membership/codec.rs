//! Layout of the gossiped state: little-endian, every count bounded before anything is allocated.

use std::sync::{Arc, OnceLock};

use super::{
    Member, MemberStatus,
    clock::{DOTS_MAX, Dots, VectorClock},
    frame::Packed,
    pack,
    roster::Alike,
    state::{Entry, Folk, Gone, MEMBERS_MAX, Mark, MemberInfo, Row, TOMBSTONES_MAX, Tombstone, Version},
};
use crate::{
    NodeAddr, NodeId,
    id::HOST_BYTES_MAX,
    proto::wire::{Malformed, Reader, Writer},
};

/// Most roles of a node.
pub(crate) const ROLES_MAX: usize = 64;
/// Longest role or version, in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 128;

/// Highest number of a join or a row; nobody counts that far in the life of a cluster.
pub(crate) const SMALL_MAX: u32 = u32::MAX >> 1;
/// Highest number of a member, likewise: the terms of an authority are not below it, and have no more room (see `TERM_ACCEPTED_MAX`).
pub(crate) const UP_MAX: u32 = (1 << 23) - 1;
/// Highest count of changes, likewise.
const COUNTER_MAX: u64 = u64::MAX >> 2;

const STATUSES: [MemberStatus; 6] =
    [MemberStatus::Joining, MemberStatus::WeaklyUp, MemberStatus::Up, MemberStatus::Leaving, MemberStatus::Exiting, MemberStatus::Down];
const GONE: [Gone; 4] = [Gone::Left, Gone::Downed, Gone::Proven, Gone::Abrupt];
const MARKS: [Mark; 3] = [Mark::Silent, Mark::Convicted, Mark::Refused];
/// flags, id (a short one at least), status, up, joined, no changes.
const MEMBER_BYTES_MIN: usize = 1 + 4 + 1 + 1 + 1 + 1;
/// About what one takes of whom the receiver knows nothing.
const MEMBER_BYTES: usize = 64;
/// id, kind, no changes.
const TOMBSTONE_BYTES_MIN: usize = 16 + 1 + 1;
/// observer, version, change, no marks.
const ROW_BYTES_MIN: usize = 16 + 1 + 1 + 1;
/// key, count.
const CLOCK_BYTES_MIN: usize = 4 + 1;
/// How many are looked at before they are written.
const AHEAD: usize = 64;
/// How far ahead the next one of a clock is looked for before it is searched.
const NEAR: usize = 4;
const PROVEN: u8 = 1;
/// The receiver knows address, roles and version.
const BRIEF: u8 = 2;
/// Of a brief one's id only the last four bytes are there: no other member has them.
const SHORT: u8 = 4;
const ABRUPT: u8 = 8;

/// What goes before the elements that one replica sends another.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Head {
    pub(crate) uid: u64,
    /// Of the ask that it answers; 0 for what nobody asked for.
    pub(crate) ask: u32,
    /// Of the sender's version: who has this one after the merge stands where the sender stands.
    pub(crate) digest: u128,
    /// How long each tombstone among the elements has stood, in seconds.
    pub(crate) ages: Vec<u32>,
    /// Who has seen the sender's version, one bit for each of its members.
    pub(crate) seen: Vec<u8>,
}

impl Head {
    pub(crate) fn write(&self, w: &mut Writer) {
        w.u64(self.uid).u128(self.digest).u32(self.ask);
        varint(w, self.ages.len() as u64);
        self.ages.iter().for_each(|&age| varint(w, u64::from(age)));
        varint(w, self.seen.len() as u64);
        w.bytes(&self.seen);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (uid, digest, ask) = (r.u64("uid")?, r.u128("digest")?, r.u32("ask")?);
        let ages = (0..counted(r, "ages", 1, TOMBSTONES_MAX)?).map(|_| small(r, "age", SMALL_MAX)).collect::<Result<_, _>>()?;
        let seen = counted(r, "seen", 1, MEMBERS_MAX.div_ceil(8))?;
        Ok(Self { uid, ask, digest, ages, seen: r.bytes("seen", seen)?.to_vec() })
    }
}

/// Elements of a state and the counters that cover them: the whole of it, or what another replica lacks.
#[derive(Default, Debug)]
pub(crate) struct Body {
    /// As it travels on a link, not deflated: the elements stand behind a byte that says so.
    plain: Packed,
    /// Whose tombstones are among them, in order.
    pub(crate) buried: Vec<NodeId>,
    deflated: OnceLock<Packed>,
}

impl Body {
    /// As it travels in a datagram.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.plain.get(1..).unwrap_or_default()
    }

    /// As it travels on a link, deflated if it has more than so many bytes; once for all who get it.
    pub(crate) fn packed(&self, plain_max: usize) -> &Packed {
        if self.bytes().len() <= plain_max {
            return &self.plain;
        }
        self.deflated.get_or_init(|| pack::deflate(self.bytes()).map_or_else(|| self.plain.clone(), Packed::from))
    }
}

/// Which elements to send.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Lacks<'a> {
    /// All.
    Everything,
    /// Those changed beyond this clock.
    Beyond(&'a VectorClock),
    /// Only what is said of this node, without any counter.
    About(NodeId),
}

impl Lacks<'_> {
    /// `last`: a counter of the clock, as it was asked for last. Most elements in a row are of one change.
    fn element(&self, id: NodeId, dots: &Dots, last: &mut (NodeId, u64)) -> bool {
        match *self {
            Self::Everything => true,
            Self::Beyond(clock) => match *dots {
                Dots::One(actor, count) => {
                    if last.0 != actor {
                        *last = (actor, clock.get(actor));
                    }
                    count > last.1
                }
                _ => dots.beyond(clock),
            },
            Self::About(node) => id == node,
        }
    }

    /// Whether a count of changes of each of these, who come in order, is to be sent.
    fn counts(&self) -> impl FnMut(NodeId, u64) -> bool {
        let mut known = match *self {
            Self::Beyond(clock) => Some(clock.in_order()),
            Self::Everything | Self::About(_) => None,
        };
        let all = matches!(self, Self::Everything);
        move |id, count| all || known.as_mut().is_some_and(|known| count > known.get(id))
    }
}

/// What the receiver lacks; `None` if that is nothing.
pub(crate) fn encode(state: &Version, lacks: Lacks<'_>) -> Option<Body> {
    // No member has this id.
    let mut last = (NodeId::from_raw(0), 0);
    let members: Vec<(&NodeId, &Entry)> = state.members.iter().filter(|(id, m)| lacks.element(**id, &m.dots, &mut last)).collect();
    let tombstones: Vec<(&NodeId, &Tombstone)> =
        state.tombstones.iter().filter(|(id, t)| lacks.element(**id, &t.dots, &mut last)).collect();
    let mut counts = lacks.counts();
    let rows: Vec<(&NodeId, &Row)> = state.rows.iter().filter(|(id, row)| counts(**id, row.dot)).collect();
    let mut counts = lacks.counts();
    let mut actors: Vec<(NodeId, u64)> = state.clock.iter().filter(|&(id, count)| counts(id, count)).collect();
    if members.is_empty() && tombstones.is_empty() && rows.is_empty() && actors.is_empty() {
        return None;
    }
    let named = actors.len();
    for dots in members.iter().map(|(_, m)| &m.dots).chain(tombstones.iter().map(|(_, t)| &t.dots)) {
        for (id, _) in dots.iter() {
            // Many elements in a row are of one change.
            let known =
                actors.last().is_some_and(|&(last, _)| last == id) || actors[..named].binary_search_by_key(&id, |&(id, _)| id).is_ok();
            if !known {
                actors.push((id, if matches!(lacks, Lacks::About(_)) { 0 } else { state.clock.get(id) }));
            }
        }
    }
    actors.sort_unstable();
    actors.dedup();
    let mut writer = Writer::default();
    let w = &mut writer;
    w.0.reserve(1 + members.len() * if matches!(lacks, Lacks::Everything) { MEMBER_BYTES } else { MEMBER_BYTES_MIN });
    w.u8(pack::PLAIN);
    varint(w, actors.len() as u64);
    for &(id, count) in &actors {
        w.u128(id.raw());
        varint(w, count);
    }
    varint(w, members.len() as u64);
    for (nth, &(&id, m)) in members.iter().enumerate() {
        if nth % AHEAD == 0 && matches!(lacks, Lacks::Everything) {
            touch_hosts(&members[nth..members.len().min(nth + AHEAD)]);
        }
        let brief = match lacks {
            Lacks::Beyond(clock) => clock.get(m.born.0) >= m.born.1 && m.born.1 > 0,
            Lacks::Everything | Lacks::About(_) => false,
        };
        let alone = brief && state.members.roster().alike(short(id)) == Alike::One(id);
        let gone = match m.gone {
            Gone::Left | Gone::Downed => 0,
            Gone::Abrupt => ABRUPT,
            Gone::Proven => PROVEN,
        };
        w.u8(gone | if brief { BRIEF } else { 0 } | if alone { SHORT } else { 0 });
        if alone {
            w.u32(short(id));
        } else {
            w.u128(id.raw());
        }
        w.u8(position(&STATUSES, &m.status));
        varint(w, u64::from(m.up_number));
        varint(w, u64::from(m.joined));
        history(w, &m.dots, &actors);
        if !brief {
            w.u128(m.born.0.raw());
            varint(w, m.born.1);
            w.text(&m.info.addr.host).u16(m.info.addr.port);
            labels(w, &m.info);
        }
    }
    varint(w, rows.len() as u64);
    for (observer, row) in rows {
        w.u128(observer.raw());
        varint(w, u64::from(row.version));
        varint(w, row.dot);
        varint(w, row.marks.len() as u64);
        for (subject, mark) in row.marks.iter() {
            w.u128(subject.raw()).u8(position(&MARKS, &mark));
        }
    }
    varint(w, tombstones.len() as u64);
    for (id, tombstone) in &tombstones {
        w.u128(id.raw()).u8(position(&GONE, &tombstone.how));
        history(w, &tombstone.dots, &actors);
    }
    let buried = tombstones.iter().map(|&(&id, _)| id).collect();
    Some(Body { plain: writer.0.into(), buried, deflated: OnceLock::new() })
}

/// Names lie anywhere in memory. Asked for in a row they come while the next ones are on their way; one at a time, each is waited for.
fn touch_hosts(members: &[(&NodeId, &Entry)]) {
    let first = |m: &Entry| m.addr.host.as_bytes().first().copied();
    std::hint::black_box(members.iter().filter_map(|(_, m)| first(m)).fold(0u8, u8::wrapping_add));
}

/// The changes of an element, of actors that were all named before it, in order.
fn history(w: &mut Writer, dots: &Dots, actors: &[(NodeId, u64)]) {
    let known = || dots.iter().filter_map(|(id, count)| actors.binary_search_by_key(&id, |&(id, _)| id).ok().map(|at| (at as u64, count)));
    varint(w, known().count() as u64);
    for (at, count) in known() {
        varint(w, at);
        varint(w, count);
    }
}

/// Reads what [`encode`] wrote. What `known` has already is shared, not built anew.
pub(crate) fn decode(bytes: &[u8], known: &Version) -> Result<Version, Malformed> {
    let r = &mut Reader::new(bytes);
    let (mut part, mut actors) = (Version::default(), vec![]);
    let clock = Arc::make_mut(&mut part.clock);
    let mut last = None;
    for _ in 0..counted(r, "actors", 17, MEMBERS_MAX)? {
        let id = NodeId::from_raw(r.u128("actor")?);
        in_order("actor order", &mut last, id)?;
        clock.set(id, counter(r, "counter")?);
        actors.push(id);
    }
    let (mut last, members) = (None, Folk::edit(&mut part.members));
    for _ in 0..counted(r, "members", MEMBER_BYTES_MIN, MEMBERS_MAX)? {
        let alike = known.members.values().chain(members.values()).next().map(|m| Arc::clone(&m.info));
        let (id, entry) = member(r, known, &actors, alike.as_deref())?;
        in_order("member order", &mut last, id)?;
        members.extend(entry.map(|entry| (id, entry)));
    }
    let (mut last, rows) = (None, Arc::make_mut(&mut part.rows));
    for _ in 0..counted(r, "rows", ROW_BYTES_MIN, MEMBERS_MAX)? {
        let observer = NodeId::from_raw(r.u128("observer")?);
        in_order("row order", &mut last, observer)?;
        let version = small(r, "row version", SMALL_MAX)?;
        let dot = counter(r, "row change")?;
        let (mut marks, mut last) = (vec![], None);
        for _ in 0..counted(r, "marks", 17, MEMBERS_MAX)? {
            let subject = NodeId::from_raw(r.u128("subject")?);
            in_order("mark order", &mut last, subject)?;
            marks.push((subject, choice(r, "mark", &MARKS)?));
        }
        rows.insert(observer, Row { version, dot, marks: marks.into_iter().collect() });
    }
    let (mut last, tombstones) = (None, Arc::make_mut(&mut part.tombstones));
    for _ in 0..counted(r, "tombstones", TOMBSTONE_BYTES_MIN, TOMBSTONES_MAX)? {
        let id = NodeId::from_raw(r.u128("tombstone")?);
        in_order("tombstone order", &mut last, id)?;
        if members.contains_key(&id) {
            return Err(Malformed::Unknown { field: "tombstone of a member", value: id.incarnation() });
        }
        let how = choice(r, "removal", &GONE)?;
        tombstones.insert(id, Tombstone { how, dots: read_history(r, &actors)? });
    }
    r.end()?;
    Ok(part)
}

fn in_order(field: &'static str, last: &mut Option<NodeId>, id: NodeId) -> Result<(), Malformed> {
    if last.replace(id).is_some_and(|last| last >= id) {
        return Err(Malformed::Unknown { field, value: id.incarnation() });
    }
    Ok(())
}

fn read_history(r: &mut Reader<'_>, actors: &[NodeId]) -> Result<Dots, Malformed> {
    let mut dots = Dots::default();
    for _ in 0..counted(r, "changes", 2, DOTS_MAX)? {
        let at = read_varint(r, "actor")?;
        let max = actors.len().saturating_sub(1) as u64;
        let id = usize::try_from(at).ok().and_then(|at| actors.get(at)).ok_or(Malformed::TooLarge { field: "actor", value: at, max })?;
        dots.merge(&Dots::one(*id, counter(r, "change")?));
    }
    Ok(dots)
}

/// A clock as it is asked with: short keys, so that two that are alike count as unknown.
pub(crate) fn encode_clock(w: &mut Writer, clock: &VectorClock) {
    w.0.reserve(clock.len() * (CLOCK_BYTES_MIN + 1));
    for (id, count) in clock.iter() {
        w.u32(short(id));
        varint(w, count);
    }
}

/// Reads a clock: what `mine` has of it, and whether it knows of changes that `mine` does not. Changes of the buried do not count.
pub(crate) fn decode_clock(bytes: &[u8], mine: &Version) -> Result<(VectorClock, bool), Malformed> {
    let r = &mut Reader::new(bytes);
    let (mut known, mut ahead) = (vec![], false);
    let roster = mine.members.roster();
    let ids: &[NodeId] = if roster.all_differ() { &roster.ids } else { &[] };
    let (mut next, mut counted) = (0, mine.clock.in_order());
    let max = MEMBERS_MAX + TOMBSTONES_MAX;
    for n in 0.. {
        if r.left() == 0 {
            break;
        }
        if n >= max {
            return Err(Malformed::TooLarge { field: "clock", value: n as u64 + 1, max: max as u64 });
        }
        let (key, count) = (r.u32("key")?, read_varint(r, "counter")?);
        // Both clocks are in the order of the ids, and of much the same members.
        let near = ids[next..].iter().take(NEAR).position(|&id| short(id) == key).map(|on| next + on);
        next = near.map_or(next, |at| at + 1);
        match near.map_or_else(|| roster.alike(key), |at| Alike::One(ids[at])) {
            Alike::One(id) => {
                known.push((id, count));
                ahead = ahead || count > counted.get(id);
            }
            // Once is enough: looking through the buried for each of many would take long.
            Alike::Nobody => ahead = ahead || !mine.tombstones.keys().any(|&id| short(id) == key),
            Alike::Several => {}
        }
    }
    // Nobody sends them in another order, and whoever did would have each inserted before the others.
    known.sort_by_key(|&(id, _)| id);
    let mut clock = VectorClock::with_room(known.len());
    known.into_iter().for_each(|(id, count)| clock.set(id, count));
    Ok((clock, ahead))
}

pub(crate) const fn short(id: NodeId) -> u32 {
    (id.raw() & 0xffff_ffff) as u32
}

/// Seven bits a byte, the low ones first.
pub(crate) fn varint(w: &mut Writer, mut value: u64) {
    while value >= 0x80 {
        w.u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    w.u8(value as u8);
}

/// The shortest form only.
pub(crate) fn read_varint(r: &mut Reader<'_>, field: &'static str) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = r.u8(field)?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
            return Err(Malformed::Layout { field, why: "a number in a form that nobody writes" });
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed::Layout { field, why: "a number of more than 64 bits" })
}

/// A number that is counted up by whoever takes it over: never so high that this could overflow.
fn small(r: &mut Reader<'_>, field: &'static str, max: u32) -> Result<u32, Malformed> {
    let value = read_varint(r, field)?;
    u32::try_from(value).ok().filter(|n| *n <= max).ok_or(Malformed::TooLarge { field, value, max: u64::from(max) })
}

/// As [`small`], of changes.
fn counter(r: &mut Reader<'_>, field: &'static str) -> Result<u64, Malformed> {
    let value = read_varint(r, field)?;
    if value > COUNTER_MAX { Err(Malformed::TooLarge { field, value, max: COUNTER_MAX }) } else { Ok(value) }
}

/// A count of elements of at least `each` bytes: at most `max`, and no more than can follow.
fn counted(r: &mut Reader<'_>, field: &'static str, each: usize, max: usize) -> Result<usize, Malformed> {
    let value = read_varint(r, field)?;
    let n = usize::try_from(value).ok().filter(|&n| n <= max).ok_or(Malformed::TooLarge { field, value, max: max as u64 })?;
    let needed = n.saturating_mul(each);
    if needed > r.left() { Err(Malformed::Truncated { field, needed, left: r.left() }) } else { Ok(n) }
}

/// Roles and version of a node.
pub(crate) fn labels(w: &mut Writer, info: &MemberInfo) {
    w.u8(info.roles.len() as u8);
    for role in info.roles.iter() {
        w.text(role);
    }
    w.text(&info.app_version);
}

/// Whether a joiner's own words about itself keep the limits.
pub(crate) fn fits(info: &MemberInfo) -> bool {
    let label = |l: &str| l.len() <= LABEL_BYTES_MAX && !l.chars().any(char::is_control);
    let host = &info.addr.host;
    info.roles.len() <= ROLES_MAX
        && info.roles.iter().all(|r| label(r))
        && label(&info.app_version)
        && !host.is_empty()
        && host.len() <= HOST_BYTES_MAX
        && !host.chars().any(char::is_control)
}

/// A member; none if it is one that is buried here. `alike`: another one, who may have the same roles.
fn member(
    r: &mut Reader<'_>,
    known: &Version,
    actors: &[NodeId],
    alike: Option<&MemberInfo>,
) -> Result<(NodeId, Option<Entry>), Malformed> {
    let flags = r.u8("flags")?;
    if flags > PROVEN | BRIEF | SHORT | ABRUPT || flags & (BRIEF | SHORT) == SHORT || flags & (PROVEN | ABRUPT) == PROVEN | ABRUPT {
        return Err(Malformed::Unknown { field: "flags", value: u64::from(flags) });
    }
    let id = if flags & SHORT == 0 { NodeId::from_raw(r.u128("member")?) } else { by_short(r.u32("member")?, known)? };
    let status = choice(r, "status", &STATUSES)?;
    let (up_number, joined) = (small(r, "up number", UP_MAX)?, small(r, "joined", SMALL_MAX)?);
    let dots = read_history(r, actors)?;
    let have = known.members.get(&id);
    let (info, born) = if flags & BRIEF == 0 {
        let born = (NodeId::from_raw(r.u128("admitted by")?), counter(r, "admission")?);
        (whole_info(r, id, have, alike)?, born)
    } else {
        match have {
            Some(m) => (Arc::clone(&m.info), m.born),
            None if known.tombstones.contains_key(&id) => return Ok((id, None)),
            None => return Err(Malformed::Unknown { field: "brief member", value: id.incarnation() }),
        }
    };
    let gone = match flags & (PROVEN | ABRUPT) {
        PROVEN => Gone::Proven,
        ABRUPT => Gone::Abrupt,
        _ => Gone::Left,
    };
    Ok((id, Some(Entry { member: Member::new(info, status, up_number), joined, gone, dots, born })))
}

/// The one whom the last four bytes of an id name here, a member or a buried one.
fn by_short(key: u32, known: &Version) -> Result<NodeId, Malformed> {
    match known.members.roster().alike(key) {
        Alike::One(id) => Some(id),
        Alike::Nobody => known.tombstones.keys().copied().find(|&id| short(id) == key),
        // Who reads this asks for the whole.
        Alike::Several => None,
    }
    .ok_or(Malformed::Unknown { field: "brief member", value: u64::from(key) })
}

fn whole_info(r: &mut Reader<'_>, id: NodeId, have: Option<&Entry>, alike: Option<&MemberInfo>) -> Result<Arc<MemberInfo>, Malformed> {
    let (host, port) = (r.text("host", HOST_BYTES_MAX)?, r.u16("port")?);
    let roles = usize::from(r.u8("roles")?);
    if roles > ROLES_MAX {
        return Err(Malformed::TooLarge { field: "roles", value: roles as u64, max: ROLES_MAX as u64 });
    }
    let roles = (0..roles).map(|_| r.text("role", LABEL_BYTES_MAX)).collect::<Result<Vec<_>, _>>()?;
    let app_version = r.text("version", LABEL_BYTES_MAX)?;
    if let Some(have) = have.filter(|have| *have.info.addr.host == *host && have.info.addr.port == port) {
        return Ok(Arc::clone(&have.info));
    }
    let addr = NodeAddr { host: host.into(), port };
    if addr.hash64() != id.addr_hash() {
        return Err(Malformed::Unknown { field: "id of the address", value: id.addr_hash() });
    }
    // Most nodes have the roles and the version of others.
    let as_alike = alike.filter(|info| info.roles.iter().eq(&roles)).map(|info| Arc::clone(&info.roles));
    let roles = as_alike.unwrap_or_else(|| roles.iter().map(|r| (*r).to_owned()).collect());
    let as_alike = alike.filter(|info| *info.app_version == *app_version).map(|info| Arc::clone(&info.app_version));
    Ok(Arc::new(MemberInfo { id, addr, roles, app_version: as_alike.unwrap_or_else(|| app_version.into()) }))
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

    use super::{super::state::State, *};

    fn sample(n: u16) -> Arc<Version> {
        let mut version = Arc::new(Version::default());
        let state = Version::edit(&mut version);
        for port in 1..=n {
            let addr = NodeAddr::new("10.0.0.1", port);
            let id = NodeId::new(&addr, u64::from(port) * 31);
            let info = MemberInfo { id, addr, roles: vec!["a".into(), "b".into()].into(), app_version: "1.0".into() };
            let status = STATUSES[usize::from(port) % STATUSES.len()];
            let born = (id, u64::from(port % 3));
            let entry = Entry {
                member: Member::new(info, status, 3),
                joined: 4,
                gone: [Gone::Left, Gone::Abrupt, Gone::Proven][usize::from(port % 3)],
                dots: Dots::one(id, 200),
                born,
            };
            Folk::edit(&mut state.members).insert(id, entry);
            Arc::make_mut(&mut state.clock).set(id, 200 + u64::from(port % 3));
        }
        let ids: Vec<NodeId> = state.members.keys().copied().collect();
        if let [a, b, ..] = ids[..] {
            Arc::make_mut(&mut state.rows).insert(a, Row { version: 9, dot: 201, marks: [(b, Mark::Refused)].into_iter().collect() });
            let dots = Dots::one(b, 200);
            Arc::make_mut(&mut state.tombstones).insert(NodeId::from_raw(5), Tombstone { how: Gone::Left, dots });
        }
        version
    }

    fn bytes(state: &Version, lacks: Lacks<'_>) -> Vec<u8> {
        encode(state, lacks).unwrap_or_default().bytes().to_vec()
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        for n in [1, 2, 9, 30] {
            let state = sample(n);
            let body = encode(&state, Lacks::Everything).unwrap();
            let part = decode(body.bytes(), &Version::default()).unwrap();
            assert_eq!((&part, part.digest()), (&*state, state.digest()));
            assert!(body.buried.iter().eq(state.tombstones.keys()));
            assert_eq!(bytes(&part, Lacks::Everything), body.bytes());
            assert_eq!(pack::unpack(body.packed(0)).unwrap(), body.bytes());
        }
        assert!(encode(&Version::default(), Lacks::Everything).is_none());
    }

    #[test]
    fn a_head_comes_back_and_leaves_the_rest() {
        let head = Head { uid: 1, ask: 2, digest: 3, ages: vec![0, 86_400, SMALL_MAX], seen: vec![5, 6] };
        let mut w = Writer::default();
        head.write(&mut w);
        w.bytes(b"rest");
        let mut r = Reader::new(&w.0);
        assert_eq!((Head::read(&mut r).unwrap(), r.rest()), (head, &b"rest"[..]));
        for cut in 0..w.0.len() - 4 {
            assert!(Head::read(&mut Reader::new(&w.0[..cut])).is_err(), "cut at {cut}");
        }
    }

    // failures: row 2
    #[test]
    fn every_cut_and_every_byte_too_many_is_an_error() {
        let mut whole = bytes(&sample(3), Lacks::Everything);
        for cut in 0..whole.len() {
            assert!(decode(&whole[..cut], &Version::default()).is_err(), "cut at {cut}");
        }
        whole.push(0);
        assert!(decode(&whole, &Version::default()).is_err());
    }

    #[test]
    fn an_id_that_is_not_of_its_address_is_refused() {
        let mut state = sample(1);
        let members = Folk::edit(&mut Version::edit(&mut state).members);
        let first = *members.keys().next().unwrap();
        let mut entry = members.remove(&first).unwrap();
        let id = NodeId::from_raw(77);
        entry.info = Arc::new(MemberInfo { id, ..(*entry.info).clone() });
        members.insert(id, entry);
        let error = decode(&bytes(&state, Lacks::Everything), &Version::default()).unwrap_err();
        assert!(matches!(error, Malformed::Unknown { field: "id of the address", .. }), "{error}");
    }

    #[test]
    fn a_delta_holds_what_the_clock_lacks_and_no_more() {
        let old = sample(9);
        let mut new = State::taken_over(7, old.clone(), vec![], &[]);
        let ids: Vec<NodeId> = new.members.keys().copied().collect();
        assert!(new.raise(ids[4], MemberStatus::Down) || new.raise(ids[5], MemberStatus::Down));
        new.stamp(ids[0]);
        let delta = bytes(&new, Lacks::Beyond(&old.clock));
        let read = decode(&delta, &old).unwrap();
        assert_eq!((read.members.len(), read.rows.len(), read.tombstones.len()), (1, 0, 0));
        // The one actor, the member in its brief form.
        assert!(delta.len() < 46, "{} bytes", delta.len());
        let mut merged = old;
        assert!(Version::merge(&mut merged, &read));
        assert_eq!(merged.digest(), new.digest());
        assert!(encode(&new, Lacks::Beyond(&new.clock)).is_none());
        // A receiver that does not know the member cannot use the brief form.
        assert!(decode(&delta, &Version::default()).is_err());
    }

    #[test]
    fn members_whose_ids_end_alike_are_named_in_full() {
        let mut both = sample(3);
        let members = Folk::edit(&mut Version::edit(&mut both).members);
        let one = members.values().next().unwrap().clone();
        let addr = NodeAddr::new("10.0.0.2", 1);
        let id = NodeId::new(&addr, one.info.id.incarnation() + (1 << 32));
        let info = MemberInfo { id, addr, ..(*one.info).clone() };
        members.insert(id, Entry { member: Member::new(info, one.status, one.up_number), ..one.clone() });
        assert_eq!(both.members.roster().alike(short(id)), Alike::Several);
        let delta_of = |state: &Arc<Version>, id: NodeId| {
            let mut new = State::taken_over(7, Arc::clone(state), vec![], &[]);
            assert!(new.raise(id, MemberStatus::Down));
            new.stamp(one.info.id);
            bytes(&new, Lacks::Beyond(&state.clock))
        };
        let read = |bytes: &[u8], known: &Version| decode(bytes, known).map(|part| part.members.keys().copied().collect::<Vec<_>>());
        assert_eq!(read(&delta_of(&both, id), &both), Ok(vec![id]));
        // Short, as the sender knows only one of them: one that knows both cannot tell who is meant, and asks for everything.
        let short = delta_of(&sample(3), one.info.id);
        assert_eq!(read(&short, &sample(3)), Ok(vec![one.info.id]));
        assert!(matches!(read(&short, &both), Err(Malformed::Unknown { field: "brief member", .. })));
        // Who has buried it passes over it.
        let mut buried = sample(3);
        let version = Version::edit(&mut buried);
        Folk::edit(&mut version.members).remove(&one.info.id);
        Arc::make_mut(&mut version.tombstones).insert(one.info.id, Tombstone { how: Gone::Left, dots: Dots::default() });
        assert_eq!(read(&short, &buried), Ok(vec![]));
    }

    #[test]
    fn a_clock_tells_who_is_ahead() {
        let (mine, mut theirs) = (sample(9), sample(9));
        let read = |theirs: &Version| {
            let mut w = Writer::default();
            encode_clock(&mut w, &theirs.clock);
            decode_clock(&w.0, &mine).unwrap()
        };
        assert_eq!(read(&theirs), ((*mine.clock).clone(), false));
        let id = *theirs.members.keys().next().unwrap();
        let clock = Arc::make_mut(&mut Version::edit(&mut theirs).clock);
        clock.set(id, clock.get(id) + 1);
        assert!(read(&theirs).1);
        assert!(read(&sample(10)).1 && !read(&sample(8)).1);
    }

    #[test]
    fn numbers_have_one_form() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut w = Writer::default();
            varint(&mut w, value);
            assert_eq!(read_varint(&mut Reader::new(&w.0), "n"), Ok(value));
        }
        for bad in [&[0x80, 0x00][..], &[0xff; 10], &[0x80], &[]] {
            assert!(read_varint(&mut Reader::new(bad), "n").is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&bytes, &Version::default());
            let _ = Head::read(&mut Reader::new(&bytes));
            let _ = decode_clock(&bytes, &sample(3));
        }

        #[test]
        fn mutated_states_never_panic(n in 1u16..6, at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut mutated = bytes(&sample(n), Lacks::Everything);
            let at = at.index(mutated.len());
            mutated[at] = to;
            if let Ok(part) = decode(&mutated, &sample(2)) {
                let mut merged = sample(2);
                Version::merge(&mut merged, &part);
                bytes(&merged, Lacks::Everything);
            }
        }
    }
}
