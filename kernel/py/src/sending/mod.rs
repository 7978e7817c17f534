//! The codec of sends, after the interface of `kerolox.codec.sending`.
//!
//! No lock is held while Python code may run: making an object that the garbage collector tracks,
//! calling one, or dropping the last reference to one.

pub mod batch;
pub mod channel;
pub mod counters;
mod message;
mod results;
pub mod sender;
pub mod topic_sender;
