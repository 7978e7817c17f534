//! A message on its way: which one a codec takes, and how it is written.

use crate::client::ids::Id;
use crate::client::send::{Numbers, OwnProperties, PropertyText, SendHead};

/// A buffer of property texts is given back when one message left it larger than this.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// What a producer's sends may be at most, on the fast path.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longer bodies take the slow path.
    pub body_bytes_max: usize,
    /// The time limit of sends that have none, in milliseconds.
    pub timeout_ms: i64,
}

impl Limits {
    /// A body of so many bytes is for the fast path.
    #[must_use]
    pub const fn takes_body(&self, size: usize) -> bool {
        size > 0 && size <= self.body_bytes_max
    }

    /// The time limit of a send in milliseconds, given its own; None: there is no time.
    #[must_use]
    pub fn time_limit(&self, own: Option<i64>) -> Option<i64> {
        Some(own.unwrap_or(self.timeout_ms)).filter(|ms| *ms > 0)
    }
}

/// The properties that the user of a message gave it.
pub trait UserProperties {
    /// There is none.
    fn is_empty(&self) -> bool;

    /// Adds each to a text; None: the text can't have one of them.
    fn push(&self, text: &mut PropertyText<'_>) -> Option<()>;
}

/// A message as its user gave it.
#[derive(Debug)]
pub struct Outgoing<'a, P> {
    /// Its body.
    pub body: &'a [u8],
    /// Its flag.
    pub flag: i64,
    /// Its keys as one text.
    pub keys: &'a str,
    /// Its tags.
    pub tags: &'a str,
    /// Its WAIT.
    pub is_waiting: bool,
    /// All else.
    pub properties: P,
}

impl<P: UserProperties> Outgoing<'_, P> {
    /// Appends its request to a buffer; None: it takes the slow path, and the buffer is as before.
    ///
    /// `text` is a buffer that calls share; `numbers` is given the message's flag.
    pub fn push_request(
        &self,
        out: &mut Vec<u8>,
        text: &mut Vec<u8>,
        head: &SendHead,
        numbers: Numbers,
        id: &Id,
    ) -> Option<()> {
        let (keys, tags, is_waiting) = (self.keys, self.tags, self.is_waiting);
        let numbers = Numbers { flag: self.flag, ..numbers };
        let own = OwnProperties { keys, tags, is_waiting, message_id: id.as_str() };
        if self.properties.is_empty() && own.is_fast() {
            return head.push_fast(out, numbers, own, self.body);
        }
        let pushed = match self.set_properties(text, id) {
            Some(()) => head.push(out, numbers, text, self.body),
            None => None,
        };
        give_back(text);
        pushed
    }

    /// Makes a buffer its property text; None: it has none that a codec could make.
    pub fn set_properties(&self, text: &mut Vec<u8>, id: &Id) -> Option<()> {
        text.clear();
        let mut building = PropertyText::begin(text);
        self.properties.push(&mut building)?;
        building.end(self.keys, self.tags, self.is_waiting, id.as_str()).map(|_| ())
    }
}

/// Gives the memory of a buffer back if it is much.
pub fn give_back(text: &mut Vec<u8>) {
    if text.capacity() > KEPT_BYTES_MAX {
        *text = Vec::new();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Limits, Outgoing, UserProperties};
    use crate::client::ids::{Id, MessageIds};
    use crate::client::send::{Numbers, PropertyText, SendHead};

    impl UserProperties for &[(&str, &str)] {
        fn is_empty(&self) -> bool {
            <[_]>::is_empty(self)
        }

        fn push(&self, text: &mut PropertyText<'_>) -> Option<()> {
            self.iter().try_for_each(|(name, value)| text.user(name, value))
        }
    }

    pub fn message(body: &[u8]) -> Outgoing<'_, &[(&str, &str)]> {
        Outgoing { body, flag: 5, keys: "k", tags: "t", is_waiting: true, properties: &[] }
    }

    pub fn id() -> Id {
        MessageIds::default().begin(1, "ID").unwrap()
    }

    #[test]
    fn limits_hold_bodies_and_times() {
        let limits = Limits { body_bytes_max: 10, timeout_ms: 3_000 };
        assert_eq!([0, 1, 10, 11].map(|size| limits.takes_body(size)), [false, true, true, false]);
        assert_eq!(limits.time_limit(None), Some(3_000));
        assert_eq!(limits.time_limit(Some(5)), Some(5));
        assert_eq!([0, -1].map(|ms| limits.time_limit(Some(ms))), [None, None]);
    }

    #[test]
    fn a_request_has_the_properties_of_its_user_first() {
        let head = SendHead::new("g", "T", "TBW102", 4, false, false, false);
        let numbers = Numbers { queue_id: 1, opaque: 2, now_ms: 3, flag: 0 };
        let (mut out, mut text) = (Vec::new(), Vec::new());
        let mut given = message(b"body");
        given.push_request(&mut out, &mut text, &head, numbers, &id()).unwrap();
        assert!(text.is_empty(), "plain properties need no text of their own");
        let plain = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert!(plain.contains(r#""h":"5","i":"KEYS\u0001k\u0002TAGS\u0001t\u0002WAIT"#));
        given.properties = &[("name", "v")];
        given.push_request(&mut out, &mut text, &head, numbers, &id()).unwrap();
        let owned = String::from_utf8(out).unwrap();
        assert!(owned.contains(r#""i":"name\u0001v\u0002KEYS\u0001k"#));
    }

    #[test]
    fn a_message_that_no_text_can_hold_leaves_the_buffer_alone() {
        let head = SendHead::new("g", "T", "TBW102", 4, false, false, false);
        let numbers = Numbers { queue_id: 1, opaque: 2, now_ms: 3, flag: 0 };
        let (mut out, mut text) = (b"before".to_vec(), Vec::new());
        let large = "v".repeat(2 << 20);
        let cases: [&[(&str, &str)]; 3] = [&[("a\u{1}", "v")], &[("KEYS", "v")], &[("a", &large)]];
        for properties in cases {
            let given = Outgoing { properties, ..message(b"body") };
            assert!(given.push_request(&mut out, &mut text, &head, numbers, &id()).is_none());
            assert_eq!(out, b"before");
            assert!(text.capacity() <= 1 << 20);
        }
    }
}
