//! Loading the queues that there are, in several threads: thousands of folders are listed and the
//! end of each queue is looked up.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::context::Recovery;
use crate::error::{During, StoreError};
use crate::files::folder::entries_of;
use crate::files::map::check_size;
use crate::files::threads::in_threads;
use crate::queues::consume_queue::{ConsumeQueue, SIZE_SETTING, queue_file_size};
use crate::queues::load::{Loaded, Trust};
use crate::queues::names::topic_name;
use crate::queues::queue_ext::QueueExt;
use crate::settings::Settings;

/// Queues that are worth a thread.
const QUEUES_PER_THREAD: usize = 64;

struct Folder {
    topic: String,
    queue_id: i32,
    path: PathBuf,
}

impl Recovery<'_> {
    /// Loads every queue, and sees to those with missing or short files.
    pub(super) fn load_queues(&mut self) -> Result<(), StoreError> {
        let settings = &self.shared.settings;
        let size = queue_file_size(settings.mapped_file_size_consume_queue);
        let root = settings.store_path_root_dir.join("consumequeue");
        let folders = queue_folders(&root, &mut self.report.notes)?;
        // What a killed process wrote is there as long as the machine runs.
        let is_whole = self.report.clean || self.report.same_boot;
        let trust = if is_whole { Trust::Whole } else { Trust::Nothing };
        let mut short_files = Vec::new();
        let mut has_right_size = false;
        for (folder, loaded) in folders.iter().zip(load_all(settings, &folders, trust)) {
            let Loaded { mut queue, is_short, short_files: short, mut notes } = loaded?;
            has_right_size |= queue.has_files();
            if !self.report.clean {
                queue.drop_last_blanks()?;
                queue.distrust_flushed();
            }
            self.report.notes.append(&mut notes);
            short_files.extend(short);
            let handle = self.core.add_queue(&folder.topic, folder.queue_id, queue);
            if is_short {
                self.mark_short(handle);
            }
        }
        for (path, length) in short_files {
            if self.report.clean && !has_right_size && length > 0 {
                // No file has the size that the setting says: then the setting is wrong.
                check_size(&path, length, size, SIZE_SETTING)?;
            }
            self.report.notes.push(format!(
                "removed {}: it has {length} bytes of {size}; its entries are written again",
                path.display()
            ));
            fs::remove_file(&path).during("removing", &path)?;
        }
        Ok(())
    }

    /// Drops the queues that came back although their topic was deleted, and finds those that are
    /// missing or shorter than they were. The records are going to be read from `begin` on.
    pub(super) fn compare_queues(&mut self, begin: i64) -> Result<(), StoreError> {
        for handle in self.core.handles() {
            let Some(slot) = self.core.slot(handle) else { continue };
            let deleted = self.deletions.end_of(slot.topic.name.as_bytes());
            if deleted == 0 {
                continue;
            }
            let Some(slot) = self.core.slot_mut(handle) else { continue };
            let is_old = |entry: &crate::queues::entry::Entry| {
                entry.is_written() && !entry.is_pre_blank() && entry.physical_offset < deleted
            };
            if slot.queue.first_entries()?.iter().any(is_old) {
                self.report.notes.push(format!(
                    "deleted the queue {} of {}: the topic was deleted",
                    slot.queue_id, slot.topic.name
                ));
                let is_mixed = slot.queue.max_physical() > deleted;
                slot.queue.delete();
                if is_mixed || deleted < begin {
                    // It lacks records of the new life that are not read otherwise.
                    self.mark_short(handle);
                }
            }
        }
        let Some(inventory) = self.inventory.take() else { return Ok(()) };
        // The log may have grown since, and queues with it; a shorter log is another case.
        if inventory.log_end > self.core.log.max_offset() as i64 {
            return Ok(());
        }
        let is_same = self.report.clean && inventory.log_end == self.core.log.max_offset() as i64;
        for ((topic, queue_id), (min, max)) in &inventory.queues {
            if self.deletions.end_of(topic) > 0 {
                continue;
            }
            let found = self.core.find_queue(topic, *queue_id);
            let bounds = found.map_or((0, 0), |handle| self.core.bounds(handle));
            let lacks_begin = is_same && bounds.0 > *min;
            if bounds.1 < *max || lacks_begin {
                let Some(handle) = self.queue_of(topic, *queue_id) else { continue };
                if lacks_begin && let Some(slot) = self.core.slot_mut(handle) {
                    slot.queue.delete();
                }
                self.mark_short(handle);
            }
        }
        Ok(())
    }
}

/// The sub-folders of a folder by name; a missing folder has none.
fn sub_folders(folder: &Path, notes: &mut Vec<String>) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    for entry in entries_of(folder)? {
        let is_folder = entry
            .file_type()
            .is_ok_and(|kind| kind.is_dir() || (kind.is_symlink() && entry.path().is_dir()));
        match entry.file_name().into_string() {
            Ok(name) if is_folder => names.push(name),
            _ => notes.push(format!("ignored {}: not a queue", entry.path().display())),
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn queue_folders(root: &Path, notes: &mut Vec<String>) -> Result<Vec<Folder>, StoreError> {
    let mut folders = Vec::new();
    for topic in sub_folders(root, notes)? {
        for name in sub_folders(&root.join(&topic), notes)? {
            let path = root.join(&topic).join(&name);
            let id = name.parse::<i32>().ok().filter(|&id| id >= 0 && id.to_string() == name);
            match (id, topic_name(topic.as_bytes())) {
                (Some(queue_id), Some(_)) => {
                    folders.push(Folder { topic: topic.clone(), queue_id, path });
                }
                _ => notes.push(format!("ignored {}: not a queue", path.display())),
            }
        }
    }
    Ok(folders)
}

fn load_one(settings: &Settings, folder: &Folder, trust: Trust) -> Result<Loaded, StoreError> {
    let file_size = queue_file_size(settings.mapped_file_size_consume_queue);
    let mut loaded = ConsumeQueue::load(folder.path.clone(), file_size, trust)?;
    if settings.enable_consume_queue_ext {
        let ext = QueueExt::new(settings, &folder.topic, folder.queue_id);
        loaded.queue.load_ext(ext, &mut loaded.notes)?;
    }
    Ok(loaded)
}

/// Loads all queues; the results in the order of the folders.
fn load_all(
    settings: &Settings,
    folders: &[Folder],
    trust: Trust,
) -> impl Iterator<Item = Result<Loaded, StoreError>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(folders.len()));
    let work = || {
        let mut mine = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(folder) = folders.get(index) else { break };
            mine.push((index, load_one(settings, folder, trust)));
        }
        results.lock().append(&mut mine);
    };
    in_threads(folders.len() / QUEUES_PER_THREAD, work);
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, loaded)| loaded)
}
