//! The thread that preallocates for the append: it backs the pages it will write next, and makes
//! the next files of the commit log (RocketMQ's `AllocateMappedFileService`). The append waits for
//! it only where a file that it needs is being made at that moment; where the thread lags, the
//! append does the work itself, in small portions.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::files::map::{MappedFile, PAGE};

/// Bytes backed between two checks of the queue of requests.
const SLICE: u64 = 1 << 20;
/// Requests for queues that may wait; more are dropped (the append then backs by itself).
const QUEUE_REQUESTS_MAX: usize = 4_096;
/// Files that may be asked for and not taken yet: the next one and the one after it, and two more
/// while the folders change.
const FILES_MAX: usize = 4;
/// How long an append waits for a file that is being made (`waitTimeOut`).
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A file to be made.
#[derive(Clone)]
pub(crate) struct NextFile {
    pub(crate) path: PathBuf,
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// Bytes of it that are backed at once.
    pub(crate) head: u64,
    pub(crate) warm_up: Option<WarmUp>,
}

/// `warmMapedFileEnable`: every page of a new file is backed before it is needed.
#[derive(Clone, Copy)]
pub(crate) struct WarmUp {
    /// Pages brought to the disk at a time (`SYNC_FLUSH`), or 0: left to the system.
    pub(crate) flush_pages: u64,
}

/// What became of a request.
enum Request {
    Asked(NextFile),
    /// The thread is at it.
    Making,
    Made(Arc<MappedFile>),
    /// The append meets the error when it makes the file itself.
    Failed,
}

/// What there is for an append that needs a file.
pub(crate) enum Taken {
    Made(Arc<MappedFile>),
    /// Nobody makes it: make it.
    Nothing,
    /// It is being made, for longer than anyone waits.
    Late,
}

/// How the pages of a log file are backed.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// So that nobody waits long for a processor.
    Gentle,
    /// As fast as it goes.
    Hurried,
}

impl Pace {
    /// Backs a file up to `end`.
    pub(crate) fn back(self, file: &MappedFile, end: u64) -> io::Result<()> {
        match self {
            Pace::Gentle => file.back_gently(end),
            Pace::Hurried => file.back(end),
        }
    }
}

#[derive(Default)]
struct Requests {
    log: Option<(Arc<MappedFile>, u64, Pace)>,
    /// By start (`requestTable`).
    files: BTreeMap<u64, Request>,
    queues: Vec<(Arc<MappedFile>, u64)>,
    /// A part of a log file that gets blocks without pages.
    blocks: Option<(Arc<MappedFile>, u64, u64)>,
    stop: bool,
}

impl Requests {
    fn next_asked(&mut self) -> Option<NextFile> {
        self.files.values_mut().find_map(|request| match request {
            Request::Asked(file) => {
                let file = file.clone();
                *request = Request::Making;
                Some(file)
            }
            _ => None,
        })
    }

    fn is_idle(&self) -> bool {
        let is_asked = |request: &Request| matches!(request, Request::Asked(_));
        self.is_all_backed() && !self.files.values().any(is_asked)
    }

    /// Whether no file that is there waits for pages or blocks.
    fn is_all_backed(&self) -> bool {
        self.log.is_none() && self.queues.is_empty() && self.blocks.is_none()
    }
}

/// The requests, and the files made in advance.
pub(crate) struct Preallocator {
    requests: Mutex<Requests>,
    wake: Condvar,
    made: Condvar,
    pub(crate) wait_max: Duration,
}

impl Default for Preallocator {
    fn default() -> Self {
        Preallocator {
            requests: Mutex::default(),
            wake: Condvar::new(),
            made: Condvar::new(),
            wait_max: WAIT_MAX,
        }
    }
}

impl Preallocator {
    /// Back a log file up to a position; false: ask again, the thread is examining the requests. An
    /// append must not wait for it: woken, but not running yet, it may have the lock.
    pub(crate) fn back_log(&self, file: &Arc<MappedFile>, end: u64, pace: Pace) -> bool {
        let Some(mut requests) = self.requests.try_lock() else { return false };
        requests.log = Some((Arc::clone(file), end, pace));
        drop(requests);
        self.wake.notify_one();
        true
    }

    /// Back a queue file up to a position; false: ask again, as above.
    pub(crate) fn back_queue(&self, file: &Arc<MappedFile>, end: u64) -> bool {
        let Some(mut requests) = self.requests.try_lock() else { return false };
        if requests.queues.len() < QUEUE_REQUESTS_MAX {
            requests.queues.push((Arc::clone(file), end));
            drop(requests);
            self.wake.notify_one();
        }
        true
    }

    /// Give a part of a log file blocks on the disk; false: ask again, as above.
    pub(crate) fn reserve(&self, file: &Arc<MappedFile>, from: u64, to: u64) -> bool {
        let Some(mut requests) = self.requests.try_lock() else { return false };
        requests.blocks = Some((Arc::clone(file), from, to));
        drop(requests);
        self.wake.notify_one();
        true
    }

    /// Make these files, in the order of their starts. Asking twice for one asks once.
    pub(crate) fn create(&self, files: impl IntoIterator<Item = NextFile>) {
        let mut requests = self.requests.lock();
        for file in files {
            if requests.files.len() < FILES_MAX {
                requests.files.entry(file.start).or_insert(Request::Asked(file));
            }
        }
        // Told without the lock, it does not get the lock handed over before it runs.
        drop(requests);
        self.wake.notify_one();
    }

    /// The file that starts there, if it was made at that path.
    pub(crate) fn take(&self, start: u64, path: &Path) -> Taken {
        let deadline = Instant::now() + self.wait_max;
        let mut requests = self.requests.lock();
        while matches!(requests.files.get(&start), Some(Request::Making)) {
            if self.made.wait_until(&mut requests, deadline).timed_out() {
                return Taken::Late;
            }
        }
        match requests.files.remove(&start) {
            // Unless somebody deleted it, as a Java broker does that is started on this store and
            // finds it locked only after its recovery: what is written to it would be lost.
            Some(Request::Made(file)) if file.path() == path && path.exists() => Taken::Made(file),
            Some(Request::Made(file)) => {
                // Or the folder it was made in left the rotation.
                let _ = fs::remove_file(file.path());
                Taken::Nothing
            }
            _ => Taken::Nothing,
        }
    }

    /// Starts to make the next file that was asked for, and leaves it at that.
    #[cfg(test)]
    pub(crate) fn begin(&self) -> Option<NextFile> {
        self.requests.lock().next_asked()
    }

    /// Makes a file that was started.
    #[cfg(test)]
    pub(crate) fn finish(&self, file: &NextFile) {
        self.make(file);
    }

    /// Whether the file that starts there is still being made.
    pub(crate) fn is_making(&self, start: u64) -> bool {
        matches!(self.requests.lock().files.get(&start), Some(Request::Making))
    }

    /// Removes the files that were made and not needed, as a clean stop does.
    pub(crate) fn remove_unused(&self) {
        for request in std::mem::take(&mut self.requests.lock().files).into_values() {
            if let Request::Made(file) = request {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    /// Forgets everything, before the store opens again.
    pub(crate) fn reset(&self) {
        *self.requests.lock() = Requests::default();
    }

    /// Makes [`Self::run`] return.
    pub(crate) fn stop(&self) {
        self.requests.lock().stop = true;
        self.wake.notify_one();
    }

    /// The thread's life.
    pub(crate) fn run(&self) {
        loop {
            let file = {
                let mut requests = self.requests.lock();
                while !requests.stop && requests.is_idle() {
                    self.wake.wait(&mut requests);
                }
                if requests.stop {
                    return;
                }
                if requests.is_all_backed() { requests.next_asked() } else { None }
            };
            match file {
                Some(next) => self.make(&next),
                None => {
                    self.back_all();
                }
            }
        }
    }

    /// Backs what is asked for now; false when the thread must end.
    pub(crate) fn back_all(&self) -> bool {
        let (log, queues, blocks) = {
            let mut requests = self.requests.lock();
            if requests.stop {
                return false;
            }
            (requests.log.take(), std::mem::take(&mut requests.queues), requests.blocks.take())
        };
        // Errors are left to the append: it meets them when it backs the page itself.
        for (file, end) in queues {
            let _ = file.back(end);
        }
        if let Some((file, end, pace)) = log {
            self.back_in_slices(&file, end, pace);
        }
        if let Some((file, from, to)) = blocks {
            let _ = file.reserve(from, to);
        }
        true
    }

    fn back_in_slices(&self, file: &Arc<MappedFile>, end: u64, pace: Pace) {
        let end = end.min(file.size());
        while file.populated() < end {
            if pace.back(file, (file.populated() + SLICE).min(end)).is_err() {
                return;
            }
            let mut requests = self.requests.lock();
            if requests.stop {
                return;
            }
            let queues = std::mem::take(&mut requests.queues);
            drop(requests);
            for (file, end) in queues {
                let _ = file.back(end);
            }
        }
    }

    fn make(&self, next: &NextFile) {
        let made = MappedFile::create(&next.path, next.start, next.size).map(Arc::new);
        let file = {
            let mut requests = self.requests.lock();
            let file = made.as_ref().ok().map(Arc::clone);
            let answer = file.as_ref().map(Arc::clone).map_or(Request::Failed, Request::Made);
            requests.files.insert(next.start, answer);
            file
        };
        self.made.notify_all();
        let Some(file) = file else { return };
        match next.warm_up {
            Some(warm_up) => self.warm_up(&file, warm_up),
            None => self.back_head(&file, next.head),
        }
        // Its name lasts with the first flush of what is in it: nobody waits for the disk here, the
        // file before it is still being written.
    }

    /// Backs the start of a new file, what is needed now between its slices.
    fn back_head(&self, file: &MappedFile, head: u64) {
        while file.populated() < head.min(file.size()) {
            if file.back_gently(file.populated() + SLICE).is_err() || !self.back_all() {
                return;
            }
        }
    }

    /// Backs every page of a file, which may be taken and written meanwhile, and keeps them in
    /// memory until it is full.
    fn warm_up(&self, file: &MappedFile, warm_up: WarmUp) {
        let mut flushed = 0;
        while file.populated() < file.size() {
            if file.back_gently(file.populated() + SLICE).is_err() || !self.back_all() {
                return;
            }
            let end = file.populated();
            if warm_up.flush_pages > 0 && (end - flushed) / PAGE >= warm_up.flush_pages {
                let _ = file.sync(flushed, end);
                flushed = end;
            }
        }
        if warm_up.flush_pages > 0 {
            let _ = file.sync(flushed, file.size());
        }
        file.lock_pages();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn next(folder: &Path, start: u64) -> NextFile {
        let path = folder.join(crate::files::folder::offset_name(start));
        NextFile { path, start, size: 1 << 20, head: 4_096, warm_up: None }
    }

    /// Runs the thread until `is_done`.
    fn run_until(preallocator: &Preallocator, is_done: impl Fn() -> bool) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| preallocator.run());
            let deadline = Instant::now() + Duration::from_secs(10);
            while !is_done() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            preallocator.stop();
            thread.join().unwrap();
        });
        assert!(is_done());
    }

    #[test]
    fn asking_twice_makes_once_and_whoever_takes_it_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let preallocator = Preallocator::default();
        let files = [next(folder.path(), 0), next(folder.path(), 1 << 20)];
        preallocator.create(files.clone());
        preallocator.create(files.clone());
        assert_eq!(preallocator.requests.lock().files.len(), 2);
        let is_made = |start| {
            matches!(preallocator.requests.lock().files.get(&start), Some(Request::Made(_)))
        };
        run_until(&preallocator, || is_made(0) && is_made(1 << 20));
        let Taken::Made(file) = preallocator.take(0, &files[0].path) else { panic!("not made") };
        assert_eq!((file.start(), file.size()), (0, 1 << 20));
        assert!(matches!(preallocator.take(0, &files[0].path), Taken::Nothing));
        preallocator.remove_unused();
        assert!(files[0].path.exists() && !files[1].path.exists());
    }

    #[test]
    fn a_file_made_in_a_folder_that_is_out_is_removed_when_it_would_be_taken() {
        let folder = tempfile::tempdir().unwrap();
        let preallocator = Preallocator::default();
        let file = next(folder.path(), 0);
        preallocator.create([file.clone()]);
        run_until(&preallocator, || {
            matches!(preallocator.requests.lock().files.get(&0), Some(Request::Made(_)))
        });
        assert!(matches!(preallocator.take(0, Path::new("/elsewhere/0")), Taken::Nothing));
        assert!(!file.path.exists());
    }

    #[test]
    fn a_file_that_somebody_deleted_is_not_given_out() {
        let folder = tempfile::tempdir().unwrap();
        let preallocator = Preallocator::default();
        let file = next(folder.path(), 0);
        preallocator.create([file.clone()]);
        run_until(&preallocator, || {
            matches!(preallocator.requests.lock().files.get(&0), Some(Request::Made(_)))
        });
        fs::remove_file(&file.path).unwrap();
        assert!(matches!(preallocator.take(0, &file.path), Taken::Nothing));
    }

    #[test]
    fn nobody_waits_for_a_file_that_was_not_begun_or_failed() {
        let preallocator =
            Preallocator { wait_max: Duration::from_secs(60), ..Preallocator::default() };
        let file = next(Path::new("/nowhere"), 0);
        preallocator.create([file.clone()]);
        assert!(matches!(preallocator.take(0, &file.path), Taken::Nothing));
        preallocator.create([file.clone()]);
        run_until(&preallocator, || {
            matches!(preallocator.requests.lock().files.get(&0), Some(Request::Failed))
        });
        assert!(matches!(preallocator.take(0, &file.path), Taken::Nothing));
    }

    #[test]
    fn a_file_that_is_being_made_is_waited_for_and_late_in_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = next(folder.path(), 0);
        let preallocator =
            Preallocator { wait_max: Duration::from_millis(1), ..Preallocator::default() };
        preallocator.create([file.clone()]);
        assert!(preallocator.begin().is_some());
        assert!(preallocator.is_making(0));
        assert!(matches!(preallocator.take(0, &file.path), Taken::Late));
        let preallocator = Preallocator { wait_max: Duration::from_secs(60), ..preallocator };
        std::thread::scope(|scope| {
            scope.spawn(|| preallocator.make(&file));
            assert!(matches!(preallocator.take(0, &file.path), Taken::Made(_)));
        });
    }

    #[test]
    fn warming_up_backs_every_page() {
        let folder = tempfile::tempdir().unwrap();
        let preallocator = Preallocator::default();
        let warm_up = Some(WarmUp { flush_pages: 16 });
        let file = NextFile { size: 3 << 20, warm_up, ..next(folder.path(), 0) };
        preallocator.create([file.clone()]);
        run_until(&preallocator, || {
            fs::metadata(&file.path).is_ok_and(|found| found.blocks() * 512 >= file.size)
        });
    }
}
