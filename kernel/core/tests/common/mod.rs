//! What the tests of the store share.
#![allow(dead_code, missing_docs)]

use std::path::Path;

use kerolox_core::record::{Parsed, RecordView, parse};
use kerolox_core::{
    Appended, Filter, GetStatus, Guard, NewRecord, PutStatus, ReadOutcome, Settings, Store, Text,
};

pub const HOST: &[u8] = &[127, 0, 0, 1, 0, 0, 0x2A, 0x9F];

/// Small files, so that everything rolls: 64 KiB of log, 50 queue entries, 40 index entries.
pub fn small(root: &Path) -> Settings {
    Settings {
        mapped_file_size_commit_log: 64 * 1024,
        mapped_file_size_consume_queue: 50 * 20,
        max_hash_slot_num: 16,
        max_index_num: 40,
        ..Settings::new(root)
    }
}

pub fn opened(settings: Settings) -> Store {
    let store = Store::new(settings);
    store.open().unwrap();
    store
}

pub fn record<'a>(body: &'a [u8], properties: &'a [u8]) -> NewRecord<'a> {
    NewRecord {
        flag: 7,
        sys_flag: 0,
        born_timestamp: 1_000,
        born_host: HOST,
        store_host: HOST,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: Text::one(properties),
        marks: None,
        tags_code: None,
        bit_map: &[],
    }
}

pub fn put(store: &Store, topic: &str, queue_id: i32, body: &[u8]) -> Appended {
    put_with(store, topic, queue_id, &record(body, b"")).unwrap()
}

pub fn put_with(
    store: &Store,
    topic: &str,
    queue_id: i32,
    record: &NewRecord<'_>,
) -> Result<Appended, PutStatus> {
    let mut core = store.lock();
    let queue = core.queue(topic.as_bytes(), queue_id)?;
    core.append(queue, record)
}

/// `count` messages over `queues` queues of a topic, with a tag, a key and a unique key each.
pub fn fill(store: &Store, topic: &str, queues: i32, count: usize) -> Vec<Appended> {
    (0..count)
        .map(|number| {
            let body = format!("body {number} of {topic}").repeat(1 + number % 5);
            let text = format!(
                "TAGS\x01tag{}\x02KEYS\x01key{number} all\x02UNIQ_KEY\x01{topic}-{number}",
                number % 3
            );
            let queue_id = number as i32 % queues;
            put_with(store, topic, queue_id, &record(body.as_bytes(), text.as_bytes())).unwrap()
        })
        .collect()
}

pub fn read(
    store: &Store,
    topic: &str,
    queue_id: i32,
    offset: i64,
    count: usize,
) -> (ReadOutcome, Vec<u8>) {
    let mut core = store.lock();
    let queue = core.queue(topic.as_bytes(), queue_id).unwrap();
    let mut answer = Vec::new();
    let outcome = core.read_into(queue, offset, count, Filter::default(), &mut answer);
    (outcome, answer)
}

pub fn views(mut bytes: &[u8]) -> Vec<RecordView<'_>> {
    let mut views = Vec::new();
    while !bytes.is_empty() {
        let Parsed::Record(view) = parse(bytes) else { panic!("no record") };
        assert!(view.is_crc_right());
        views.push(view);
        bytes = &bytes[view.size..];
    }
    views
}

/// Every message of a queue, read in pulls; asserts that the queue is dense.
pub fn bodies(store: &Store, topic: &str, queue_id: i32) -> Vec<Vec<u8>> {
    let (mut offset, max) = bounds(&mut store.lock(), topic, queue_id);
    let mut bodies = Vec::new();
    while offset < max {
        let (outcome, answer) = read(store, topic, queue_id, offset, 32);
        assert_eq!(outcome.status, GetStatus::Found, "{topic} {queue_id} {offset}");
        for view in views(&answer) {
            assert_eq!(view.queue_offset, offset);
            assert_eq!(view.topic, topic.as_bytes());
            assert_eq!(view.queue_id, queue_id);
            bodies.push(view.body.to_vec());
            offset += 1;
        }
        assert_eq!(outcome.next_offset, offset);
    }
    bodies
}

pub fn bounds(core: &mut Guard<'_>, topic: &str, queue_id: i32) -> (i64, i64) {
    core.queue_bounds(topic.as_bytes(), queue_id)
}

/// Physical offsets that a key leads to.
pub fn query(store: &Store, topic: &str, key: &str) -> Vec<i64> {
    let mut answer = Vec::new();
    store.lock().query_key_into(topic.as_bytes(), key.as_bytes(), 64, 0, i64::MAX, &mut answer);
    views(&answer).iter().map(|view| view.physical_offset).collect()
}

/// The record at a physical offset.
pub fn lookup(store: &Store, offset: i64) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    store.lock().lookup_into(offset, &mut answer).then_some(answer)
}
