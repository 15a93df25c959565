use proptest::prelude::*;

use super::*;

fn greeter(host: &str, incarnation: u64) -> Greeter {
    let addr = NodeAddr::new(host, 7301);
    Greeter { cluster: "blue".into(), protocol: ProtocolRange { min: 2, max: 4 }, node: NodeId::new(&addr, incarnation), addr }
}

/// Two greeters, the lower id first.
fn pair() -> (Greeter, Greeter) {
    let (a, b) = (greeter("a", 1), greeter("b", 2));
    if a.node < b.node { (a, b) } else { (b, a) }
}

fn bytes_of(greeting: &Greeting) -> Vec<u8> {
    let mut out = vec![];
    greeting.encode(&mut out);
    out
}

fn judge(change: impl FnOnce(&mut Hello, &Greeter)) -> Result<Accepted, Refusal> {
    let (low, high) = pair();
    let mut hello = low.hello(5, None, None);
    change(&mut hello, &high);
    high.judge(&hello, Pair::default(), 0)
}

#[test]
fn a_fitting_hello_is_accepted_in_the_highest_common_version() {
    assert_eq!(judge(|_, _| {}), Ok(Accepted { version: 4, session: 5 }));
    assert_eq!(judge(|hello, me| hello.expects = Some(me.node)), Ok(Accepted { version: 4, session: 5 }));
    assert_eq!(judge(|hello, _| hello.protocol = ProtocolRange { min: 1, max: 3 }), Ok(Accepted { version: 3, session: 5 }));
    assert_eq!(judge(|hello, _| hello.protocol = ProtocolRange { min: 4, max: 9 }), Ok(Accepted { version: 4, session: 5 }));
}

// failures: row 13
#[test]
fn another_cluster_is_refused_with_both_names() {
    let refusal = judge(|hello, _| hello.cluster = "green".into()).unwrap_err();
    assert!(refusal.is_final());
    let text = refusal.to_string();
    assert!(text.contains("`blue`") && text.contains("`green`"), "{text}");
}

#[test]
fn without_a_common_version_both_ranges_and_the_upgrade_order_are_named() {
    let older = judge(|hello, _| hello.protocol = ProtocolRange { min: 1, max: 1 }).unwrap_err().to_string();
    assert!(older.contains("2-4") && older.contains("1-1") && older.contains("upgrade the dialling node first"), "{older}");
    let newer = judge(|hello, _| hello.protocol = ProtocolRange { min: 5, max: 6 }).unwrap_err().to_string();
    assert!(newer.contains("5-6") && newer.contains("upgrade the answering node first"), "{newer}");
}

#[test]
fn another_life_than_the_expected_one_says_who_it_is() {
    let stranger = NodeId::from_raw(7);
    let refusal = judge(|hello, _| hello.expects = Some(stranger)).unwrap_err();
    assert!(!refusal.is_final());
    assert_eq!(refusal, Refusal::OtherIncarnation { answers: pair().1.node, asked: stranger });
}

#[test]
fn a_node_does_not_talk_to_itself() {
    assert_eq!(judge(|hello, me| hello.node = me.node), Err(Refusal::Itself));
}

#[test]
fn only_extensions_that_must_be_understood_are_refused() {
    let with = |tag| judge(|hello, _| hello.extensions.push(Extension { tag, bytes: vec![1] }));
    assert!(with(MANDATORY - 1).is_ok());
    assert_eq!(with(MANDATORY), Err(Refusal::Extension(MANDATORY)));
}

#[test]
fn of_simultaneous_dials_the_one_of_the_lower_id_survives() {
    let (low, high) = pair();
    let dialling = Pair { up: None, dialling: true };
    assert_eq!(low.judge(&high.hello(1, None, None), dialling, 1), Err(Refusal::DuplicateDial));
    assert_eq!(high.judge(&low.hello(1, None, None), dialling, 1), Ok(Accepted { version: 4, session: 2 }));
}

#[test]
fn a_hello_said_before_the_session_came_up_does_not_replace_it() {
    let (low, high) = pair();
    let up = Pair { up: Some(6), dialling: false };
    for (me, other) in [(&low, &high), (&high, &low)] {
        assert_eq!(me.judge(&other.hello(6, Some(me.node), None), up, 6), Err(Refusal::DuplicateDial));
        assert_eq!(me.judge(&other.hello(7, Some(me.node), None), up, 6), Ok(Accepted { version: 4, session: 7 }));
    }
}

#[test]
fn who_wants_anybody_replaces_no_session_that_is_up() {
    let (low, high) = pair();
    for (me, other) in [(&low, &high), (&high, &low)] {
        for (dialling, number) in [(false, 5), (false, 7), (true, 5), (true, 7)] {
            let refusal = me.judge(&other.hello(number, None, None), Pair { up: Some(6), dialling }, 6).unwrap_err();
            assert_eq!(refusal, Refusal::Known { answers: me.node });
            assert!(!refusal.is_final(), "it may come back and say whom it wants");
        }
    }
}

#[test]
fn session_numbers_grow_on_both_sides() {
    let (low, high) = pair();
    assert_eq!(low.judge(&high.hello(3, None, None), Pair::default(), 10).unwrap().session, 11);
    assert_eq!(low.judge(&high.hello(30, None, None), Pair::default(), 10).unwrap().session, 30);
}

// failures: row 69
#[test]
fn a_number_without_a_successor_is_none() {
    let (low, _) = pair();
    let hello = |session| Greeting::decode(&bytes_of(&Greeting::Hello(low.hello(session, None, None))));
    assert!(hello(SESSION_MAX - 1).is_ok());
    assert_eq!(hello(SESSION_MAX), Err(Malformed::TooLarge { field: "session", value: SESSION_MAX, max: SESSION_MAX - 1 }));
}

fn greetings() -> Vec<Greeting> {
    let (low, high) = pair();
    let previous = Some(Previous { session: 3, received: 400 });
    let mut hello = low.hello(8, Some(high.node), previous);
    hello.extensions = vec![Extension { tag: 1, bytes: vec![] }, Extension { tag: 9, bytes: vec![1, 2, 3] }];
    let range = ProtocolRange { min: 1, max: 2 };
    vec![
        Greeting::Hello(low.hello(1, None, None)),
        Greeting::Hello(hello),
        Greeting::Welcome(high.welcome(Accepted { version: 4, session: 9 }, previous)),
        Greeting::Refusal(Refusal::OtherCluster { answers: "x".into(), dials: "y".into() }),
        Greeting::Refusal(Refusal::Protocol { answers: range, dials: range }),
        Greeting::Refusal(Refusal::OtherIncarnation { answers: low.node, asked: high.node }),
        Greeting::Refusal(Refusal::DuplicateDial),
        Greeting::Refusal(Refusal::Itself),
        Greeting::Refusal(Refusal::Extension(3)),
        Greeting::Refusal(Refusal::Known { answers: high.node }),
    ]
}

// failures: row 2
#[test]
fn greetings_decode_to_what_they_were_and_wait_for_the_rest_at_every_cut() {
    for greeting in greetings() {
        let raw = bytes_of(&greeting);
        for end in 0..raw.len() {
            assert_eq!(Greeting::decode(&raw[..end]), Ok(None), "{greeting:?} cut at {end}");
        }
        let longer = [&raw[..], b"a frame"].concat();
        assert_eq!(Greeting::decode(&longer), Ok(Some((greeting, raw.len()))));
    }
}

#[test]
fn strangers_are_recognised_by_their_first_bytes() {
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n"[..], "length of the greeting"),
        (&[0x16, 3, 1, 2, 0][..], "speaks TLS"),
        (&[40, 0, 0, 0, b'w', b'i', b'x'][..], "does not begin as one"),
        (&[0, 0, 0, 0][..], "magic"),
        (&[0xff; 64][..], "length of the greeting"),
    ] {
        let error = Greeting::decode(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_id_must_belong_to_its_address_and_the_address_be_canonical() {
    let (low, _) = pair();
    for host in ["A", "a b", "\u{1b}[0m", "x\ny", ""] {
        let addr = NodeAddr { host: host.into(), port: 1 };
        let hello = Hello { node: NodeId::new(&addr, 1), addr, ..low.hello(1, None, None) };
        assert!(Greeting::decode(&bytes_of(&Greeting::Hello(hello))).is_err(), "{host:?}");
    }
    let hello = Hello { node: NodeId::from_raw(5), ..low.hello(1, None, None) };
    let error = Greeting::decode(&bytes_of(&Greeting::Hello(hello))).unwrap_err();
    assert_eq!(error.to_string(), "node: the id does not belong to the address");
}

proptest! {
    #[test]
    fn any_bytes_are_a_greeting_or_an_error(kind in 0..5u8, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Greeting::decode(&body);
        let length = (9 + body.len()) as u32;
        let raw = [&length.to_le_bytes()[..], &MAGIC, &[kind], &body].concat();
        prop_assert_ne!(Greeting::decode(&raw), Ok(None));
    }

    #[test]
    fn one_flipped_bit_never_panics(which in 0..9usize, at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut raw = bytes_of(&greetings()[which]);
        let at = at.index(raw.len());
        raw[at] ^= 1 << bit;
        let _ = Greeting::decode(&raw);
    }
}
