//! Where the data of a file ends, when what is after may be real zeros: those of a warmed-up file,
//! or of one that was copied by a tool that fills holes. A gibibyte of them is looked through.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::files::holes::data_ranges;
use crate::files::threads::in_threads;

/// Bytes that are read at a time: they stay in the processor's cache.
const BLOCK: usize = 256 << 10;
/// Bytes that one thread examines before it takes others.
const SEGMENT: u64 = 8 << 20;

/// The offset after the last byte from `from` to `size` that is not zero; `from` when all are.
/// Holes are not read. Read, not mapped: a page that can't be read is an error then, and no signal.
pub(crate) fn data_end(file: &File, from: u64, size: u64) -> io::Result<u64> {
    let mut segments = Vec::new();
    for (start, end) in data_ranges(file, from, size) {
        let mut at = start;
        while at < end {
            let to = (at + SEGMENT).min(end);
            segments.push((at, to));
            at = to;
        }
    }
    // The last ones first: what is found there spares the rest.
    segments.reverse();
    if segments.len() > 1 {
        // SAFETY: plain system call on an open descriptor; advice only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
    }
    let (next, found) = (AtomicUsize::new(0), AtomicU64::new(from));
    let failure = Mutex::new(None);
    let work = || {
        let mut buffer = vec![0_u8; BLOCK];
        while let Some(&(start, end)) = segments.get(next.fetch_add(1, Ordering::Relaxed)) {
            if end <= found.load(Ordering::Relaxed) {
                return;
            }
            match end_in(file, start, end, &mut buffer) {
                Ok(Some(at)) => drop(found.fetch_max(at, Ordering::Relaxed)),
                Ok(None) => {}
                Err(error) => {
                    *failure.lock() = Some(error);
                    return;
                }
            }
        }
    };
    in_threads(segments.len(), work);
    failure.into_inner().map_or_else(|| Ok(found.into_inner()), Err)
}

/// The same of one segment; `None` when all of it is zero.
fn end_in(file: &File, start: u64, end: u64, buffer: &mut [u8]) -> io::Result<Option<u64>> {
    let (mut at, mut found) = (start, None);
    while at < end {
        let length = (end - at).min(buffer.len() as u64) as usize;
        let block = &mut buffer[..length];
        file.read_exact_at(block, at)?;
        if !is_zero(block) {
            let last = block.iter().rposition(|&byte| byte != 0).unwrap_or(0);
            found = Some(at + last as u64 + 1);
        }
        at += length as u64;
    }
    Ok(found)
}

/// Whether there is nothing but zeros. (No early exit: so it is done in wide steps.)
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |any, byte| any | byte) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_last_byte_is_found_wherever_it_stands() {
        let mut file = tempfile::tempfile().unwrap();
        let size = 3 * SEGMENT + 1_000;
        file.write_all(&vec![0; size as usize]).unwrap();
        assert_eq!(data_end(&file, 7, size).unwrap(), 7);
        for at in [7, 4_096, SEGMENT - 1, SEGMENT, 2 * SEGMENT + BLOCK as u64, size - 1] {
            file.write_all_at(&[1], at).unwrap();
            assert_eq!(data_end(&file, 7, size).unwrap(), at + 1);
            assert_eq!(data_end(&file, at + 1, size).unwrap(), at + 1);
        }
        assert_eq!(data_end(&file, 7, SEGMENT).unwrap(), SEGMENT);
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1], 9).unwrap();
        assert_eq!(data_end(&file, 0, 20).unwrap(), 10);
        assert!(end_in(&file, 0, 20, &mut [0; 20]).is_err());
    }
}
