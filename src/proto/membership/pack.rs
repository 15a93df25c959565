//! Large states are deflated on links; what comes is inflated up to a bound, whatever it claims.

use miniz_oxide::{deflate::compress_to_vec, inflate::decompress_to_vec_with_limit};

use crate::proto::wire::Malformed;

/// States below this are sent as they are.
const WORTH: usize = 4096;
/// Largest state that is taken, inflated.
const STATE_BYTES_MAX: usize = 16 << 20;
const PLAIN: u8 = 0;
const DEFLATED: u8 = 1;
/// Fast; ids do not shrink whatever the effort.
const LEVEL: u8 = 1;

/// As it travels: a byte that says how, then the state.
pub(crate) fn pack(mut state: Vec<u8>) -> Vec<u8> {
    if state.len() >= WORTH {
        let mut packed = compress_to_vec(&state, LEVEL);
        if packed.len() < state.len() {
            packed.insert(0, DEFLATED);
            return packed;
        }
    }
    state.insert(0, PLAIN);
    state
}

/// The state that was packed.
pub(crate) fn unpack(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let (how, body) = bytes.split_first().ok_or(Malformed::Truncated { field: "packing", needed: 1, left: 0 })?;
    match *how {
        PLAIN if body.len() <= STATE_BYTES_MAX => Ok(body.to_vec()),
        PLAIN => Err(Malformed::TooLarge { field: "state", value: body.len() as u64, max: STATE_BYTES_MAX as u64 }),
        DEFLATED => decompress_to_vec_with_limit(body, STATE_BYTES_MAX)
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
        for len in [0, 1, WORTH - 1, WORTH, 100_000] {
            let state: Vec<u8> = (0..len).map(|i| (i / 16) as u8).collect();
            let packed = pack(state.clone());
            assert_eq!(unpack(&packed), Ok(state));
            assert!(packed.len() <= len + 1 && (len < WORTH || packed.len() < len / 2), "{len}: {}", packed.len());
        }
    }

    #[test]
    fn a_bomb_is_refused_at_the_bound() {
        let bomb = pack(vec![0; STATE_BYTES_MAX + 1]);
        assert!(bomb.len() < STATE_BYTES_MAX / 100);
        assert!(matches!(unpack(&bomb), Err(Malformed::Layout { .. })));
        assert!(unpack(&pack(vec![0; STATE_BYTES_MAX])).is_ok());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = unpack(&bytes);
        }
    }
}
