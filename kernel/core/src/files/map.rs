//! One file of fixed size, mapped whole: the unit of the commit log, the queues and the index.
//!
//! Who may touch the bytes: only the holder of the owning structure's lock writes, and only bytes
//! that no slice was handed out for (append-only), so shared slices of written bytes stay valid
//! without a lock. Another process is kept out by the store's lock file.
//!
//! A write to a hole of a sparse file on a full disk is a SIGBUS. So nothing is written to a page
//! before the kernel was asked to back it (`MADV_POPULATE_WRITE`), which reports the full disk as
//! an error instead; that is also what keeps page faults out of the append.

use std::ffi::CString;
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::SystemTime;

use crate::error::{During, StoreError};
use crate::files::folder::open_or_create;
use crate::files::holes::data_ranges;
use crate::files::map_count::{MAPS, max_map_count};

/// Page size of every platform we build for.
pub(crate) const PAGE: u64 = 4096;

/// `MADV_POPULATE_WRITE` (Linux 5.14); older `libc` headers lack it.
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// `MADV_POPULATE_READ`, of the same age.
const MADV_POPULATE_READ: libc::c_int = 22;

/// See [`MappedFile::back_gently`].
const BACK_UNIT: u64 = 256 << 10;

/// See [`MappedFile::lock_pages`].
const UNLOCKED: u8 = 0;
const LOCKED: u8 = 1;
const RELEASED: u8 = 2;

/// With more free bytes than this and what is asked for, a disk is not full.
const ROOM_MIN: u64 = 1 << 20;

static POPULATE_UNSUPPORTED: AtomicBool = AtomicBool::new(false);

/// A mapped file.
pub(crate) struct MappedFile {
    path: PathBuf,
    /// Offset of the first byte in the whole (log, queue); its name.
    start: u64,
    base: *mut u8,
    size: u64,
    is_writable: bool,
    /// Where the data ended when the file was opened, as far as somebody looked.
    data_end: u64,
    /// `UNLOCKED`, `LOCKED`, or `RELEASED`: its pages need not stay in memory any more.
    pages: AtomicU8,
    /// Bytes from `populated_from` up to here are backed: they can be written without a fault
    /// that fails.
    populated: AtomicU64,
}

// SAFETY: `base` points to a mapping that lives as long as the value; see the module's rule on who
// may touch the bytes.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Creates (or takes over) a sparse file of that size; nothing is written to it.
    pub(crate) fn create(path: &Path, start: u64, size: u64) -> Result<Self, StoreError> {
        let context = || format!("creating {} ({size} bytes)", path.display());
        let file = open_or_create(path).map_err(|error| StoreError::io(context(), error))?;
        file.set_len(size)
            .map_err(|error| StoreError::io(context(), error))
            .and_then(|()| Self::map(&file, path, start, size, true))
            .inspect_err(|_| {
                // One that has no size yet would look like damage after the next file.
                if file.metadata().is_ok_and(|found| found.len() == 0) {
                    let _ = fs::remove_file(path);
                }
            })
    }

    /// Maps an existing file, whose size must be `size`; `setting` is named when it is not.
    pub(crate) fn open(
        path: &Path,
        start: u64,
        size: u64,
        setting: &str,
    ) -> Result<Self, StoreError> {
        Self::open_for(path, start, size, setting, true)
    }

    fn open_for(
        path: &Path,
        start: u64,
        size: u64,
        setting: &str,
        is_writable: bool,
    ) -> Result<Self, StoreError> {
        let file =
            OpenOptions::new().read(true).write(is_writable).open(path).during("opening", path)?;
        let length = file.metadata().during("opening", path)?.len();
        check_size(path, length, size, setting)?;
        Self::map(&file, path, start, size, is_writable)
    }

    fn map(
        file: &File,
        path: &Path,
        start: u64,
        size: u64,
        is_writable: bool,
    ) -> Result<Self, StoreError> {
        let protection = libc::PROT_READ | if is_writable { libc::PROT_WRITE } else { 0 };
        let length = size as usize;
        // SAFETY: a fresh shared mapping of an open file, chosen by the kernel; no memory of ours
        // is replaced.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            let mut context = format!("mapping {}", path.display());
            if error.raw_os_error() == Some(libc::ENOMEM) {
                let (held, most) = (MAPS.load(Ordering::Relaxed), max_map_count());
                let _ = write!(
                    context,
                    " beside {held} other files of the store (vm.max_map_count is {most}; raise it)"
                );
            }
            return Err(StoreError::io(context, error));
        }
        MAPS.fetch_add(1, Ordering::Relaxed);
        Ok(MappedFile {
            path: path.to_owned(),
            start,
            base: base.cast(),
            size,
            is_writable,
            data_end: size,
            pages: AtomicU8::new(UNLOCKED),
            populated: AtomicU64::new(0),
        })
    }

    /// Opens a file as [`Self::open`] does, perhaps for reading only, and looks where its data
    /// ends.
    pub(crate) fn open_with_end(
        path: &Path,
        start: u64,
        size: u64,
        setting: &str,
        is_writable: bool,
    ) -> Result<Self, StoreError> {
        let mut mapped = Self::open_for(path, start, size, setting, is_writable)?;
        let file = File::open(path).during("opening", path)?;
        mapped.data_end = data_ranges(&file, 0, size).last().map_or(0, |&(_, end)| end);
        Ok(mapped)
    }

    /// What the file held from a position on when it was opened, without the hole at its end: where
    /// a file system gives a page to whoever reads a hole, reading there on a full disk is a
    /// SIGBUS.
    pub(crate) fn data_from(&self, position: u64) -> &[u8] {
        self.bytes(position, self.data_end.saturating_sub(position) as usize)
    }

    /// Whether it was never written: no record and no blank starts with zeros.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.data_from(0).iter().take(8).all(|&byte| byte == 0)
    }

    /// Whether it may be written; [`Self::bytes_mut`] of another one gives nothing.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Offset after the last byte in the whole.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Bytes at a position in the file; empty when they are not all inside.
    #[inline]
    pub(crate) fn bytes(&self, position: u64, length: usize) -> &[u8] {
        if position.checked_add(length as u64).is_none_or(|end| end > self.size) {
            return &[];
        }
        // SAFETY: inside the mapping (checked); written bytes are not changed while shared (module
        // rule).
        unsafe { std::slice::from_raw_parts(self.base.add(position as usize), length) }
    }

    /// Bytes to be written; empty when they are not all inside.
    ///
    /// # Safety
    /// The caller holds the lock of the owning structure, and no slice of these bytes is alive.
    #[inline]
    #[allow(clippy::mut_from_ref)] // the mapping is interior; the contract above is the check
    pub(crate) unsafe fn bytes_mut(&self, position: u64, length: usize) -> &mut [u8] {
        let is_inside = position.checked_add(length as u64).is_some_and(|end| end <= self.size);
        if !is_inside || !self.is_writable {
            return &mut [];
        }
        // SAFETY: inside a writable mapping (checked); exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(position as usize), length) }
    }

    /// Overwrites bytes anywhere in the file, which need not be backed yet.
    ///
    /// # Safety
    /// As [`Self::bytes_mut`].
    pub(crate) unsafe fn patch(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.populate(position, position + bytes.len() as u64)?;
        // SAFETY: promised by the caller.
        let target = unsafe { self.bytes_mut(position, bytes.len()) };
        if target.len() != bytes.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        target.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn read_i32(&self, position: u64) -> i32 {
        self.bytes(position, 4).try_into().map_or(0, i32::from_be_bytes)
    }

    pub(crate) fn read_i64(&self, position: u64) -> i64 {
        self.bytes(position, 8).try_into().map_or(0, i64::from_be_bytes)
    }

    /// Up to where writes are safe, see [`Self::back`].
    #[inline]
    pub(crate) fn populated(&self) -> u64 {
        self.populated.load(Ordering::Acquire)
    }

    /// Says that writing starts at `position`: what is before it was written earlier.
    pub(crate) fn start_at(&self, position: u64) {
        self.populated.store(position / PAGE * PAGE, Ordering::Release);
    }

    /// Says that a call wrote these bytes of the file, so their pages are backed.
    pub(crate) fn note_written(&self, from: u64, to: u64) {
        if from <= self.populated() {
            let end = to.div_ceil(PAGE).saturating_mul(PAGE).min(self.size);
            self.populated.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Does not let the kernel read around a page that is missed: for files that are written in
    /// small steps, or in no order. It would make megabytes of pages where one is needed.
    pub(crate) fn advise_random(&self) {
        // SAFETY: our own mapping; the advice changes no content.
        unsafe { libc::madvise(self.base.cast(), self.size as usize, libc::MADV_RANDOM) };
    }

    /// Backs the file from where it is backed already up to `end` (clipped to the size).
    pub(crate) fn back(&self, end: u64) -> io::Result<()> {
        let end = end.div_ceil(PAGE).saturating_mul(PAGE).min(self.size);
        let from = self.populated();
        if end > from {
            self.populate(from, end)?;
            self.populated.fetch_max(end, Ordering::AcqRel);
        }
        Ok(())
    }

    /// As [`Self::back`], in pieces of [`BACK_UNIT`], between which others get the processor.
    ///
    /// Without the advice the first fault on a page that is missing makes all the pages that the
    /// disk's read-ahead setting allows in one go: with 8 MiB of it, and pages new to a virtual
    /// machine, that is 22 ms in which a system without preemption runs nobody else there. Single
    /// pages cost more than large pieces, though, here and when they are flushed.
    pub(crate) fn back_gently(&self, end: u64) -> io::Result<()> {
        let end = end.div_ceil(PAGE).saturating_mul(PAGE).min(self.size);
        let mut from = self.populated();
        while from < end {
            let to = (from / BACK_UNIT * BACK_UNIT + BACK_UNIT).min(end);
            // SAFETY: a page-aligned range inside the mapping; the advice changes no content.
            unsafe {
                let begin = self.base.add(from as usize).cast();
                libc::madvise(begin, (to - from) as usize, libc::MADV_WILLNEED)
            };
            self.back(to)?;
            from = to;
        }
        Ok(())
    }

    /// Makes the kernel back these bytes for writing. A full disk is an error, not a signal.
    pub(crate) fn populate(&self, from: u64, to: u64) -> io::Result<()> {
        let from = from / PAGE * PAGE;
        let to = to.min(self.size);
        if from >= to {
            return Ok(());
        }
        if !self.is_writable {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        let length = (to - from) as usize;
        while !POPULATE_UNSUPPORTED.load(Ordering::Relaxed) {
            // SAFETY: a page-aligned range inside the mapping; the advice changes no content.
            let result = unsafe {
                libc::madvise(self.base.add(from as usize).cast(), length, MADV_POPULATE_WRITE)
            };
            if result == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                Some(libc::EINVAL) => POPULATE_UNSUPPORTED.store(true, Ordering::Relaxed),
                // The kernel says EFAULT where an access would be a SIGBUS.
                Some(libc::EFAULT) => return Err(self.reason_of_fault(length as u64)),
                _ => return Err(error),
            }
        }
        self.reserve(from, to)?;
        for page in (from..to).step_by(PAGE as usize) {
            // SAFETY: inside the mapping. An atomic "or 0" changes nothing, whoever writes beside
            // it.
            unsafe { AtomicU8::from_ptr(self.base.add(page as usize)) }
                .fetch_or(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Why there is no page for so many bytes of this file: mostly the disk is full.
    #[cold]
    fn reason_of_fault(&self, length: u64) -> io::Error {
        // SAFETY: all-zero is a valid `statvfs` (plain integers).
        let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
        let path = CString::new(self.path.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: a text with its end and a struct that live through the call.
        let is_known = unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } == 0;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let has_capacity = is_known && free > length.saturating_add(ROOM_MIN);
        io::Error::from_raw_os_error(if has_capacity { libc::EIO } else { libc::ENOSPC })
    }

    /// Gives these bytes blocks: ahead of writes, or where pages can't be asked for, since on a
    /// full disk touching a hole is a SIGBUS. A file system that can't do it is taken at its luck.
    #[cold]
    pub(crate) fn reserve(&self, from: u64, to: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        let (from, length) = (from as libc::off_t, (to - from) as libc::off_t);
        // SAFETY: plain system call on an open descriptor.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, from, length) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    /// Whether the page of a position can be read, which may be a hole; false only where that needs
    /// a page of a full disk (see [`Self::data_from`]).
    pub(crate) fn is_readable(&self, position: u64) -> bool {
        let page = position / PAGE * PAGE;
        if page >= self.size {
            return false;
        }
        // SAFETY: a page inside the mapping; the advice changes no content.
        let result = unsafe {
            libc::madvise(self.base.add(page as usize).cast(), PAGE as usize, MADV_POPULATE_READ)
        };
        result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    }

    /// Notes that the file was changed now: of writes through a map the system only notes the first
    /// since a page was last written back. Best effort.
    pub(crate) fn touch(&self) {
        let _ = OpenOptions::new()
            .write(true)
            .open(&self.path)
            .and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Writes these bytes to the disk and waits.
    pub(crate) fn sync(&self, from: u64, to: u64) -> io::Result<()> {
        let from = from / PAGE * PAGE;
        let to = to.min(self.size);
        if from >= to {
            return Ok(());
        }
        // SAFETY: a page-aligned range inside the mapping.
        let result = unsafe {
            libc::msync(self.base.add(from as usize).cast(), (to - from) as usize, libc::MS_SYNC)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Keeps all pages in memory, as far as the system lets us (`RLIMIT_MEMLOCK`); once they were
    /// released it is too late.
    pub(crate) fn lock_pages(&self) {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        if self.pages.compare_exchange(UNLOCKED, LOCKED, order.0, order.1).is_ok() {
            // SAFETY: the whole mapping; locking changes no content.
            unsafe { libc::mlock(self.base.cast(), self.size as usize) };
            if self.pages.load(Ordering::Acquire) == RELEASED {
                // SAFETY: as above.
                unsafe { libc::munlock(self.base.cast(), self.size as usize) };
            }
        }
    }

    /// Lets the system take the pages (`unlockMappedFile`).
    pub(crate) fn unlock_pages(&self) {
        if self.pages.swap(RELEASED, Ordering::AcqRel) == LOCKED {
            // SAFETY: the whole mapping; unlocking changes no content.
            unsafe { libc::munlock(self.base.cast(), self.size as usize) };
        }
    }

    /// Takes the pages out of our resident memory; their content stays in the page cache.
    pub(crate) fn release_pages(&self) {
        // SAFETY: for a shared file mapping the advice drops page table entries, not content.
        unsafe { libc::madvise(self.base.cast(), self.size as usize, libc::MADV_DONTNEED) };
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; slices borrow from `self` and are gone.
        unsafe { libc::munmap(self.base.cast(), self.size as usize) };
        MAPS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Refuses a file whose size is not the configured one.
pub(crate) fn check_size(
    path: &Path,
    length: u64,
    size: u64,
    setting: &str,
) -> Result<(), StoreError> {
    if length == size {
        return Ok(());
    }
    Err(StoreError::InvalidData(format!(
        "{} has {length} bytes, but the settings say {size} ({setting}): set {setting} to what the \
         store was made with, or move the file away",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_from_zeroes_a_torn_tail_and_counts_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = MappedFile::create(&folder.path().join("0"), 0, 1 << 20).unwrap();
        // SAFETY: the only owner.
        unsafe {
            file.patch(10, &[1; 30]).unwrap();
            file.patch(500_000, &[2; 5]).unwrap();
            assert_eq!(file.clear_from(20).unwrap(), 500_005 - 20);
            assert_eq!(file.clear_from(20).unwrap(), 0);
        }
        assert_eq!(file.bytes(10, 30), [[1; 10].as_slice(), &[0; 20]].concat());
        assert!(file.bytes(0, 1 << 20)[20..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_file_of_another_size_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("00000000000000000000");
        std::fs::write(&path, [0; 100]).unwrap();
        let error = MappedFile::open(&path, 0, 4096, "mappedFileSizeCommitLog").err().unwrap();
        let text = error.to_string();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        for part in ["00000000000000000000", "100 bytes", "4096", "mappedFileSizeCommitLog"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn backing_moves_forward_only_and_stops_at_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let file = MappedFile::create(&folder.path().join("0"), 0, 10_000).unwrap();
        file.start_at(5_000);
        assert_eq!(file.populated(), 4_096);
        file.back(6_000).unwrap();
        assert_eq!(file.populated(), 8_192);
        file.back(1 << 40).unwrap();
        assert_eq!(file.populated(), 10_000);
        assert_eq!(file.bytes(9_999, 2), &[] as &[u8]);
    }
}
