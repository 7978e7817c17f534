//! What goes wrong around a store: damaged fields, openings that fail, kills between two steps.
#![allow(missing_docs)]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::*;
use kerolox_core::{BatchItem, NewBatch, PutStatus, RecoveryReport, Store, Text};
use tempfile::{TempDir, tempdir};

fn reopened(folder: &Path) -> (Store, RecoveryReport) {
    let store = Store::new(small(folder));
    let report = store.open().unwrap();
    (store, report)
}

fn overwrite(folder: &Path, name: &str, position: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(folder.join(name)).unwrap();
    file.write_all_at(bytes, position).unwrap();
}

fn log_name(offset: i64) -> String {
    format!("commitlog/{:020}", offset / 65_536 * 65_536)
}

fn killed(count: usize) -> (TempDir, Vec<kerolox_core::Appended>) {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let stored = fill(&store, "Topic", 1, count);
    drop(query(&store, "Topic", "drains"));
    store.abandon();
    (folder, stored)
}

/// Items of a batch, `count` of them.
fn put_batch(store: &Store, topic: &str, count: usize) -> Result<(), PutStatus> {
    let batch = NewBatch {
        sys_flag: 0,
        born_timestamp: 1,
        born_host: HOST,
        store_host: HOST,
        reconsume_times: 0,
    };
    let item = BatchItem {
        flag: 0,
        body: b"batch",
        properties: Text::default(),
        marks: None,
        bit_map: &[],
    };
    let mut core = store.lock();
    let queue = core.queue(topic.as_bytes(), 0)?;
    let (mut offsets, mut codes) = (Vec::new(), Vec::new());
    core.append_batch(queue, &batch, &vec![item; count], &mut offsets, &mut codes).map(drop)
}

#[test]
fn keys_that_the_index_could_not_take_are_there_after_a_clean_stop() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    // The folder of the index can't be made.
    fs::write(folder.path().join("index"), b"").unwrap();
    let stored = fill(&store, "Topic", 3, 100);
    assert!(query(&store, "Topic", "Topic-7").is_empty());
    assert!(store.error().unwrap().contains("index"));
    store.close().unwrap();
    fs::remove_file(folder.path().join("index")).unwrap();
    let (store, _) = reopened(folder.path());
    for (number, stored) in stored.iter().enumerate() {
        assert_eq!(
            query(&store, "Topic", &format!("Topic-{number}")),
            [stored.physical_offset],
            "{number}"
        );
    }
}

#[test]
fn an_opening_that_fails_leaves_nothing_behind() {
    let (folder, stored) = killed(100);
    // As if the machine had been switched off.
    fs::write(folder.path().join("boot"), "another").unwrap();
    let stray = folder.path().join("consumequeue/Zzz/0");
    fs::create_dir_all(&stray).unwrap();
    fs::write(stray.join("00000000000000000000"), [0; 5_000]).unwrap();
    let store = Store::new(small(folder.path()));
    assert!(store.open().is_err());
    assert_eq!(bounds(&mut store.lock(), "Topic", 0), (0, 0), "the store is not open");
    assert_eq!(lookup(&store, stored[0].physical_offset), None);
    assert!(store.flush().is_err());
    store.close().unwrap();
    fs::remove_file(stray.join("00000000000000000000")).unwrap();
    let report = store.open().unwrap();
    assert!(!report.clean);
    assert_eq!(report.indexed, 100, "the index was built again after the loss of power");
    assert_eq!(bodies(&store, "Topic", 0).len(), 100);
}

#[test]
fn an_abort_file_that_can_t_be_made_fails_the_opening() {
    let folder = tempdir().unwrap();
    fs::create_dir_all(folder.path().join("abort")).unwrap();
    let store = Store::new(small(folder.path()));
    assert!(store.open().is_err());
    assert_eq!(put_with(&store, "T", 0, &record(b"x", b"")), Err(PutStatus::ServiceNotAvailable));
    fs::remove_dir(folder.path().join("abort")).unwrap();
    store.open().unwrap();
    put(&store, "T", 0, b"x");
    store.close().unwrap();
    assert!(!folder.path().join("abort").exists());
}

#[test]
fn a_damaged_queue_offset_does_not_fill_the_disk() {
    for queue_offset in [100_000_i64, i64::MAX, -1, 7] {
        let (folder, stored) = killed(100);
        let damaged = &stored[50];
        let name = log_name(damaged.physical_offset);
        let position = damaged.physical_offset as u64 % 65_536 + 20;
        overwrite(folder.path(), &name, position, &queue_offset.to_be_bytes());
        fs::remove_dir_all(folder.path().join("consumequeue")).unwrap();
        let (store, _) = reopened(folder.path());
        let queues = fs::read_dir(folder.path().join("consumequeue/Topic/0")).unwrap().count();
        assert!(queues < 10, "{queues} queue files for {queue_offset}");
        assert_eq!(put(&store, "Topic", 0, b"next").queue_offset, 100, "{queue_offset}");
        for stored in stored.iter().filter(|stored| stored.queue_offset != 50) {
            let (_, bytes) = read(&store, "Topic", 0, stored.queue_offset, 1);
            assert_eq!(views(&bytes)[0].physical_offset, stored.physical_offset);
        }
    }
}

#[test]
fn damaged_queue_entries_are_never_followed() {
    for is_clean in [true, false] {
        for physical in [i64::MAX, i64::MAX - 100, i64::MIN, -1, 1 << 40] {
            for number in [99_u64, 98, 20, 0] {
                let folder = tempdir().unwrap();
                let store = opened(small(folder.path()));
                let stored = fill(&store, "Topic", 1, 100);
                if is_clean {
                    store.close().unwrap();
                } else {
                    store.abandon();
                }
                let name = format!("consumequeue/Topic/0/{:020}", number / 50 * 1_000);
                let position = number % 50 * 20;
                overwrite(folder.path(), &name, position, &physical.to_be_bytes());
                let (store, _) = reopened(folder.path());
                let case = format!("{is_clean} {physical} {number}");
                let (mut offset, max) = bounds(&mut store.lock(), "Topic", 0);
                if !is_clean || number == 99 {
                    assert_eq!(max, 100, "{case}");
                }
                while offset < max {
                    let (outcome, bytes) = read(&store, "Topic", 0, offset, 32);
                    for view in views(&bytes) {
                        let right = &stored[view.queue_offset as usize];
                        assert_eq!(view.physical_offset, right.physical_offset, "{case}");
                    }
                    assert!(outcome.next_offset > offset, "{case}");
                    offset = outcome.next_offset;
                }
                store.lock().offset_by_time(b"Topic", 0, i64::MAX);
                store.lock().offset_by_time(b"Topic", 0, i64::MIN);
                let next = put(&store, "Topic", 0, b"next");
                assert_eq!(next.queue_offset, max, "{case}");
            }
        }
    }
}

#[test]
fn a_damaged_index_is_never_followed() {
    for (position, bytes) in [
        (0, i64::MIN.to_be_bytes()),
        (0, i64::MAX.to_be_bytes()),
        (8, i64::MAX.to_be_bytes()),
        (16, i64::MIN.to_be_bytes()),
        (32, [0xFF; 8]),
        (32, [0, 0, 0, 0, 0x7F, 0xFF, 0xFF, 0xFF]),
        (40, [0x7F; 8]),
        (40 + 16 * 4 + 20 + 4, [0x7F; 8]),
        (40 + 16 * 4 + 20 + 12, [0x7F; 8]),
    ] {
        let folder = tempdir().unwrap();
        let store = opened(small(folder.path()));
        fill(&store, "Topic", 1, 10);
        store.close().unwrap();
        let file = fs::read_dir(folder.path().join("index")).unwrap().next().unwrap().unwrap();
        let name = format!("index/{}", file.file_name().to_str().unwrap());
        overwrite(folder.path(), &name, position, &bytes);
        let (store, _) = reopened(folder.path());
        for number in 0..10 {
            query(&store, "Topic", &format!("Topic-{number}"));
        }
        fill(&store, "Topic", 1, 30);
        query(&store, "Topic", "all");
        store.close().unwrap();
    }
}

#[test]
fn hostile_arguments_of_reads_are_answered() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let stored = fill(&store, "Topic", 1, 60);
    for offset in [i64::MIN, i64::MIN + 1, -1, 59, 60, 61, i64::MAX - 1, i64::MAX] {
        for count in [0, 1, usize::MAX, i32::MAX as usize] {
            let (outcome, bytes) = read(&store, "Topic", 0, offset, count);
            assert_eq!(bytes.is_empty(), offset != 59, "{offset} {count} {outcome:?}");
            assert!((0..=60).contains(&outcome.next_offset), "{offset} {outcome:?}");
        }
        let mut core = store.lock();
        assert_eq!(core.queue_entry(b"Topic", 0, offset).is_some(), offset == 59);
        assert_eq!(core.store_time(b"Topic", 0, offset) >= 0, offset == 59);
        core.offset_by_time(b"Topic", 0, offset);
        assert!(!core.lookup_into(offset, &mut Vec::new()));
        drop(core);
        store.request_flush(offset);
    }
    for offset in stored[0].physical_offset..stored[3].physical_offset {
        let is_start = stored.iter().any(|stored| stored.physical_offset == offset);
        assert_eq!(lookup(&store, offset).is_some(), is_start);
    }
    let end = store.flush().unwrap();
    assert_eq!(store.flushed_offset(), end);
    put(&store, "Topic", 0, b"more");
    assert!(store.flush().unwrap() > end);
    store.close().unwrap();
}

#[test]
fn a_kill_while_a_batch_crosses_files_keeps_queues_dense() {
    for before in [0, 30, 49, 50] {
        let folder = tempdir().unwrap();
        let store = opened(small(folder.path()));
        for _ in 0..before {
            put(&store, "T", 0, b"one");
        }
        // Three queue files in one batch; the log goes on in its next file in the end.
        for _ in 0..6 {
            put_batch(&store, "T", 120).unwrap();
        }
        let end = store.lock().max_physical_offset();
        store.abandon();
        // The last batch reached the disk in part.
        let cut = end - 60 * 97 - 40;
        overwrite(folder.path(), &log_name(cut), cut as u64 % 65_536, &[0; 40]);
        let (store, report) = reopened(folder.path());
        assert!(report.truncated_bytes > 0);
        let found = bodies(&store, "T", 0).len();
        assert!((before + 600..before + 720).contains(&found), "{found}");
        assert_eq!(put(&store, "T", 0, b"next").queue_offset, found as i64);
        put_batch(&store, "T", 120).unwrap();
        assert_eq!(bodies(&store, "T", 0).len(), found + 121);
    }
}

#[test]
fn a_kill_at_any_step_of_a_roll_loses_nothing() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let mut count = 0;
    while store.lock().max_physical_offset() < 64_000 {
        put(&store, "T", 0, &[1; 900]);
        count += 1;
    }
    let end = store.lock().max_physical_offset() as u64;
    store.abandon();
    let next = folder.path().join("commitlog/00000000000000065536");
    let blank: &[u8] =
        &[(65_536 - end).to_be_bytes()[4..].to_vec(), vec![0xCB, 0xD4, 0x31, 0x94]].concat();
    for (has_blank, next_size) in [
        (false, Some(0)),
        (false, Some(65_536)),
        (true, Some(65_536)),
        (true, Some(0)),
        (true, None),
    ] {
        let _ = fs::remove_file(&next);
        overwrite(folder.path(), &log_name(0), end, if has_blank { blank } else { &[0; 8] });
        if let Some(size) = next_size {
            OpenOptions::new()
                .create(true)
                .write(true)
                .truncate(true)
                .open(&next)
                .unwrap()
                .set_len(size)
                .unwrap();
        }
        let (store, report) = reopened(folder.path());
        assert_eq!(report.max_offset as u64, if has_blank { 65_536 } else { end });
        assert_eq!(bodies(&store, "T", 0).len(), count);
        assert_eq!(put(&store, "T", 0, &[2; 2_000]).queue_offset, count as i64);
        assert_eq!(bodies(&store, "T", 0).len(), count + 1);
        store.abandon();
        // Back to where it was: the new record is torn.
        overwrite(folder.path(), "commitlog/00000000000000065536", 0, &[0; 8]);
        let (store, _) = reopened(folder.path());
        assert_eq!(bodies(&store, "T", 0).len(), count);
        store.abandon();
    }
}

#[test]
fn the_reason_of_a_refusal_goes_with_the_next_success() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let large = vec![0; 70_000];
    assert_eq!(put_with(&store, "T", 0, &record(&large, b"")), Err(PutStatus::MessageIllegal));
    assert!(store.error().unwrap().contains("does not fit"));
    put(&store, "T", 0, b"fits");
    assert_eq!(store.error(), None);
}

#[test]
fn two_threads_may_close_at_once() {
    for _ in 0..20 {
        let folder = tempdir().unwrap();
        let store = opened(small(folder.path()));
        fill(&store, "T", 2, 50);
        thread::scope(|scope| {
            let closing: Vec<_> = (0..3).map(|_| scope.spawn(|| store.close())).collect();
            for thread in closing {
                thread.join().unwrap().unwrap();
            }
        });
        assert!(!folder.path().join("abort").exists());
    }
}

#[test]
fn threads_that_write_read_delete_and_flush_do_not_get_into_each_other_s_way() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let is_over = AtomicBool::new(false);
    let fill_some = || {
        while !is_over.load(Ordering::Relaxed) {
            let mut core = store.lock();
            for topic in ["A", "B", "C"] {
                let queue = core.queue(topic.as_bytes(), 0).unwrap();
                let text = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01u";
                core.append(queue, &record(&[5; 200], text)).unwrap();
            }
        }
    };
    let written = thread::scope(|scope| {
        scope.spawn(fill_some);
        scope.spawn(fill_some);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let (low, high) = bounds(&mut store.lock(), "A", 0);
                let (_, bytes) = read(&store, "A", 0, low.midpoint(high), 32);
                views(&bytes);
                drop(query(&store, "C", "k1"));
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.lock().delete_queues(b"B");
                store.flush().unwrap();
            }
        });
        thread::sleep(std::time::Duration::from_millis(400));
        // On a machine that stands still for so long they have not even started.
        while bounds(&mut store.lock(), "C", 0).1 == 0 {
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        bounds(&mut store.lock(), "C", 0).1
    });
    assert!(written > 0);
    let ends: Vec<_> = ["A", "C"].map(|topic| bounds(&mut store.lock(), topic, 0)).to_vec();
    assert_eq!(store.error(), None);
    store.close().unwrap();
    let (store, report) = reopened(folder.path());
    assert!(report.clean);
    for (topic, end) in ["A", "C"].iter().zip(ends) {
        assert_eq!(bounds(&mut store.lock(), topic, 0), end);
        assert_eq!(bodies(&store, topic, 0).len() as i64, end.1);
    }
}
