//! Loading the files of the log when the store opens.

use std::fs;
use std::sync::Arc;

use crate::error::StoreError;
use crate::files::folder::{create_folder, offset_files, offset_name};
use crate::files::map::MappedFile;
use crate::log::commit_log::{CommitLog, SIZE_SETTING};
use crate::log::folders::LogFolders;
use crate::log::quarantine::lengthen;

impl CommitLog {
    /// Loads the files that exist; where the records end is for recovery to find. After a crash
    /// (`is_crashed`) a file that is too short gets its size again: the log ends in it.
    pub(crate) fn load(
        folders: LogFolders,
        file_size: u64,
        is_crashed: bool,
        notes: &mut Vec<String>,
    ) -> Result<Self, StoreError> {
        for folder in folders.writable() {
            create_folder(folder)?;
        }
        let mut found = Vec::new();
        for folder in folders.all() {
            found.extend(offset_files(folder, notes)?);
        }
        found.sort_unstable();
        while let Some((_, path, 0)) = found.last() {
            // A kill between creating the file and giving it its size.
            let _ = fs::remove_file(path);
            notes.push(format!("removed {}: it was just being created", path.display()));
            found.pop();
        }
        // With every file of another size the setting is wrong.
        let is_sized = found.len() == 1 || found.iter().any(|(_, _, length)| *length == file_size);
        for (_, path, length) in &mut found {
            if is_crashed && is_sized && *length < file_size {
                lengthen(path, file_size)?;
                notes.push(format!("lengthened {}: it had {length} bytes", path.display()));
                *length = file_size;
            }
        }
        let mut files: Vec<Arc<MappedFile>> = Vec::with_capacity(found.len());
        for (start, path, _) in found {
            let is_writable = !folders.is_read_only(&path);
            let open = MappedFile::open_with_end;
            let file = Arc::new(open(&path, start, file_size, SIZE_SETTING, is_writable)?);
            if start % file_size != 0 {
                return Err(StoreError::InvalidData(format!(
                    "{} does not start at a multiple of {file_size} ({SIZE_SETTING}): it is of \
                     another log, move it away",
                    path.display()
                )));
            }
            match files.pop_if(|last| last.start() == start) {
                Some(kept) => files.push(one_of(kept, file, notes)?),
                None => files.push(file),
            }
        }
        drop_unwritten(&mut files);
        check_gaps(&files)?;
        Ok(CommitLog::of(folders, file_size, files))
    }
}

/// Which of two files with the same name in different folders is the log's: one that was
/// preallocated and never written is removed.
fn one_of(
    one: Arc<MappedFile>,
    other: Arc<MappedFile>,
    notes: &mut Vec<String>,
) -> Result<Arc<MappedFile>, StoreError> {
    let (kept, spare) = if other.is_unwritten() { (one, other) } else { (other, one) };
    if !spare.is_unwritten() {
        return Err(StoreError::InvalidData(format!(
            "{} and {} are the same part of the commit log: move one of them away",
            kept.path().display(),
            spare.path().display()
        )));
    }
    if spare.is_writable() {
        let _ = fs::remove_file(spare.path());
    }
    notes.push(format!("left {} out: it was never written", spare.path().display()));
    Ok(kept)
}

/// Removes the files at the end that were preallocated and never written: the log goes on in new
/// ones.
fn drop_unwritten(files: &mut Vec<Arc<MappedFile>>) {
    while files.len() > 1
        && let Some(file) = files.pop_if(|last| last.is_unwritten())
    {
        if file.is_writable() {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Refuses a log with a hole. `RocketMQ` notes one as an error and goes on, without the messages;
/// they are as good as lost then, though the file may lie in a folder that is not mounted.
fn check_gaps(files: &[Arc<MappedFile>]) -> Result<(), StoreError> {
    let gap = files.windows(2).find(|pair| pair[0].end() != pair[1].start());
    gap.map_or(Ok(()), |pair| {
        Err(StoreError::InvalidData(format!(
            "the commit log has no file {} between {} and {}: bring it back (is one of its folders \
             not mounted, or missing in storePathCommitLog or readOnlyCommitLogStorePaths?), or \
             give up the messages on one side of it by moving those files away",
            offset_name(pair[0].end()),
            pair[0].path().display(),
            pair[1].path().display()
        )))
    })
}
