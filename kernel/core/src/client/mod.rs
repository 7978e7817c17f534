//! What clients encode and decode for each message; the twin of `kerolox.codec`.
//!
//! All of it is free to decline: whoever calls takes the general way in Python then.

pub mod pulled;
pub mod send;
pub mod sent;
pub mod stream;
