//! What threads share, in every order that the memory model allows:
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p kerolox-core --lib loom`.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use super::group_commit::GroupCommit;
use super::position::Position;
use super::waiter::Waiter;

/// No wait ends by its time here.
const SLEEP: Duration = Duration::ZERO;

#[test]
fn the_time_of_a_position_is_of_a_record_before_its_offset() {
    loom::model(|| {
        let position = Arc::new(Position::default());
        let writer = Arc::clone(&position);
        let thread = thread::spawn(move || {
            writer.publish(100, 1);
            writer.publish(200, 2);
        });
        let (offset, timestamp) = position.get();
        assert!(offset >= timestamp * 100, "{offset} does not cover the record of {timestamp}");
        thread.join().unwrap();
    });
}

#[test]
fn a_thread_that_is_woken_by_notes_sees_the_last_put() {
    loom::model(|| {
        let shared = Arc::new((Position::default(), Waiter::default()));
        let writer = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            for offset in 1..=2 {
                writer.0.publish_offset(offset);
                writer.1.note();
            }
        });
        let (position, waiter) = &*shared;
        while position.offset() < 2 {
            waiter.sleep(SLEEP);
            waiter.take_note();
        }
        thread.join().unwrap();
    });
}

#[test]
fn no_request_for_a_flush_is_lost() {
    loom::model(|| {
        let flush = Arc::new(GroupCommit::default());
        let asker = Arc::clone(&flush);
        let thread = thread::spawn(move || {
            asker.request(1);
            asker.request(2);
        });
        while flush.flushed() < 2 {
            if flush.requested() <= flush.flushed() {
                flush.wait.sleep(SLEEP);
            }
            flush.set_flushed(flush.requested());
        }
        thread.join().unwrap();
    });
}
