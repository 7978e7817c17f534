//! Clearing the end of a mapped file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::error::{During, StoreError};
use crate::files::holes::data_ranges;
use crate::files::map::{MappedFile, PAGE};
use crate::files::zeros::data_end;

impl MappedFile {
    /// Zeroes everything from `position` on; how many bytes up to the last non-zero one there were.
    ///
    /// # Safety
    /// As [`Self::bytes_mut`].
    pub(crate) unsafe fn clear_from(&self, position: u64) -> Result<u64, StoreError> {
        let last = self.used_end(position)?;
        // SAFETY: promised by the caller.
        unsafe { self.clear_between(position, last) }
    }

    /// The position after the last byte from `position` on that is not zero; `position` without
    /// any.
    pub(crate) fn used_end(&self, position: u64) -> Result<u64, StoreError> {
        File::open(self.path())
            .and_then(|file| data_end(&file, position, self.size()))
            .during("reading", self.path())
    }

    /// As [`Self::clear_from`], when [`Self::used_end`] is known.
    ///
    /// # Safety
    /// As [`Self::bytes_mut`].
    pub(crate) unsafe fn clear_between(&self, position: u64, last: u64) -> Result<u64, StoreError> {
        if last <= position {
            return Ok(0);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path())
            .during("clearing the tail of", self.path())?;
        let edge = position.div_ceil(PAGE).saturating_mul(PAGE).min(self.size());
        let zeros = vec![0_u8; (edge.min(last).saturating_sub(position)) as usize];
        // SAFETY: promised by the caller.
        unsafe { self.patch(position, &zeros) }.during("clearing the tail of", self.path())?;
        if last > edge {
            self.punch(&file, edge).during("clearing the tail of", self.path())?;
        }
        // Otherwise what was cleared could be back after a loss of power, after newer bytes.
        self.sync(position, edge)
            .and_then(|()| file.sync_data())
            .during("clearing the tail of", self.path())?;
        Ok(last - position)
    }

    /// Makes a hole from a page boundary to the end; writes zeros where holes are not supported.
    fn punch(&self, file: &File, from: u64) -> io::Result<()> {
        // SAFETY: plain system call on an open descriptor.
        let result = unsafe {
            libc::fallocate(
                file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                from as libc::off_t,
                (self.size() - from) as libc::off_t,
            )
        };
        if result == 0 {
            return Ok(());
        }
        for (start, end) in data_ranges(file, from, self.size()) {
            let zeros = vec![0_u8; 1 << 16];
            let mut at = start;
            while at < end {
                let length = (end - at).min(zeros.len() as u64) as usize;
                file.write_all_at(&zeros[..length], at)?;
                at += length as u64;
            }
        }
        Ok(())
    }
}
