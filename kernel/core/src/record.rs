//! The stored record: its layout, one-pass encoding, and decoding.

/// Text given in up to four pieces that are stored one behind the other, so that a caller who
/// drops or adds an item need not copy the rest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Text<'a> {
    /// The pieces, in order; empty ones count for nothing.
    pub parts: [&'a [u8]; 4],
}

/// What a caller that parsed the property text already knows of it; spares the store a scan.
/// Values as RocketMQ reads them: the last item of a name counts, an empty value is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks<'a> {
    /// Value of `TAGS`.
    pub tags: Option<&'a [u8]>,
    /// Value of `KEYS`.
    pub keys: Option<&'a [u8]>,
    /// Value of `UNIQ_KEY`.
    pub uniq_key: Option<&'a [u8]>,
}

impl<'a> Text<'a> {
    /// Text in one piece.
    pub const fn one(text: &'a [u8]) -> Self {
        Text { parts: [text, &[], &[], &[]] }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Java's `String.hashCode` of UTF-8 text, over its UTF-16 units.
pub fn java_hash(text: &[u8]) -> i32 {
    let _ = text;
    todo!()
}
