//! What the engine costs: `cargo run --release --example engine [folder]`.
//!
//! Prints CPU nanoseconds per append of 128 B and of 1 KiB (queue entry and index keys included), per
//! read of 32 records, and the stalls of an append paced at 240 MB/s while the log is flushed every
//! 200 ms.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kerolox_core::{Filter, Marks, NewRecord, QueueHandle, Settings, Store, Text};

const HOST: &[u8] = &[127, 0, 0, 1, 0, 0, 0x2A, 0x9F];
const PROPERTIES: &[u8] = b"UNIQ_KEY\x017F0000010000000000000000000000AB\x02CLUSTER\x01Default";

fn record(body: &[u8]) -> NewRecord<'_> {
    NewRecord {
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: HOST,
        store_host: HOST,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: Text::one(PROPERTIES),
        marks: Some(Marks { uniq_key: Some(&PROPERTIES[9..41]), ..Marks::default() }),
        tags_code: None,
        bit_map: &[],
    }
}

/// CPU nanoseconds of this thread: what other processes do meanwhile does not count.
fn cpu_nanos() -> u64 {
    // SAFETY: all-zero is a valid `timespec`.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn queues(store: &Store) -> Vec<QueueHandle> {
    let mut core = store.lock();
    (0..8).filter_map(|id| core.queue(b"Bench", id).ok()).collect()
}

fn append(store: &Store, body: &[u8], count: usize, has_keys: bool) -> f64 {
    let queues = queues(store);
    let mut new = record(body);
    if !has_keys {
        new.marks = Some(Marks::default());
    }
    let start = cpu_nanos();
    for chunk in 0..count / 500 {
        let mut core = store.lock();
        for number in 0..500 {
            let queue = queues[(chunk + number) % queues.len()];
            let _ = black_box(core.append(queue, &new));
        }
    }
    (cpu_nanos() - start) as f64 / count as f64
}

fn read(store: &Store, rounds: usize) -> (f64, f64) {
    let queues = queues(store);
    let mut answer = Vec::with_capacity(1 << 16);
    let (mut bytes, mut count) = (0_usize, 0_u64);
    let start = cpu_nanos();
    for round in 0..rounds {
        let mut core = store.lock();
        answer.clear();
        let offset = (round * 32 % 20_000) as i64;
        let outcome = core.read_into(queues[round % 8], offset, 32, Filter::default(), &mut answer);
        bytes += outcome.bytes;
        count += u64::from(outcome.count);
    }
    let nanos = (cpu_nanos() - start) as f64 / rounds as f64;
    let size = (bytes / rounds).min(answer.len());
    let mut target = vec![0_u8; size];
    let start = cpu_nanos();
    for _ in 0..rounds {
        target.copy_from_slice(black_box(&answer[..size]));
        black_box(&mut target);
    }
    black_box(count);
    (nanos, (cpu_nanos() - start) as f64 / rounds as f64)
}

fn stalls(store: &Store, seconds: u64) -> Vec<u64> {
    let queues = queues(store);
    let body = vec![7_u8; 1_024];
    let new = record(&body);
    let per_slice = 240_000_000 / 1_180 / 1_000;
    let mut nanos = Vec::with_capacity((seconds as usize) * 250_000);
    let start = Instant::now();
    for slice in 0..seconds * 1_000 {
        let mut core = store.lock();
        for number in 0..per_slice {
            let before = Instant::now();
            let _ = black_box(core.append(queues[number % queues.len()], &new));
            nanos.push(before.elapsed().as_nanos() as u64);
        }
        drop(core);
        let next = Duration::from_millis(slice + 1);
        std::thread::sleep(next.saturating_sub(start.elapsed()));
    }
    nanos.sort_unstable();
    nanos
}

fn main() {
    let root = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let folder = root.join(format!("kerolox-engine-{}", std::process::id()));
    let store = Store::new(Settings { flush_interval_commit_log: 200, ..Settings::new(&folder) });
    if let Err(error) = store.open() {
        eprintln!("{error}");
        return;
    }
    for (body, name) in [(vec![1_u8; 128], "128 B"), (vec![1_u8; 1_024], "1 KiB")] {
        let keyed = append(&store, &body, 400_000, true);
        let plain = append(&store, &body, 400_000, false);
        println!("append {name}: {plain:.0} ns without a key, {keyed:.0} ns with one");
    }
    let (nanos, copy) = read(&store, 50_000);
    println!("read of 32: {nanos:.0} ns (a copy of as many bytes: {copy:.0} ns)");
    let nanos = stalls(&store, 6);
    let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize] as f64 / 1_000.0;
    println!(
        "append of 1 KiB at 240 MB/s: p50 {:.1} p99 {:.1} p99.9 {:.1} p99.99 {:.1} max {:.1} us",
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.9999),
        at(1.0)
    );
    let start = Instant::now();
    let closed = store.close();
    println!("close: {closed:?} after {:.1} s; {:?}", start.elapsed().as_secs_f64(), store.error());
    let _ = std::fs::remove_dir_all(folder);
}
