//! Holes of sparse files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The ranges of a file that are not holes, from `from` to `size`. Where the file system can't tell,
/// everything is data.
pub(crate) fn data_ranges(file: &File, from: u64, size: u64) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut at = from;
    while at < size {
        // SAFETY: plain system call on an open descriptor.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
        if data < 0 {
            if io::Error::last_os_error().raw_os_error() != Some(libc::ENXIO) {
                ranges.push((at, size));
            }
            break;
        }
        // SAFETY: as above.
        let hole = unsafe { libc::lseek(file.as_raw_fd(), data, libc::SEEK_HOLE) };
        let end = if hole < 0 { size } else { (hole as u64).min(size) };
        let start = (data as u64).max(at);
        if start >= end {
            break;
        }
        ranges.push((start, end));
        at = end;
    }
    ranges
}
