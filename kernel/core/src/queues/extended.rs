//! Queues with units beside their entries (`enableConsumeQueueExt`).

use crate::error::StoreError;
use crate::queues::consume_queue::ConsumeQueue;
use crate::queues::entry::{ENTRY_SIZE, Entry};
use crate::queues::queue_ext::{Filter, QueueExt, is_ext_address};

/// Entries at the end of a queue that are searched for the last address.
const ENTRIES_SCANNED: i64 = 3_277;

impl ConsumeQueue {
    /// Gives a queue that was loaded its units.
    pub(crate) fn load_ext(
        &mut self,
        mut ext: QueueExt,
        notes: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        ext.load(notes)?;
        self.ext = Some(Box::new(ext));
        self.fit_ext()
    }

    /// Lets the units end where the entries do.
    pub(crate) fn fit_ext(&mut self) -> Result<(), StoreError> {
        if self.ext.is_none() {
            return Ok(());
        }
        let start = self.min().max(self.max() - ENTRIES_SCANNED);
        let mut last_address = None;
        for offset in (start..self.max()).rev() {
            if let Some(entry) = self.entry(offset)?
                && is_ext_address(entry.tags_code)
            {
                last_address = Some(entry.tags_code);
                break;
            }
        }
        let is_empty = self.max() == 0;
        self.ext.as_mut().map_or(Ok(()), |ext| ext.end_at(last_address, is_empty))
    }

    /// Writes a unit for the next entry; what the entry holds then: its address, or the tags code
    /// where there is none.
    #[inline]
    pub(crate) fn extend(&mut self, tags_code: i64, store_time: i64, bit_map: &[u8]) -> i64 {
        match &mut self.ext {
            None => tags_code,
            Some(ext) => ext.put(tags_code, store_time, bit_map).unwrap_or(tags_code),
        }
    }

    /// An entry with the tags code that its unit has, where it has one.
    pub(crate) fn with_tags_code(&mut self, entry: Entry) -> Entry {
        let found = match &mut self.ext {
            Some(ext) if is_ext_address(entry.tags_code) => ext.get(entry.tags_code),
            _ => None,
        };
        Entry { tags_code: found.map_or(entry.tags_code, |unit| unit.tags_code), ..entry }
    }

    /// Up to `count` entries from an offset, with 0 in place of the tags code where a message may
    /// be wanted, else 1.
    pub(crate) fn judged_entries(
        &mut self,
        offset: i64,
        count: usize,
        filter: &Filter<'_>,
    ) -> Result<Vec<[u8; ENTRY_SIZE as usize]>, StoreError> {
        let entries: Vec<_> = self.entries(offset)?.iter().take(count).map(Entry::decode).collect();
        let Some(ext) = &mut self.ext else { return Ok(Vec::new()) };
        let judge = |entry: Entry| {
            let is_wanted = ext.may_match(entry.tags_code, filter);
            Entry { tags_code: i64::from(!is_wanted), ..entry }.encode()
        };
        Ok(entries.into_iter().map(judge).collect())
    }

    /// Appends the entry of a record that is long stored; its space was reserved. With a
    /// `unit_time`, the time of storing, it gets a unit if the queue has any.
    pub(crate) fn push_again(&mut self, entry: Entry, unit_time: Option<i64>) {
        let address = match (&mut self.ext, unit_time) {
            (Some(ext), Some(time)) => ext.put_again(entry.tags_code, time),
            _ => None,
        };
        self.push(Entry { tags_code: address.unwrap_or(entry.tags_code), ..entry });
    }
}
