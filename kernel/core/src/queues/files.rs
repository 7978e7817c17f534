//! The files of a queue, or of the units beside its entries: of one size, one after the other, mapped
//! when they are first read or written.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::StoreError;
use crate::files::dirty::DirtyRange;
use crate::files::folder::{create_folder, offset_name};
use crate::files::map::MappedFile;

/// One file.
pub(super) struct QueueFile {
    pub(super) start: u64,
    pub(super) path: PathBuf,
    pub(super) map: Option<Arc<MappedFile>>,
    /// Whether its name lasts, as far as known.
    is_named: bool,
}

impl QueueFile {
    /// A file that is there; touches nothing.
    pub(super) fn found(start: u64, path: PathBuf) -> Self {
        QueueFile { start, path, map: None, is_named: false }
    }
}

/// All files, as a vector of them; offsets count bytes.
#[derive(Default)]
pub(super) struct QueueFiles {
    pub(super) folder: PathBuf,
    /// Bytes of each file.
    pub(super) size: u64,
    /// The setting that fixes it.
    setting: &'static str,
    list: Vec<QueueFile>,
}

impl QueueFiles {
    /// No files; touches none.
    pub(super) fn new(folder: PathBuf, size: u64, setting: &'static str) -> Self {
        QueueFiles { folder, size, setting, list: Vec::new() }
    }

    #[inline]
    fn index_of(&self, byte: u64) -> Option<usize> {
        let first = self.list.first()?.start;
        Some((byte.checked_sub(first)? / self.size) as usize)
    }

    /// The file that holds a byte.
    pub(super) fn at(&self, byte: u64) -> Option<&QueueFile> {
        self.list.get(self.index_of(byte)?)
    }

    /// The map of the file that holds a byte.
    #[inline]
    pub(super) fn map_at(&mut self, byte: u64) -> Result<Option<&Arc<MappedFile>>, StoreError> {
        match self.index_of(byte).filter(|&index| index < self.list.len()) {
            Some(index) => self.map(index).map(Some),
            None => Ok(None),
        }
    }

    /// The map of a file by its place in the list.
    #[inline]
    pub(super) fn map(&mut self, index: usize) -> Result<&Arc<MappedFile>, StoreError> {
        let file = &mut self.list[index];
        if file.map.is_none() {
            let map = MappedFile::open(&file.path, file.start, self.size, self.setting)?;
            file.map = Some(Arc::new(map));
        }
        file.map.as_ref().ok_or(StoreError::Closed)
    }

    /// Makes the file that starts at an offset, after the others.
    pub(super) fn create(&mut self, start: u64) -> Result<&Arc<MappedFile>, StoreError> {
        if self.list.is_empty() {
            create_folder(&self.folder)?;
        }
        let path = self.folder.join(offset_name(start));
        let map = Arc::new(MappedFile::create(&path, start, self.size)?);
        self.list.push(QueueFile { map: Some(map), ..QueueFile::found(start, path) });
        self.map(self.list.len() - 1)
    }

    /// How many start before a byte.
    pub(super) fn count_before(&self, byte: u64) -> usize {
        self.list.iter().take_while(|file| file.start < byte).count()
    }

    /// Removes all after the first `keep`.
    pub(super) fn cut(&mut self, keep: usize) {
        for file in self.list.drain(keep.min(self.list.len())..) {
            let _ = fs::remove_file(&file.path);
        }
    }

    /// Lets the maps go; they come back when they are needed.
    pub(super) fn unmap(&mut self) {
        self.list.iter_mut().for_each(|file| file.map = None);
    }

    /// Adds what is to be written to the disk of the bytes between two offsets.
    pub(super) fn add_dirty(&mut self, from: u64, to: u64, ranges: &mut Vec<DirtyRange>) {
        for file in &mut self.list {
            let (from, to) = (from.max(file.start), to.min(file.start + self.size));
            if from < to {
                let (from, to) = (from - file.start, to - file.start);
                ranges.push(match &file.map {
                    Some(map) => DirtyRange::Mapped(Arc::clone(map), from, to),
                    None => DirtyRange::Unmapped(file.path.clone()),
                });
                if !file.is_named {
                    ranges.push(DirtyRange::Names(self.folder.clone()));
                    file.is_named = true;
                }
            }
        }
    }
}

impl Deref for QueueFiles {
    type Target = Vec<QueueFile>;
    fn deref(&self) -> &Vec<QueueFile> {
        &self.list
    }
}

impl DerefMut for QueueFiles {
    fn deref_mut(&mut self) -> &mut Vec<QueueFile> {
        &mut self.list
    }
}
