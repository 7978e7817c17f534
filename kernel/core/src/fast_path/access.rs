//! Access control of one connection: which requests are certainly allowed.

use hashbrown::HashSet;

use crate::access::{Account, Accounts, Check, NO_ACCOUNT, SLACK_BYTES, are_right, is_hash_right};
use crate::protocol::{MAY_PUB, MAY_SUB, RETRY_PREFIX, TRACE_TOPIC, request};
use crate::wire::grpc::{Claim, read_claim};
use crate::wire::header::{Header, Order, PullFields, SendFields};

/// One request as it came.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub header: &'a Header,
    pub header_bytes: &'a [u8],
    pub body: &'a [u8],
    /// Whether its signature is right; None: it was not examined.
    pub is_signed: Option<bool>,
}

/// What a connection knows of its peer.
#[derive(Debug)]
pub struct Access {
    /// The global white list has its address.
    is_white: bool,
    /// Accounts whose white lists have it.
    white_keys: HashSet<Box<[u8]>>,
    /// Number of the last account, examined first.
    last_account: u32,
    order: Order,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            is_white: false,
            white_keys: HashSet::new(),
            last_account: NO_ACCOUNT,
            order: Order::default(),
        }
    }
}

impl Access {
    /// Whether the global white list has the peer's address, as far as the kernel was notified.
    #[inline]
    pub const fn is_white(&self) -> bool {
        self.is_white
    }

    /// Says which white lists have the peer's address; true when one had it and has it no more.
    pub fn set_white<'a>(
        &mut self,
        is_white: bool,
        access_keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> bool {
        let keys: HashSet<Box<[u8]>> = access_keys.into_iter().map(Into::into).collect();
        let loses = self.is_white && !is_white || !self.white_keys.is_subset(&keys);
        self.is_white = is_white;
        self.white_keys = keys;
        loses
    }

    /// Whether a send is allowed for certain (`PlainPermissionManager.validate`).
    /// Without accounts all is.
    #[inline]
    pub fn may_send(
        &mut self,
        accounts: Option<&Accounts>,
        request: Request<'_>,
        fields: &SendFields<'_>,
    ) -> bool {
        let Some(accounts) = accounts else {
            return true;
        };
        self.may(accounts, request, |account| match fields.topic.strip_prefix(RETRY_PREFIX) {
            // A consumer sends back to its own group. RocketMQ asks for the group that the request
            // names and not for the topic; this is where both are the same.
            Some(group) => {
                request.header.code == request::SEND_MESSAGE_V2
                    && group == fields.group
                    && account.may(fields.topic, MAY_SUB)
            }
            None => fields.topic == TRACE_TOPIC || account.may(fields.topic, MAY_PUB),
        })
    }

    /// Whether a pull is allowed for certain. Without accounts all is.
    #[inline]
    pub fn may_pull(
        &mut self,
        accounts: Option<&Accounts>,
        request: Request<'_>,
        fields: &PullFields<'_>,
    ) -> bool {
        let Some(accounts) = accounts else {
            return true;
        };
        self.may(accounts, request, |account| {
            account.may(fields.topic, MAY_SUB) && account.may_as_group(fields.group, MAY_SUB)
        })
    }

    /// Whether a call of gRPC with these headers is allowed for certain. Without accounts all is.
    #[inline]
    pub fn may_call<'a>(
        &mut self,
        accounts: Option<&Accounts>,
        headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        has_permission: impl FnOnce(&Account) -> bool,
    ) -> bool {
        let Some(accounts) = accounts else {
            return true;
        };
        let claim = read_claim(headers);
        claim.is_some_and(|Claim { access_key, time, hash }| {
            accounts.find(access_key, &mut self.last_account).is_some_and(|account| {
                (account.may_everything || has_permission(account))
                    && is_hash_right(&account.signing, time, &hash)
            })
        })
    }

    fn may(
        &mut self,
        accounts: &Accounts,
        request: Request<'_>,
        has_permission: impl FnOnce(&Account) -> bool,
    ) -> bool {
        if self.is_white {
            return true;
        }
        let Some(key) = request.header.access_key(request.header_bytes) else {
            return false;
        };
        let Some(account) = accounts.find(key, &mut self.last_account) else {
            return false;
        };
        if self.is_white_for(key) {
            return true;
        }
        // What costs most comes last; all of it must be so.
        if !account.may_everything && !has_permission(account) {
            return false;
        }
        request.is_signed.unwrap_or_else(|| {
            let mut text = Vec::new();
            let [is_right] = are_right(&[check(account, request, &mut self.order, &mut text)]);
            is_right
        })
    }

    /// The check of a request's signature, before anything else of it is examined; None when there
    /// is none to make. The text that was signed is put into `text`.
    pub fn check<'a>(
        &mut self,
        accounts: &'a Accounts,
        request: Request<'a>,
        text: &'a mut Vec<u8>,
    ) -> Option<Check<'a>> {
        let key = request.header.access_key(request.header_bytes)?;
        if self.is_white || self.is_white_for(key) {
            return None;
        }
        let account = accounts.find(key, &mut self.last_account)?;
        check(account, request, &mut self.order, text)
    }

    #[inline]
    fn is_white_for(&self, key: &[u8]) -> bool {
        !self.white_keys.is_empty() && self.white_keys.contains(key)
    }
}

/// The check of a request's signature by the key of an account; None when what was signed is not
/// certain.
#[inline]
fn check<'a>(
    account: &'a Account,
    request: Request<'a>,
    order: &mut Order,
    text: &'a mut Vec<u8>,
) -> Option<Check<'a>> {
    let Request { header, header_bytes, body, .. } = request;
    let size = header.signed_text(header_bytes, order, text, SLACK_BYTES)?;
    let signature = header.signature(header_bytes);
    Some(Check::new(&account.signing, text, size, body, signature))
}
