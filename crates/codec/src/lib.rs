//! Formats and transforms: a sample's bytes become pixels or values in a slot. No I/O.
