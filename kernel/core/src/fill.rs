//! How new pages of the log come into being: ahead of the append, in small units.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use crate::map::MappedFile;

/// Pages of the log come into being in units of this size, and are flushed by the interval in whole
/// ones: to flush a page takes the right to write it from the mapping, and to get it back may have to
/// wait for the file system.
pub(crate) const UNIT: u64 = 64 << 10;

static ZEROS: [u8; UNIT as usize] = [0; UNIT as usize];

/// How new pages come into being.
#[derive(Default)]
pub(crate) struct Filler {
    file: Option<File>,
    /// No page before this position is new.
    pub(crate) from: u64,
}

impl MappedFile {
    /// As [`Self::back`], for bytes that hold nothing but zeros: those behind the end of the log.
    ///
    /// A fault on a missing page lets the kernel make megabytes of pages around it in one go, in
    /// which nobody else gets the processor, and a flush of one byte then writes what lies in the
    /// same piece of memory. Zeros written in units make pieces of that size.
    pub(crate) fn back_new(&self, end: u64) -> io::Result<()> {
        let end = end.min(self.size());
        while self.populated() < end {
            let mut filler = self.filler.lock();
            let from = self.populated();
            let to = (from / UNIT * UNIT + UNIT).min(self.size());
            if from >= end {
                break;
            }
            self.fill(&mut filler, from, to)?;
            self.populate(from, to)?;
            self.populated.fetch_max(to, Ordering::AcqRel);
            // The append may be waiting for this very unit.
            MutexGuard::unlock_fair(filler);
        }
        Ok(())
    }

    fn fill(&self, filler: &mut Filler, from: u64, to: u64) -> io::Result<()> {
        if !self.is_writable() {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        let from = from.max(filler.from);
        if filler.file.is_none() {
            filler.file = Some(OpenOptions::new().write(true).open(self.path())?);
        }
        if let Some(file) = filler.file.as_ref().filter(|_| from < to) {
            file.write_all_at(&ZEROS[..(to - from) as usize], from)?;
        }
        if to == self.size() {
            filler.file = None;
        }
        Ok(())
    }
}
