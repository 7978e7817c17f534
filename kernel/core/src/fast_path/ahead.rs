//! Frames that are read ahead of their turn: their signatures are checked together, and the keys of
//! sends are on their way from memory.

use super::access::{Access, Request};
use crate::access::{Accounts, are_right};
use crate::wire::frame::{self, Cut, Frame};
use crate::wire::header::Header;

/// Frames that are read ahead.
pub const AHEAD_MAX: usize = 8;

/// A frame up to this long has its signature checked ahead. That of a longer one is checked when
/// all else is found allowed: the check of many bytes takes long, and gains little.
const CHECKED_BYTES_MAX: usize = 4 << 10;

/// One frame that was read.
#[derive(Debug, Default)]
pub struct Slot {
    header: Header,
    /// Whether the header is one for the fast path.
    is_read: bool,
    /// Whether the signature is right; None: it was not examined.
    is_signed: Option<bool>,
    /// The text that was signed.
    text: Vec<u8>,
}

impl Slot {
    /// The request that was read from a frame; None: it is not for the fast path.
    #[inline]
    pub fn request<'a>(&'a self, frame: &Frame<'a>) -> Option<Request<'a>> {
        let Self { header, is_signed, .. } = self;
        let request =
            Request { header, header_bytes: frame.header, body: frame.body, is_signed: *is_signed };
        self.is_read.then_some(request)
    }
}

/// What is read of the connection that is fed; kept and used again for the next one.
#[derive(Debug, Default)]
pub struct Ahead {
    slots: Vec<Slot>,
}

impl Ahead {
    /// Reads the first frame of `data`, or up to `most` where signatures are checked or it
    /// `has_keys`.
    pub fn read(
        &mut self,
        data: &[u8],
        most: u64,
        has_keys: bool,
        access: &mut Access,
        accounts: Option<&Accounts>,
    ) -> &[Slot] {
        self.slots.resize_with(AHEAD_MAX, Slot::default);
        let accounts = accounts.filter(|_| !access.is_white());
        let most = if accounts.is_some() || has_keys { most.min(AHEAD_MAX as u64) } else { 1 };
        let mut checks = [const { None }; AHEAD_MAX];
        let (mut count, mut at) = (0, 0);
        for slot in &mut self.slots[..most as usize] {
            let Ok(Cut::Frame(frame)) = frame::cut(&data[at..]) else {
                break;
            };
            at += 4 + frame.bytes.len();
            let Slot { header, is_read, is_signed, text } = slot;
            *is_read = header.read(frame.serialize_type, frame.header);
            *is_signed = None;
            if let Some(accounts) = accounts
                && *is_read
                && (header.is_send() || header.is_pull())
                && frame.bytes.len() <= CHECKED_BYTES_MAX
            {
                let (header_bytes, body) = (frame.header, frame.body);
                let request = Request { header, header_bytes, body, is_signed: None };
                checks[count] = access.check(accounts, request, text);
            }
            count += 1;
        }
        if accounts.is_some() {
            let are_signed = are_right(&checks);
            let is_checked = checks.map(|check| check.is_some());
            for ((slot, is_checked), is_signed) in
                self.slots.iter_mut().zip(is_checked).zip(are_signed)
            {
                slot.is_signed = is_checked.then_some(is_signed);
            }
        }
        &self.slots[..count]
    }
}
