//! Tests of the fast path on a real store.

use super::*;
use crate::settings::Settings;
use crate::wire::frame;

const HOST: [u8; 8] = [10, 0, 0, 1, 0, 0, 0x2A, 0x9F];

fn open(folder: &std::path::Path) -> FastPath {
    let mut settings = Settings::new(folder);
    settings.mapped_file_size_commit_log = 1 << 20;
    settings.mapped_file_size_consume_queue = 20 * 1_000;
    settings.max_hash_slot_num = 100;
    settings.max_index_num = 400;
    let fast = FastPath::new(settings);
    fast.store().open().unwrap();
    fast.set_identity(Identity::new("c", "r", true, &HOST, 0));
    fast.set_topic("T", 4, 4, 6, true);
    fast.set_group("G", true, 1);
    fast
}

fn frame(header: &str, body: &[u8]) -> Vec<u8> {
    let mut out = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&(header.len() as u32).to_be_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body);
    out
}

fn send(opaque: i32, body: &[u8]) -> Vec<u8> {
    let header = format!(
        "{{\"code\":310,\"extFields\":{{\"a\":\"p\",\"b\":\"T\",\"c\":\"TBW102\",\"d\":\"4\",\
         \"e\":\"0\",\"f\":\"0\",\"g\":\"1\",\"h\":\"0\",\"i\":\"TAGS\\u0001a\"}},\"flag\":0,\
         \"language\":\"JAVA\",\"opaque\":{opaque},\"version\":409}}"
    );
    frame(&header, body)
}

fn pull(opaque: i32, offset: i64, sys_flag: i32) -> Vec<u8> {
    let header = format!(
        "{{\"code\":11,\"extFields\":{{\"consumerGroup\":\"G\",\"topic\":\"T\",\"queueId\":\"0\",\
         \"queueOffset\":\"{offset}\",\"maxMsgNums\":\"32\",\"sysFlag\":\"{sys_flag}\",\
         \"commitOffset\":\"3\",\"suspendTimeoutMillis\":\"1000\",\"subscription\":\"*\",\
         \"subVersion\":\"0\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{opaque},\
         \"version\":409}}"
    );
    frame(&header, b"")
}

/// Feeds one chunk: answers, frames for the slow path, what is left to do.
fn feed(fast: &FastPath, connection: &mut Connection, data: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>, Fed) {
    let (mut answers, mut slow) = (Vec::new(), Vec::new());
    let fed =
        connection.feed(fast, data, &mut answers, &mut |frame: &[u8]| slow.push(frame.to_vec()));
    (answers, slow, fed)
}

/// How many whole frames some answers are.
fn count(mut answers: &[u8]) -> usize {
    let mut count = 0;
    while !answers.is_empty() {
        let frame::Cut::Frame(found) = frame::cut(answers).unwrap() else {
            panic!("the answers end inside a frame")
        };
        answers = &answers[4 + found.bytes.len()..];
        count += 1;
    }
    count
}

#[test]
fn every_split_of_the_stream_gives_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let other = frame("{\"code\":34,\"flag\":0,\"opaque\":3}", b"heartbeat");
    let stream = [send(1, b"one"), pull(2, 0, 4), other.clone(), send(4, &[7; 300])].concat();
    for end in 0..=stream.len() {
        let mut connection = Connection::new(1, &HOST);
        let (mut answers, mut slow, fed) = feed(&fast, &mut connection, &stream[..end]);
        assert_eq!(fed, Fed::default());
        let (later, slower, fed) = feed(&fast, &mut connection, &stream[end..]);
        assert_eq!(fed, Fed::default());
        answers.extend(later);
        slow.extend(slower);
        assert_eq!(count(&answers), 3, "{end}");
        assert_eq!(slow, [&other[4..]], "{end}");
    }
    fast.store().close().unwrap();
}

#[test]
fn a_held_pull_is_answered_by_the_first_record_and_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let (mut one, mut two) = (Connection::new(1, &HOST), Connection::new(2, &HOST));
    assert_eq!(feed(&fast, &mut one, &pull(1, 0, 7)).0, b"");
    assert_eq!(fast.held_pulls(), 1);
    assert_eq!(fast.drain_commits(), [("G".to_owned(), "T".to_owned(), 0, 3)]);
    let (answers, _, fed) = feed(&fast, &mut two, &[send(1, b"a"), send(2, b"b")].concat());
    assert_eq!((count(&answers), fed.ready), (2, true));
    let ready = fast.drain_ready();
    assert_eq!((ready.len(), ready[0].0, count(&ready[0].1)), (1, 1, 1));
    assert_eq!(fast.held_pulls(), 0);
    let got = &fast.group_stats()[0];
    assert_eq!((got.2, got.3, got.4), (0, 1, 2));
    assert!(fast.drain_ready().is_empty());
    one.close(&fast);
    fast.store().close().unwrap();
}

#[test]
fn woken_pulls_beyond_the_room_wait_for_the_next_call() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let mut waiting = Connection::new(1, &HOST);
    // Each answer has a body of 200 KB, so that 64 MiB hold some 330 of them.
    for opaque in 0..500 {
        feed(&fast, &mut waiting, &pull(opaque, 0, 6));
    }
    let mut sending = Connection::new(2, &HOST);
    let (_, _, fed) = feed(&fast, &mut sending, &send(1, &vec![7; 200_000]));
    assert!(fed.ready);
    let first = fast.drain_ready();
    assert!(first[0].1.len() < READY_BYTES_MAX + (1 << 20));
    let held = fast.held_pulls();
    assert!(0 < held && held < 500, "{held}");
    let second = fast.drain_ready();
    assert_eq!(count(&first[0].1) + count(&second[0].1), 500);
    assert_eq!(fast.held_pulls(), 0);
    fast.store().close().unwrap();
}

#[test]
fn a_flood_of_pulls_is_answered_in_bounded_portions() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let mut connection = Connection::new(1, &HOST);
    feed(&fast, &mut connection, &send(1, &vec![7; 250_000]));
    let chunk: Vec<u8> = (0..40).flat_map(|opaque| pull(opaque, 0, 4)).collect();
    let (answers, _, mut fed) = feed(&fast, &mut connection, &[&chunk[..], b"\0\0"].concat());
    let mut answered = count(&answers);
    while fed.more {
        assert!(answered < 40);
        let (answers, _, next) = feed(&fast, &mut connection, b"");
        assert!(answers.len() < ANSWER_BYTES_MAX + (1 << 20));
        answered += count(&answers);
        fed = next;
    }
    assert_eq!(answered, 40);
    let (_, _, fed) = feed(&fast, &mut connection, b"\0\0");
    assert!(matches!(fed.error, Some(FrameError::Length(0))));
    fast.store().close().unwrap();
}

#[test]
fn handles_of_deleted_queues_are_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let mut connection = Connection::new(1, &HOST);
    feed(&fast, &mut connection, &[send(1, b"a"), pull(2, 0, 4)].concat());
    assert_eq!(fast.store().lock().delete_queues(b"T"), 1);
    let (answers, slow, _) =
        feed(&fast, &mut connection, &[pull(3, 0, 4), send(4, b"b"), pull(5, 0, 4)].concat());
    assert_eq!((count(&answers), slow.len()), (3, 0));
    fast.store().close().unwrap();
}

#[test]
fn nothing_is_fast_before_the_broker_said_who_it_is_or_after_the_store_closed() {
    let folder = tempfile::tempdir().unwrap();
    let fast = FastPath::new(Settings::new(folder.path()));
    fast.set_topic("T", 4, 4, 6, true);
    let mut connection = Connection::new(1, &HOST);
    assert_eq!(feed(&fast, &mut connection, &send(1, b"a")).1.len(), 1);
    drop(fast);
    let fast = open(folder.path());
    fast.store().close().unwrap();
    let chunk = [send(1, b"a"), pull(2, 0, 6)].concat();
    assert_eq!(feed(&fast, &mut connection, &chunk).1.len(), 2);
}

/// The codes of JSON answers.
fn codes(mut answers: &[u8]) -> Vec<String> {
    let mut codes = Vec::new();
    while let Ok(frame::Cut::Frame(found)) = frame::cut(answers) {
        let text = String::from_utf8_lossy(found.header).into_owned();
        codes.push(text["{\"code\":".len()..].split(',').next().unwrap().to_owned());
        answers = &answers[4 + found.bytes.len()..];
    }
    codes
}

fn new_hold(connection: u64, offset: i64, deadline_ms: i64) -> NewHold<'static> {
    NewHold {
        connection,
        encoding: Encoding::Json,
        opaque: 1,
        group: b"G",
        topic: b"T",
        queue_id: 0,
        offset,
        max_count: 32,
        tag_codes: None,
        deadline_ms,
    }
}

#[test]
fn a_pull_that_is_held_when_the_store_closes_is_not_told_to_begin_anew() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let mut connection = Connection::new(1, &HOST);
    feed(&fast, &mut connection, &[send(1, b"a"), pull(2, 1, 6)].concat());
    assert_eq!(fast.held_pulls(), 1);
    fast.close().unwrap();
    fast.tick(i64::MAX);
    assert_eq!(codes(&fast.drain_ready().concat_frames()), [] as [&str; 0]);
    assert_eq!(fast.held_pulls(), 0);
}

#[test]
fn pulls_whose_time_is_over_are_answered_in_bounded_portions() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let mut connection = Connection::new(1, &HOST);
    feed(&fast, &mut connection, &send(1, &vec![7; 200_000]));
    // Held although there is something: as when it came between the read and the holding.
    for _ in 0..500 {
        assert!(fast.hold(&new_hold(1, 0, 10)));
    }
    let mut answered = 0;
    for _ in 0..10 {
        fast.tick(10);
        let ready = fast.drain_ready().concat_frames();
        assert!(ready.len() < READY_BYTES_MAX + (1 << 20), "{}", ready.len());
        answered += count(&ready);
    }
    assert_eq!((answered, fast.held_pulls()), (500, 0));
    fast.store().close().unwrap();
}

#[test]
fn nothing_is_kept_for_connections_that_have_nothing_to_wait_for() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    // Held by the slow path after the connection was closed.
    for connection in 0..100 {
        Connection::new(connection, &HOST).close(&fast);
        fast.hold(&new_hold(connection, 0, 10));
    }
    assert_eq!(fast.state.lock().peers.len(), 100);
    fast.tick(10);
    assert_eq!(fast.drain_ready().len(), 100);
    assert_eq!(fast.state.lock().peers.len(), 0);
    fast.store().close().unwrap();
}

const EXTREMES: [&str; 10] = [
    "-1",
    "0",
    "1",
    "-9223372036854775808",
    "9223372036854775807",
    "2147483647",
    "-2147483648",
    "99999999999999999999",
    "",
    "x",
];
const NUMBERS: [&str; 7] = [
    "queueId",
    "queueOffset",
    "maxMsgNums",
    "sysFlag",
    "commitOffset",
    "suspendTimeoutMillis",
    "subVersion",
];

#[test]
fn no_bytes_make_a_connection_panic_or_answer_too_much() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % below
    };
    for round in 0..20_000_u64 {
        let mut data = match round % 4 {
            0 => send(1, &[1; 30]),
            1 => {
                let batch =
                    [0, 0, 0, 26, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4, 0, 0];
                let text = String::from_utf8_lossy(&send(1, b"")[8..]).replace("310", "320");
                let text = text.replace("\"a\":", "\"m\":\"true\",\"a\":");
                frame(&text, &batch)
            }
            2 => pull(1, 0, 7),
            _ => {
                let name = NUMBERS[random(NUMBERS.len())];
                let mut text = String::from_utf8_lossy(&pull(1, 0, 6)[8..]).into_owned();
                let at = text.find(&format!("\"{name}\"")).unwrap() + name.len() + 4;
                let end = at + text[at..].find('"').unwrap();
                text.replace_range(at..end, EXTREMES[random(EXTREMES.len())]);
                frame(&text, b"")
            }
        };
        let mut connection = Connection::new(round, &HOST);
        if round % 4 != 3 {
            for _ in 0..=random(3) {
                let at = random(data.len());
                data[at] = random(256) as u8;
            }
        }
        let (answers, slow, fed) = feed(&fast, &mut connection, &data);
        assert!(count(&answers) + slow.len() <= 1 || fed.error.is_none());
        assert!(answers.len() < 300_000);
        if round % 64 == 0 {
            fast.tick(i64::MAX);
            let _ = fast.drain_ready();
            let _ = fast.drain_commits();
        }
        connection.close(&fast);
    }
    assert_eq!(fast.held_pulls(), 0);
    fast.tick(i64::MAX);
    assert!(fast.drain_ready().is_empty());
    assert_eq!(fast.state.lock().peers.len(), 0);
    fast.store().close().unwrap();
}

trait ConcatFrames {
    fn concat_frames(self) -> Vec<u8>;
}

impl ConcatFrames for Vec<(u64, Vec<u8>)> {
    /// The frames of all connections.
    fn concat_frames(self) -> Vec<u8> {
        self.into_iter().flat_map(|(_, frames)| frames).collect()
    }
}

#[test]
fn a_slot_in_use_is_not_given_back_and_a_free_one_is_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    let fast = open(folder.path());
    let mut connection = Connection::new(1, &HOST);
    assert_eq!(feed(&fast, &mut connection, &pull(1, 0, 7)).0, b"");
    fast.delete_topic("T");
    fast.delete_group("G");
    let come_and_go = || {
        for number in 0..10_000 {
            fast.set_topic(&format!("t{number}"), 100, 100, 6, true);
            fast.delete_topic(&format!("t{number}"));
            fast.set_group(&format!("g{number}"), true, 1);
            fast.delete_group(&format!("g{number}"));
        }
    };
    come_and_go();
    assert!(fast.state.lock().tables.topics.len() < 5_000, "slots are taken again");
    assert!(fast.state.lock().tables.groups.len() < 5_000);
    let slots = || {
        let state = fast.state.lock();
        let find = (
            state.tables.topics.find(b"T", policy::NO_SLOT),
            state.tables.groups.find(b"G", policy::NO_SLOT),
        );
        (find.0.is_some(), find.1.is_some())
    };
    assert_eq!(slots(), (true, true), "of a held pull and what it commits");
    connection.close(&fast);
    come_and_go();
    assert_eq!(slots(), (true, true), "of what it commits");
    assert_eq!(fast.drain_commits(), [("G".to_owned(), "T".to_owned(), 0, 3)]);
    come_and_go();
    assert_eq!(slots(), (false, false));
    fast.set_topic("", 1, 1, 6, true);
    come_and_go();
    let state = fast.state.lock();
    assert_eq!(state.tables.topics.iter().filter(|topic| topic.present).count(), 1);
    assert!(
        state.tables.topics.iter().filter(|each| !each.present).all(|each| each.queues.is_empty())
    );
    drop(state);
    fast.store().close().unwrap();
}
