//! Errors of operations on a node, and the stable codes of all errors.

/// Gives each variant its stable code. A code is never reused; the documentation lists them with cause and remedy.
macro_rules! codes {
    ($($name:ident { $($variant:ident = $code:literal),+ $(,)? })+) => { $(
        impl $name {
            /// Stable code; never reused.
            pub fn code(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $code),+
                }
            }
        }
    )+ };
}
pub(crate) use codes;
