//! The log as bytes: what a master reads for its slaves, and what a slave puts behind its own.
//!
//! Bytes of a master come cut anywhere. They are written where they belong at once, but the log ends
//! where its last whole record does; a restart drops the rest, and the master sends it again.

use crate::error::{During, StoreError};
use crate::log::commit_log::CommitLog;
use crate::protocol::{BLANK_MAGIC, MESSAGE_MAGIC, RECORD_BYTES_MIN};
use crate::record::{BLANK_SIZE, Parsed, RecordView, parse};
use crate::shared::Shared;

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

    /// Makes sure that bytes of a master at an offset come next. An empty log begins there.
    pub(crate) fn start_raw(&mut self, offset: i64) -> Result<(), StoreError> {
        let at = u64::try_from(offset).unwrap_or(u64::MAX);
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
    pub(crate) fn put_raw(
        &mut self,
        bytes: &[u8],
        now_ms: i64,
        shared: &Shared,
    ) -> Result<usize, StoreError> {
        if self.tail.is_none() && self.roll(shared).is_err() {
            let text = shared.error().unwrap_or_default();
            return Err(StoreError::io(text, std::io::ErrorKind::Other.into()));
        }
        let Some(file) = self.tail.clone() else { return Err(StoreError::Closed) };
        let begin = self.write + self.partial - file.start();
        let size = (file.size() - begin).min(bytes.len() as u64);
        self.ask_backing(&file, file.start() + begin + size, now_ms, shared);
        self.ask_files(&file, file.start() + begin + size, shared);
        file.back(begin + size).during("writing", file.path())?;
        // SAFETY: `&mut self` is the store's lock, and readers get nothing after `write`.
        let target = unsafe { file.bytes_mut(begin, size as usize) };
        if target.len() as u64 != size {
            return Err(StoreError::Closed);
        }
        target.copy_from_slice(&bytes[..size as usize]);
        self.partial += size;
        self.safe_end = self.write;
        Ok(size as usize)
    }

    /// What stands first among the bytes that came.
    pub(crate) fn next_raw(&self) -> Result<Raw<'_>, StoreError> {
        let Some(file) = self.tail.as_ref().filter(|_| self.partial >= BLANK_SIZE) else {
            return Ok(Raw::Part);
        };
        let position = self.write - file.start();
        let bytes = file.bytes(position, self.partial as usize);
        let (size, magic) = (file.read_i32(position), file.read_i32(position + 4));
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
