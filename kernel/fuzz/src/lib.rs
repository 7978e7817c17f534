//! What may be fed any bytes: chunks of a connection, also of HTTP/2, records, a store whose files are damaged.
//!
//! Each function takes the bytes of one try and panics when something that must hold does not.
//! libFuzzer drives them by coverage (`targets/`, a nightly toolchain and `cargo install
//! cargo-fuzz`), from the folder above:
//!
//! ```text
//! cargo +nightly fuzz run --fuzz-dir fuzz --features libfuzzer feed -- -max_total_time=300
//! ```
//!
//! `tests/corpus.rs` replays the corpus and mutations of it with what every toolchain has.

// To panic is how they tell of a find.
#![allow(clippy::missing_panics_doc)]

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use kerolox_core::columns::bodies::StoredBody;
use kerolox_core::columns::{Window, decode_columns, names};
use kerolox_core::fast_path::{
    AccountRules, Connection, FRAME_BYTES_MAX, FastPath, Identity, Subscription,
};
use kerolox_core::http2::{Event, Http2Error, Limits, ServerSide};
use kerolox_core::protocol::http2::{HEADER_BYTES_MAX, SLICE_FRAMES, STREAMS_MAX};
use kerolox_core::record::{self, Parsed};
use kerolox_core::{Marks, NewRecord, Settings, Store, Text};
use tempfile::TempDir;

const HOST: [u8; 8] = [10, 0, 0, 1, 0, 0, 0x2A, 0x9F];

/// After so many tries a store is replaced: its log only grows.
const TRIES_PER_STORE: usize = 500;

/// A log that no try of one store comes to the end of twice.
const LOG_FILE_BYTES: u64 = 256 << 10;

/// Starts a cut in the bytes of [`feed`]: what follows is another chunk.
pub const CUT: u8 = 0xFE;

fn settings(root: &Path) -> Settings {
    Settings {
        mapped_file_size_commit_log: LOG_FILE_BYTES,
        mapped_file_size_consume_queue: 20 * 100,
        max_hash_slot_num: 16,
        max_index_num: 400,
        max_message_size: 16 << 10,
        ..Settings::new(root)
    }
}

/// A fast path with tables, on a store of its own.
struct Side {
    fast: FastPath,
    _folder: TempDir,
}

impl Side {
    fn new() -> Self {
        let folder = temporary_folder();
        let fast = FastPath::new(settings(folder.path()));
        fast.store().open().expect("an empty folder opens");
        fast.store().set_clock(Some(1_763_715_347_123));
        fast.set_identity(Identity::new("c", "r", true, &HOST, 0));
        fast.set_topic("T", 4, 4, 6, true);
        fast.set_topic("%RETRY%G", 1, 1, 6, false);
        fast.set_group("G", true, 1);
        let subscription = Subscription { version: 3, tag_codes: Some(vec![97, 98].into()) };
        fast.set_subscription("G", "T", subscription);
        Self { fast, _folder: folder }
    }

    /// Feeds chunks to a new connection: answers, frames for the slow path, what broke the framing.
    fn feed(&self, chunks: &[&[u8]]) -> (Vec<u8>, Vec<Vec<u8>>, Option<String>) {
        let (mut answers, mut slow) = (Vec::new(), Vec::new());
        let mut connection = Connection::new(1, &HOST);
        let mut error = None;
        for chunk in chunks {
            let mut data = *chunk;
            loop {
                let mut keep = |frame: &[u8]| slow.push(frame.to_vec());
                let fed = connection.feed(&self.fast, data, &mut answers, &mut keep);
                error = fed.error.map(|error| error.to_string());
                data = &[];
                if !fed.more || error.is_some() {
                    break;
                }
            }
        }
        for (_, ready) in self.fast.drain_ready() {
            answers.extend_from_slice(&ready);
        }
        connection.close(&self.fast);
        assert_eq!(self.fast.held_pulls(), 0, "a closed connection holds pulls");
        let _ = self.fast.drain_commits();
        (answers, slow, error)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.fast.close().expect("a store closes");
    }
}

/// Where the memory is: the tries are about bytes, not about a disk.
fn temporary_folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a folder for the store")
}

/// Two fast paths alike, and how often they were tried.
type Sides = RefCell<(usize, Option<[Side; 2]>)>;

thread_local! {
    static SIDES: Sides = const { RefCell::new((0, None)) };
    static GUARDED: Sides = const { RefCell::new((0, None)) };
}

/// The account that the corpus of [`access`] is signed with.
fn account() -> AccountRules {
    AccountRules {
        access_key: "fuzz-account".to_owned(),
        secret_key: "fuzz-secret".to_owned(),
        may_everything: false,
        default_topic: 12,
        default_group: 8,
        resources: Vec::new(),
    }
}

/// A chunk of one connection, to a fast path with an account and to one without. What the first
/// answers the second answers too, and each of those frames names the account.
pub fn access(data: &[u8]) {
    GUARDED.with_borrow_mut(|(tries, sides)| {
        if *tries % TRIES_PER_STORE == 0 {
            *sides = None;
        }
        *tries += 1;
        let [guarded, open] = sides.get_or_insert_with(|| {
            let sides = [Side::new(), Side::new()];
            sides[0].fast.set_accounts(Some(&[account()]));
            sides
        });
        let end = guarded.fast.store().lock().max_physical_offset();
        let (answers, slow, error) = guarded.feed(&[data]);
        let (_, slow_without, error_without) = open.feed(&[data]);
        assert_eq!(error, error_without);
        let _ = frames(&answers);
        let mut rest = slow.iter();
        assert!(
            slow_without.iter().all(|frame| rest.any(|other| other == frame)),
            "fast by itself"
        );
        let is_named = data.windows(12).any(|bytes| bytes == b"fuzz-account");
        let is_same = guarded.fast.store().lock().max_physical_offset() == end;
        assert!(is_named || is_same && answers.is_empty(), "fast for nobody");
    });
}

/// Chunks of one connection, split by [`CUT`]s. Fed as one chunk to one fast path and in their
/// pieces to its counterpart, they give the same answers, frames for the slow path and errors; all
/// answers are frames.
pub fn feed(data: &[u8]) {
    let pieces: Vec<&[u8]> = data.split(|byte| *byte == CUT).collect();
    let whole = pieces.concat();
    SIDES.with_borrow_mut(|(tries, sides)| {
        if *tries % TRIES_PER_STORE == 0 {
            *sides = None;
        }
        *tries += 1;
        let [one, other] = sides.get_or_insert_with(|| [Side::new(), Side::new()]);
        let (answers, slow, error) = one.feed(&[&whole]);
        let (answers_of_pieces, slow_of_pieces, error_of_pieces) = other.feed(&pieces);
        assert_eq!(slow, slow_of_pieces);
        assert_eq!(error, error_of_pieces);
        assert_eq!(frames(&answers), frames(&answers_of_pieces));
        assert_eq!(
            one.fast.store().lock().max_physical_offset(),
            other.fast.store().lock().max_physical_offset()
        );
    });
}

/// Chunks of one HTTP/2 connection, split by [`CUT`]s. As one chunk and in their pieces they mean
/// the same, get the same output and break the same rule. A third one answers each request; whatever
/// comes, what it keeps is bounded.
pub fn http2(data: &[u8]) {
    let pieces: Vec<&[u8]> = data.split(|byte| *byte == CUT).collect();
    let whole = pieces.concat();
    let (mut events, mut events_of_pieces) = (Vec::new(), Vec::new());
    let (output, error) = receive(&mut http2_side(), &[&whole], &mut |_, event| events.push(event));
    let (output_of_pieces, error_of_pieces) =
        receive(&mut http2_side(), &pieces, &mut |_, event| events_of_pieces.push(event));
    assert_eq!(output, output_of_pieces);
    assert_eq!(error, error_of_pieces);
    // In one chunk a stream that began waits for the rest of its first frame.
    let is_held = matches!(events_of_pieces.last(), Some(Event::Opened { is_ended: false, .. }));
    if is_held && events.len() < events_of_pieces.len() {
        events_of_pieces.pop();
    }
    assert_eq!(events, events_of_pieces);
    let mut side = http2_side();
    receive(&mut side, &pieces, &mut |side, event| {
        let (Event::Opened { stream_id, is_ended: true, .. }
        | Event::Received { stream_id, is_ended: true, .. }) = event
        else {
            return;
        };
        side.send_headers(stream_id, b"\x88", false);
        side.send_data(stream_id, &vec![7; HTTP2_ANSWER_BYTES]);
        side.send_trailers(stream_id, b"\x88");
    });
    let streams = side.stream_count();
    assert!(streams <= STREAMS_MAX as usize);
    assert!(side.kept_bytes() <= whole.len() + streams * HTTP2_ANSWER_BYTES);
}

const HTTP2_ANSWER_BYTES: usize = 70_000;

fn http2_side() -> ServerSide {
    ServerSide::new(Limits {
        streams_max: STREAMS_MAX,
        header_bytes_max: HEADER_BYTES_MAX,
        slice_frames: SLICE_FRAMES,
    })
}

/// Gives a connection chunks: its output, and what broke it.
fn receive(
    side: &mut ServerSide,
    chunks: &[&[u8]],
    take: &mut dyn FnMut(&mut ServerSide, Event),
) -> (Vec<u8>, Option<Http2Error>) {
    let mut error = None;
    for chunk in chunks {
        let mut data = *chunk;
        while error.is_none() {
            let mut events = Vec::new();
            let received = side.receive(data, &mut events);
            for event in events {
                take(side, event);
            }
            data = &[];
            match received {
                Ok(true) => (),
                Ok(false) => break,
                Err(fault) => error = Some(fault),
            }
        }
    }
    (side.take_output(<[u8]>::to_vec), error)
}

/// The lengths of the frames that some answers are, in any order.
fn frames(mut answers: &[u8]) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some((head, rest)) = answers.split_first_chunk::<4>() {
        let size = u32::from_be_bytes(*head) as usize;
        assert!((4..=FRAME_BYTES_MAX).contains(&size) && size <= rest.len(), "no frame");
        sizes.push(size);
        answers = &rest[size..];
    }
    assert!(answers.is_empty(), "the answers end inside a frame");
    sizes.sort_unstable();
    sizes
}

/// Bytes that may be records, one after the other: walked, looked into, and taken as columns.
pub fn record(data: &[u8]) {
    let mut rest = data;
    while let Parsed::Record(view) = record::parse(rest) {
        assert!(view.size <= rest.len() && view.size > 0);
        let _ = (view.is_crc_right(), view.is_queued());
        let mut seen = 0;
        for (name, value) in record::properties(view.properties) {
            seen += name.len() + value.len();
        }
        assert!(seen <= view.properties.len());
        let marks = Marks::scan(view.properties);
        let _ = marks.tags_code();
        let _ = record::deliver_time(view.properties, view.store_timestamp, &[1_000, 5_000]);
        rest = &rest[view.size..];
    }
    let mut window = Window { start: 0, body_bytes_max: 256 };
    let mut as_stored = |stored: &StoredBody<'_>, _: String| Ok(Some(stored.bytes.to_vec()));
    while window.start < data.len() {
        let Ok(decoded) = decode_columns(data, &names(), window, &mut as_stored) else { break };
        assert_eq!(decoded.columns.len(), names().len());
        assert!(decoded.rows > 0 && decoded.rows <= decoded.end - window.start);
        window.start = decoded.end;
    }
}

/// A damaged store: what [`record`]'s bytes stand for is written over the log, from a place that
/// the first two bytes name. It opens; what it says afterwards is whole; it takes messages, and
/// opens once more without a loss.
pub fn recovery(data: &[u8]) {
    let Some((place, damage)) = data.split_first_chunk::<2>() else { return };
    let folder = temporary_folder();
    let store = Store::new(settings(folder.path()));
    store.open().expect("an empty folder opens");
    for number in 0..40u8 {
        put(&store, &[number; 50]);
    }
    let end = usize::try_from(store.lock().max_physical_offset()).unwrap_or(0);
    store.abandon();
    drop(store);
    let log = folder.path().join("commitlog").join(format!("{:020}", 0));
    let mut bytes = fs::read(&log).expect("the log is there");
    let begin = usize::from(u16::from_be_bytes(*place)) % end;
    let size = damage.len().min(bytes.len() - begin);
    bytes[begin..begin + size].copy_from_slice(&damage[..size]);
    fs::write(&log, bytes).expect("the log can be written");

    let store = Store::new(settings(folder.path()));
    store.open().expect("a damaged store opens");
    let end = store.lock().max_physical_offset();
    put(&store, b"after the damage");
    store.close().expect("it closes");
    let store = Store::new(settings(folder.path()));
    let report = store.open().expect("it opens again");
    assert!(store.lock().max_physical_offset() > end, "a message is lost: {report:?}");
    store.close().expect("it closes again");
}

fn put(store: &Store, body: &[u8]) {
    let mut core = store.lock();
    let queue = core.queue(b"T", 0).expect("a queue");
    let new = NewRecord {
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: &HOST,
        store_host: &HOST,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: Text::one(b"KEYS\x01k\x02TAGS\x01a"),
        marks: None,
        tags_code: None,
        bit_map: &[],
    };
    core.append(queue, &new).expect("it is stored");
}
