//! The store through its face: what is put is read back, with RocketMQ's statuses and layouts.
#![allow(missing_docs)]

mod common;

use std::fs;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use kerolox_core::{
    BatchItem, Filter, FlushDiskType, GetStatus, NewBatch, NewRecord, PutStatus, Settings, Store,
    Text,
};
use tempfile::tempdir;

#[test]
fn records_are_read_back_over_many_files_and_after_a_clean_stop() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let stored = fill(&store, "Topic", 3, 1_000);
    let before: Vec<_> = (0..3).map(|id| bodies(&store, "Topic", id)).collect();
    assert_eq!(before.iter().map(Vec::len).sum::<usize>(), 1_000);
    assert!(stored.windows(2).all(|pair| pair[0].physical_offset < pair[1].physical_offset));
    store.close().unwrap();
    assert!(!folder.path().join("abort").exists());
    assert!(fs::read_dir(folder.path().join("commitlog")).unwrap().count() > 2);

    let store = Store::new(small(folder.path()));
    let report = store.open().unwrap();
    assert!(folder.path().join("abort").exists());
    assert!(report.clean);
    assert_eq!((report.truncated_bytes, report.dispatched, report.queues), (0, 0, 3));
    assert_eq!(report.max_offset, stored.last().unwrap().end_offset());
    let after: Vec<_> = (0..3).map(|id| bodies(&store, "Topic", id)).collect();
    assert_eq!(before, after);
    for (number, stored) in stored.iter().enumerate() {
        assert_eq!(query(&store, "Topic", &format!("Topic-{number}")), [stored.physical_offset]);
    }
    let next = put(&store, "Topic", 0, b"next");
    assert_eq!(next.queue_offset, before[0].len() as i64);
    store.close().unwrap();
    store.close().unwrap();
}

#[test]
fn statuses_and_next_offsets_are_rocketmq_s() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let expect = |offset, status, next| {
        let (outcome, _) = read(&store, "Topic", 0, offset, 4);
        assert_eq!((outcome.status, outcome.next_offset), (status, next), "offset {offset}");
    };
    expect(0, GetStatus::NoMessageInQueue, 0);
    expect(9, GetStatus::NoMessageInQueue, 0);
    fill(&store, "Topic", 1, 120);
    expect(-1, GetStatus::OffsetTooSmall, 0);
    expect(0, GetStatus::Found, 4);
    expect(120, GetStatus::OffsetOverflowOne, 120);
    expect(121, GetStatus::OffsetOverflowBadly, 120);
    // A read stops at the end of a queue file.
    let (outcome, answer) = read(&store, "Topic", 0, 45, 32);
    assert_eq!((outcome.count, outcome.next_offset, outcome.bytes), (5, 50, answer.len()));
    let stats = store.lock().stats();
    assert_eq!((stats.put_count, stats.get_found, stats.get_miss), (120, 2, 5));
    assert_eq!(store.lock().topic_stats()[0].1, 120);
}

#[test]
fn a_read_keeps_its_limits_but_gives_at_least_one() {
    let folder = tempdir().unwrap();
    let settings =
        Settings { max_transfer_bytes_on_message_in_memory: 1_000, ..small(folder.path()) };
    let store = opened(Settings { mapped_file_size_consume_queue: 6_000, ..settings });
    for _ in 0..40 {
        put(&store, "Small", 0, b"x");
        put(&store, "Large", 0, &[1; 2_000]);
    }
    assert_eq!(read(&store, "Small", 0, 0, 32).0.count, 1_000 / 97);
    assert_eq!(read(&store, "Small", 0, 0, 3).0.count, 3);
    assert_eq!(read(&store, "Large", 0, 0, 32).0.count, 1);
    assert_eq!(read(&store, "Large", 0, 0, 0).0.count, 1);
}

#[test]
fn tags_are_filtered_by_hash_and_skipped_entries_count() {
    let folder = tempdir().unwrap();
    let store = opened(Settings { mapped_file_size_consume_queue: 60_000, ..small(folder.path()) });
    fill(&store, "Topic", 1, 30);
    let mut core = store.lock();
    let queue = core.find_queue(b"Topic", 0).unwrap();
    let mut answer = b"kept".to_vec();
    let codes = [kerolox_core::record::java_hash(b"tag1")];
    let outcome = core.read_into(queue, 0, 5, Filter::by_tags(Some(&codes)), &mut answer);
    assert_eq!((outcome.count, outcome.next_offset), (5, 14));
    assert_eq!(&answer[..4], b"kept");
    assert!(views(&answer[4..]).iter().all(|view| view.queue_offset % 3 == 1));
    let outcome = core.read_into(queue, 0, 5, Filter::by_tags(Some(&[1])), &mut answer);
    assert_eq!((outcome.status, outcome.next_offset), (GetStatus::NoMatchedMessage, 30));
}

#[test]
fn text_in_pieces_is_stored_as_one_and_scanned_for_tags_and_keys() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let pieces = Text { parts: [b"TAGS\x01a\x02UNIQ", b"_KEY\x01u1\x02", b"KEYS\x01k1", b" k2"] };
    let stored =
        put_with(&store, "T", 0, &NewRecord { properties: pieces, ..record(b"b", b"") }).unwrap();
    assert_eq!(stored.tags_code, i64::from(b'a'));
    let bytes = lookup(&store, stored.physical_offset).unwrap();
    assert_eq!(views(&bytes)[0].properties, b"TAGS\x01a\x02UNIQ_KEY\x01u1\x02KEYS\x01k1 k2");
    for key in ["u1", "k1", "k2"] {
        assert_eq!(query(&store, "T", key), [stored.physical_offset]);
    }
    assert!(query(&store, "T", "k1 k2").is_empty());
    assert!(query(&store, "U", "k1").is_empty());
}

#[test]
fn a_batch_is_stored_whole_in_one_file() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    put(&store, "Topic", 0, &vec![0; 60_000]);
    let item = BatchItem {
        flag: 3,
        body: &[5; 900],
        properties: Text::default(),
        marks: None,
        bit_map: &[],
    };
    let batch = NewBatch {
        sys_flag: 0,
        born_timestamp: 1,
        born_host: HOST,
        store_host: HOST,
        reconsume_times: 0,
    };
    let (mut offsets, mut codes) = (vec![9], vec![9]);
    let mut core = store.lock();
    let queue = core.queue(b"Topic", 0).unwrap();
    let stored = core.append_batch(queue, &batch, &[item; 60], &mut offsets, &mut codes).unwrap();
    assert_eq!((stored.queue_offset, offsets.len(), codes.len()), (1, 60, 60));
    assert_eq!(offsets[0], 64 * 1024);
    assert_eq!(stored.end_offset, 64 * 1024 + 60 * 996);
    let refused = core.append_batch(queue, &batch, &[item; 70], &mut offsets, &mut codes);
    assert_eq!(refused, Err(PutStatus::MessageIllegal));
    drop(core);
    assert_eq!(bodies(&store, "Topic", 0).len(), 61);
}

#[test]
fn the_blank_at_a_file_s_end_has_length_and_magic() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let first = put(&store, "Topic", 0, &vec![0; 60_000]);
    put(&store, "Topic", 0, &vec![0; 60_000]);
    store.close().unwrap();
    let bytes = fs::read(folder.path().join("commitlog/00000000000000000000")).unwrap();
    let end = first.end_offset() as usize;
    assert_eq!(bytes[end..end + 4], (65_536 - end as i32).to_be_bytes());
    assert_eq!(bytes[end + 4..end + 8], (-875_286_124_i32).to_be_bytes());
    assert!(bytes[end + 8..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_record_that_leaves_room_for_the_blank_exactly_stays_in_the_file() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let overhead = 91 + 5;
    let first = put(&store, "Topic", 0, &vec![0; 65_536 - 8 - overhead]);
    assert_eq!(first.end_offset(), 65_536 - 8);
    let second = put(&store, "Topic", 0, &vec![0; 65_536 - 8 - overhead]);
    assert_eq!(second.physical_offset, 65_536);
    let large = put_with(&store, "Topic", 0, &record(&vec![0; 65_536 - 7 - overhead], b""));
    assert_eq!(large, Err(PutStatus::MessageIllegal));
    store.abandon();
    let store = opened(small(folder.path()));
    assert_eq!(bodies(&store, "Topic", 0).len(), 2);
    assert_eq!(store.lock().max_physical_offset(), second.end_offset());
}

#[test]
fn limits_are_statuses_and_store_nothing() {
    let folder = tempdir().unwrap();
    let store = opened(Settings { max_message_size: 1_000, ..small(folder.path()) });
    let refused = |record: &NewRecord<'_>| put_with(&store, "Topic", 0, record).unwrap_err();
    assert_eq!(refused(&record(&[0; 1_001], b"")), PutStatus::MessageIllegal);
    assert_eq!(refused(&record(b"", &vec![b'x'; 32_768])), PutStatus::PropertiesSizeExceeded);
    let odd = NewRecord { born_host: &[0; 9], ..record(b"", b"") };
    assert_eq!(refused(&odd), PutStatus::MessageIllegal);
    let mut core = store.lock();
    for topic in ["", "a/b", "..", "nul\0", &"x".repeat(128)] {
        assert_eq!(core.queue(topic.as_bytes(), 0), Err(PutStatus::MessageIllegal), "{topic}");
    }
    assert_eq!(core.queue(b"Topic", -1), Err(PutStatus::MessageIllegal));
    assert_eq!(core.max_physical_offset(), 0);
}

#[test]
fn half_messages_have_no_queue_entry_and_offset_zero() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    put(&store, "Topic", 0, b"first");
    for sys_flag in [4, 12] {
        let half = NewRecord { sys_flag, ..record(b"half", b"KEYS\x01k") };
        let stored = put_with(&store, "Topic", 0, &half).unwrap();
        assert_eq!(stored.queue_offset, 0);
    }
    let commit = NewRecord { sys_flag: 8, ..record(b"commit", b"") };
    assert_eq!(put_with(&store, "Topic", 0, &commit).unwrap().queue_offset, 1);
    assert_eq!(bodies(&store, "Topic", 0), [b"first".to_vec(), b"commit".to_vec()]);
    // A prepared record is indexed, a rollback is not.
    assert_eq!(query(&store, "Topic", "k").len(), 1);
}

#[test]
fn hosts_of_both_lengths_set_the_host_bits() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let new = NewRecord { sys_flag: 1, born_host: &[9; 20], ..record(b"b", b"") };
    let stored = put_with(&store, "Topic", 0, &new).unwrap();
    let bytes = lookup(&store, stored.physical_offset).unwrap();
    assert_eq!(views(&bytes)[0].sys_flag, 1 | 16);
    assert_eq!(views(&bytes)[0].born_host, [9; 20]);
    assert_eq!(stored.size, 91 + 12 + 1 + 5);
    assert!(lookup(&store, stored.physical_offset + 1).is_none());
    assert!(lookup(&store, -1).is_none());
    assert!(lookup(&store, i64::MAX).is_none());
}

#[test]
fn the_clock_can_be_frozen_and_store_time_never_goes_back() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let times = [5_000, 7_000, 6_000, 9_000];
    let stored = times.map(|time| {
        store.set_clock(Some(time));
        put(&store, "Topic", 0, b"b").store_timestamp
    });
    assert_eq!(stored, [5_000, 7_000, 7_000, 9_000]);
    let mut core = store.lock();
    for (time, offset) in [(0, 0), (5_000, 0), (5_999, 0), (6_001, 1), (8_500, 3), (99_999, 3)] {
        assert_eq!(core.offset_by_time(b"Topic", 0, time), offset, "time {time}");
    }
    assert_eq!(core.offset_by_time(b"None", 0, 1), 0);
    assert_eq!(core.store_time(b"Topic", 0, 3), 9_000);
    assert_eq!(core.store_time(b"Topic", 0, 4), -1);
    assert_eq!(core.store_time(b"Topic", 7, 0), -1);
    assert_eq!(core.queue_entry(b"Topic", 0, 1).unwrap().1, 97);
    assert_eq!(core.queue_entry(b"Topic", 0, 4), None);
}

#[test]
fn queries_by_key_count_in_seconds_and_go_over_index_files() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let mut offsets = Vec::new();
    for number in 0..100 {
        store.set_clock(Some(1_000_000 + number * 1_000));
        let stored = put_with(&store, "Topic", 0, &record(b"b", b"KEYS\x01same")).unwrap();
        offsets.push(stored.physical_offset);
    }
    let ask = |count, start, end| {
        let mut answer = Vec::new();
        let last = store.lock().query_key_into(b"Topic", b"same", count, start, end, &mut answer);
        assert_eq!(last, (1_099_000, offsets[99]));
        views(&answer).iter().map(|view| view.physical_offset).collect::<Vec<_>>()
    };
    assert_eq!(ask(64, 0, i64::MAX), offsets[36..]);
    assert_eq!(ask(5, 0, i64::MAX), offsets[95..]);
    assert_eq!(ask(99, 1_010_000, 1_012_999), offsets[10..=12]);
    // 39 entries a file: the first number is 1.
    assert_eq!(fs::read_dir(folder.path().join("index")).unwrap().count(), 3);
}

#[test]
fn deleted_queues_make_handles_stale_and_begin_anew() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    fill(&store, "Topic", 2, 120);
    fill(&store, "Other", 1, 10);
    let mut core = store.lock();
    let (old, epoch) = (core.find_queue(b"Topic", 0).unwrap(), core.handles_epoch());
    assert_eq!(core.delete_queues(b"Topic"), 2);
    assert_eq!(core.delete_queues(b"Topic"), 0);
    assert_ne!(core.handles_epoch(), epoch);
    assert!(!core.is_live(old));
    assert_eq!(core.append(old, &record(b"b", b"")), Err(PutStatus::UnknownError));
    let outcome = core.read_into(old, 0, 1, Filter::default(), &mut Vec::new());
    assert_eq!(outcome.status, GetStatus::NoMatchedLogicQueue);
    assert_eq!(core.queues().len(), 1);
    drop(core);
    assert!(!folder.path().join("consumequeue/Topic").exists());
    assert_eq!(put(&store, "Topic", 0, b"new").queue_offset, 0);
    store.close().unwrap();
    let store = opened(small(folder.path()));
    assert_eq!(bodies(&store, "Topic", 0), [b"new".to_vec()]);
    assert_eq!(bodies(&store, "Other", 0).len(), 10);
}

#[test]
fn a_requested_flush_is_signalled_when_it_is_done() {
    let folder = tempdir().unwrap();
    let settings = Settings { flush_disk_type: FlushDiskType::Sync, ..small(folder.path()) };
    let store = opened(settings);
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..3 {
        let stored = put(&store, "Topic", 0, &vec![1; 40_000]);
        store.request_flush(stored.end_offset());
        let mut poll = libc::pollfd { fd: store.notify_fd(), events: libc::POLLIN, revents: 0 };
        while store.flushed_offset() < stored.end_offset() {
            assert!(Instant::now() < deadline);
            // SAFETY: one valid structure; the descriptor is the store's.
            unsafe { libc::poll(&raw mut poll, 1, 1_000) };
            let mut counter = [0_u8; 8];
            // SAFETY: 8 writable bytes.
            unsafe { libc::read(poll.fd, counter.as_mut_ptr().cast(), 8) };
        }
    }
    // Asking for more than is written does not keep the thread busy.
    store.request_flush(1 << 40);
    assert!(store.flush_count() >= 3);
}

#[test]
fn flush_reaches_the_end_and_writes_the_checkpoint() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    store.set_clock(Some(77_000));
    fill(&store, "Topic", 2, 300);
    let end = store.flush().unwrap();
    assert_eq!(end, store.lock().max_physical_offset());
    assert_eq!(end, store.flushed_offset());
    let bytes = fs::read(folder.path().join("checkpoint")).unwrap();
    assert_eq!(bytes.len(), 4_096);
    for at in [0, 8, 16] {
        assert_eq!(bytes[at..at + 8], 77_000_i64.to_be_bytes(), "at {at}");
    }
    assert!(bytes[24..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_closed_store_refuses_and_does_not_crash() {
    let folder = tempdir().unwrap();
    let store = Store::new(small(folder.path()));
    assert!(store.flush().is_err());
    store.close().unwrap();
    let mut core = store.lock();
    assert_eq!(core.queue(b"Topic", 0), Err(PutStatus::ServiceNotAvailable));
    assert!(!core.is_writable());
    assert_eq!((core.queue_bounds(b"Topic", 0), core.queues().len()), ((0, 0), 0));
    drop(core);
    store.open().unwrap();
    let queue = store.lock().queue(b"Topic", 0).unwrap();
    store.close().unwrap();
    assert_eq!(store.lock().append(queue, &record(b"", b"")), Err(PutStatus::ServiceNotAvailable));
    store.open().unwrap();
    assert_eq!(store.lock().append(queue, &record(b"", b"")), Err(PutStatus::UnknownError));
}

#[test]
fn a_store_that_closes_under_readers_gives_them_whole_messages_or_nothing() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    for _ in 0..20 {
        put(&store, "Topic", 0, &[7; 9_000]);
    }
    let closed = AtomicBool::new(false);
    let bodies = thread::scope(|scope| {
        let reader = || {
            let (mut found, mut offset) = (Vec::new(), 0);
            while !closed.load(Ordering::Acquire) {
                let mut answer = Vec::new();
                let mut core = store.lock();
                if let Ok(queue) = core.queue(b"Topic", 0) {
                    core.read_into(queue, offset, 8, Filter::default(), &mut answer);
                    core.lookup_into(0, &mut answer);
                }
                drop(core);
                offset = (offset + 1) % 20;
                // Kept over the end of the store, and examined after it.
                found.push(answer);
                found.truncate(64);
            }
            found
        };
        let readers = [(); 3].map(|()| scope.spawn(reader));
        let files = store.lock().log_files();
        while store.drop_log_file().is_some() {
            thread::yield_now();
        }
        store.close().unwrap();
        for file in &files {
            fs::remove_file(&file.path).unwrap();
        }
        closed.store(true, Ordering::Release);
        readers.map(|reader| reader.join().unwrap()).concat()
    });
    for answer in bodies {
        assert!(views(&answer).iter().all(|view| view.body == [7; 9_000]));
    }
}

#[test]
fn a_store_in_use_would_block() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    let other = Store::new(small(folder.path()));
    let error = other.open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains("in use"), "{error}");
    store.close().unwrap();
    other.open().unwrap();
}

#[test]
fn files_of_another_size_are_refused_with_the_setting() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    fill(&store, "Topic", 1, 10);
    store.close().unwrap();
    for (settings, name) in [
        (
            Settings { mapped_file_size_commit_log: 4_096, ..small(folder.path()) },
            "mappedFileSizeCommitLog",
        ),
        (
            Settings { mapped_file_size_consume_queue: 4_000, ..small(folder.path()) },
            "mappedFileSizeConsumeQueue",
        ),
        (Settings { max_index_num: 50, ..small(folder.path()) }, "maxIndexNum"),
    ] {
        let error = Store::new(settings).open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains(name), "{error}");
    }
    opened(small(folder.path()));
}

#[test]
fn files_of_others_are_ignored_with_a_note() {
    let folder = tempdir().unwrap();
    let store = opened(small(folder.path()));
    fill(&store, "Topic", 1, 10);
    store.close().unwrap();
    for name in ["commitlog/notes.txt", "consumequeue/x.txt", "consumequeue/Topic/0/.y", "index/z"]
    {
        fs::write(folder.path().join(name), "z").unwrap();
    }
    let store = Store::new(small(folder.path()));
    assert_eq!(store.open().unwrap().notes.len(), 4);
    assert_eq!(bodies(&store, "Topic", 0).len(), 10);
}

#[test]
fn a_folder_that_can_t_be_written_is_an_error_with_its_path() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let store = Store::new(small(&folder.path().join("file/below")));
    let error = store.open().unwrap_err();
    assert!(error.to_string().contains("file/below"), "{error}");
    assert!(error.raw_os_error().is_some());
}

#[test]
fn an_idle_store_of_default_size_takes_no_space() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempdir().unwrap();
    let store = opened(Settings::new(folder.path()));
    put(&store, "Topic", 0, b"one");
    assert!(!query(&store, "Topic", "none").contains(&0));
    store.close().unwrap();
    let file = fs::metadata(folder.path().join("commitlog/00000000000000000000")).unwrap();
    assert_eq!(file.size(), 1 << 30);
    assert!(file.blocks() * 512 <= 2 << 20, "{} blocks", file.blocks());
}
