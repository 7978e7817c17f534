//! An entry of a consume queue: physical offset 8, size 4, tags code 8.

/// Bytes of an entry.
pub(crate) const ENTRY_SIZE: u64 = 20;
/// Size that marks an entry before the first message of a queue that started at a higher offset.
pub(crate) const PRE_BLANK_SIZE: i32 = 0x7FFF_FFFF;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) physical_offset: i64,
    pub(crate) size: i32,
    pub(crate) tags_code: i64,
}

impl Entry {
    pub(crate) const PRE_BLANK: Entry =
        Entry { physical_offset: 0, size: PRE_BLANK_SIZE, tags_code: 0 };

    #[inline]
    pub(crate) fn decode(bytes: &[u8; ENTRY_SIZE as usize]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let long = |at: usize| {
            i64::from(i32::from_be_bytes(words[at])) << 32
                | i64::from(u32::from_be_bytes(words[at + 1]))
        };
        Entry { physical_offset: long(0), size: i32::from_be_bytes(words[2]), tags_code: long(3) }
    }

    #[inline]
    pub(crate) fn encode(self) -> [u8; ENTRY_SIZE as usize] {
        let mut bytes = [0; ENTRY_SIZE as usize];
        bytes[..8].copy_from_slice(&self.physical_offset.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_be_bytes());
        bytes[12..].copy_from_slice(&self.tags_code.to_be_bytes());
        bytes
    }

    /// Whether it was written: unwritten space has size 0.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.physical_offset >= 0 && self.size > 0
    }

    /// Whether it only fills the space before a queue's first message.
    #[inline]
    pub(crate) fn is_pre_blank(&self) -> bool {
        self.size == PRE_BLANK_SIZE && self.physical_offset == 0
    }

    /// Physical offset after the record.
    pub(crate) fn end(&self) -> i64 {
        self.physical_offset.saturating_add(i64::from(self.size))
    }
}
