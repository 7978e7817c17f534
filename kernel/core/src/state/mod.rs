//! The state under the store's lock: the log, the table of queues, the clock of the guard, counters.
//! Writing is in [`crate::state::append`], reading in [`crate::state::read`].

mod append;
mod dispatch;
mod read;
pub(crate) mod types;

use crate::protocol::{LMQ_PREFIX, SCHEDULE_TOPIC, TOPIC_BYTES_MAX};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;

use crate::error::PutStatus;
use crate::files::dirty::DirtyRange;
use crate::files::inventory::Inventory;
use crate::files::map_count::are_too_many;
use crate::index::PendingKey;
use crate::log::commit_log::CommitLog;
use crate::queues::consume_queue::{ConsumeQueue, queue_file_size};
use crate::queues::names::topic_name;
use crate::queues::queue_ext::QueueExt;
use crate::record::java_hash;
use crate::shared::Shared;
use crate::shared::indexing::INDEX_PENDING_MAX;
use crate::state::types::{QueueBounds, QueueHandle, RecentQueues, Stats};

/// Index keys at which the background thread is woken before its time.
const INDEX_PENDING_WAKE: usize = 8_192;
/// Index keys gathered under the store's lock before they are handed over.
const KEYS_HANDED_OVER: usize = 1_024;

/// A topic's name in the forms that are needed.
pub(crate) struct Topic {
    pub(crate) name: Box<str>,
    /// Java's hash of `topic#`, where every index key of the topic starts.
    pub(crate) key_hash: i32,
    /// Whether its queue entries carry the time of delivery.
    pub(crate) is_schedule: bool,
}

/// A queue and its counters.
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) topic: Arc<Topic>,
    pub(crate) queue_id: i32,
    pub(crate) queue: ConsumeQueue,
    pub(crate) put_count: u64,
    pub(crate) put_bytes: u64,
}

struct TopicQueues {
    topic: Arc<Topic>,
    /// Queue id to index in `slots`.
    queues: HashMap<i32, u32>,
}

/// The locked state: every read and write.
pub struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: CommitLog,
    pub(crate) slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    topics: HashMap<Box<[u8]>, TopicQueues>,
    generation: u32,
    epoch: u64,
    is_open: bool,
    is_indexed: bool,
    /// Queues with entries that are not on the disk.
    dirty: Vec<u32>,
    /// Light message queues among the queues.
    pub(crate) lmq_count: usize,
    pub(crate) now_ms: i64,
    /// Store timestamp of the last record.
    pub(crate) last_timestamp: i64,
    pub(crate) keys: Vec<PendingKey>,
    pub(crate) recent_queues: RecentQueues,
    pub(crate) stats: Stats,
    /// Bytes after the end of the log that are taken to be in memory.
    pub(crate) memory_bytes: i64,
    /// `maxMessageSize`, which may change while the store is open.
    pub(crate) max_message_size: usize,
    /// Up to which physical offset no change of masters takes records back.
    confirmed: i64,
}

impl Core {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let ratio = shared.settings.access_message_in_memory_max_ratio as i64;
        let max_message_size = shared.settings.max_message_size;
        Core {
            shared,
            log: CommitLog::default(),
            slots: Vec::new(),
            free: Vec::new(),
            topics: HashMap::new(),
            generation: 0,
            epoch: 0,
            is_open: false,
            is_indexed: false,
            dirty: Vec::new(),
            lmq_count: 0,
            now_ms: 0,
            last_timestamp: 0,
            keys: Vec::with_capacity(KEYS_HANDED_OVER),
            recent_queues: RecentQueues::default(),
            stats: Stats::default(),
            memory_bytes: physical_memory() / 100 * ratio,
            max_message_size,
            confirmed: i64::MAX,
        }
    }

    /// What every guard starts with.
    pub(crate) fn start_guard(&mut self) {
        self.now_ms = self.shared.now_ms();
        self.bound_maps();
    }

    /// Lets the maps of all queues go when they are too many; they come back when they are needed.
    #[inline]
    pub(crate) fn bound_maps(&mut self) {
        if are_too_many() {
            self.unmap_queues();
        }
    }

    #[cold]
    fn unmap_queues(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            slot.queue.unmap();
        }
    }

    pub(crate) fn set_open(&mut self, is_open: bool) {
        self.is_open = is_open;
        self.is_indexed = is_open && self.shared.settings.message_index_enable;
    }

    /// Forgets everything but the generations, so that old handles stay stale.
    pub(crate) fn clear(&mut self) {
        self.set_open(false);
        self.log = CommitLog::default();
        self.slots.clear();
        self.free.clear();
        self.topics.clear();
        self.dirty.clear();
        self.lmq_count = 0;
        self.keys.clear();
        self.stats = Stats::default();
        self.epoch += 1;
    }

    /// Whether the store is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the store is open and takes writes.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.is_open
            && !self.shared.has_failed()
            && !self.shared.pool.as_ref().is_some_and(|pool| pool.is_stuck())
    }

    /// Whether index entries are made.
    #[inline]
    pub(crate) fn is_indexed(&self) -> bool {
        self.is_indexed
    }

    /// The store's clock as of this guard.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// The time that the next record gets: the clock's, or that of the last record where the clock
    /// was set back.
    pub fn store_now_ms(&self) -> i64 {
        self.now_ms.max(self.last_timestamp)
    }

    /// Milliseconds since the guard was taken.
    pub fn elapsed_ms(&self) -> i64 {
        self.shared.now_ms() - self.now_ms
    }

    /// Changes whenever handles went stale (queues deleted, store reopened).
    #[inline]
    pub fn handles_epoch(&self) -> u64 {
        self.epoch
    }

    /// Gets or creates a queue (no file before the first append).
    ///
    /// # Errors
    /// `MessageIllegal` for a topic of 0 or more than 127 bytes or not UTF-8 or with `/` or NUL, or
    /// a negative id; `ServiceNotAvailable` when closed.
    pub fn queue(&mut self, topic: &[u8], queue_id: i32) -> Result<QueueHandle, PutStatus> {
        if topic.len() > TOPIC_BYTES_MAX {
            return Err(PutStatus::MessageIllegal);
        }
        self.named_queue(topic, queue_id)
    }

    /// Gets or creates a queue that records of other topics name, whose name no record has to hold.
    ///
    /// # Errors
    /// As `queue`, but up to 255 bytes are legal.
    pub fn named_queue(&mut self, topic: &[u8], queue_id: i32) -> Result<QueueHandle, PutStatus> {
        if let Some(handle) = self.find_queue(topic, queue_id) {
            return Ok(handle);
        }
        if !self.is_open {
            return Err(PutStatus::ServiceNotAvailable);
        }
        let name = topic_name(topic).ok_or(PutStatus::MessageIllegal)?;
        if queue_id < 0 {
            return Err(PutStatus::MessageIllegal);
        }
        let queue = self.new_queue(name, queue_id);
        Ok(self.add_queue(name, queue_id, queue))
    }

    /// An empty queue, in no table yet; touches no file.
    pub(crate) fn new_queue(&self, topic: &str, queue_id: i32) -> ConsumeQueue {
        let folder = self.queue_folder(topic, queue_id);
        let size = queue_file_size(self.shared.settings.mapped_file_size_consume_queue);
        let mut queue = ConsumeQueue::new(folder, size);
        queue.ext = self.new_ext(topic, queue_id).map(Box::new);
        queue
    }

    /// The units of a queue, if queues have any; touches no file.
    pub(crate) fn new_ext(&self, topic: &str, queue_id: i32) -> Option<QueueExt> {
        let settings = &self.shared.settings;
        settings.enable_consume_queue_ext.then(|| QueueExt::new(settings, topic, queue_id))
    }

    pub(crate) fn queue_folder(&self, topic: &str, queue_id: i32) -> PathBuf {
        let root = &self.shared.settings.store_path_root_dir;
        root.join("consumequeue").join(topic).join(queue_id.to_string())
    }

    /// Puts a queue into the table.
    pub(crate) fn add_queue(
        &mut self,
        name: &str,
        queue_id: i32,
        queue: ConsumeQueue,
    ) -> QueueHandle {
        let entry = self.topics.entry(name.as_bytes().into()).or_insert_with(|| {
            let key_hash = java_hash(format!("{name}#").as_bytes());
            TopicQueues {
                topic: Arc::new(Topic {
                    name: name.into(),
                    key_hash,
                    is_schedule: name.as_bytes() == SCHEDULE_TOPIC,
                }),
                queues: HashMap::new(),
            }
        });
        self.generation = self.generation.wrapping_add(1);
        let slot = Slot {
            generation: self.generation,
            topic: Arc::clone(&entry.topic),
            queue_id,
            queue,
            put_count: 0,
            put_bytes: 0,
        };
        let index = if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(slot);
            index
        } else {
            self.slots.push(Some(slot));
            (self.slots.len() - 1) as u32
        };
        entry.queues.insert(queue_id, index);
        self.lmq_count += usize::from(name.starts_with(LMQ_PREFIX));
        QueueHandle { index, generation: self.generation }
    }

    /// The queue, if it exists.
    pub fn find_queue(&self, topic: &[u8], queue_id: i32) -> Option<QueueHandle> {
        let index = *self.topics.get(topic)?.queues.get(&queue_id)?;
        let slot = self.slots.get(index as usize)?.as_ref()?;
        Some(QueueHandle { index, generation: slot.generation })
    }

    /// Whether the handle still names a queue.
    pub fn is_live(&self, queue: QueueHandle) -> bool {
        self.slot(queue).is_some()
    }

    #[inline]
    pub(crate) fn slot(&self, handle: QueueHandle) -> Option<&Slot> {
        let slot = self.slots.get(handle.index as usize)?.as_ref()?;
        (slot.generation == handle.generation).then_some(slot)
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, handle: QueueHandle) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(handle.index as usize)?.as_mut()?;
        (slot.generation == handle.generation).then_some(slot)
    }

    /// Every queue, with its handle.
    pub(crate) fn handles(&self) -> Vec<QueueHandle> {
        let live = |(index, slot): (usize, &Option<Slot>)| {
            slot.as_ref()
                .map(|slot| QueueHandle { index: index as u32, generation: slot.generation })
        };
        self.slots.iter().enumerate().filter_map(live).collect()
    }

    /// (min, max) offset; (0, 0) for a stale handle.
    #[inline]
    pub fn bounds(&self, queue: QueueHandle) -> (i64, i64) {
        self.slot(queue).map_or((0, 0), |slot| (slot.queue.min(), slot.queue.max()))
    }

    /// As [`Self::bounds`], up to what can be read.
    pub(crate) fn readable_bounds(&mut self, queue: QueueHandle) -> (i64, i64) {
        let readable = self.visible();
        self.slot_mut(queue)
            .map_or((0, 0), |slot| (slot.queue.min(), slot.queue.readable_max(readable)))
    }

    /// (min, max) offset by name, of what can be read; (0, 0) when there is none.
    pub fn queue_bounds(&mut self, topic: &[u8], queue_id: i32) -> (i64, i64) {
        let queue = self.find_queue(topic, queue_id);
        queue.map_or((0, 0), |queue| self.readable_bounds(queue))
    }

    /// Every queue that has files, in no order.
    pub fn queues(&mut self) -> Vec<QueueBounds> {
        let readable = self.log.readable() as i64;
        let mut bounds = Vec::new();
        for slot in self.slots.iter_mut().flatten().filter(|slot| slot.queue.has_files()) {
            bounds.push(QueueBounds {
                topic: slot.topic.name.to_string(),
                queue_id: slot.queue_id,
                min_offset: slot.queue.min(),
                max_offset: slot.queue.readable_max(readable),
            });
        }
        bounds
    }

    /// Deletes a topic's queues and their files; how many had files.
    pub fn delete_queues(&mut self, topic: &[u8]) -> usize {
        let Some(entry) = self.topics.remove(topic) else { return 0 };
        let mut count = 0;
        if entry.topic.name.starts_with(LMQ_PREFIX) {
            self.lmq_count -= entry.queues.len();
        }
        let is_stored = |&index: &u32| {
            let slot = self.slots.get(index as usize).and_then(Option::as_ref);
            slot.is_some_and(|slot| slot.queue.has_files())
        };
        let had_files = entry.queues.values().any(is_stored);
        if had_files {
            // First: a kill among the files must not leave some that look alive.
            self.shared.deletions.lock().add(topic, self.log.max_offset() as i64);
        }
        for index in entry.queues.into_values() {
            if let Some(mut slot) = self.slots.get_mut(index as usize).and_then(Option::take) {
                count += usize::from(slot.queue.has_files());
                slot.queue.delete();
                self.free.push(index);
            }
        }
        let root = &self.shared.settings.store_path_root_dir;
        let _ = std::fs::remove_dir(root.join("consumequeue").join(&*entry.topic.name));
        self.shared.deletions.lock().retry();
        self.forget_stale();
        count
    }

    /// Deletes one queue of a topic and its files; whether it had any.
    pub fn delete_queue(&mut self, topic: &[u8], queue_id: i32) -> bool {
        let Some(entry) = self.topics.get_mut(topic) else { return false };
        let Some(index) = entry.queues.remove(&queue_id) else { return false };
        let is_last = entry.queues.is_empty();
        self.lmq_count -= usize::from(entry.topic.name.starts_with(LMQ_PREFIX));
        let mut had_files = false;
        if let Some(mut slot) = self.slots.get_mut(index as usize).and_then(Option::take) {
            had_files = slot.queue.has_files();
            slot.queue.delete();
            self.free.push(index);
        }
        if is_last {
            return self.delete_queues(topic) > 0 || had_files;
        }
        self.forget_stale();
        had_files
    }

    /// After queues were deleted.
    fn forget_stale(&mut self) {
        // It names what is gone now: a recovery would look for that in the whole log.
        Inventory::remove(&self.shared.settings.store_path_root_dir);
        self.dirty.retain(|&index| self.slots[index as usize].is_some());
        self.epoch += 1;
    }

    /// First physical offset of the log.
    pub fn min_physical_offset(&self) -> i64 {
        self.log.min_offset() as i64
    }

    /// Physical offset after the last record that can be read.
    #[inline]
    pub fn max_physical_offset(&self) -> i64 {
        self.log.readable() as i64
    }

    /// Physical offset up to which queues show their records: those that can be read, and that no
    /// change of masters takes back.
    #[inline]
    pub(crate) fn visible(&self) -> i64 {
        self.max_physical_offset().min(self.confirmed)
    }

    /// Up to which physical offset no change of masters takes records back; `i64::MAX`: none does.
    pub fn set_confirmed(&mut self, offset: i64) {
        self.confirmed = offset;
    }

    /// Where the log ends, when its records wait in a transient pool before they can be read, or
    /// until they are confirmed.
    #[inline]
    pub(crate) fn staged_end(&self) -> Option<i64> {
        let waits = self.log.is_staged() || self.confirmed != i64::MAX;
        waits.then(|| self.log.max_offset() as i64)
    }

    /// Buffers of the transient pool that belong to no file (`remainTransientStoreBufferNumbs`);
    /// `None`: there is no pool.
    #[inline]
    pub fn free_buffers(&self) -> Option<usize> {
        self.shared.pool.as_ref().map(|pool| pool.free_count())
    }

    /// Takes folders of the log out of the rotation of new files, and lets in the others; what is no
    /// folder of it does not matter.
    pub fn set_full_log_paths(&mut self, full: &[PathBuf]) {
        self.log.set_full_folders(full);
    }

    /// Counters since open.
    pub fn stats(&self) -> Stats {
        let pending = self.shared.index_pending.lock().len() + self.keys.len();
        Stats {
            index_pending: pending as u64,
            flush_count: self.shared.flush_count.load(Ordering::Relaxed),
            file_wait_ms: self.shared.waiting_ms() as u64,
            uncommitted_bytes: self.log.max_offset() - self.log.readable(),
            ..self.stats
        }
    }

    /// (topic, messages put, bytes put) since open, of topics that were written to.
    pub fn topic_stats(&self) -> Vec<(String, u64, u64)> {
        let mut stats = Vec::new();
        for entry in self.topics.values() {
            let slots =
                entry.queues.values().filter_map(|&index| self.slots[index as usize].as_ref());
            let (count, bytes) = slots.fold((0, 0), |(count, bytes), slot| {
                (count + slot.put_count, bytes + slot.put_bytes)
            });
            if count > 0 {
                stats.push((entry.topic.name.to_string(), count, bytes));
            }
        }
        stats
    }

    /// Puts a queue on the list of those to flush.
    #[inline]
    pub(crate) fn mark_dirty(dirty: &mut Vec<u32>, slot: &mut Slot, index: u32) {
        if !slot.queue.listed {
            slot.queue.listed = true;
            dirty.push(index);
        }
    }

    /// Splits the borrow: a queue, the log, and what else an append touches.
    #[inline]
    pub(crate) fn parts(&mut self, handle: QueueHandle) -> Option<Parts<'_>> {
        let slot = self.slots.get_mut(handle.index as usize)?.as_mut()?;
        if slot.generation != handle.generation {
            return None;
        }
        Some(Parts {
            slot,
            log: &mut self.log,
            shared: &self.shared,
            dirty: &mut self.dirty,
            keys: &mut self.keys,
            stats: &mut self.stats,
            last_timestamp: &mut self.last_timestamp,
        })
    }

    /// Collects what the queues have to flush (`least_pages` 0: all), and the time of the last
    /// record whose entry is among it or on the disk already.
    pub(crate) fn collect_dirty(&mut self, least_pages: u64) -> (Vec<DirtyRange>, i64) {
        let mut ranges = Vec::new();
        let slots = &mut self.slots;
        self.dirty.retain(|&index| match slots.get_mut(index as usize) {
            Some(Some(slot)) => {
                let is_done = slot.queue.drain_dirty(least_pages, &mut ranges);
                slot.queue.listed = !is_done;
                !is_done
            }
            _ => false,
        });
        (ranges, self.last_timestamp)
    }

    /// Gives the gathered index keys to the background thread.
    #[inline]
    pub(crate) fn hand_over_keys(&mut self) {
        if !self.keys.is_empty() {
            self.hand_over();
        }
    }

    /// Whether it is time to hand over in the middle of a chunk.
    #[inline]
    pub(crate) fn hand_over_full(&mut self) {
        if self.keys.len() >= KEYS_HANDED_OVER {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        let count = {
            let mut pending = self.shared.index_pending.lock();
            pending.append(&mut self.keys);
            pending.len()
        };
        if count >= INDEX_PENDING_MAX {
            self.shared.drain_index(usize::MAX);
        } else if count >= INDEX_PENDING_WAKE {
            self.shared.background_wait.wake();
        }
    }
}

/// What an append touches.
pub(crate) struct Parts<'a> {
    pub(crate) slot: &'a mut Slot,
    pub(crate) log: &'a mut CommitLog,
    pub(crate) shared: &'a Shared,
    pub(crate) dirty: &'a mut Vec<u32>,
    pub(crate) keys: &'a mut Vec<PendingKey>,
    pub(crate) stats: &'a mut Stats,
    pub(crate) last_timestamp: &'a mut i64,
}

/// Bytes of RAM.
fn physical_memory() -> i64 {
    // SAFETY: plain system calls without pointers.
    let (pages, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    pages.max(1) * size.max(1)
}
