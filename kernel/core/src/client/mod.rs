//! What clients encode and decode for each message; the counterpart of `kerolox.codec`.
//!
//! All of it is free to decline: whoever calls takes the slow path in Python then.

pub mod answer;
pub mod batch;
pub mod channel;
pub mod clock;
pub mod ids;
pub mod open_send;
pub mod outgoing;
pub mod pull_answer;
pub mod pulled;
pub mod rows;
pub mod send;
pub mod sent;
pub mod stream;

#[cfg(test)]
mod tests;
