//! Taking expired files out of an open store. When, and which, is for the caller to say: here are
//! the steps, each short. What is deleted later by its path is out of the store before, so nobody
//! reads it then; views of it keep it mapped until they are gone.

use std::path::PathBuf;

use crate::error::StoreError;
use crate::state::Core;
use crate::state::types::LogFile;
use crate::store::Store;

impl Core {
    /// The files of the log, oldest first.
    pub fn log_files(&self) -> Vec<LogFile> {
        let describe = |file: &std::sync::Arc<crate::files::map::MappedFile>| LogFile {
            path: file.path().to_owned(),
            start: file.start() as i64,
            size: file.size() as i64,
        };
        self.log.files().iter().map(describe).collect()
    }

    /// Deletes up to `most` files of a queue that hold nothing but entries of records that the log
    /// no longer has, oldest first and never the last; moves its min offset to the first message
    /// that the log has. How many files.
    ///
    /// # Errors
    /// A file can't be read or removed; what was removed before is gone.
    pub fn expire_queue(
        &mut self,
        topic: &[u8],
        queue_id: i32,
        most: usize,
    ) -> Result<usize, StoreError> {
        let physical_min = self.min_physical_offset();
        let Some(handle) = self.find_queue(topic, queue_id) else { return Ok(0) };
        let Some(slot) = self.slot_mut(handle) else { return Ok(0) };
        slot.queue.expire(physical_min, most)
    }

    /// Physical offset after the record of a queue's last entry; -1 when there is none.
    pub fn queue_end(&self, topic: &[u8], queue_id: i32) -> i64 {
        let slot = self.find_queue(topic, queue_id).and_then(|handle| self.slot(handle));
        slot.map(|slot| slot.queue.max_physical()).filter(|&end| end > 0).unwrap_or(-1)
    }
}

impl Store {
    /// Takes the oldest file out of the log, which then starts at the next one; its path, for the
    /// caller to remove. `None`: there is only one, which stays.
    pub fn drop_log_file(&self) -> Option<PathBuf> {
        // The map goes after the lock: that may take milliseconds.
        let file = {
            let mut core = self.lock();
            let file = core.log.drop_first()?;
            self.shared().log_files.lock().retain(|other| other.start() != file.start());
            // Files before this one are unlinked; this one is not yet, and a crash may keep it.
            self.shared().deletions.lock().forget(file.start() as i64);
            file
        };
        Some(file.path().to_owned())
    }

    /// Takes the files out of the index that know no record that the log still has, oldest first
    /// and never the last; their paths, for the caller to remove.
    pub fn expire_index(&self) -> Vec<PathBuf> {
        let physical_min = self.lock().min_physical_offset();
        let files = self.shared().index.lock().expire(physical_min);
        files.iter().map(|file| file.path().to_owned()).collect()
    }
}
