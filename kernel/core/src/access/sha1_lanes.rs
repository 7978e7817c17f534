//! SHA-1 of several texts side by side.
//!
//! The instructions of x86-64 for SHA-1 mostly wait for each other as long as there is one text. With
//! four texts in turn a block costs half. The crate `sha1` takes one text after the other: it serves
//! machines without these instructions, and a text that is left alone.

use sha1::block_api::compress;

/// Bytes that the hash takes at a time.
pub const BLOCK_BYTES: usize = 64;

/// What it takes at a time.
pub type Block = [u8; BLOCK_BYTES];

/// What a hash has become of the blocks until now.
pub type State = [u32; 5];

/// One text: its hash until now, and what is to be hashed, one part after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane<'a> {
    pub state: State,
    parts: [&'a [Block]; 3],
    /// The part that comes next.
    part: usize,
}

impl<'a> Lane<'a> {
    /// What is hashed after `state`; any part may be empty.
    #[inline]
    pub const fn new(state: State, parts: [&'a [Block]; 3]) -> Self {
        Self { state, parts, part: 0 }
    }

    /// What is left of the first part that is not empty.
    #[inline]
    fn next_part(&mut self) -> Option<&'a [Block]> {
        while let Some(part) = self.parts.get(self.part) {
            if !part.is_empty() {
                return Some(part);
            }
            self.part += 1;
        }
        None
    }
}

/// Hashes all blocks of all lanes, so that their states are those behind them.
pub fn compress_all(lanes: &mut [Lane<'_>]) {
    #[cfg(target_arch = "x86_64")]
    if lanes.len() > 1 && x86_64::is_supported() {
        x86_64::compress_side_by_side(lanes);
    }
    for lane in lanes {
        while let Some(part) = lane.next_part() {
            compress(&mut lane.state, part);
            lane.part += 1;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_extract_epi32, _mm_set_epi32, _mm_set_epi64x,
        _mm_setzero_si128, _mm_sha1msg1_epu32, _mm_sha1msg2_epu32, _mm_sha1nexte_epu32,
        _mm_sha1rnds4_epu32, _mm_shuffle_epi8, _mm_xor_si128,
    };
    use std::array::from_fn;

    use super::{Block, Lane};

    /// Lanes that are hashed in turn. More would gain nothing: the unit for SHA-1 is busy.
    const WIDTH: usize = 4;

    /// Whether the processor has what [`compress_side_by_side`] is made of.
    pub fn is_supported() -> bool {
        std::is_x86_feature_detected!("sha")
            && std::is_x86_feature_detected!("ssse3")
            && std::is_x86_feature_detected!("sse4.1")
    }

    /// Hashes blocks of several lanes in turn, until one lane or none has some left. Only where
    /// [`is_supported`].
    pub fn compress_side_by_side(lanes: &mut [Lane<'_>]) {
        assert!(is_supported());
        loop {
            let (mut numbers, mut count) = ([0; WIDTH], 0);
            for (number, lane) in lanes.iter_mut().enumerate() {
                if lane.next_part().is_some() {
                    numbers[count] = number;
                    count += 1;
                    if count == WIDTH {
                        break;
                    }
                }
            }
            // SAFETY: the processor has the instructions.
            unsafe {
                match count {
                    4 => compress(chosen::<4>(lanes, numbers)),
                    3 => compress(chosen::<3>(lanes, numbers)),
                    2 => compress(chosen::<2>(lanes, numbers)),
                    _ => return,
                }
            }
        }
    }

    /// The lanes of the first numbers, which are different.
    fn chosen<'a, 'b, const N: usize>(
        lanes: &'a mut [Lane<'b>],
        numbers: [usize; WIDTH],
    ) -> [&'a mut Lane<'b>; N] {
        let numbers = numbers.first_chunk().expect("no more lanes than numbers");
        lanes.get_disjoint_mut(*numbers).expect("each lane has its number")
    }

    /// Hashes as many blocks of each lane as the one with the fewest has in its part.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn compress<const N: usize>(mut lanes: [&mut Lane<'_>; N]) {
        let parts = lanes.each_mut().map(|lane| lane.next_part().unwrap_or_default());
        let count = parts.iter().map(|part| part.len()).min().unwrap_or(0);
        let mut abcd: [__m128i; N] = from_fn(|lane| {
            let [a, b, c, d, _] = lanes[lane].state.map(u32::cast_signed);
            _mm_set_epi32(a, b, c, d)
        });
        let mut e: [__m128i; N] =
            from_fn(|lane| _mm_set_epi32(lanes[lane].state[4].cast_signed(), 0, 0, 0));
        for number in 0..count {
            hash_block(&mut abcd, &mut e, parts.map(|part| &part[number]));
        }
        for (number, lane) in lanes.into_iter().enumerate() {
            lane.state = [
                _mm_extract_epi32(abcd[number], 3),
                _mm_extract_epi32(abcd[number], 2),
                _mm_extract_epi32(abcd[number], 1),
                _mm_extract_epi32(abcd[number], 0),
                _mm_extract_epi32(e[number], 3),
            ]
            .map(i32::cast_unsigned);
            lane.parts[lane.part] = &parts[number][count..];
        }
    }

    /// Hashes a block of each lane.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn hash_block<const N: usize>(
        abcd: &mut [__m128i; N],
        e: &mut [__m128i; N],
        blocks: [&Block; N],
    ) {
        let zero = _mm_setzero_si128();
        // Five words of four, each made of the four before it.
        let mut w = [[zero; 5]; N];
        // Of two values one becomes the other by four rounds.
        let mut h0 = *abcd;
        let mut h1 = [zero; N];
        for lane in 0..N {
            let words = words(blocks[lane]);
            w[lane][..4].copy_from_slice(&words);
            h1[lane] = _mm_sha1rnds4_epu32(abcd[lane], _mm_add_epi32(e[lane], words[0]), 0);
        }
        macro_rules! rounds {
            ($kind:literal, $from:ident, $to:ident, $w:literal) => {
                for lane in 0..N {
                    let next = _mm_sha1nexte_epu32($to[lane], w[lane][$w]);
                    $to[lane] = _mm_sha1rnds4_epu32($from[lane], next, $kind);
                }
            };
            ($kind:literal, $from:ident, $to:ident, $w0:literal $w1:literal $w2:literal $w3:literal => $w:literal) => {
                for lane in 0..N {
                    let first = _mm_sha1msg1_epu32(w[lane][$w0], w[lane][$w1]);
                    let second = _mm_xor_si128(first, w[lane][$w2]);
                    w[lane][$w] = _mm_sha1msg2_epu32(second, w[lane][$w3]);
                }
                rounds!($kind, $from, $to, $w);
            };
        }
        rounds!(0, h1, h0, 1);
        rounds!(0, h0, h1, 2);
        rounds!(0, h1, h0, 3);
        rounds!(0, h0, h1, 0 1 2 3 => 4);
        rounds!(1, h1, h0, 1 2 3 4 => 0);
        rounds!(1, h0, h1, 2 3 4 0 => 1);
        rounds!(1, h1, h0, 3 4 0 1 => 2);
        rounds!(1, h0, h1, 4 0 1 2 => 3);
        rounds!(1, h1, h0, 0 1 2 3 => 4);
        rounds!(2, h0, h1, 1 2 3 4 => 0);
        rounds!(2, h1, h0, 2 3 4 0 => 1);
        rounds!(2, h0, h1, 3 4 0 1 => 2);
        rounds!(2, h1, h0, 4 0 1 2 => 3);
        rounds!(2, h0, h1, 0 1 2 3 => 4);
        rounds!(3, h1, h0, 1 2 3 4 => 0);
        rounds!(3, h0, h1, 2 3 4 0 => 1);
        rounds!(3, h1, h0, 3 4 0 1 => 2);
        rounds!(3, h0, h1, 4 0 1 2 => 3);
        rounds!(3, h1, h0, 0 1 2 3 => 4);
        for lane in 0..N {
            abcd[lane] = _mm_add_epi32(abcd[lane], h0[lane]);
            e[lane] = _mm_sha1nexte_epu32(h1[lane], e[lane]);
        }
    }

    /// The sixteen words of a block, the first one of each four in the highest place.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn words(block: &Block) -> [__m128i; 4] {
        let reversed = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0A0B_0C0D_0E0F);
        let (bytes, _) = block.as_chunks::<8>();
        let half = |at: usize| i64::from_le_bytes(bytes[at]);
        from_fn(|at| {
            let four = _mm_set_epi64x(half(2 * at + 1), half(2 * at));
            _mm_shuffle_epi8(four, reversed)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn one_by_one(lanes: &[Lane<'_>]) -> Vec<State> {
        let hash = |lane: &Lane<'_>| {
            let mut state = lane.state;
            lane.parts.iter().for_each(|part| compress(&mut state, part));
            state
        };
        lanes.iter().map(hash).collect()
    }

    proptest! {
        #[test]
        fn lanes_of_any_lengths_have_the_states_of_one_text_after_the_other(
            texts in vec((any::<State>(), vec(any::<[u8; 32]>(), 0..160), 0..80_usize, 0..80_usize), 0..12)
        ) {
            let mut lanes = Vec::new();
            for (state, halves, one, two) in &texts {
                let blocks: &[Block] = halves.as_flattened().as_chunks().0;
                let (first, rest) = blocks.split_at((*one).min(blocks.len()));
                let (second, third) = rest.split_at((*two).min(rest.len()));
                lanes.push(Lane::new(*state, [first, second, third]));
            }
            let expected = one_by_one(&lanes);
            compress_all(&mut lanes);
            let states: Vec<State> = lanes.iter().map(|lane| lane.state).collect();
            prop_assert_eq!(states, expected);
        }
    }
}
