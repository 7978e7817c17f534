//! The codec of sends, after the interface of `kerolox.codec.sending`.
//!
//! No lock is held while Python code may run: making an object that the garbage collector tracks,
//! calling one, or dropping the last reference to one.

mod batch;
pub mod channel;
pub mod counters;
mod futures;
mod message;
mod open_send;
mod result_type;
mod results;
pub mod sender;
pub mod topic_sender;
