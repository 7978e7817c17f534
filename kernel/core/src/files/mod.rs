//! Files and folders of a store: mapped files, names and locks of folders, small notes beside the
//! data.

pub(crate) mod bus_error;
pub(crate) mod deletions;
pub(crate) mod folder;
pub(crate) mod inventory;
pub(crate) mod map;
pub(crate) mod preallocate;
pub(crate) mod zeros;
