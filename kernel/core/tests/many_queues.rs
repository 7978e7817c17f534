//! Stores of many queues. One process for itself: what it sets counts for the whole process.
#![allow(missing_docs)]

mod common;

use std::fs;
use std::path::Path;

use common::*;
use kerolox_core::{GetStatus, Store, set_maps_max};
use tempfile::tempdir;

const MAPS_MAX: usize = 24;
/// More than are flushed one by one.
const QUEUES: i32 = 600;

fn maps_of(root: &Path) -> usize {
    let text = fs::read_to_string("/proc/self/maps").unwrap();
    text.lines().filter(|line| line.contains(root.to_str().unwrap())).count()
}

fn put_round(store: &Store, root: &Path) {
    for queue_id in 0..QUEUES {
        put(store, "Wide", queue_id, b"body");
        if queue_id % 50 == 0 {
            assert!(maps_of(root) <= MAPS_MAX + 4, "{}", maps_of(root));
        }
    }
}

fn read_round(store: &Store, root: &Path, count: u32) {
    for queue_id in 0..QUEUES {
        let (outcome, _) = read(store, "Wide", queue_id, 0, 32);
        assert_eq!((outcome.status, outcome.count), (GetStatus::Found, count), "{queue_id}");
    }
    assert!(maps_of(root) <= MAPS_MAX + 4, "{}", maps_of(root));
}

#[test]
fn more_queues_than_maps_are_written_read_flushed_and_recovered() {
    set_maps_max(MAPS_MAX);
    let folder = tempdir().unwrap();
    let root = folder.path();
    let settings = || kerolox_core::Settings {
        mapped_file_size_commit_log: 1 << 20,
        max_index_num: 2_000,
        ..small(root)
    };
    let store = opened(settings());
    put_round(&store, root);
    put_round(&store, root);
    read_round(&store, root, 2);
    store.flush().unwrap();
    put_round(&store, root);
    store.abandon();

    let store = Store::new(settings());
    let report = store.open().unwrap();
    assert!(!report.clean);
    assert_eq!((report.queues, report.dispatched), (i64::from(QUEUES), 0));
    read_round(&store, root, 3);
    put_round(&store, root);
    store.close().unwrap();

    fs::remove_dir_all(root.join("consumequeue")).unwrap();
    let store = Store::new(settings());
    let report = store.open().unwrap();
    assert_eq!(report.dispatched, 4 * i64::from(QUEUES));
    read_round(&store, root, 4);
    store.close().unwrap();
}
