//! A protocol declared with `messages!`, seen from outside the crate.

#![allow(missing_docs)]

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use wingbeat::{
    Added, AskError, CodecError, DropReason, EntityId, EntityKey, EntityType, IntoKey, Message, Refusal, ReplyTag, Request, Wire, messages,
    wire,
};

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub legs: u32,
    pub delay_min: i32,
    pub at: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Row {
    pub text: String,
}

wire!(Status = "fleet.status");

messages! {
    #[derive(Clone, Debug)]
    pub enum PlaneMsg for Plane(String) = "fleet.plane" {
        Departed { origin: String, delay_min: i32 },
        GetStatus -> Status,
        Refuel { litres: u32 } -> Result<u32, String>,
        Pumped { result: Result<u32, AskError> },
        Tick,
        Notice { text: String },
        Import(Row) -> u64,
    }
}
messages! {
    pub enum TruckMsg for Truck(u64) = "fleet.truck" {
        /// Fuel for the plane named.
        Pump {
            /// How much.
            litres: u32,
            /// For whom.
            plane: EntityId<Plane>,
        } -> u32,
    }
}

fn bytes(value: &impl Wire) -> Vec<u8> {
    let mut out = vec![];
    value.encode(1, &mut out).expect("it has an encoding");
    out
}

fn round<T: Wire>(value: &T) -> T {
    let bytes = bytes(value);
    let mut input = bytes.as_slice();
    let back = T::decode(1, &mut input).expect("what was encoded is decoded");
    assert!(input.is_empty(), "{} bytes left", input.len());
    back
}

#[test]
fn every_message_comes_back_as_it_went() {
    let all: Vec<PlaneMsg> = vec![
        Departed { origin: "EWR".into(), delay_min: -3 }.into_msg(),
        GetStatus.into_msg(),
        Refuel { litres: 7 }.into_msg(),
        Pumped { result: Err(AskError::Dropped(DropReason::MailboxFull)) }.into_msg(),
        Tick.into_msg(),
        Notice { text: "snow".into() }.into_msg(),
        Message::<Plane>::into_msg(Row { text: "r".into() }),
    ];
    for (number, message) in all.iter().enumerate() {
        assert_eq!(bytes(message)[..2], (number as u16).to_le_bytes(), "the number on the wire is the position");
        assert_eq!(format!("{:?}", round(message)), format!("{message:?}"));
    }
    assert_eq!(Plane::MESSAGES, ["Departed", "GetStatus", "Refuel", "Pumped", "Tick", "Notice", "Import"]);
    assert_eq!((Plane::TYPE, PlaneMsg::NAME), ("fleet.plane", "fleet.plane"));
}

#[test]
fn a_request_carries_its_reply_type_and_nothing_on_the_wire() {
    fn reply_of<T: EntityType, R: Request<T>>(_: &R) -> &'static str {
        R::Reply::NAME
    }
    assert_eq!(reply_of::<Plane, _>(&GetStatus), "fleet.status");
    assert_eq!(reply_of::<Plane, _>(&Refuel { litres: 1 }), "result");
    assert_eq!(reply_of::<Plane, _>(&Row { text: String::new() }), "u64");
    assert_eq!(size_of::<ReplyTag<Status>>(), 0);
    assert_eq!(bytes(&Message::<Plane>::into_msg(GetStatus)), [1, 0]);
}

// failures: row 54
#[test]
fn a_message_of_a_newer_build_is_named() {
    let mut input: &[u8] = &[7, 0, 1, 2, 3];
    let error = PlaneMsg::decode(1, &mut input).unwrap_err();
    assert_eq!(error.to_string(), "fleet.plane has no message 7 in this build");
    assert_eq!(error.code(), "E-WIRE-003");
}

#[test]
fn cut_bytes_are_an_error_at_every_length() {
    let whole = bytes(&Message::<Plane>::into_msg(Departed { origin: "EWR".into(), delay_min: 2 }));
    for end in 0..whole.len() {
        let error = PlaneMsg::decode(1, &mut &whole[..end]).unwrap_err();
        assert_eq!(error.code(), "E-WIRE-002", "{end} of {} bytes", whole.len());
    }
}

#[test]
fn an_entity_id_travels_as_its_key() {
    let pump = Pump { litres: 3, plane: EntityId::new("N14228") };
    let TruckMsg::Pump(back, _) = round(&Message::<Truck>::into_msg(pump));
    assert_eq!((back.plane.key().as_str(), back.plane.to_string()), ("N14228", "N14228".into()));
    assert_eq!(format!("{:?}", back.plane), "fleet.plane(\"N14228\")");
}

// Three builds of one message: as it was, with one field added, with two.
messages! { pub enum V1 for T1(u64) = "shop.order" { Order1 { item: u32, note: String } } }
messages! { pub enum V2 for T2(u64) = "shop.order" { Order2 { item: u32, note: String, gift: Added<Option<String>> } } }
messages! { pub enum V3 for T3(u64) = "shop.order" { Order3 { item: u32, note: String, gift: Added<Option<String>>, parts: Added<Vec<u32>> } } }

#[test]
fn an_added_field_reads_as_its_default_where_an_older_node_leaves_it_out() {
    let old = bytes(&Message::<T1>::into_msg(Order1 { item: 7, note: "n".into() }));
    let V3::Order3(new) = V3::decode(1, &mut old.as_slice()).unwrap();
    assert_eq!((new.item, new.note.as_str(), new.gift, new.parts), (7, "n", Added(None), Added(vec![])));
    let mid = bytes(&Message::<T2>::into_msg(Order2 { item: 7, note: "n".into(), gift: Added(Some("g".into())) }));
    let V3::Order3(new) = V3::decode(1, &mut mid.as_slice()).unwrap();
    assert_eq!((new.gift, new.parts), (Added(Some("g".into())), Added(vec![])));
}

#[test]
fn an_older_node_skips_an_added_field() {
    let new =
        bytes(&Message::<T3>::into_msg(Order3 { item: 7, note: "n".into(), gift: Added(Some("g".into())), parts: Added(vec![1, 2]) }));
    let V1::Order1(old) = V1::decode(1, &mut new.as_slice()).unwrap();
    assert_eq!((old.item, old.note.as_str()), (7, "n"));
    let V2::Order2(mid) = V2::decode(1, &mut new.as_slice()).unwrap();
    assert_eq!(mid.gift, Added(Some("g".into())));
}

#[test]
fn only_added_fields_may_be_absent() {
    let whole = bytes(&Message::<T3>::into_msg(Order3 {
        item: 700,
        note: "abc".into(),
        gift: Added(Some("gift".into())),
        parts: Added(vec![1, 2, 3]),
    }));
    let ends: Vec<usize> = (0..=whole.len()).filter(|&end| V3::decode(1, &mut &whole[..end]).is_ok()).collect();
    // number 2, item 2, note 1 + 3 | gift: added 1, some 1, text 1 + 4 | parts: added 1, list 1 + 3
    assert_eq!(ends, [8, 15, 20], "a cut elsewhere must not read as zeros");
}

#[test]
fn an_added_field_that_fails_leaves_nothing_behind() {
    let whole = bytes(&Message::<T2>::into_msg(Order2 { item: 1, note: String::new(), gift: Added(Some("gift".into())) }));
    assert!(V2::decode(1, &mut &whole[..whole.len() - 1]).is_err());
    assert!(serde_json_like_failure().is_err());
    assert!(u32::decode(1, &mut &[][..]).is_err(), "the next value must not find its first byte excused");
}

/// Another format that starts to read an `Added` and fails before its tag.
fn serde_json_like_failure() -> Result<Added<u32>, serde::de::value::Error> {
    struct Broken;
    impl<'de> serde::Deserializer<'de> for Broken {
        type Error = serde::de::value::Error;
        fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("broken"))
        }
        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
            tuple_struct map struct enum identifier ignored_any
        }
    }
    Added::deserialize(Broken)
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
struct ReceiptV1 {
    euros: u32,
}
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
struct Receipt {
    cents: u64,
    currency: String,
}
impl From<ReceiptV1> for Receipt {
    fn from(old: ReceiptV1) -> Self {
        Self { cents: u64::from(old.euros) * 100, currency: "EUR".into() }
    }
}
impl From<Receipt> for ReceiptV1 {
    fn from(new: Receipt) -> Self {
        Self { euros: (new.cents / 100) as u32 }
    }
}
wire!(Receipt = "shop.receipt" @ 2 { 1 => ReceiptV1 });

#[test]
fn a_value_is_read_and_written_in_the_version_of_the_other_side() {
    let receipt = Receipt { cents: 1900, currency: "EUR".into() };
    assert_eq!(Receipt::VERSIONS, 1..=2);
    let (mut old, mut new) = (vec![], vec![]);
    receipt.encode(1, &mut old).unwrap();
    receipt.encode(2, &mut new).unwrap();
    assert_eq!(old, [19]);
    assert_eq!(Receipt::decode(1, &mut old.as_slice()).unwrap(), receipt);
    assert_eq!(Receipt::decode(2, &mut new.as_slice()).unwrap(), receipt);
    let error = receipt.encode(3, &mut new).unwrap_err();
    assert_eq!(error.to_string(), "shop.receipt: this node reads versions 1..=2, got 3");
    assert_eq!(error.code(), "E-WIRE-004");
}

#[test]
fn what_holds_a_versioned_value_has_its_versions() {
    assert_eq!(<Vec<Option<Receipt>>>::VERSIONS, 1..=2);
    assert_eq!(<Result<Receipt, String>>::VERSIONS, 1..=2);
    assert_eq!(<(u32, Receipt)>::VERSIONS, 1..=2);
    let pair = (7u32, Receipt { cents: 500, currency: "EUR".into() });
    let mut old = vec![];
    pair.encode(1, &mut old).unwrap();
    assert_eq!(old, [7, 5]);
    assert_eq!(<(u32, Receipt)>::decode(1, &mut old.as_slice()).unwrap(), pair);
}

#[test]
fn built_in_values_come_back() {
    round(&());
    assert!(round(&true));
    assert_eq!(round(&u32::MAX), u32::MAX);
    assert_eq!(round(&u64::MAX), u64::MAX);
    assert_eq!(round(&i64::MIN), i64::MIN);
    assert_eq!((round(&u16::MAX), round(&u128::MAX), round(&i16::MIN), round(&i32::MIN)), (u16::MAX, u128::MAX, i16::MIN, i32::MIN));
    assert_eq!((round(&i128::MIN), round(&'ü'), round(&-0.5f32), round(&-0.5f64)), (i128::MIN, 'ü', -0.5, -0.5));
    assert_eq!(round(&Duration::from_nanos(1_000_000_007)), Duration::from_nanos(1_000_000_007));
    let map = BTreeMap::from([("a".to_owned(), vec![1u32, 2]), ("b".to_owned(), vec![])]);
    assert_eq!(round(&map), map);
    assert_eq!(round(&BTreeMap::from([((), ())])).len(), 1);
    assert_eq!(round(&String::from("Zürich")), "Zürich");
    assert_eq!(round(&vec![0u8, 255, 7]), [0, 255, 7]);
    assert_eq!(round(&vec![String::from("a"), String::new()]), ["a", ""]);
    assert_eq!(round(&Some(3u32)), Some(3));
    assert_eq!(round(&None::<u32>), None);
    assert_eq!(round(&Err::<u32, String>("no".into())), Err("no".into()));
    assert_eq!(round(&(1u64, String::from("b"))), (1, "b".into()));
}

#[test]
fn a_map_that_claims_more_than_it_has_is_an_error_at_once() {
    let read = |bytes: &[u8]| <BTreeMap<u32, u32>>::decode(1, &mut &bytes[..]);
    assert_eq!(read(&[1, 5, 6]).unwrap(), BTreeMap::from([(5, 6)]));
    assert!(read(&[2, 5, 6, 5, 7]).unwrap_err().to_string().contains("twice"));
    assert!(read(&[255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 5, 6]).is_err());
    assert!(<BTreeMap<(), ()>>::decode(1, &mut &[255, 255, 255, 255, 15][..]).is_err());
    let old = BTreeMap::from([(1u32, Receipt { cents: 500, currency: "EUR".into() })]);
    let mut bytes = vec![];
    old.encode(1, &mut bytes).unwrap();
    assert_eq!((bytes.as_slice(), <BTreeMap<u32, Receipt>>::VERSIONS), (&[1, 1, 5][..], 1..=2));
}

#[test]
fn types_are_told_apart_by_their_parts() {
    let ids = [
        <Option<u32>>::ID,
        <Option<u64>>::ID,
        <Vec<u32>>::ID,
        <Vec<u8>>::ID,
        <(u32, u64)>::ID,
        <(u64, u32)>::ID,
        <Result<u32, u64>>::ID,
        Status::ID,
        Receipt::ID,
    ];
    for (i, a) in ids.iter().enumerate() {
        assert!(!ids[i + 1..].contains(a), "number {i}");
    }
}

#[test]
fn a_length_that_the_bytes_cannot_hold_is_refused_before_room_is_made() {
    let mut huge = vec![];
    u64::MAX.encode(1, &mut huge).unwrap();
    for error in [
        <Vec<u64>>::decode(1, &mut huge.as_slice()).unwrap_err(),
        <Vec<()>>::decode(1, &mut huge.as_slice()).unwrap_err(),
        <Vec<u8>>::decode(1, &mut huge.as_slice()).unwrap_err(),
        String::decode(1, &mut huge.as_slice()).unwrap_err(),
    ] {
        assert_eq!(error.code(), "E-WIRE-002");
    }
    let mut out = vec![1, 2, 3];
    assert!(vec![(); 3].encode(1, &mut out).is_err());
    assert_eq!(out, [1, 2, 3], "a failed encode leaves nothing behind");
}

#[test]
fn a_value_without_encoding_leaves_nothing_behind() {
    #[derive(Clone, Debug, Deserialize)]
    struct Stubborn;
    impl Serialize for Stubborn {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("will not"))
        }
    }
    messages! { enum M for Mule(u64) = "farm.mule" { Carry { what: u32 }, Load(Stubborn) } }
    let mut out = vec![9];
    let error = Message::<Mule>::into_msg(Stubborn).encode(1, &mut out).unwrap_err();
    assert_eq!((error.code(), out.as_slice()), ("E-WIRE-001", &[9][..]));
    Message::<Mule>::into_msg(Carry { what: 1 }).encode(1, &mut out).unwrap();
    assert_eq!(out, [9, 0, 0, 1]);
    assert!(matches!(CodecError::Encode("x".into()), CodecError::Encode(_)));
}

wingbeat::key! {
    /// A tail number.
    pub struct Tail(String);
}
messages! { pub enum GliderMsg for Glider(Tail) = "fleet.glider" { Launch -> Tow } }
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Tow;
wire!(Tow = "fleet.tow");

#[test]
fn a_newtype_is_a_key() {
    let id: EntityId<Glider> = EntityId::new("D-1234");
    assert_eq!(id.key(), &Tail("D-1234".into()));
    let mut key = vec![];
    id.key().write_to(&mut key);
    assert_eq!(key, b"D-1234");
    assert_eq!(IntoKey::<Tail>::into_key(id.key()), Tail("D-1234".into()));
    assert_eq!(Refusal::Full.code(), "E-TELL-001");
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
        let mut input = bytes.as_slice();
        if let Ok(message) = PlaneMsg::decode(1, &mut input) {
            let mut again = vec![];
            message.encode(1, &mut again).expect("what was decoded can be encoded");
            let back = PlaneMsg::decode(1, &mut again.as_slice()).expect("and decoded again");
            proptest::prop_assert_eq!(format!("{back:?}"), format!("{message:?}"));
        }
        let _ = V3::decode(1, &mut bytes.as_slice());
        let _ = TruckMsg::decode(1, &mut bytes.as_slice());
        let _ = <Vec<(u64, Option<String>)>>::decode(1, &mut bytes.as_slice());
        let _ = <Vec<Vec<()>>>::decode(1, &mut bytes.as_slice());
    }
}
