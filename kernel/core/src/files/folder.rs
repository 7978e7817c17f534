//! The store's folder: who holds it, whether it was closed cleanly, and its checkpoint.

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{During, StoreError};

const CHECKPOINT_SIZE: u64 = 4096;
/// How far before the checkpoint's times recovery starts, in milliseconds.
const CHECKPOINT_MARGIN_MS: i64 = 3_000;

/// How far a clock is taken to be set back: times further ahead than this are not believed.
pub(crate) const CLOCK_STEP_MS: i64 = 60_000;

/// The exclusive lock of a store: bytes [0, 1) of `lock`, as the Java broker takes it.
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Creates the folder when it is missing and locks it.
    ///
    /// An open-file-description lock: it conflicts with the record locks of the Java broker and
    /// also with a second store in this process.
    pub(crate) fn take(root: &Path) -> Result<Self, StoreError> {
        create_folder(root)?;
        let path = root.join("lock");
        let mut file = open_or_create(&path).during("opening the lock file", &path)?;
        // SAFETY: all-zero is a valid `flock` (plain integers).
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        range.l_type = libc::F_WRLCK as libc::c_short;
        range.l_whence = libc::SEEK_SET as libc::c_short;
        range.l_start = 0;
        range.l_len = 1;
        // SAFETY: the descriptor is open and the struct lives through the call.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) };
        if result != 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => StoreError::io(
                    format!(
                        "the store {} is in use by another broker: stop that one, or choose \
                         another storePathRootDir",
                        root.display()
                    ),
                    io::Error::from_raw_os_error(libc::EAGAIN),
                ),
                _ => StoreError::io(format!("locking {}", path.display()), error),
            });
        }
        // Once: its time of change tells when RocketMQ, which writes it whenever it starts, did so.
        if !file.metadata().is_ok_and(|found| found.len() >= 4) {
            file.write_all(b"lock").during("opening the lock file", &path)?;
        }
        Ok(FolderLock { _file: file })
    }
}

/// Creates a folder and its parents.
pub(crate) fn create_folder(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path).during("creating the folder", path)
}

/// Opens a file for reading and writing, as it is or new.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Makes new names in a folder durable. Best effort: not every file system can.
pub(crate) fn sync_folder(path: &Path) {
    if let Ok(folder) = File::open(path) {
        let _ = folder.sync_all();
    }
}

/// `abort` exists while a broker runs.
pub(crate) fn abort_path(root: &Path) -> PathBuf {
    root.join("abort")
}

/// The boot of the machine, and which one the store was last opened in.
pub(crate) struct Boot {
    path: PathBuf,
    now: String,
    last: String,
}

impl Boot {
    /// Examines both; what can't be read is empty.
    pub(crate) fn find(root: &Path) -> Self {
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let path = root.join("boot");
        let (now, last) = (read(Path::new("/proc/sys/kernel/random/boot_id")), read(&path));
        Boot { path, now, last }
    }

    /// Whether the machine ran without interruption since: then whatever the last run wrote is in
    /// the page cache even if that run was killed.
    pub(crate) fn is_same(&self) -> bool {
        !self.now.is_empty() && self.now == self.last
    }

    /// Writes down which boot this is. Only once the store is recovered: an opening that fails
    /// must not make the next one trust what a loss of power left.
    pub(crate) fn remember(&self) {
        if !self.is_same() {
            let _ = fs::write(&self.path, &self.now);
        }
    }

    /// Forgets it: a disk that failed may have lost what was written, though the machine ran on.
    pub(crate) fn forget(root: &Path) {
        let _ = fs::remove_file(root.join("boot"));
    }
}

/// `checkpoint`: up to which store timestamps log, queues and index are on disk.
///
/// A clone writes the same file: who saves takes one, so that no lock is held while the disk works.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    file: Arc<File>,
    path: PathBuf,
    pub(crate) physic_ms: i64,
    pub(crate) logics_ms: i64,
    pub(crate) index_ms: i64,
}

impl Checkpoint {
    /// Opens or creates the file. One of another size is taken as it is: only its first 24 bytes
    /// matter, and missing ones are 0.
    pub(crate) fn open(root: &Path) -> Result<Self, StoreError> {
        let path = root.join("checkpoint");
        let file = open_or_create(&path).during("opening", &path)?;
        let length = file.metadata().during("opening", &path)?.len();
        if length < CHECKPOINT_SIZE {
            // Written, not only sized: a full disk must not keep the times from being saved later.
            let zeros = [0_u8; CHECKPOINT_SIZE as usize];
            file.write_all_at(&zeros[length as usize..], length).during("opening", &path)?;
        }
        let mut bytes = [0_u8; 24];
        file.read_exact_at(&mut bytes, 0).during("opening", &path)?;
        let long = |at: usize| bytes[at..at + 8].try_into().map_or(0, i64::from_be_bytes);
        let (physic_ms, logics_ms, index_ms) = (long(0), long(8), long(16));
        Ok(Checkpoint { file: Arc::new(file), path, physic_ms, logics_ms, index_ms })
    }

    /// Where recovery after a crash starts: nothing stored before can be missing on disk.
    pub(crate) fn min_timestamp(&self) -> i64 {
        (self.physic_ms.min(self.logics_ms).saturating_sub(CHECKPOINT_MARGIN_MS)).max(0)
    }

    /// The same, with the index when it must be complete, too (`messageIndexSafe`). Times that are
    /// still to come say nothing: the file or the clock is wrong then.
    pub(crate) fn safe_timestamp(&self, now_ms: i64, with_index: bool) -> i64 {
        let limit = self.min_timestamp();
        let limit = if with_index { limit.min(self.index_ms) } else { limit };
        if limit > now_ms.saturating_add(CLOCK_STEP_MS) { 0 } else { limit.max(0) }
    }

    /// Writes the three times to the disk.
    pub(crate) fn save(&self) -> Result<(), StoreError> {
        let mut bytes = [0_u8; 24];
        bytes[..8].copy_from_slice(&self.physic_ms.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.logics_ms.to_be_bytes());
        bytes[16..].copy_from_slice(&self.index_ms.to_be_bytes());
        self.file
            .write_all_at(&bytes, 0)
            .and_then(|()| self.file.sync_data())
            .during("writing", &self.path)
    }
}

/// The file name of a log or queue file: its start offset in 20 digits.
pub(crate) fn offset_name(start: u64) -> String {
    format!("{start:020}")
}

/// What is in a folder; nothing when it is missing.
pub(crate) fn entries_of(folder: &Path) -> Result<Vec<DirEntry>, StoreError> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries.and_then(Iterator::collect).during("listing", folder),
    }
}

/// The files of a folder that are named by an offset, sorted: (start, path, length). A missing
/// folder has none; anything else in it becomes a note.
pub(crate) fn offset_files(
    folder: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<(u64, PathBuf, u64)>, StoreError> {
    let mut files = Vec::new();
    for entry in entries_of(folder)? {
        let metadata = entry.metadata().during("listing", folder)?;
        let start = entry
            .file_name()
            .to_str()
            .filter(|name| name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|name| name.parse::<u64>().ok())
            .filter(|&start| i64::try_from(start).is_ok());
        match start {
            Some(start) if metadata.is_file() => {
                files.push((start, entry.path(), metadata.len()));
            }
            _ => notes.push(format!("ignored {}: not a file of the store", entry.path().display())),
        }
    }
    files.sort_unstable();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_would_block_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::take(folder.path()).unwrap();
        let error = FolderLock::take(folder.path()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains("in use"));
        assert_eq!(fs::read(folder.path().join("lock")).unwrap(), b"lock");
        drop(first);
        FolderLock::take(folder.path()).unwrap();
    }

    #[test]
    fn the_checkpoint_keeps_its_times_and_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.min_timestamp(), 0);
        (checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms) = (10_000, 9_000, 7);
        checkpoint.save().unwrap();
        let again = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(again.min_timestamp(), 6_000);
        assert_eq!(
            (again.safe_timestamp(7_000, false), again.safe_timestamp(7_000, true)),
            (6_000, 7)
        );
        assert_eq!(again.safe_timestamp(6_000 - CLOCK_STEP_MS - 1, false), 0);
        assert_eq!(fs::metadata(folder.path().join("checkpoint")).unwrap().len(), 4096);
    }
}
