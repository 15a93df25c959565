//! Bounded little-endian reading and writing: nothing is allocated before its length was checked against what is there.

/// Bytes that are not what they should be.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The input ends too early.
    #[error("{field}: needs {needed} bytes, {left} are left")]
    Truncated {
        /// What was being read.
        field: &'static str,
        /// Bytes needed.
        needed: usize,
        /// Bytes left.
        left: usize,
    },
    /// A number is out of its range.
    #[error("{field}: {value}, at most {max}")]
    TooLarge {
        /// What was being read.
        field: &'static str,
        /// What stands there.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// A value that means nothing.
    #[error("{field}: no meaning for {value}")]
    Unknown {
        /// What was being read.
        field: &'static str,
        /// What stands there.
        value: u64,
    },
    /// Text is not UTF-8, or has a character that is not allowed.
    #[error("{0}: no valid text")]
    Text(&'static str),
    /// Bytes that have not the layout of what is expected there.
    #[error("{field}: {why}")]
    Layout {
        /// What was being read.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Bytes are left over.
    #[error("{left} bytes too many")]
    Trailing {
        /// How many.
        left: usize,
    },
}

/// Reads fixed-layout values from the front of a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

macro_rules! numbers {
    ($($name:ident: $ty:ty),+) => {
        impl Reader<'_> { $(
            /// A little-endian number.
            pub fn $name(&mut self, field: &'static str) -> Result<$ty, Malformed> {
                let mut raw = [0; size_of::<$ty>()];
                raw.copy_from_slice(self.bytes(field, size_of::<$ty>())?);
                Ok(<$ty>::from_le_bytes(raw))
            } )+ }
        impl Writer { $(
            /// A little-endian number.
            pub fn $name(&mut self, value: $ty) -> &mut Self { self.0.extend_from_slice(&value.to_le_bytes()); self } )+ }
    };
}
numbers!(u8: u8, u16: u16, u32: u32, u64: u64, u128: u128);

impl<'a> Reader<'a> {
    /// Reads `input` from its front.
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// The next `n` bytes.
    pub fn bytes(&mut self, field: &'static str, n: usize) -> Result<&'a [u8], Malformed> {
        match self.0.split_at_checked(n) {
            Some((head, rest)) => {
                self.0 = rest;
                Ok(head)
            }
            None => Err(Malformed::Truncated { field, needed: n, left: self.0.len() }),
        }
    }

    /// A count of elements of at least `each` bytes: at most `max`, and no more than can follow.
    pub fn count(&mut self, field: &'static str, each: usize, max: usize) -> Result<usize, Malformed> {
        let n = self.u32(field)? as usize;
        if n > max {
            return Err(Malformed::TooLarge { field, value: n as u64, max: max as u64 });
        }
        let needed = n.saturating_mul(each.max(1));
        if needed > self.0.len() {
            return Err(Malformed::Truncated { field, needed, left: self.0.len() });
        }
        Ok(n)
    }

    /// Text with a `u16` length of at most `max` bytes, without control characters.
    pub fn text(&mut self, field: &'static str, max: usize) -> Result<&'a str, Malformed> {
        let n = usize::from(self.u16(field)?);
        if n > max {
            return Err(Malformed::TooLarge { field, value: n as u64, max: max as u64 });
        }
        let text = std::str::from_utf8(self.bytes(field, n)?).map_err(|_| Malformed::Text(field))?;
        if text.chars().any(char::is_control) { Err(Malformed::Text(field)) } else { Ok(text) }
    }

    /// What is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// Fails if anything is left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Trailing { left: self.0.len() }) }
    }
}

/// Appends fixed-layout values to a buffer.
#[derive(Clone, Default, Debug)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Number of elements that follow.
    ///
    /// # Panics
    /// Above `u32::MAX` elements, which no bounded collection of this crate reaches.
    pub fn count(&mut self, n: usize) -> &mut Self {
        self.u32(u32::try_from(n).expect("collections of this crate are bounded far below u32::MAX"))
    }

    /// Text with a `u16` length; the caller has validated it to be shorter than 64 KiB.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.u16(u16::try_from(text.len()).expect("texts are validated to be below 64 KiB")).bytes(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let mut w = Writer::default();
        w.u8(1).u16(2).u32(3).u64(4).u128(5).text("six").count(1).u8(7);
        let mut r = Reader::new(&w.0);
        assert_eq!((r.u8("a"), r.u16("b"), r.u32("c"), r.u64("d"), r.u128("e")), (Ok(1), Ok(2), Ok(3), Ok(4), Ok(5)));
        assert_eq!((r.text("f", 3), r.count("g", 1, 1), r.u8("h"), r.end()), (Ok("six"), Ok(1), Ok(7), Ok(())));
    }

    #[test]
    fn every_cut_is_an_error_that_names_the_field() {
        let mut w = Writer::default();
        w.u64(9).text("name");
        for cut in 0..w.0.len() {
            let mut r = Reader::new(&w.0[..cut]);
            assert!(r.u64("id").and_then(|_| r.text("name", 10)).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_huge_count_is_refused_before_anything_is_allocated() {
        let mut w = Writer::default();
        w.u32(u32::MAX);
        assert_eq!(
            Reader::new(&w.0).count("members", 16, 10_000),
            Err(Malformed::TooLarge { field: "members", value: u64::from(u32::MAX), max: 10_000 })
        );
        let mut w = Writer::default();
        w.u32(100);
        assert_eq!(Reader::new(&w.0).count("members", 16, 10_000), Err(Malformed::Truncated { field: "members", needed: 1600, left: 0 }));
    }

    // failures: row 8
    #[test]
    fn control_characters_are_no_text() {
        for bad in ["a\nb", "\u{1b}[0m", "nul\0"] {
            let mut w = Writer::default();
            w.text(bad);
            assert_eq!(Reader::new(&w.0).text("role", 64), Err(Malformed::Text("role")));
        }
    }
}
