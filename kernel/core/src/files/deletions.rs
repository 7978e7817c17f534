//! Deleted topics: up to where in the log their records belong to a life that is over.
//!
//! The log keeps the records of a deleted topic until they expire, and recovery writes queue
//! entries for records that have none. `RocketMQ` so brings a deleted topic back, with its old
//! messages. Here the deletion is noted first, in the file `deletions`: recovery leaves out what is
//! older, and the topic, made again, starts at offset 0 with nothing of its earlier life.
//!
//! An item is the physical offset in 20 digits, a blank, the topic and a zero byte. Items are
//! appended; of several for one topic the greatest counts. The page cache has an item when
//! [`Deletions::add`] returns, which is enough for a killed process; [`Deletions::sync`], called
//! each second, makes it outlast the machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hashbrown::HashMap;

use crate::error::{During, StoreError};
use crate::files::folder::sync_folder;

/// The file is written anew when it is so much larger than twice what is still needed.
const SPARE_BYTES: usize = 64 << 10;
const OFFSET_DIGITS: usize = 20;

/// The file and what it says.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    path: PathBuf,
    /// Topic to the end of the log when it was deleted.
    offsets: HashMap<Box<[u8]>, i64>,
    file_bytes: usize,
    is_dirty: bool,
    /// The file lacks something: it has to be written anew.
    is_lost: bool,
}

impl Deletions {
    /// Reads the file of a store; there may be none. What is no whole item is left out.
    /// `is_durable`: it is known to be on the disk; what a killed process wrote may not be.
    pub(crate) fn load(root: &Path, is_durable: bool) -> Result<Self, StoreError> {
        let path = root.join("deletions");
        let data = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.during("reading", &path)?,
        };
        let is_dirty = !is_durable && !data.is_empty();
        let file_bytes = data.len();
        let mut loaded = Deletions { path, file_bytes, is_dirty, ..Deletions::default() };
        let mut items: Vec<&[u8]> = data.split(|&byte| byte == 0).collect();
        items.pop();
        for (offset, topic) in items.into_iter().filter_map(parse) {
            let known = loaded.offsets.entry(topic.into()).or_insert(offset);
            *known = offset.max(*known);
        }
        Ok(loaded)
    }

    /// Up to where a topic's records belong to an earlier life; 0 when there was none.
    #[inline]
    pub(crate) fn end_of(&self, topic: &[u8]) -> i64 {
        if self.offsets.is_empty() {
            return 0;
        }
        self.offsets.get(topic).copied().unwrap_or(0)
    }

    /// Notes that a topic is deleted; `physical_offset` is the end of the log. A disk that takes no
    /// more is no reason not to delete: [`Self::sync`] tries again.
    pub(crate) fn add(&mut self, topic: &[u8], physical_offset: i64) {
        self.offsets.insert(topic.into(), physical_offset);
        let item = item(topic, physical_offset);
        let appended = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)
            .and_then(|mut file| file.write_all(&item));
        self.is_lost |= appended.is_err();
        self.file_bytes += item.len();
        self.is_dirty = true;
    }

    /// After a file was deleted: there may be space now for what could not be noted.
    pub(crate) fn retry(&mut self) {
        if self.is_lost {
            let _ = self.write_anew();
        }
    }

    /// Forgets what the log has nothing of any more. The end of the log is below an item when the
    /// log lost its end: what is written there next is new.
    pub(crate) fn prune(&mut self, min_offset: i64, max_offset: i64) -> Result<(), StoreError> {
        let mut is_changed = false;
        for offset in self.offsets.values_mut() {
            is_changed |= *offset > max_offset;
            *offset = max_offset.min(*offset);
        }
        let count = self.offsets.len();
        self.offsets.retain(|_, offset| *offset > min_offset);
        if is_changed || self.offsets.len() != count || self.is_too_large() {
            self.write_anew().during("writing", &self.path)?;
        }
        Ok(())
    }

    /// Forgets what the log has nothing of any more; the file follows when it is too large.
    pub(crate) fn forget(&mut self, min_offset: i64) {
        self.offsets.retain(|_, offset| *offset > min_offset);
    }

    /// What has to be waited for to bring the file to the disk, without this value's lock. An error
    /// of writing it anew is left for the next call, and [`Self::note_lost`] reports one of
    /// waiting.
    pub(crate) fn start_sync(&mut self) -> Option<PathBuf> {
        if self.is_lost || self.is_too_large() {
            let _ = self.write_anew();
            return None;
        }
        std::mem::take(&mut self.is_dirty).then(|| self.path.clone())
    }

    /// The file did not come to the disk: it is written anew.
    pub(crate) fn note_lost(&mut self) {
        self.is_lost = true;
    }

    fn is_too_large(&self) -> bool {
        let needed: usize = self.offsets.keys().map(|topic| OFFSET_DIGITS + 2 + topic.len()).sum();
        self.file_bytes > 2 * needed + SPARE_BYTES
    }

    fn write_anew(&mut self) -> io::Result<()> {
        self.is_lost = true;
        if self.offsets.is_empty() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.file_bytes = 0,
            }
        } else {
            let items = self.offsets.iter().map(|(topic, &offset)| item(topic, offset));
            let data: Vec<u8> = items.flatten().collect();
            let fresh = self.path.with_extension("tmp");
            let mut file = File::create(&fresh)?;
            file.write_all(&data)?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)?;
            self.file_bytes = data.len();
        }
        self.path.parent().into_iter().for_each(sync_folder);
        (self.is_lost, self.is_dirty) = (false, false);
        Ok(())
    }
}

fn item(topic: &[u8], physical_offset: i64) -> Vec<u8> {
    let mut item = format!("{physical_offset:0OFFSET_DIGITS$} ").into_bytes();
    item.extend_from_slice(topic);
    item.push(0);
    item
}

fn parse(item: &[u8]) -> Option<(i64, &[u8])> {
    let (digits, rest) = item.split_at_checked(OFFSET_DIGITS)?;
    let topic = rest.strip_prefix(b" ").filter(|topic| !topic.is_empty())?;
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    Some((digits.parse().ok()?, topic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_item_is_left_out_and_the_greatest_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mut deletions = Deletions::load(folder.path(), true).unwrap();
        deletions.add(b"T", 100);
        deletions.add(b"U", 50);
        deletions.add(b"T", 200);
        let path = folder.path().join("deletions");
        let mut data = fs::read(&path).unwrap();
        data.extend_from_slice(b"junk\x000000000000000000");
        fs::write(&path, data).unwrap();
        let loaded = Deletions::load(folder.path(), true).unwrap();
        assert_eq!((loaded.end_of(b"T"), loaded.end_of(b"U"), loaded.end_of(b"V")), (200, 50, 0));
    }

    #[test]
    fn what_the_log_lost_is_forgotten_and_its_end_is_the_most() {
        let folder = tempfile::tempdir().unwrap();
        let mut deletions = Deletions::load(folder.path(), true).unwrap();
        for (topic, offset) in [(b"A", 100), (b"B", 200), (b"C", 300)] {
            deletions.add(topic, offset);
        }
        deletions.prune(100, 250).unwrap();
        let loaded = Deletions::load(folder.path(), true).unwrap();
        assert_eq!([b"A", b"B", b"C"].map(|topic| loaded.end_of(topic)), [0, 200, 250]);
        deletions.prune(400, 500).unwrap();
        assert!(!folder.path().join("deletions").exists());
    }

    #[test]
    fn the_file_does_not_grow_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut deletions = Deletions::load(folder.path(), true).unwrap();
        for offset in 0..4_000 {
            deletions.add(b"again", offset);
            deletions.start_sync();
        }
        let bytes = fs::metadata(folder.path().join("deletions")).unwrap().len();
        assert!(bytes <= SPARE_BYTES as u64 + 100, "{bytes}");
        assert_eq!(Deletions::load(folder.path(), true).unwrap().end_of(b"again"), 3_999);
    }

    #[test]
    fn what_a_killed_process_noted_is_brought_to_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let is_due =
            |is_durable| Deletions::load(folder.path(), is_durable).unwrap().start_sync().is_some();
        assert!(!is_due(false));
        Deletions::load(folder.path(), true).unwrap().add(b"T", 100);
        assert!(is_due(false));
        assert!(!is_due(true));
    }
}
