//! The stream of frames that a client's connection brings.

use crate::wire::frame::{Cut, Frame, FrameError, cut};

/// A buffer for unfinished frames above this is given back when it has become empty.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Cuts a stream into frames.
#[derive(Debug, Default)]
pub struct FrameStream {
    kept: Vec<u8>,
    error: Option<FrameError>,
}

impl FrameStream {
    /// A stream at its start.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes and gives each frame that is whole to `take`.
    ///
    /// # Errors
    ///
    /// The peer broke the framing, now or before; the frames until there were given.
    pub fn feed(
        &mut self,
        data: &[u8],
        mut take: impl FnMut(&Frame<'_>),
    ) -> Result<(), FrameError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let found = if self.kept.is_empty() {
            // Most chunks begin and end with a frame: they are cut where they are.
            let (used, found) = take_frames(data, &mut take);
            self.kept.extend_from_slice(&data[used..]);
            found
        } else {
            self.kept.extend_from_slice(data);
            let (used, found) = take_frames(&self.kept, &mut take);
            self.kept.drain(..used);
            found
        };
        if found.is_err() || (self.kept.is_empty() && self.kept.capacity() > KEPT_BYTES_MAX) {
            self.kept = Vec::new();
        }
        self.error = found.err();
        found
    }
}

/// The frames at the start of `data`: how many bytes they have.
fn take_frames(data: &[u8], take: &mut impl FnMut(&Frame<'_>)) -> (usize, Result<(), FrameError>) {
    let mut at = 0;
    loop {
        match cut(&data[at..]) {
            Ok(Cut::Frame(frame)) => {
                take(&frame);
                at += 4 + frame.bytes.len();
            }
            Ok(Cut::Partial(_)) => return (at, Ok(())),
            Err(error) => return (at, Err(error)),
        }
    }
}
