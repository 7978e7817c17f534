//! A store written by the Java broker opens here, and each message is where its manifest says.
//!
//! The path comes from `KEROLOX_GOLDEN` (a folder with `store/` and `manifest.jsonl`), which
//! `tools/run_tests.py` sets; without it the test is ignored.
#![allow(missing_docs)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use kerolox_core::{Settings, Store};
use tempfile::tempdir;

/// The text of a JSON member, as far as the manifest needs it.
fn member<'a>(line: &'a str, name: &str) -> &'a str {
    let at = line.find(&format!("\"{name}\":")).unwrap() + name.len() + 3;
    let rest = &line[at..];
    match rest.strip_prefix('"') {
        Some(text) => &text[..text.find('"').unwrap()],
        None => &rest[..rest.find([',', '}']).unwrap()],
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn settings(root: &Path) -> Settings {
    Settings {
        mapped_file_size_commit_log: 1_048_576,
        mapped_file_size_consume_queue: 6_000,
        max_hash_slot_num: 1_000,
        max_index_num: 1_500,
        ..Settings::new(root)
    }
}

fn assert_manifest(store: &Store, manifest: &str, is_indexed: bool) {
    for line in manifest.lines().filter(|line| !line.is_empty()) {
        let number = |name: &str| member(line, name).parse::<i64>().unwrap();
        let topic = member(line, "topic");
        let offset = number("commitLogOffset");
        let bytes = lookup(store, offset).unwrap_or_else(|| panic!("nothing at {offset}"));
        let view = views(&bytes)[0];
        assert_eq!(view.topic, topic.as_bytes());
        assert_eq!(i64::from(view.queue_id), number("queueId"));
        assert_eq!(view.queue_offset, number("queueOffset"));
        assert_eq!(view.size as i64, number("storeSize"));
        assert_eq!(i64::from(view.body_crc), number("bodyCRC"));
        assert_eq!(view.born_timestamp, number("bornTimestamp"));
        assert_eq!(view.store_timestamp, number("storeTimestamp"));
        let entry = store.lock().queue_entry(topic.as_bytes(), view.queue_id, view.queue_offset);
        let (physical, size, _) = entry.unwrap();
        assert_eq!((physical, i64::from(size)), (offset, number("storeSize")));
        if is_indexed {
            for name in ["msgId", "keys"] {
                let at = line.find(&format!("\"{name}\":"));
                if at.is_some_and(|at| line[at + name.len() + 3..].starts_with('"')) {
                    for key in member(line, name).split(' ').filter(|key| !key.is_empty()) {
                        assert!(query(store, topic, key).contains(&offset), "{name} {key}");
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs KEROLOX_GOLDEN, see tools/run_tests.py"]
fn a_store_of_the_java_broker_is_read_back_whole() {
    let golden = std::env::var_os("KEROLOX_GOLDEN").map(PathBuf::from);
    let golden = golden.expect("KEROLOX_GOLDEN must name the folder of the golden store");
    let manifest = fs::read_to_string(golden.join("manifest.jsonl")).unwrap();
    assert!(manifest.lines().count() > 1_000);
    let folder = tempdir().unwrap();
    copy(&golden.join("store"), folder.path());

    let store = Store::new(settings(folder.path()));
    let report = store.open().unwrap();
    println!("{report:?}");
    assert!(report.clean);
    assert_eq!((report.truncated_bytes, report.dispatched), (0, 0));
    assert_manifest(&store, &manifest, true);
    let queues = store.lock().queues();
    for queue in &queues {
        assert_eq!(
            bodies(&store, &queue.topic, queue.queue_id).len() as i64,
            queue.max_offset - queue.min_offset
        );
    }
    // Killed, and with queues and index gone, everything comes back from the log alone.
    let before: Vec<_> = queues.iter().map(|queue| queue.max_offset).collect();
    store.abandon();
    fs::remove_dir_all(folder.path().join("consumequeue")).unwrap();
    fs::remove_dir_all(folder.path().join("index")).unwrap();
    let report = store.open().unwrap();
    println!("{report:?}");
    assert_manifest(&store, &manifest, true);
    for (queue, before) in queues.iter().zip(before) {
        let (_, max) = bounds(&mut store.lock(), &queue.topic, queue.queue_id);
        assert_eq!(max, before, "{queue:?}");
    }
    // The queue entries built again are those that the Java broker wrote.
    store.close().unwrap();
    for queue in queues.iter().filter(|queue| queue.topic != "SCHEDULE_TOPIC_XXXX") {
        let part = format!("{}/{}", queue.topic, queue.queue_id);
        let theirs = golden.join("store/consumequeue").join(&part);
        for file in fs::read_dir(theirs).unwrap() {
            let file = file.unwrap();
            let ours = folder.path().join("consumequeue").join(&part).join(file.file_name());
            if ours.exists() {
                assert!(fs::read(file.path()).unwrap() == fs::read(&ours).unwrap(), "{ours:?}");
            }
        }
    }
}
