//! What is said when a page of a mapped file can't be read: the disk has a bad sector, or somebody
//! made the file shorter. That is a SIGBUS, and the process ends; its last words name the file.
//!
//! The handler only makes calls that POSIX allows in one (`open`, `read`, `write`, `sigaction`,
//! `raise`), allocates nothing, and gives the signal back to who had it before: the system, which
//! ends the process, or Python's `faulthandler`.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Longest line of `/proc/self/maps` that is examined; of a longer path the end is not reported.
const LINE_MAX: usize = 1_024;
const READ_SIZE: usize = 2_048;

/// Who had the signal before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Lets the process say which file it died of; the first call counts.
pub(crate) fn report_bus_errors() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: an all-zero `sigaction` is valid; only asked for, not changed.
        let is_known =
            unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) } == 0;
        if !is_known {
            return;
        }
        // SAFETY: zeroed, then written by the system. It is leaked: the handler may need it at any
        // time.
        let before = Box::into_raw(Box::new(unsafe { before.assume_init() }));
        BEFORE.store(before, Ordering::Release);
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        // SAFETY: an all-zero `sigaction` is valid; the handler has the signature that SA_SIGINFO
        // asks for.
        unsafe {
            let mut wanted = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            wanted.sa_sigaction = handler as usize;
            wanted.sa_flags = libc::SA_SIGINFO;
            libc::sigemptyset(&raw mut wanted.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const wanted, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system gives a valid `siginfo_t` for as long as the handler runs.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let is_fault = code > 0;
    if is_fault {
        let mut line = [0_u8; LINE_MAX];
        let place = find_place(address, &mut line);
        say(b"kerolox: ");
        if let Some((path, position)) = place {
            say(path);
            say(b": byte ");
            say_number(position);
            say(b" of the file");
        } else {
            say(b"a page of a mapped file");
        }
        say(
            b" can't be read: the disk has a bad sector there (then the system's log tells of it), \
              or somebody made the file shorter. The process ends here, as by a kill. See what is \
              left with 'kerolox store check', bring the file back from a copy, perhaps to \
              another disk, and start again\n",
        );
    }
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: never freed once it is stored.
    unsafe {
        if !before.is_null() {
            libc::sigaction(signal, before, std::ptr::null_mut());
        }
        if !is_fault {
            // Sent by somebody: it does not come again by itself.
            libc::raise(signal);
        }
    }
}

fn say(text: &[u8]) {
    // SAFETY: plain system call on a slice that lives through it. Nobody could be notified of an
    // error.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

fn say_number(number: usize) {
    let mut digits = [0_u8; 20];
    let (mut left, mut at) = (number, digits.len());
    while at > 0 {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    say(digits.get(at..).unwrap_or_default());
}

/// The file that is mapped at an address, and the position in it.
fn find_place(address: usize, line: &mut [u8; LINE_MAX]) -> Option<(&[u8], usize)> {
    const MAPS: &CStr = c"/proc/self/maps";
    // SAFETY: plain system calls with a text that ends in zero, and a buffer of our own.
    let maps = unsafe { libc::open(MAPS.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let mut buffer = [0_u8; READ_SIZE];
    let mut length = 0;
    loop {
        // SAFETY: as above.
        let count = unsafe { libc::read(maps, buffer.as_mut_ptr().cast(), READ_SIZE) };
        let got = usize::try_from(count).ok().filter(|&count| count > 0)?;
        for &byte in buffer.get(..got)? {
            if byte != b'\n' {
                if let Some(place) = line.get_mut(length) {
                    *place = byte;
                    length += 1;
                }
                continue;
            }
            if let Some((begin, position)) = place_in(line.get(..length)?, address) {
                return Some((line.get(begin..length)?, position));
            }
            length = 0;
        }
    }
}

/// Of a line `start-end rights offset device inode path`: where the path starts, and the position
/// in the file, when the address lies in it and it is of a file.
fn place_in(line: &[u8], address: usize) -> Option<(usize, usize)> {
    let path = line.iter().position(|&byte| byte == b'/')?;
    let mut fields = line.get(..path)?.split(|&byte| byte == b' ' || byte == b'-');
    let (start, end) = (hexadecimal(fields.next()?), hexadecimal(fields.next()?));
    // The rights of a shared mapping have no hyphen for each right that is there: up to three more.
    let offset =
        fields.find(|field| field.len() >= 8 && field.iter().all(u8::is_ascii_hexdigit))?;
    (start..end).contains(&address).then(|| (path, hexadecimal(offset) + address - start))
}

fn hexadecimal(digits: &[u8]) -> usize {
    digits.iter().fold(0, |number: usize, &digit| {
        number << 4 | (digit as char).to_digit(16).unwrap_or(0) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_at_an_address_is_found_in_a_line() {
        let line = b"7f0000001000-7f0000003000 rw-s 00002000 fe:01 1234   /data/a store/00";
        assert_eq!(place_in(line, 0x7f00_0000_1010), Some((53, 0x2010)));
        assert_eq!(line.get(53..), Some(&b"/data/a store/00"[..]));
        assert_eq!(place_in(line, 0x7f00_0000_3000), None);
        assert_eq!(
            place_in(b"7f0000001000-7f0000003000 r--p 00000000 00:00 0 ", 0x7f00_0000_1000),
            None
        );
    }

    #[test]
    fn the_file_of_a_map_of_this_process_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("00000000000000000000");
        let map = crate::files::map::MappedFile::create(&path, 0, 3 * 4_096).unwrap();
        let address = map.bytes(5_000, 1).as_ptr() as usize;
        let mut line = [0; LINE_MAX];
        let (found, position) = find_place(address, &mut line).unwrap();
        assert_eq!(found, path.to_str().unwrap().as_bytes());
        assert_eq!(position, 5_000);
    }
}
