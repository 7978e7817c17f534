//! HTTP/2 of a server, as far as gRPC needs it: decisions and bytes, no I/O (RFC 9113, RFC 7541).
//!
//! The counterpart of `kerolox.remoting.http2`, equal to the byte.

mod frames;
mod hpack;
mod huffman;
mod server_side;

pub use self::hpack::Headers;
pub use self::server_side::{Event, Http2Error, Limits, ServerSide};
