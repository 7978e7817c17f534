//! The Huffman code of HPACK (RFC 7541, appendix B), read four bits at a time.

use std::sync::LazyLock;

/// Bits of the code of each byte, and of the end; the codes follow from these, shorter ones and
/// lower bytes first.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// The byte that no text has.
const END: usize = 256;

/// Bits of ones that may follow the last byte.
const PADDING_MAX: u32 = 7;

/// Where four more bits lead.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// Node of the tree; None: they are no code.
    next: Option<u16>,
    byte: Option<u8>,
}

struct Tree {
    steps: Vec<[Step; 16]>,
    /// Whether a text may end at a node.
    ends: Vec<bool>,
}

static TREE: LazyLock<Tree> = LazyLock::new(Tree::new);

/// Child of a node of the tree while it is made.
#[derive(Clone, Copy, Debug)]
enum Child {
    None,
    Node(u16),
    Leaf(usize),
}

impl Tree {
    fn new() -> Self {
        let mut nodes = vec![[Child::None; 2]];
        for (symbol, code, length) in codes() {
            let mut at = 0;
            for bit in (0..length).rev() {
                let side = (code >> bit & 1) as usize;
                if bit == 0 {
                    nodes[at][side] = Child::Leaf(symbol);
                } else if let Child::Node(next) = nodes[at][side] {
                    at = usize::from(next);
                } else {
                    let next = nodes.len();
                    nodes[at][side] = Child::Node(next as u16);
                    nodes.push([Child::None; 2]);
                    at = next;
                }
            }
        }
        let mut ends = vec![false; nodes.len()];
        let mut at = 0;
        for _ in 0..=PADDING_MAX {
            ends[usize::from(at)] = true;
            let Child::Node(next) = nodes[usize::from(at)][1] else {
                break;
            };
            at = next;
        }
        let steps = (0..nodes.len()).map(|node| {
            std::array::from_fn(|bits| step(&nodes, node as u16, bits)) //
        });
        Self { steps: steps.collect(), ends }
    }
}

/// Where four bits lead from a node.
fn step(nodes: &[[Child; 2]], from: u16, bits: usize) -> Step {
    let mut found = Step { next: Some(from), byte: None };
    for bit in (0..4).rev() {
        let Some(at) = found.next else {
            break;
        };
        match nodes[usize::from(at)][bits >> bit & 1] {
            Child::Node(next) => found.next = Some(next),
            Child::Leaf(symbol) if symbol < END => {
                found = Step { next: Some(0), byte: Some(symbol as u8) };
            }
            _ => found.next = None,
        }
    }
    found
}

/// Each symbol with its code and the bits of that.
fn codes() -> Vec<(usize, u32, u8)> {
    let mut symbols: Vec<usize> = (0..LENGTHS.len()).collect();
    symbols.sort_by_key(|symbol| (LENGTHS[*symbol], *symbol));
    let (mut code, mut before) = (0, LENGTHS[symbols[0]]);
    let found = symbols.into_iter().map(|symbol| {
        let length = LENGTHS[symbol];
        code <<= length - before;
        before = length;
        code += 1;
        (symbol, code - 1, length)
    });
    found.collect()
}

/// Writes what a text means after what is there; None: it is no such text.
pub fn decode(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let tree = &*TREE;
    let mut at = 0_u16;
    for byte in text {
        for bits in [byte >> 4, byte & 15] {
            let step = tree.steps[usize::from(at)][usize::from(bits)];
            out.extend(step.byte);
            at = step.next?;
        }
    }
    tree.ends[usize::from(at)].then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_the_standard_is_read() {
        let text = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        let mut out = Vec::new();
        decode(&text, &mut out).unwrap();
        assert_eq!(out, b"www.example.com");
    }

    #[test]
    fn a_padding_of_eight_bits_or_of_zeros_is_refused() {
        for text in [&[0xff][..], &[0xf1, 0xff, 0xff], &[0x00, 0x00], &[0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(decode(text, &mut Vec::new()), None, "{text:?}");
        }
    }
}
