//! Looking into datagrams: for the reader of a trace, and for nodes that are deaf to some of their parts.

use crate::proto::membership::datagram::{self, Part};

/// What a datagram says, in a few words.
pub(super) fn parts_of(bytes: &[u8]) -> String {
    let Ok((envelope, mut r)) = datagram::read(bytes) else { return "no datagram".into() };
    let mut words = vec![format!("#{}", envelope.counter)];
    while r.left() > 0 {
        match Part::read(&mut r) {
            Ok(Some(part)) => words.push(name(&part)),
            Ok(None) => words.push("unknown part".into()),
            Err(_) => {
                words.push("malformed part".into());
                break;
            }
        }
    }
    words.join(", ")
}

fn name(part: &Part<'_>) -> String {
    match part {
        Part::Delta(bytes) => format!("Delta of {} bytes", bytes.len()),
        Part::Ask { ask, digest, clock } => format!("Ask {ask} beside {:08x}, clock of {} bytes", *digest as u32, clock.len()),
        Part::Seen { digest, first, bitmap } => format!("Seen of {:08x}, {} bytes from {first} on", *digest as u32, bitmap.len()),
        Part::Status { digest, counter, .. } => format!("Status {:08x}, own counter {counter}", *digest as u32),
        Part::Mark { digest } => format!("Mark of {:08x}", *digest as u32),
        other => format!("{other:?}"),
    }
}

/// The datagram as a node gets it that loses the replies to its heartbeats; nothing if nothing else was in it.
pub(super) fn without_replies(bytes: &[u8]) -> Option<Vec<u8>> {
    let Ok((envelope, mut r)) = datagram::read(bytes) else { return Some(bytes.into()) };
    let mut kept = datagram::open(&envelope);
    let mut any = false;
    while r.left() > 0 {
        match Part::read(&mut r) {
            Ok(Some(Part::BeatReply { .. } | Part::Heard { .. })) => {}
            Ok(Some(part)) => {
                part.write(&mut kept);
                any = true;
            }
            _ => return Some(bytes.into()),
        }
    }
    any.then_some(kept.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, proto::membership::datagram::Envelope};

    fn of(parts: &[Part<'_>]) -> Vec<u8> {
        let mut w = datagram::open(&Envelope { counter: 9, sender: NodeId::from_raw(7), group: 3 });
        parts.iter().for_each(|p| p.write(&mut w));
        w.0
    }

    #[test]
    fn a_deaf_node_loses_replies_and_nothing_else() {
        let both = of(&[Part::Beat { seq: 1, doubt: false }, Part::BeatReply { seq: 2, lost: false }, Part::Mark { digest: 5 }]);
        assert_eq!(without_replies(&both).unwrap(), of(&[Part::Beat { seq: 1, doubt: false }, Part::Mark { digest: 5 }]));
        assert_eq!(without_replies(&of(&[Part::BeatReply { seq: 2, lost: false }])), None);
        assert_eq!(without_replies(b"xyz").unwrap(), b"xyz");
    }

    #[test]
    fn a_trace_names_the_parts() {
        assert_eq!(
            parts_of(&of(&[Part::Beat { seq: 1, doubt: false }, Part::Delta(&[0; 40])])),
            "#9, Beat { seq: 1, doubt: false }, Delta of 40 bytes"
        );
        assert_eq!(parts_of(b"xyz"), "no datagram");
    }
}
