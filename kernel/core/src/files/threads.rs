//! Work that is done faster by several threads.

use std::num::NonZero;
use std::thread;

/// Threads that work at the same thing, at most.
const THREADS_MAX: usize = 8;

/// Does `work` in this thread, and in others beside it while there are `shares` for them. Whoever
/// works takes the next share until none is left.
pub(crate) fn in_threads(shares: usize, work: impl Fn() + Sync) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    thread::scope(|scope| {
        for _ in 1..threads.min(shares) {
            // Where the system gives no thread, this one does the work.
            let _ = thread::Builder::new().spawn_scoped(scope, &work);
        }
        work();
    });
}
