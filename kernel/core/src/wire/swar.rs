//! Searching eight bytes at a time in a 64-bit word.

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// The eight bytes at `at`, the first one lowest; None when fewer are left.
#[inline]
pub(crate) fn word_at(data: &[u8], at: usize) -> Option<u64> {
    let bytes = data.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// High bit set in the first byte that equals `byte`. Bytes above it may be marked falsely, so
/// only the lowest mark counts.
#[inline]
pub(crate) const fn equal(word: u64, byte: u8) -> u64 {
    let difference = word ^ (LOW_BITS * byte as u64);
    difference.wrapping_sub(LOW_BITS) & !difference & HIGH_BITS
}

/// High bit set in the first byte below `bound` (at most 128); only the lowest mark counts.
#[inline]
pub(crate) const fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(LOW_BITS * bound as u64) & !word & HIGH_BITS
}

/// Index of the byte that carries the lowest mark.
#[inline]
pub(crate) const fn first(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize
}

/// The number that the first bytes spell in ASCII digits, and how many there are.
#[inline]
pub(crate) const fn leading_digits(word: u64) -> (u64, usize) {
    let digits = word ^ (LOW_BITS * b'0' as u64);
    // The high bit of a byte that is no digit: above 9, or above 127.
    let marks = (digits | (digits & !HIGH_BITS).wrapping_add(LOW_BITS * 118)) & HIGH_BITS;
    let count = if marks == 0 { 8 } else { first(marks) };
    if count == 0 {
        return (0, 0);
    }
    // Shifted up, so that zeros stand in front.
    let digits = digits << (64 - 8 * count);
    (join_digits(digits), count)
}

/// The number of eight values below ten, the first one lowest in the word.
const fn join_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_FFFF_0000_FFFF;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xFFFF_FFFF
}

/// Whether all bytes are ASCII.
#[inline]
pub(crate) fn is_ascii(data: &[u8]) -> bool {
    // The last word may share bytes with the one before it.
    let Some(last) = data.last_chunk::<8>() else {
        return data.is_ascii();
    };
    let (words, _) = data.as_chunks::<8>();
    let join = |bits, word: &[u8; 8]| bits | u64::from_le_bytes(*word);
    words.iter().fold(u64::from_le_bytes(*last), join) & HIGH_BITS == 0
}

/// Position of the first byte below `bound` at or after `from`; not less than the length when
/// there is none.
#[inline]
pub(crate) fn find_below(data: &[u8], from: usize, bound: u8) -> usize {
    let mut at = from;
    while let Some(word) = word_at(data, at) {
        let marks = below(word, bound);
        if marks != 0 {
            return at + first(marks);
        }
        at += 8;
    }
    while at < data.len() && data[at] >= bound {
        at += 1;
    }
    at
}

/// Calls `visit` with the position and value of each byte below `bound` (at most 128).
#[inline]
pub(crate) fn for_each_below(data: &[u8], bound: u8, mut visit: impl FnMut(usize, u8)) {
    let (words, rest) = data.as_chunks::<8>();
    for (index, bytes) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*bytes);
        // Without a carry from byte to byte, so that all marks are true.
        let mut marks =
            !(((word & !HIGH_BITS) + LOW_BITS * u64::from(128 - bound)) | word) & HIGH_BITS;
        while marks != 0 {
            let lane = first(marks);
            visit(8 * index + lane, bytes[lane]);
            marks &= marks - 1;
        }
    }
    for (index, byte) in rest.iter().enumerate() {
        if *byte < bound {
            visit(8 * words.len() + index, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_match_is_found_at_every_position() {
        for size in 0..40usize {
            for position in 0..size {
                let mut data = vec![3; size];
                data[position] = 2;
                data[position + 1..].fill(1);
                for from in 0..=position {
                    assert_eq!(find_below(&data, from, 3), position);
                }
            }
            assert_eq!(find_below(&vec![3; size], 0, 3), size);
        }
    }

    #[test]
    fn every_byte_below_is_visited() {
        for bound in [1, 3, 32, 127] {
            let data: Vec<u8> = (0..1_003_u32).map(|index| (index * index / 7) as u8).collect();
            let mut found = Vec::new();
            for_each_below(&data, bound, |at, byte| found.push((at, byte)));
            let all = data.iter().copied().enumerate();
            assert_eq!(found, all.filter(|(_, byte)| *byte < bound).collect::<Vec<_>>());
        }
    }

    #[test]
    fn leading_digits_are_read_up_to_the_first_other_byte() {
        for value in (0..100_000_000u64).step_by(12_347) {
            let text = format!("{value:08}");
            let bytes: [u8; 8] = text.as_bytes().try_into().unwrap();
            assert_eq!(leading_digits(u64::from_le_bytes(bytes)), (value, 8));
        }
        for byte in (0..=255u8).filter(|byte| !byte.is_ascii_digit()) {
            for lane in 0..8 {
                for (digit, later) in [(b'0', b'9'), (b'5', 0xFF), (b'9', b'"')] {
                    let mut bytes = [digit; 8];
                    bytes[lane..].fill(later);
                    bytes[lane] = byte;
                    let text = String::from_utf8(vec![digit; lane]).unwrap();
                    let value = text.parse().unwrap_or(0);
                    assert_eq!(leading_digits(u64::from_le_bytes(bytes)), (value, lane));
                }
            }
        }
    }

    #[test]
    fn one_byte_above_ascii_is_found_at_every_place() {
        for size in 0..130 {
            let mut data = vec![0x7F; size];
            assert!(is_ascii(&data));
            for place in 0..size {
                data[place] = 0x80;
                assert!(!is_ascii(&data), "{place} of {size}");
                data[place] = 0x7F;
            }
        }
    }

    #[test]
    fn control_bytes_are_below_and_others_are_not() {
        for byte in 0..=255u8 {
            for lane in 0..8 {
                let mut bytes = [b'x'; 8];
                bytes[lane] = byte;
                let marks = below(u64::from_le_bytes(bytes), 0x20);
                if byte < 0x20 {
                    assert_eq!(first(marks), lane);
                } else {
                    assert_eq!(marks, 0);
                }
            }
        }
    }
}
