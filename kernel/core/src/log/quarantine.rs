//! What is done with what stands after the end of the log.
//!
//! Torn records are cleared. Whole ones are somebody's messages, after damage: they are kept for
//! people to read, in a folder beside that of their file whose name ends in `-cut`.

use crate::protocol::MESSAGE_MAGIC;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::error::{During, StoreError};
use crate::files::folder::{create_folder, offset_name, sync_folder};
use crate::files::map::MappedFile;
use crate::files::zeros::is_zero;
use crate::record::{Parsed, parse};

/// Bytes that are examined together.
const BLOCK: usize = 4_096;

/// What ending the log took off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) bytes: u64,
    /// Files with whole records that were kept.
    pub(crate) files_set_aside: i64,
}

impl Cut {
    /// Takes a file after the end of the log away.
    pub(crate) fn take_away(
        &mut self,
        file: &MappedFile,
        notes: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        if holds_record(file, 0, file.used_end(0)?) {
            let target = set_aside_name(file)?;
            fs::rename(file.path(), &target).during("removing", file.path())?;
            let name = file.path().display();
            notes.push(format!("moved {name} to {}: the log ends before it", target.display()));
            self.bytes += file.size();
            self.files_set_aside += 1;
        } else {
            fs::remove_file(file.path()).during("removing", file.path())?;
        }
        if let Some(folder) = file.path().parent() {
            sync_folder(folder);
        }
        Ok(())
    }

    /// Copies the file that the log ends in, if whole records stand between that end and `used`.
    pub(crate) fn keep_copy(
        &mut self,
        file: &MappedFile,
        position: u64,
        used: u64,
        notes: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        if !holds_record(file, position, used) {
            return Ok(());
        }
        let target = set_aside_name(file)?;
        let name = file.path().display();
        fs::copy(file.path(), &target)
            .map_err(|error| StoreError::io(format!("copying {name}"), error))?;
        notes.push(format!(
            "copied {name} to {}: it has records behind the end of the log",
            target.display()
        ));
        self.files_set_aside += 1;
        Ok(())
    }
}

/// Gives a file its size again; what it lacks is zero then.
pub(crate) fn lengthen(path: &Path, size: u64) -> Result<(), StoreError> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(size)).during("lengthening", path)
}

/// Whether a whole record of this file stands anywhere from a position up to `end`.
fn holds_record(file: &MappedFile, position: u64, end: u64) -> bool {
    let data = file.data_from(position);
    let used = end.saturating_sub(position).min(data.len() as u64) as usize;
    let mut at = 0;
    while let Some(found) =
        data.get(at + 4..used).and_then(|rest| find(rest, MESSAGE_MAGIC.to_be_bytes()))
    {
        at += found;
        let offset = file.start() + position + at as u64;
        if let Parsed::Record(view) = parse(&data[at..])
            && view.physical_offset as u64 == offset
            && view.is_crc_right()
        {
            return true;
        }
        at += 1;
    }
    false
}

/// Where four bytes stand first. Runs of zeros, which most of a file is, are stepped over.
fn find(bytes: &[u8], wanted: [u8; 4]) -> Option<usize> {
    for (number, block) in bytes.chunks(BLOCK).enumerate() {
        if is_zero(block) {
            continue;
        }
        let begin = number * BLOCK;
        let end = (begin + BLOCK + wanted.len() - 1).min(bytes.len());
        let found = bytes[begin..end].windows(wanted.len()).position(|four| four == wanted);
        if let Some(at) = found {
            return Some(begin + at);
        }
    }
    None
}

/// Where a file is kept: a name that no file has yet.
fn set_aside_name(file: &MappedFile) -> Result<PathBuf, StoreError> {
    let mut folder = file.path().parent().map_or_else(PathBuf::new, Path::to_path_buf);
    folder.as_mut_os_string().push("-cut");
    create_folder(&folder)?;
    let name = offset_name(file.start());
    let mut path = folder.join(&name);
    let mut number = 0;
    while path.exists() {
        number += 1;
        path = folder.join(format!("{name}.{number}"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bytes_are_found_wherever_they_stand() {
        let wanted = [0xDA, 0xA3, 0x20, 0xA7];
        for at in [0, 1, BLOCK - 4, BLOCK - 3, BLOCK - 1, BLOCK, 3 * BLOCK + 9] {
            let mut bytes = vec![0_u8; 4 * BLOCK];
            bytes[at..at + 4].copy_from_slice(&wanted);
            assert_eq!(find(&bytes, wanted), Some(at));
            assert_eq!(find(&bytes[..at + 3], wanted), None);
        }
    }
}
