//! Two nodes use the highest version that both have: one that is left out would be read as another.

use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct First {
    cents: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct Third {
    tax: u64,
    cents: u64,
}

impl From<First> for Third {
    fn from(first: First) -> Self {
        Self { tax: 0, cents: first.cents }
    }
}

impl From<Third> for First {
    fn from(third: Third) -> Self {
        Self { cents: third.cents }
    }
}

wingbeat::wire!(Third = "shop.receipt" @ 3 { 1 => First });

fn main() {}
