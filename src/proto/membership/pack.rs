//! States that come near what a link carries in one frame are deflated, which takes as long as writing them a dozen times; what comes is inflated up to a bound,
//! whatever it claims.

use std::borrow::Cow;

use miniz_oxide::{deflate::compress_to_vec, inflate::decompress_to_vec_with_limit};

use crate::proto::wire::Malformed;

/// Largest state that is taken, inflated.
const STATE_BYTES_MAX: usize = 16 << 20;
/// The first byte of what travels says how it is packed: as it is.
pub(crate) const PLAIN: u8 = 0;
const DEFLATED: u8 = 1;
/// Fast; ids do not shrink whatever the effort.
const LEVEL: u8 = 1;

/// As it travels deflated; `None` if that does not make it smaller.
pub(crate) fn deflate(state: &[u8]) -> Option<Vec<u8>> {
    let mut packed = compress_to_vec(state, LEVEL);
    packed.insert(0, DEFLATED);
    (packed.len() <= state.len()).then_some(packed)
}

/// The state that was packed.
pub(crate) fn unpack(bytes: &[u8]) -> Result<Cow<'_, [u8]>, Malformed> {
    let (how, body) = bytes.split_first().ok_or(Malformed::Truncated { field: "packing", needed: 1, left: 0 })?;
    match *how {
        PLAIN if body.len() <= STATE_BYTES_MAX => Ok(body.into()),
        PLAIN => Err(Malformed::TooLarge { field: "state", value: body.len() as u64, max: STATE_BYTES_MAX as u64 }),
        DEFLATED => decompress_to_vec_with_limit(body, STATE_BYTES_MAX)
            .map(Cow::from)
            .map_err(|_| Malformed::Layout { field: "packed state", why: "it does not inflate within the bound" }),
        other => Err(Malformed::Unknown { field: "packing", value: u64::from(other) }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_packed_is_unpacked_and_large_ones_shrink() {
        for len in [0, 1, 100, 4096, 100_000] {
            let state: Vec<u8> = (0..len).map(|i| (i / 16) as u8).collect();
            let deflated = deflate(&state);
            assert!(deflated.as_ref().map_or(len < 100, |packed| packed.len() <= len / 2), "{len}");
            assert!(deflated.is_none_or(|packed| unpack(&packed).as_deref() == Ok(&state)));
            assert_eq!(unpack(&[&[PLAIN], &state[..]].concat()).as_deref(), Ok(&*state));
        }
    }

    #[test]
    fn a_bomb_is_refused_at_the_bound() {
        let bomb = deflate(&vec![0; STATE_BYTES_MAX + 1]).unwrap();
        assert!(bomb.len() < STATE_BYTES_MAX / 100);
        assert!(matches!(unpack(&bomb), Err(Malformed::Layout { .. })));
        assert!(unpack(&deflate(&vec![0; STATE_BYTES_MAX]).unwrap()).is_ok());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = unpack(&bytes);
        }
    }
}
