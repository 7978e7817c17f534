//! The broker's fast path: frames of a connection in, answers out, on top of the store.
//!
//! [`FastPath`] joins the store with the tables that the broker pushes and with what waits: held
//! pulls and answers that wait for a flush. [`Connection::feed`] takes a chunk of bytes, under one
//! lock of the store. Policy is data here; whatever is unusual is handed back to the slow path.
//!
//! Locks: the state's, then the store's. Neither is held while a thread waits.

mod access;
mod ahead;
mod calls;
mod connection;
mod copies;
mod dedup;
mod following;
mod halves;
mod hold;
mod key_ring;
mod keys;
mod lent;
mod path;
mod peers;
mod pending;
mod policy;
mod pop;
mod pull;
mod reading;
mod send;
mod state;
#[cfg(test)]
mod tests;
mod times;
mod waits;

pub use self::calls::Tried;
pub use self::connection::{Connection, Fed};
pub use self::copies::{Copied, CopyRule};
pub use self::dedup::KeyProperty;
pub use self::following::{Following, Pause, StreamPosition};
pub use self::halves::{HalfRun, HalvesEnded};
pub use self::keys::WindowStats;
pub use self::lent::{Lease, Queue as LentQueue};
pub use self::path::{
    Commit, FastPath, GroupStats, Lag, LentCount, LentName, NewHold, NewLent, NewWait,
};
pub use self::peers::READY_BYTES_MAX;
pub use self::pending::PENDING_ANSWERS_MAX;
pub use self::policy::{FastCalls, Identity, NO_SLOT, Subscription, TimerRule};
pub use self::state::ANSWER_BYTES_MAX;
pub use self::times::CallCounts;
pub use crate::access::AccountRules;
pub use crate::protocol::{FRAME_BYTES_MAX, HELD_OF_CONNECTION_MAX, HELD_PULLS_MAX};
pub use crate::wire::frame::FrameError;
pub use crate::wire::header::Encoding;
