//! What the errors of all operations have in common: stable codes. Each operation's enum lives beside the operation.

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
