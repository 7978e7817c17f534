//! `inventory`: what a store consists of, written when it closes.
//!
//! Queues and index are rebuilt from the log where they are damaged. That some of their files are
//! missing altogether nothing else would tell: this file does. It is only a hint: what it says is
//! compared with the log, and a queue that it misses is filled from there or stays as it is.
//!
//! RocketMQ neither writes nor reads it, and may have deleted topics or files since. But it writes to
//! the `lock` file whenever it starts, which kerolox does only once: with another time of change
//! there (or a copied store) the inventory says nothing.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hashbrown::HashMap;

use crate::error::{During, StoreError};

const FILE_NAME: &str = "inventory";

/// Topic and queue id.
type QueueName = (Box<[u8]>, i32);

/// What there was.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    /// Physical offset after the last record.
    pub(crate) log_end: i64,
    /// (topic, queue id) to (min, max) offset, of queues with files.
    pub(crate) queues: HashMap<QueueName, (i64, i64)>,
    /// File names of the index, and the offset of the last record in each.
    pub(crate) index: Vec<(String, i64)>,
}

impl Inventory {
    /// Reads the file; `None` when there is none, not a whole one, or another broker has used the
    /// store since.
    pub(crate) fn load(root: &Path) -> Option<Self> {
        let text = fs::read(root.join(FILE_NAME)).ok()?;
        let mut inventory = Inventory::default();
        let (mut is_whole, mut is_own, mut count) = (false, false, 0_usize);
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let (word, rest) = split_word(line)?;
            match word {
                "lock" => is_own = number(rest) == lock_time(root),
                "log" => inventory.log_end = number(rest)?,
                "queue" => {
                    let (id, rest) = split_word(rest)?;
                    let (min, rest) = split_word(rest)?;
                    let (max, topic) = split_word(rest)?;
                    let bounds = (min.parse().ok()?, max.parse().ok()?);
                    inventory.queues.insert((topic.into(), id.parse().ok()?), bounds);
                }
                "index" => {
                    let (name, end) = split_word(rest)?;
                    inventory.index.push((name.to_owned(), number(end)?));
                }
                "end" => is_whole = number(rest) == i64::try_from(count).ok(),
                _ => return None,
            }
            count += 1;
        }
        (is_whole && is_own).then_some(inventory)
    }

    /// Removes the file: it would say what is no longer so.
    pub(crate) fn remove(root: &Path) {
        let _ = fs::remove_file(root.join(FILE_NAME));
    }

    /// Writes the file. Queues whose names have a line's end in them are left out.
    pub(crate) fn save(&self, root: &Path) -> Result<(), StoreError> {
        // Without a time the file will not be believed.
        let lock = lock_time(root).unwrap_or(-1);
        let mut lines = vec![
            format!("lock {lock}\n").into_bytes(),
            format!("log {}\n", self.log_end).into_bytes(),
        ];
        for ((topic, id), (min, max)) in &self.queues {
            if !topic.contains(&b'\n') {
                let head = format!("queue {id} {min} {max} ");
                lines.push([head.as_bytes(), topic, b"\n"].concat());
            }
        }
        for (name, end) in &self.index {
            lines.push(format!("index {name} {end}\n").into_bytes());
        }
        lines.push(format!("end {}\n", lines.len()).into_bytes());
        let (path, temporary) = (root.join(FILE_NAME), root.join("inventory.tmp"));
        fs::write(&temporary, lines.concat())
            .and_then(|()| File::open(&temporary)?.sync_all())
            .and_then(|()| fs::rename(&temporary, &path))
            .during("writing", &path)
    }
}

/// When the `lock` file was written, in nanoseconds since 1970.
fn lock_time(root: &Path) -> Option<i64> {
    let found = fs::metadata(root.join("lock")).ok()?;
    found.mtime().checked_mul(1_000_000_000)?.checked_add(found.mtime_nsec())
}

fn split_word(text: &[u8]) -> Option<(&str, &[u8])> {
    let at = text.iter().position(|&byte| byte == b' ')?;
    Some((std::str::from_utf8(&text[..at]).ok()?, &text[at + 1..]))
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_inventory_is_read_as_it_was_written_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("lock"), "lock").unwrap();
        assert_eq!(Inventory::load(folder.path()), None);
        let mut inventory = Inventory { log_end: 77, ..Inventory::default() };
        inventory.queues.insert((b"a b".as_slice().into(), 3), (1, 9));
        inventory.index.push(("20260101000000000".to_owned(), 70));
        inventory.save(folder.path()).unwrap();
        assert_eq!(Inventory::load(folder.path()), Some(inventory));
        let path = folder.path().join(FILE_NAME);
        let text = fs::read(&path).unwrap();
        for end in 0..text.len() - 1 {
            fs::write(&path, &text[..end]).unwrap();
            assert_eq!(Inventory::load(folder.path()), None);
        }
    }

    #[test]
    fn an_inventory_says_nothing_once_another_broker_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let lock = File::create(folder.path().join("lock")).unwrap();
        Inventory::default().save(folder.path()).unwrap();
        assert_eq!(Inventory::load(folder.path()), Some(Inventory::default()));
        let later = lock.metadata().unwrap().modified().unwrap() + Duration::from_millis(4);
        lock.set_modified(later).unwrap();
        assert_eq!(Inventory::load(folder.path()), None);
        fs::remove_file(folder.path().join("lock")).unwrap();
        assert_eq!(Inventory::load(folder.path()), None);
    }
}
