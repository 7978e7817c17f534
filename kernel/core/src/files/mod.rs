//! Files and folders of a store: mapped files, names and locks of folders, small notes beside the
//! data.

pub(crate) mod bus_error;
mod clear;
pub(crate) mod deletions;
pub(crate) mod dirty;
pub(crate) mod folder;
pub(crate) mod holes;
pub(crate) mod inventory;
pub(crate) mod map;
pub(crate) mod map_count;
pub(crate) mod preallocate;
pub(crate) mod threads;
pub(crate) mod zeros;
