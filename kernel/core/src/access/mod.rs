//! Access control as the fast path knows it: accounts, what they may do, and their signatures.
//!
//! Only what is certainly allowed is fast. Whatever else comes goes to the slow path, where it is
//! checked again, and refused with a reason.

mod accounts;
mod sha1_lanes;
mod signature;

pub use self::accounts::{Account, AccountRules, Accounts, NO_ACCOUNT};
pub use self::signature::{Check, SLACK_BYTES, are_right, is_hash_right};
