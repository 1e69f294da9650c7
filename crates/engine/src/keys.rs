//! The key table: which objects a catalog speaks of.

/// Keys by row number. Implemented over whatever memory the caller holds them in, so that a catalog of a million
/// files is not copied.
pub trait Keys: Send + Sync {
    /// How many keys there are.
    fn len(&self) -> usize;

    /// The key of row `index`, if there is one and it is text.
    fn get(&self, index: u32) -> Option<&str>;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Keys for Vec<String> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn get(&self, index: u32) -> Option<&str> {
        self.as_slice().get(index as usize).map(String::as_str)
    }
}
