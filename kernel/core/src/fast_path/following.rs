//! A connection that brings a master's log, read by a thread of its own.
//!
//! The slow path greets and compares. When both logs are equal it hands the connection over: frames
//! are read, appended and reported here, without a turn of the event loop for each. What is not the
//! next part of the log goes back to the slow path, which knows what it is or what is wrong with it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::path::FastPath;
use crate::error::StoreError;

/// Bytes of a frame's head: the physical offset, and the size of the body.
const HEAD: usize = 12;

/// Where a connection stands, between two reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The physical offset of the byte that comes next.
    pub position: i64,
    /// The end of the slave's log.
    pub end: i64,
    /// Bytes of the current frame that are still to come.
    pub left: usize,
    /// What the slave reported last.
    pub reported: i64,
}

/// Why reading a connection paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The time is over.
    Time,
    /// The master closed its side.
    Closed,
    /// What comes next is not the next part of the log.
    Other,
}

/// The connection of a slave to its master, while their logs are equal.
#[derive(Debug)]
pub struct Following {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that came and are not taken.
    filled: usize,
    standing: Standing,
    /// Where the log has a multiple of so many bytes a frame ends.
    frame_bytes: usize,
    has_heard: bool,
}

impl Following {
    /// Takes over a connection that does not block.
    ///
    /// `rest` is what came of the head of the next frame, and `read_bytes` how many are asked of the
    /// socket at once, at most.
    #[must_use]
    pub fn new(
        socket: OwnedFd,
        standing: Standing,
        rest: &[u8],
        frame_bytes: usize,
        read_bytes: usize,
    ) -> Self {
        let mut buffer = vec![0; read_bytes.max(HEAD + rest.len())];
        buffer[..rest.len()].copy_from_slice(rest);
        let socket = TcpStream::from(socket);
        Following { socket, buffer, filled: rest.len(), standing, frame_bytes, has_heard: false }
    }

    /// Where it stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// What came and was not taken.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// Whether anything came since this was asked last.
    pub fn has_heard(&mut self) -> bool {
        std::mem::take(&mut self.has_heard)
    }

    /// Takes what came; false: something else than the next part of the log stands first.
    fn take(&mut self, path: &FastPath) -> Result<bool, StoreError> {
        let mut at = 0;
        let mut is_next = true;
        while at < self.filled {
            let bytes = &self.buffer[at..self.filled];
            let standing = &mut self.standing;
            if standing.left == 0 {
                let Some((offset, size)) = head_of(bytes) else { break };
                let (true, Ok(size)) = (offset == standing.position, usize::try_from(size)) else {
                    is_next = false;
                    break;
                };
                standing.left = size;
                at += HEAD;
                continue;
            }
            let body = &bytes[..standing.left.min(bytes.len())];
            standing.end = path.append_log(standing.position, body)?;
            standing.position += body.len() as i64;
            standing.left -= body.len();
            at += body.len();
        }
        self.buffer.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(is_next)
    }

    /// Reports how far the log is. A master that takes no report now gets a later one.
    fn report(&mut self, until: Instant) -> io::Result<()> {
        let reached = self.standing.position.min(self.standing.end);
        if reached <= self.standing.reported {
            return Ok(());
        }
        let bytes = reached.to_be_bytes();
        let mut sent = 0;
        while sent < bytes.len() {
            match self.socket.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if sent == 0 {
                        return Ok(());
                    }
                    // Half a report has to be followed by its other half.
                    if !self.wait(libc::POLLOUT, until)? {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.standing.reported = reached;
        Ok(())
    }

    /// Waits until the socket is ready; false: not in time.
    fn wait(&self, events: i16, until: Instant) -> io::Result<bool> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut asked = libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 };
        let most = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        // SAFETY: one descriptor that is open, in memory that is ours.
        let ready = unsafe { libc::poll(&raw mut asked, 1, most) };
        if ready >= 0 {
            return Ok(ready > 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() == ErrorKind::Interrupted { Ok(true) } else { Err(error) }
    }

    /// Reads what is there; false: the other side is closed.
    fn read(&mut self) -> io::Result<bool> {
        let room = self.buffer.len() - self.filled;
        // What is read ends with a frame of the usual size, so that whole pages are written.
        let after_next = self.standing.left + HEAD - self.filled.min(HEAD) + self.frame_bytes;
        let wanted =
            if after_next <= room { after_next } else { self.standing.left.clamp(1, room) };
        match self.socket.read(&mut self.buffer[self.filled..][..wanted]) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.filled += count;
                self.has_heard = true;
                Ok(true)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

impl FastPath {
    /// Appends what a master sends, and reports it with each read, until that has to pause.
    ///
    /// # Errors
    /// The connection broke; or as [`FastPath::append_log`].
    pub fn follow(&self, following: &mut Following, most: Duration) -> Result<Pause, StoreError> {
        let broke = |error| StoreError::io("the connection to the master", error);
        let until = Instant::now() + most;
        loop {
            let is_next = following.take(self)?;
            following.report(until).map_err(broke)?;
            if !is_next {
                return Ok(Pause::Other);
            }
            if !following.wait(libc::POLLIN, until).map_err(broke)? {
                return Ok(Pause::Time);
            }
            if !following.read().map_err(broke)? {
                return Ok(Pause::Closed);
            }
        }
    }
}

/// Offset and size of a frame's head, once all of it is there.
fn head_of(bytes: &[u8]) -> Option<(i64, i32)> {
    let (offset, rest) = bytes.split_first_chunk()?;
    Some((i64::from_be_bytes(*offset), i32::from_be_bytes(*rest.first_chunk()?)))
}
