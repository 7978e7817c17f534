//! The state that all connections share: tables, held pulls, answers that come later.

use hashbrown::HashMap;

use super::connection::ANSWER_BYTES_MAX;
use super::hold::{HeldPull, Holds};
use super::peers::Peers;
use super::policy::Tables;
use super::pull::{self, AnswerHeader, Kind};
use crate::{Core, FlushDiskType, Settings};

/// Buffers of a batch send, used again.
#[derive(Debug, Default)]
pub struct BatchBuffers {
    pub suffix: Vec<u8>,
    pub physical_offsets: Vec<i64>,
    pub tags_codes: Vec<i64>,
}

/// Everything behind the hot path's lock. The store's lock is taken after it, never before.
#[derive(Debug, Default)]
pub struct State {
    pub tables: Tables,
    pub holds: Holds,
    pub peers: Peers,
    /// Offsets committed by pulls: group slot, topic slot, queue id.
    pub commits: HashMap<(u32, u32, i32), i64>,
    pub batch: BatchBuffers,
    pub scratch: Vec<u8>,
    answer_header: AnswerHeader,
    /// Physical offset that the sends of this call want on disk; 0 for none.
    pub flush_wanted: i64,
    pub sync_flush: bool,
    pub sync_flush_timeout_ms: i64,
    pub long_polling: bool,
    pub max_message_bytes: usize,
}

impl State {
    /// The state of a broker that was told nothing yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            tables: Tables::new(),
            sync_flush: settings.flush_disk_type == FlushDiskType::Sync,
            sync_flush_timeout_ms: settings.sync_flush_timeout as i64,
            long_polling: settings.long_polling_enable,
            max_message_bytes: settings.max_message_size,
            ..Self::default()
        }
    }

    /// Holds a pull; None when the table is full or the queue id is outside the limits.
    pub fn hold(&mut self, pull: HeldPull) -> Option<u32> {
        if !self.holds.has_room() {
            return None;
        }
        let queue = self.tables.topics.get_mut(pull.topic as usize)?.queue(pull.queue_id)?;
        let peer = self.peers.peer(pull.connection);
        Some(self.holds.hold(pull, &mut queue.holds, &mut peer.holds))
    }

    /// Tells the pulls held for a queue of a record that was appended to it.
    #[inline]
    pub fn wake(&mut self, topic: u32, queue_id: i32, tags_code: i64) {
        let queues = &mut self.tables.topics[topic as usize].queues;
        if let Some(queue) = queues.get_mut(queue_id as usize) {
            if !queue.holds.is_empty() {
                self.holds.wake(&mut queue.holds, tags_code);
            }
        }
    }

    /// Moves a held pull to the line of those that are read next.
    pub fn make_due(&mut self, index: u32) {
        let (topic, queue_id) = {
            let pull = self.holds.pull(index);
            (pull.topic, pull.queue_id)
        };
        if let Some(queue) = self.tables.topics[topic as usize].queue(queue_id) {
            self.holds.make_due(index, &mut queue.holds);
        }
    }

    /// Reads for the woken pulls and answers those that found something: into `own` for that
    /// connection, else into the ready answers, as far as these have room.
    pub fn settle(&mut self, core: &mut Core, mut own: Option<(u64, &mut Vec<u8>)>) {
        while self.peers.has_room() {
            let Some(index) = self.holds.next_due() else {
                return;
            };
            let Self { tables, holds, peers, answer_header, .. } = self;
            let pull = holds.pull(index);
            let wanted = pull::wanted_by(pull);
            let mut read = |out: &mut Vec<u8>| {
                let (kind, outcome) = pull::read(tables, core, &wanted, answer_header, out);
                if matches!(kind, Kind::Retry | Kind::Moved) {
                    pull::answer_empty(tables, &wanted, &outcome, kind, out);
                }
                kind
            };
            let kind = match &mut own {
                Some((connection, answers))
                    if *connection == pull.connection && answers.len() < ANSWER_BYTES_MAX =>
                {
                    read(answers)
                }
                _ => peers.write_ready(pull.connection, read),
            };
            if kind != Kind::NotFound {
                self.release(index);
                continue;
            }
            let (topic, queue_id) = (pull.topic, pull.queue_id);
            if let Some(queue) = self.tables.topics[topic as usize].queue(queue_id) {
                self.holds.wait_again(index, &mut queue.holds);
            }
        }
    }

    /// Answers the pulls whose time is over.
    pub fn expire_holds(&mut self, core: &mut Core, now_ms: i64) {
        while let Some(index) = self.holds.next_expired(now_ms) {
            let Self { tables, holds, peers, answer_header, .. } = self;
            let pull = holds.pull(index);
            let wanted = pull::wanted_by(pull);
            peers.write_ready(pull.connection, |out| {
                let (kind, outcome) = pull::read(tables, core, &wanted, answer_header, out);
                match kind {
                    Kind::Found => {}
                    // The next offset tells the client how far the read got.
                    Kind::Retry | Kind::NotFound => {
                        pull::answer_empty(tables, &wanted, &outcome, Kind::NotFound, out);
                    }
                    Kind::Moved => pull::answer_empty(tables, &wanted, &outcome, kind, out),
                }
            });
            self.release(index);
        }
    }

    /// Forgets a connection, its held pulls and its answers.
    pub fn close(&mut self, connection: u64) {
        while let Some(peer) = self.peers.known(connection) {
            let Some(index) = peer.holds.first() else {
                break;
            };
            self.release(index);
        }
        self.peers.remove(connection);
    }

    /// Takes a held pull out of all lists.
    fn release(&mut self, index: u32) {
        let pull = self.holds.pull(index);
        let (connection, topic, queue_id) = (pull.connection, pull.topic, pull.queue_id);
        let peer = self.peers.peer(connection);
        if let Some(queue) = self.tables.topics[topic as usize].queue(queue_id) {
            self.holds.release(index, &mut queue.holds, &mut peer.holds);
        }
    }
}
