//! Loading the index files when the store opens.

use std::cmp::Ordering;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use super::Index;
use super::file::{IndexFile, file_size};
use crate::error::{During, StoreError};
use crate::files::folder::{entries_of, sync_folder};
use crate::files::map::MappedFile;
use crate::settings::Settings;

const SIZE_SETTING: &str = "maxHashSlotNum and maxIndexNum";

impl Index {
    /// Loads the files. With `not_after` those that go on after that time are removed: after a
    /// crash of the machine nothing tells which of their pages reached the disk. So are damaged ones,
    /// and all after one that is missing; `known` says which there were, and where each ended.
    pub(crate) fn load(
        settings: &Settings,
        not_after: Option<i64>,
        is_clean: bool,
        known: &[(String, i64)],
        physical_min: i64,
        notes: &mut Vec<String>,
    ) -> Result<Self, StoreError> {
        let mut index = Index {
            folder: settings.store_path_root_dir.join("index"),
            slots: settings.max_hash_slot_num.max(1),
            capacity: settings.max_index_num.max(2),
            files: Vec::new(),
            is_enabled: settings.message_index_enable,
            ..Index::default()
        };
        if !index.is_enabled {
            return Ok(index);
        }
        let entries = entries_of(&index.folder)?;
        let mut paths: Vec<PathBuf> = entries.iter().map(DirEntry::path).collect();
        paths.sort_unstable();
        let size = file_size(index.slots, index.capacity);
        let has_right_size =
            paths.iter().any(|path| fs::metadata(path).is_ok_and(|found| found.len() == size));
        // With every file of another size the setting is wrong.
        let may_be_short = !is_clean || has_right_size;
        let is_there =
            |name: &str| paths.iter().any(|path| path.file_name().is_some_and(|own| own == name));
        let missing = known.iter().find(|(name, end)| *end >= physical_min && !is_there(name));
        for path in &paths {
            let is_after_gap = missing
                .is_some_and(|(name, _)| path.file_name().is_some_and(|own| own > name.as_str()));
            let is_known = |end| {
                known.iter().any(|(name, known)| {
                    *known == end && path.file_name().is_some_and(|own| own == name.as_str())
                })
            };
            index.load_file(path, not_after, is_after_gap, may_be_short, is_known, notes)?;
        }
        index.drop_empty(notes)?;
        if index.is_cut {
            // What comes back after a loss of power would hold keys twice.
            sync_folder(&index.folder);
        }
        index.is_cut |= missing.is_some();
        Ok(index)
    }

    /// Removes a last file without entries: a kill came before its first one, perhaps before its
    /// header said where the file before it ends.
    fn drop_empty(&mut self, notes: &mut Vec<String>) -> Result<(), StoreError> {
        while let Some(file) = self.files.pop_if(|file| file.header.count <= 1) {
            let path = file.map.path();
            fs::remove_file(path).during("removing", path)?;
            notes.push(format!("removed {}: it was just being created", path.display()));
        }
        Ok(())
    }

    /// Removes a file that can't be trusted; those after it go, too.
    fn remove(
        &mut self,
        path: &Path,
        reason: &str,
        notes: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        self.is_cut = true;
        fs::remove_file(path).during("removing", path)?;
        let path = path.display();
        notes.push(format!("removed the index file {path}: {reason}; it is built again"));
        Ok(())
    }

    fn load_file(
        &mut self,
        path: &Path,
        not_after: Option<i64>,
        is_after_gap: bool,
        may_be_short: bool,
        is_known: impl Fn(i64) -> bool,
        notes: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        let is_named = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.len() == 17 && name.bytes().all(|byte| byte.is_ascii_digit()));
        let metadata = fs::metadata(path).during("opening", path)?;
        if !is_named || !metadata.is_file() {
            notes.push(format!("ignored {}: not a file of the index", path.display()));
            return Ok(());
        }
        if metadata.len() == 0 {
            let _ = fs::remove_file(path);
            notes.push(format!("removed {}: it was just being created", path.display()));
            return Ok(());
        }
        let size = file_size(self.slots, self.capacity);
        if is_after_gap || self.is_cut {
            return self.remove(path, "a file before it is missing", notes);
        }
        if metadata.len() < size && may_be_short {
            return self.remove(path, "it is too short", notes);
        }
        let map = MappedFile::open(path, 0, size, SIZE_SETTING)?;
        let file = IndexFile::new(map, self.slots, self.capacity);
        let is_late = |time| match file.header.end_timestamp.cmp(&time) {
            Ordering::Less => false,
            // More of the same millisecond may have come after the flush.
            Ordering::Equal => !file.is_full() && !is_known(file.header.end_offset),
            Ordering::Greater => true,
        };
        if not_after.is_some_and(is_late) {
            return self.remove(path, "it goes on behind the checkpoint", notes);
        }
        if not_after.is_some() && file.header.end_timestamp == 0 && !self.files.is_empty() {
            // Nothing of it reached the disk, and nothing of a later one.
            return self.remove(path, "it is empty", notes);
        }
        if !file.is_sound() {
            return self.remove(path, "its header is damaged", notes);
        }
        self.files.push(file);
        Ok(())
    }
}
