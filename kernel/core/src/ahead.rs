//! The thread that works ahead of the append: backs the pages it will write next, and creates the
//! next commit log file. The append never waits for it; where it is behind, the append does the work
//! itself, in small portions.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::folder::sync_folder;
use crate::map::MappedFile;

/// Bytes backed between two looks at the queue of requests.
const SLICE: u64 = 1 << 20;
/// Requests for queues that may wait; more are dropped (the append then backs by itself).
const QUEUE_REQUESTS_MAX: usize = 4_096;

/// A file to be created.
pub(crate) struct NextFile {
    pub(crate) path: PathBuf,
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// Bytes of it that are backed at once.
    pub(crate) head: u64,
}

#[derive(Default)]
struct Requests {
    log: Option<(Arc<MappedFile>, u64)>,
    create: Option<NextFile>,
    queues: Vec<(Arc<MappedFile>, u64)>,
    stop: bool,
}

/// The requests, and the file created in advance.
#[derive(Default)]
pub(crate) struct Ahead {
    requests: Mutex<Requests>,
    wake: Condvar,
    next: Mutex<Option<Arc<MappedFile>>>,
}

impl Ahead {
    /// Back a log file up to a position.
    pub(crate) fn back_log(&self, file: &Arc<MappedFile>, end: u64) {
        self.requests.lock().log = Some((Arc::clone(file), end));
        self.wake.notify_one();
    }

    /// Back a queue file up to a position.
    pub(crate) fn back_queue(&self, file: &Arc<MappedFile>, end: u64) {
        let mut requests = self.requests.lock();
        if requests.queues.len() < QUEUE_REQUESTS_MAX {
            requests.queues.push((Arc::clone(file), end));
            self.wake.notify_one();
        }
    }

    /// Create a file.
    pub(crate) fn create(&self, file: NextFile) {
        self.requests.lock().create = Some(file);
        self.wake.notify_one();
    }

    /// The file created in advance, if it is the one that starts there.
    pub(crate) fn take(&self, start: u64) -> Option<Arc<MappedFile>> {
        let mut next = self.next.lock();
        self.requests.lock().create = None;
        next.take().filter(|file| file.start() == start)
    }

    /// Forgets everything, before the store opens again.
    pub(crate) fn reset(&self) {
        *self.requests.lock() = Requests::default();
        *self.next.lock() = None;
    }

    /// Makes [`Self::run`] return.
    pub(crate) fn stop(&self) {
        self.requests.lock().stop = true;
        self.wake.notify_one();
    }

    /// The thread's life.
    pub(crate) fn run(&self) {
        let mut queues = Vec::new();
        loop {
            let (log, create) = {
                let mut requests = self.requests.lock();
                while !requests.stop
                    && requests.log.is_none()
                    && requests.create.is_none()
                    && requests.queues.is_empty()
                {
                    self.wake.wait(&mut requests);
                }
                if requests.stop {
                    return;
                }
                std::mem::swap(&mut queues, &mut requests.queues);
                (requests.log.take(), requests.create.take())
            };
            // Errors are left to the append: it meets them when it backs the page itself.
            for (file, end) in queues.drain(..) {
                let _ = file.back(end);
            }
            if let Some((file, end)) = log {
                self.back_in_slices(&file, end);
            }
            if let Some(next) = create {
                self.create_next(&next);
            }
        }
    }

    fn back_in_slices(&self, file: &Arc<MappedFile>, end: u64) {
        let end = end.min(file.size());
        while file.populated() < end {
            if file.back((file.populated() + SLICE).min(end)).is_err() {
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

    fn create_next(&self, request: &NextFile) {
        let (path, start) = (&request.path, request.start);
        let file = {
            // Held while creating, so that an append that needs the file now waits for this one
            // instead of making it twice.
            let mut next = self.next.lock();
            if next.as_ref().is_some_and(|file| file.start() == start) {
                return;
            }
            let Ok(file) = MappedFile::create(path, start, request.size) else {
                return;
            };
            let file = Arc::new(file);
            *next = Some(Arc::clone(&file));
            file
        };
        let _ = file.back(request.head);
        if let Some(folder) = path.parent() {
            sync_folder(folder);
        }
    }
}
