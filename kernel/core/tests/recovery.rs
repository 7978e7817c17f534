//! Stores that were killed, torn or damaged: what was acknowledged is at its offset afterwards.
#![allow(missing_docs)]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::*;
use kerolox_core::{Appended, NewRecord, RecoveryReport, Settings, Store};
use tempfile::{TempDir, tempdir};

/// Where a record is overwritten, and with what.
type Damage = fn(&Appended) -> (i64, Vec<u8>);

/// A store that was filled and then killed, most keys not yet in the index.
fn killed(count: usize) -> (TempDir, Vec<Appended>) {
    killed_after(count, |_| ())
}

/// The same, all keys in the index.
fn killed_indexed(count: usize) -> (TempDir, Vec<Appended>) {
    killed_after(count, |store| drop(query(store, "Topic", "drains")))
}

fn killed_after(count: usize, last: fn(&Store)) -> (TempDir, Vec<Appended>) {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let stored = fill(&store, "Topic", 3, count);
    last(&store);
    store.abandon();
    assert!(folder.path().join("abort").exists());
    (folder, stored)
}

fn reopened(folder: &Path) -> (Store, RecoveryReport) {
    let store = Store::new(small(folder));
    let report = store.open().unwrap();
    (store, report)
}

fn overwrite(path: PathBuf, position: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, position).unwrap();
}

/// Overwrites bytes of the log.
fn damage(folder: &Path, offset: i64, bytes: &[u8]) {
    let name = format!("commitlog/{:020}", offset / 65_536 * 65_536);
    overwrite(folder.join(name), offset as u64 % 65_536, bytes);
}

/// As if the machine had been switched off, too.
fn forget_boot(folder: &Path) {
    fs::write(folder.join("boot"), "another").unwrap();
}

/// Everything stored is at its offset, found by key, and the queues hold nothing else.
fn assert_whole(store: &Store, stored: &[Appended]) {
    let count: usize = (0..3).map(|id| bodies(store, "Topic", id).len()).sum();
    assert_eq!(count, stored.len());
    for (number, stored) in stored.iter().enumerate() {
        let bytes = lookup(store, stored.physical_offset).unwrap();
        assert_eq!(views(&bytes)[0].queue_offset, stored.queue_offset);
        let found = query(store, "Topic", &format!("Topic-{number}"));
        assert_eq!(found, [stored.physical_offset], "key {number}");
    }
    let (end, before) = (store.lock().max_physical_offset(), stored.last().unwrap());
    assert_eq!(end, before.end_offset());
    let next = put(store, "Topic", 0, b"next");
    let last = stored.iter().filter(|stored| stored.queue_offset >= next.queue_offset);
    assert!(last.count() <= 2 * next.queue_offset as usize);
    assert_eq!(bodies(store, "Topic", 0).last().unwrap(), b"next");
}

#[test]
fn nothing_is_lost_by_a_kill() {
    let (folder, stored) = killed(800);
    let (store, report) = reopened(folder.path());
    assert!(!report.clean);
    assert_eq!((report.truncated_bytes, report.dispatched), (0, 0));
    assert_whole(&store, &stored);
}

#[test]
fn keys_in_the_index_at_a_kill_are_not_put_twice() {
    let (folder, stored) = killed_indexed(300);
    let (store, report) = reopened(folder.path());
    assert_eq!(report.indexed, 0);
    assert_whole(&store, &stored);
}

#[test]
fn many_kills_in_a_row_lose_nothing() {
    let folder = tempdir().unwrap();
    let mut counts = 0;
    for round in 0..5 {
        let (store, report) = reopened(folder.path());
        assert_eq!(report.truncated_bytes, 0);
        counts += fill(&store, "Topic", 3, 150 + round).len();
        store.abandon();
    }
    let (store, _) = reopened(folder.path());
    assert_eq!((0..3).map(|id| bodies(&store, "Topic", id).len()).sum::<usize>(), counts);
}

#[test]
fn a_loss_of_power_has_the_index_built_again() {
    let (folder, stored) = killed_indexed(300);
    forget_boot(folder.path());
    let (store, report) = reopened(folder.path());
    assert_eq!(report.indexed, 300);
    assert!(report.notes.iter().any(|note| note.contains("index file")));
    assert_whole(&store, &stored);
}

#[test]
fn an_index_that_is_gone_is_built_again() {
    let (folder, stored) = killed_indexed(300);
    fs::remove_dir_all(folder.path().join("index")).unwrap();
    let (store, report) = reopened(folder.path());
    assert_eq!(report.indexed, 300);
    assert_whole(&store, &stored);
}

#[test]
fn an_index_that_is_gone_after_a_clean_stop_is_built_again() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let stored = fill(&store, "Topic", 3, 300);
    store.close().unwrap();
    fs::remove_dir_all(folder.path().join("index")).unwrap();
    let (store, report) = reopened(folder.path());
    assert!(report.clean);
    assert_whole(&store, &stored);
}

#[test]
fn queues_that_are_gone_are_built_again() {
    for part in ["consumequeue", "consumequeue/Topic", "consumequeue/Topic/1"] {
        let (folder, stored) = killed(800);
        fs::remove_dir_all(folder.path().join(part)).unwrap();
        let (store, report) = reopened(folder.path());
        assert!(report.dispatched >= 266, "{part}: {report:?}");
        assert_whole(&store, &stored);
    }
}

#[test]
fn queues_that_are_gone_after_a_clean_stop_are_built_again() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let stored = fill(&store, "Topic", 3, 800);
    store.close().unwrap();
    fs::remove_dir_all(folder.path().join("consumequeue")).unwrap();
    let (store, report) = reopened(folder.path());
    assert!(report.clean);
    assert_eq!(report.dispatched, 800);
    assert_whole(&store, &stored);
}

#[test]
fn short_queues_and_holes_in_them_are_filled() {
    let (folder, stored) = killed(800);
    let queue = folder.path().join("consumequeue/Topic/0");
    // A page that never reached the disk in the last file, a last file that did not, an old hole.
    overwrite(queue.join("00000000000000005000"), 20, &[0; 60]);
    fs::remove_file(folder.path().join("consumequeue/Topic/1/00000000000000005000")).unwrap();
    overwrite(folder.path().join("consumequeue/Topic/2/00000000000000001000"), 40, &[0; 40]);
    let (store, report) = reopened(folder.path());
    assert!(report.dispatched > 0);
    assert_whole(&store, &stored);
}

#[test]
fn an_empty_file_left_by_a_kill_is_no_reason_to_refuse() {
    let (folder, stored) = killed(100);
    fs::write(folder.path().join("commitlog/00000000000000065536"), "").unwrap();
    fs::write(folder.path().join("consumequeue/Topic/0/00000000000000001000"), "").unwrap();
    let (store, _) = reopened(folder.path());
    assert_whole(&store, &stored);
}

#[test]
fn a_torn_tail_is_cut_at_the_last_whole_record() {
    let damages: [(&str, Damage); 6] = [
        ("size zero", |last| (last.physical_offset, vec![0; 4])),
        ("garbage size", |last| (last.physical_offset, vec![0x7F, 0xFF, 0xFF, 0xFF])),
        ("negative size", |last| (last.physical_offset, vec![0x80, 0, 0, 0])),
        ("small size", |last| (last.physical_offset, vec![0, 0, 0, 9])),
        ("wrong magic", |last| (last.physical_offset + 4, vec![1; 4])),
        ("torn body", |last| (last.physical_offset + 90, vec![0; 9])),
    ];
    for (name, at) in damages {
        let (folder, stored) = killed(700);
        let (last, rest) = stored.split_last().unwrap();
        let (offset, bytes) = at(last);
        damage(folder.path(), offset, &bytes);
        let (store, report) = reopened(folder.path());
        assert!(report.truncated_bytes > 0, "{name}");
        assert!(report.notes.iter().any(|note| note.contains("cut")), "{name}");
        assert_whole(&store, rest);
        // Nothing of the torn record is left to be misread.
        store.abandon();
        let (store, report) = reopened(folder.path());
        assert_eq!(report.truncated_bytes, 0, "{name}");
        assert!(lookup(&store, last.physical_offset).is_some());
    }
}

#[test]
fn a_record_in_the_middle_ends_the_log_and_later_files_are_set_aside() {
    let (folder, stored) = killed(800);
    let at = stored[150];
    assert!(at.physical_offset < 65_536 && stored[799].physical_offset > 131_072);
    damage(folder.path(), at.physical_offset + 89, &[0xEE; 4]);
    let (store, report) = reopened(folder.path());
    assert!(report.truncated_bytes > 65_536);
    assert_whole(&store, &stored[..150]);
    assert!(folder.path().join("commitlog-cut/00000000000000065536").exists());
    // Stale records after the cut are never read as new ones.
    let more = fill(&store, "Topic", 3, 30);
    assert_eq!(more.len(), 30);
    store.abandon();
    let (store, report) = reopened(folder.path());
    assert_eq!(report.truncated_bytes, 0);
    assert_eq!((0..3).map(|id| bodies(&store, "Topic", id).len()).sum::<usize>(), 181);
}

#[test]
fn entries_dropped_with_the_log_s_end_do_not_come_back() {
    let (folder, stored) = killed(700);
    let cut = &stored[690];
    damage(folder.path(), cut.physical_offset, &[0; 8]);
    let (store, _) = reopened(folder.path());
    let bounds_before: Vec<_> = (0..3).map(|id| bounds(&mut store.lock(), "Topic", id)).collect();
    for _ in 0..60 {
        put(&store, "Other", 0, &[3; 200]);
    }
    store.close().unwrap();
    let (store, _) = reopened(folder.path());
    let bounds_after: Vec<_> = (0..3).map(|id| bounds(&mut store.lock(), "Topic", id)).collect();
    assert_eq!(bounds_before, bounds_after);
    assert_eq!(bodies(&store, "Other", 0).len(), 60);
}

#[test]
fn a_log_that_is_gone_takes_queues_and_index_with_it() {
    let (folder, _) = killed(300);
    fs::remove_dir_all(folder.path().join("commitlog")).unwrap();
    let (store, report) = reopened(folder.path());
    assert_eq!((report.max_offset, report.queues), (0, 0));
    assert!(query(&store, "Topic", "Topic-1").is_empty());
    assert_eq!(put(&store, "Topic", 0, b"b").queue_offset, 0);
}

#[test]
fn a_log_without_its_first_files_keeps_queue_offsets() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let stored = fill(&store, "Topic", 3, 800);
    store.close().unwrap();
    fs::remove_file(folder.path().join("commitlog/00000000000000000000")).unwrap();
    let first = stored.iter().find(|stored| stored.physical_offset >= 65_536).unwrap();
    for gone in ["none", "consumequeue"] {
        let _ = fs::remove_dir_all(folder.path().join(gone));
        let (store, report) = reopened(folder.path());
        assert_eq!(report.min_offset, 65_536);
        let mut core = store.lock();
        let (min, max) = bounds(
            &mut core,
            "Topic",
            (stored.iter().position(|s| s == first).unwrap() % 3) as i32,
        );
        assert_eq!(min, first.queue_offset);
        assert!((266..=267).contains(&max));
        drop(core);
        for id in 0..3 {
            assert!(!bodies(&store, "Topic", id).is_empty());
        }
        store.close().unwrap();
    }
}

#[test]
fn a_topic_deleted_and_made_again_stays_as_it_was() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    fill(&store, "Topic", 1, 100);
    store.lock().delete_queues(b"Topic");
    fill(&store, "Topic", 1, 40);
    store.abandon();
    let (store, _) = reopened(folder.path());
    assert_eq!(bounds(&mut store.lock(), "Topic", 0), (0, 40));
    assert_eq!(bodies(&store, "Topic", 0).len(), 40);
    store.abandon();
    fs::remove_dir_all(folder.path().join("consumequeue")).unwrap();
    let (store, _) = reopened(folder.path());
    assert_eq!(bounds(&mut store.lock(), "Topic", 0), (0, 40));
    assert_eq!(bodies(&store, "Topic", 0).len(), 40);
}

#[test]
fn half_messages_get_no_entry_from_recovery_and_delays_their_time() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    store.set_clock(Some(50_000));
    put_with(&store, "T", 0, &NewRecord { sys_flag: 4, ..record(b"half", b"") }).unwrap();
    put(&store, "T", 0, b"whole");
    let delayed =
        NewRecord { tags_code: Some(55_000), ..record(b"later", b"DELAY\x012\x02TAGS\x01a") };
    put_with(&store, "SCHEDULE_TOPIC_XXXX", 1, &delayed).unwrap();
    store.abandon();
    fs::remove_dir_all(folder.path().join("consumequeue")).unwrap();
    let (store, report) = reopened(folder.path());
    assert_eq!(report.dispatched, 2);
    assert_eq!(bodies(&store, "T", 0), [b"whole".to_vec()]);
    assert_eq!(store.lock().queue_entry(b"SCHEDULE_TOPIC_XXXX", 1, 0).unwrap().2, 55_000);
}

#[test]
fn a_clean_stop_is_reopened_without_reading_the_log() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    fill(&store, "Topic", 3, 800);
    store.close().unwrap();
    let (_, report) = reopened(folder.path());
    assert!(report.scanned_bytes < 1_000, "{report:?}");
}

#[test]
fn the_store_time_goes_on_from_the_last_record_but_after_a_crash_not_from_one_far_ahead() {
    // (how far ahead, whether it was closed cleanly, whether times go on)
    for (ahead_ms, is_clean, goes_on) in
        [(30_000, false, true), (3_600_000, false, false), (3_600_000, true, true)]
    {
        let folder = tempdir().unwrap();
        let store = opened(small(folder.path()));
        let last = now_ms() + ahead_ms;
        store.set_clock(Some(last));
        put(&store, "Topic", 0, b"b");
        if is_clean {
            store.close().unwrap();
        } else {
            store.abandon();
        }
        drop(store);
        let (store, _) = reopened(folder.path());
        let next = put(&store, "Topic", 0, b"b").store_timestamp;
        assert_eq!(next >= last, goes_on, "{ahead_ms}");
    }
}

fn now_ms() -> i64 {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(elapsed.as_millis()).unwrap()
}

#[test]
fn a_store_without_an_index_stays_without() {
    let folder = tempdir().unwrap();
    let settings = || Settings { message_index_enable: false, ..small(folder.path()) };
    let store = opened(settings());
    fill(&store, "Topic", 1, 50);
    assert!(query(&store, "Topic", "Topic-1").is_empty());
    store.abandon();
    opened(settings());
    assert!(!folder.path().join("index").exists());
}
