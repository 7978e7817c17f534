//! The commit log: its files, the folders that they lie in, and what recovery cuts off it.

pub(crate) mod commit_log;
pub(crate) mod folders;
mod load;
pub(crate) mod quarantine;
pub(crate) mod raw;
