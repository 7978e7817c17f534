//! The log as bytes: what a master reads for its slaves, and what a slave puts behind its own.
//!
//! Bytes of a master come cut anywhere. They are written where they belong at once, but the log ends
//! where its last whole record does; a restart drops the rest, and the master sends it again.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::error::{During, StoreError};
use crate::files::map::MappedFile;
use crate::log::commit_log::CommitLog;
use crate::protocol::{BLANK_MAGIC, MESSAGE_MAGIC, RECORD_BYTES_MIN};
use crate::record::{BLANK_SIZE, Parsed, RecordView, parse};
use crate::shared::Shared;

/// Bytes that get blocks on the disk before a master's come: to write them costs less then, since the
/// system has no block to find for each page.
const RESERVED: u64 = 16 << 20;

/// What stands first among the bytes of a master.
pub(crate) enum Raw<'a> {
    /// More has to come.
    Part,
    /// A blank of so many bytes, which ends the file.
    Blank(u64),
    Record(RecordView<'a>),
}

impl CommitLog {
    /// Up to `most` bytes from an offset on, of one file, up to what can be read.
    pub(crate) fn raw(&self, offset: i64, most: usize) -> &[u8] {
        let (end, offset) = (self.readable(), u64::try_from(offset).unwrap_or(u64::MAX));
        let Some(file) = self.file_of(offset).filter(|_| offset < end) else { return &[] };
        let length = (end.min(file.end()) - offset).min(most as u64);
        file.bytes(offset - file.start(), length as usize)
    }

    /// Makes sure that bytes of a master at an offset come next. An empty log begins there. At the
    /// end of the last whole record they begin anew: what came of the next one is dropped.
    pub(crate) fn start_raw(&mut self, offset: i64) -> Result<(), StoreError> {
        let at = u64::try_from(offset).unwrap_or(u64::MAX);
        if self.partial > 0 && at == self.write {
            self.drop_partial()?;
        }
        if self.files.is_empty() && self.partial == 0 && at != self.write {
            if !at.is_multiple_of(self.file_size) {
                return Err(StoreError::InvalidData(format!(
                    "the log would begin at {offset}, which is no multiple of the {} bytes of its \
                     files: mappedFileSizeCommitLog has to be the master's",
                    self.file_size
                )));
            }
            (self.write, self.safe_end) = (at, at);
        }
        let next = self.write + self.partial;
        if at == next {
            return Ok(());
        }
        Err(StoreError::InvalidData(format!("the log goes on at {next}, not at {offset}")))
    }

    /// Writes bytes of a master, as many as go into the file that the log ends in; how many.
    pub(crate) fn put_raw(&mut self, bytes: &[u8], shared: &Shared) -> Result<usize, StoreError> {
        if self.tail.is_none() && self.roll(shared).is_err() {
            let text = shared.error().unwrap_or_default();
            return Err(StoreError::io(text, std::io::ErrorKind::Other.into()));
        }
        let Some(file) = self.tail.clone() else { return Err(StoreError::Closed) };
        let begin = self.write + self.partial - file.start();
        let size = (file.size() - begin).min(bytes.len() as u64);
        self.ask_files(&file, file.start() + begin + size, shared);
        self.ask_blocks(&file, file.start() + begin + size, shared);
        let written = self.write_raw(&file, begin, &bytes[..size as usize]);
        let written = written.during("writing", file.path())?;
        file.note_written(begin, begin + written as u64);
        self.partial += written as u64;
        self.safe_end = self.write;
        Ok(written)
    }

    /// Asks the helper for blocks behind `end`. On a full disk there are none: the write says so.
    fn ask_blocks(&mut self, file: &Arc<MappedFile>, end: u64, shared: &Shared) {
        let target = (end + RESERVED).min(file.end());
        if end + RESERVED / 2 <= self.reserved || target <= self.reserved {
            return;
        }
        let from = end.max(self.reserved) - file.start();
        if shared.preallocator.reserve(file, from, target - file.start()) {
            self.reserved = target;
        }
    }

    /// Writes some of the bytes with a call, not to the map: whole pages are made without zeros that
    /// would be overwritten at once, which is half of what they cost, and a full disk is an error.
    /// Nobody reads there before `write` is beyond.
    fn write_raw(&mut self, file: &MappedFile, begin: u64, bytes: &[u8]) -> io::Result<usize> {
        if self.raw.as_ref().is_none_or(|(start, _)| *start != file.start()) {
            let opened = OpenOptions::new().write(true).open(file.path())?;
            self.raw = Some((file.start(), opened));
        }
        let Some((_, opened)) = &self.raw else { return Err(io::ErrorKind::NotFound.into()) };
        loop {
            match opened.write_at(bytes, begin) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// What stands first among the bytes that came. `fresh` are those that were written last: what
    /// begins there is read there, since the map has no page of them yet.
    pub(crate) fn next_raw<'a>(&'a self, fresh: &'a [u8]) -> Result<Raw<'a>, StoreError> {
        let Some(file) = self.tail.as_ref().filter(|_| self.partial >= BLANK_SIZE) else {
            return Ok(Raw::Part);
        };
        let position = self.write - file.start();
        let bytes = match fresh.len().checked_sub(self.partial as usize) {
            Some(at) => &fresh[at..],
            None => file.bytes(position, self.partial as usize),
        };
        let Some((size, magic)) = size_and_magic(bytes) else { return Ok(Raw::Part) };
        let size = u64::try_from(size).unwrap_or(0);
        let room = file.size() - position;
        if magic == BLANK_MAGIC {
            if size != room {
                return Err(self.bad("a blank that does not end a file of mappedFileSizeCommitLog"));
            }
            return Ok(if self.partial < size { Raw::Part } else { Raw::Blank(size) });
        }
        if magic != MESSAGE_MAGIC || size < RECORD_BYTES_MIN as u64 || size + BLANK_SIZE > room {
            return Err(self.bad("no record"));
        }
        if self.partial < size {
            return Ok(Raw::Part);
        }
        match parse(bytes) {
            Parsed::Record(view) if view.physical_offset as u64 != self.write => {
                Err(self.bad("a record of another offset"))
            }
            Parsed::Record(view) => Ok(Raw::Record(view)),
            Parsed::Bad(reason) => Err(self.bad(reason)),
            Parsed::Blank => Err(self.bad("no record")),
        }
    }

    fn bad(&self, what: &str) -> StoreError {
        StoreError::InvalidData(format!("{what} stands at {}", self.write))
    }

    /// Makes what stands first part of the log.
    pub(crate) fn take_raw(&mut self, size: u64) {
        self.write += size;
        self.partial -= size;
        self.safe_end = self.write;
        if self.tail.as_ref().is_some_and(|file| self.write == file.end()) {
            self.tail = None;
        }
    }

    /// Clears what is no whole record: an append of ours would leave some of it behind.
    pub(crate) fn drop_partial(&mut self) -> Result<(), StoreError> {
        let partial = std::mem::take(&mut self.partial);
        let Some(file) = self.tail.as_ref().filter(|_| partial > 0) else { return Ok(()) };
        let position = self.write - file.start();
        // SAFETY: `&mut self` is the store's lock, and readers get nothing after `write`.
        unsafe { file.clear_between(position, position + partial) }.map(drop)
    }
}

/// The first two fields of a record.
fn size_and_magic(bytes: &[u8]) -> Option<(i32, i32)> {
    let (size, rest) = bytes.split_first_chunk()?;
    Some((i32::from_be_bytes(*size), i32::from_be_bytes(*rest.first_chunk()?)))
}
