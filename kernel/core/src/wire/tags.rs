//! The tag expression of a pull: tags joined by `||`, or `*`.

use crate::protocol::TAGS_MAX;
use crate::record::java_hash;

/// What a subscription text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    All,
    /// The hash codes went into the caller's vector.
    Some,
    /// Not for the fast path.
    Unusual,
}

/// Parses a subscription; `codes` is cleared and then gets one hash per tag.
pub fn parse(subscription: &[u8], codes: &mut Vec<i32>) -> Tags {
    codes.clear();
    if subscription.is_empty() || subscription == b"*" {
        return Tags::All;
    }
    if std::str::from_utf8(subscription).is_err() {
        return Tags::Unusual;
    }
    let mut rest = subscription;
    loop {
        let end = rest.windows(2).position(|pair| pair == b"||");
        let tag = trim(&rest[..end.unwrap_or(rest.len())]);
        if !tag.is_empty() {
            if codes.len() == TAGS_MAX {
                return Tags::Unusual;
            }
            codes.push(java_hash(tag));
        }
        match end {
            Some(end) => rest = &rest[end + 2..],
            None => break,
        }
    }
    if codes.is_empty() { Tags::Unusual } else { Tags::Some }
}

/// Java's `String.trim`: whatever is not above a blank goes.
fn trim(mut text: &[u8]) -> &[u8] {
    while let [0..=b' ', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., 0..=b' '] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_split_and_trimmed() {
        let mut codes = vec![9];
        assert_eq!(parse(b"*", &mut codes), Tags::All);
        assert_eq!(parse(b"", &mut codes), Tags::All);
        assert_eq!(parse(b" a || b||c||", &mut codes), Tags::Some);
        assert_eq!(codes, [97, 98, 99]);
        assert_eq!(parse(b"a|b", &mut codes), Tags::Some);
        assert_eq!(codes.len(), 1);
    }

    #[test]
    fn expressions_without_a_tag_are_left_to_python() {
        let mut codes = Vec::new();
        let many = vec!["a"; TAGS_MAX + 1].join("||");
        assert_eq!(parse(many.as_bytes(), &mut codes), Tags::Unusual);
        assert_eq!(parse(&many.as_bytes()[3..], &mut codes), Tags::Some);
        for text in [&b"||"[..], b"  ", b" || ", b"\xff"] {
            assert_eq!(parse(text, &mut codes), Tags::Unusual);
        }
    }
}
