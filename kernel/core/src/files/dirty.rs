//! Parts of files that are not on the disk yet.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{During, StoreError};
use crate::files::folder::sync_folder;
use crate::files::map::MappedFile;

/// A queue's folder, its topic's, and that of all queues.
const QUEUE_FOLDERS: usize = 3;

/// What is to be written to the disk.
pub(crate) enum DirtyRange {
    /// A part of a mapped file.
    Mapped(Arc<MappedFile>, u64, u64),
    /// A file that an earlier, killed run may have left in the page cache.
    Unmapped(PathBuf),
    /// The names in a queue's folder, its own, and that of its topic's folder: what is flushed is lost
    /// with any of them.
    Names(PathBuf),
}

impl DirtyRange {
    pub(crate) fn path(&self) -> &Path {
        match self {
            DirtyRange::Mapped(file, _, _) => file.path(),
            DirtyRange::Unmapped(path) | DirtyRange::Names(path) => path,
        }
    }

    /// Starts to write it, without waiting. Best effort: [`Self::sync`] does what is left.
    pub(crate) fn start_sync(&self) {
        let (path, from, length) = match self {
            DirtyRange::Mapped(file, from, to) => (file.path(), *from, to - from),
            DirtyRange::Unmapped(path) => (path.as_path(), 0, 0),
            DirtyRange::Names(_) => return,
        };
        if let Ok(file) = File::open(path) {
            // SAFETY: plain system call on an open descriptor.
            unsafe {
                libc::sync_file_range(
                    file.as_raw_fd(),
                    from as libc::off64_t,
                    length as libc::off64_t,
                    libc::SYNC_FILE_RANGE_WRITE,
                )
            };
        }
    }

    /// Writes it and waits; the error names the file.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let (path, result) = match self {
            DirtyRange::Names(folder) => {
                folder.ancestors().take(QUEUE_FOLDERS).for_each(sync_folder);
                return Ok(());
            }
            DirtyRange::Mapped(file, from, to) => (file.path(), file.sync(*from, *to)),
            DirtyRange::Unmapped(path) => {
                match File::open(path).and_then(|file| file.sync_data()) {
                    // Deleted meanwhile.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                    result => (path.as_path(), result),
                }
            }
        };
        result.during("flushing", path)
    }
}
