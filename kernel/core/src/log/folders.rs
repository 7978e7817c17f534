//! The folders that the commit log lies in: one, or several that its files go to in turn.
//!
//! RocketMQ's `MultiPathMappedFileQueue`: file number `k` of the log goes to folder `k` modulo the
//! number of those that may take files, in the order of their names. A read-only folder takes none,
//! a full one only when all are full. Where a file was made does not bind the others: all folders
//! are read at the start, and the names put the files in order.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::files::folder::offset_name;
use crate::settings::Settings;

/// What joins several folders in one setting.
const SPLITTER: u8 = b',';

#[derive(Default)]
pub(crate) struct LogFolders {
    /// Those that may take files, by name.
    writable: Vec<PathBuf>,
    read_only: Vec<PathBuf>,
    /// Those of `writable` that are in the rotation now; never empty.
    rotation: Vec<PathBuf>,
}

impl LogFolders {
    /// The folders of the settings.
    pub(crate) fn new(settings: &Settings) -> Result<Self, StoreError> {
        let mut writable = split(&settings.store_path_commit_log);
        if writable.is_empty() {
            writable.push(settings.store_path_root_dir.join("commitlog"));
        }
        let read_only = split(&settings.read_only_commit_log_store_paths);
        writable.retain(|folder| !read_only.contains(folder));
        if writable.is_empty() {
            return Err(StoreError::InvalidData(
                "readOnlyCommitLogStorePaths names every folder of storePathCommitLog: leave one \
                 that new files can be made in"
                    .to_owned(),
            ));
        }
        Ok(LogFolders { rotation: writable.clone(), writable, read_only })
    }

    /// Those that files are made in.
    pub(crate) fn writable(&self) -> &[PathBuf] {
        &self.writable
    }

    /// Every folder that may hold files of the log.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.writable.iter().chain(&self.read_only)
    }

    /// Whether files are never made beside this one.
    pub(crate) fn is_read_only(&self, path: &Path) -> bool {
        path.parent().is_some_and(|folder| self.read_only.iter().any(|each| each == folder))
    }

    /// Takes these folders out of the rotation, and lets in what was out before.
    pub(crate) fn set_full(&mut self, full: &[PathBuf]) {
        self.rotation.clone_from(&self.writable);
        self.rotation.retain(|folder| !full.contains(folder));
        if self.rotation.is_empty() {
            self.rotation.clone_from(&self.writable);
        }
    }

    /// Where the file that starts at an offset is to be made.
    pub(crate) fn path_of(&self, start: u64, file_size: u64) -> PathBuf {
        let number = start / file_size.max(1);
        let folder = self.rotation.get((number % self.rotation.len().max(1) as u64) as usize);
        folder.map_or_else(PathBuf::new, |folder| folder.join(offset_name(start)))
    }
}

/// The folders of a setting, each once, by name.
fn split(setting: &Path) -> Vec<PathBuf> {
    let parts = setting.as_os_str().as_bytes().split(|&byte| byte == SPLITTER);
    let mut folders: Vec<PathBuf> = parts
        .map(<[u8]>::trim_ascii)
        .filter(|part| !part.is_empty())
        .map(|part| Path::new(OsStr::from_bytes(part)).components().collect())
        .collect();
    folders.sort_unstable_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(writable: &str, read_only: &str) -> Result<LogFolders, StoreError> {
        LogFolders::new(&Settings {
            store_path_commit_log: writable.into(),
            read_only_commit_log_store_paths: read_only.into(),
            ..Settings::new("/data")
        })
    }

    fn places(folders: &LogFolders) -> Vec<String> {
        let path = |number| folders.path_of(number * 100, 100);
        let parent = |path: PathBuf| path.parent().unwrap().to_str().unwrap().to_owned();
        (0..4_u64).map(|number| parent(path(number))).collect()
    }

    #[test]
    fn files_go_to_the_folders_in_turn_by_their_names() {
        assert_eq!(places(&folders("/b, /a/,/b", "").unwrap()), ["/a", "/b", "/a", "/b"]);
        assert_eq!(places(&folders("", "").unwrap())[3], "/data/commitlog");
        assert_eq!(places(&folders("/a,/b,/c", "/b").unwrap()), ["/a", "/c", "/a", "/c"]);
        assert!(folders("/a,/b", "/a,/b").is_err());
    }

    #[test]
    fn a_full_folder_is_left_out_unless_all_are() {
        let mut folders = folders("/a,/b,/c", "/c").unwrap();
        folders.set_full(&["/a".into()]);
        assert_eq!(places(&folders), ["/b"; 4]);
        folders.set_full(&["/a".into(), "/b".into(), "/c".into()]);
        assert_eq!(places(&folders), ["/a", "/b", "/a", "/b"]);
        folders.set_full(&[]);
        assert_eq!(places(&folders), ["/a", "/b", "/a", "/b"]);
        assert!(
            folders.is_read_only(Path::new("/c/0")) && !folders.is_read_only(Path::new("/a/0"))
        );
    }
}
