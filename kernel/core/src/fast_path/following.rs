//! A connection that brings a master's log, read by a thread of its own.
//!
//! The slow path sends heartbeats to and compares. When both logs are equal it hands the connection
//! over: frames are read, appended and reported here, without an iteration of the event loop for
//! each. What is not the next part of the log goes back to the slow path, which knows what it is or
//! what is wrong with it.

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
pub struct StreamPosition {
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
    stream_position: StreamPosition,
    /// Where the log has a multiple of so many bytes a frame ends.
    frame_bytes: usize,
    has_received: bool,
}

impl Following {
    /// Takes over a connection that does not block.
    ///
    /// `rest` is what came of the head of the next frame, and `read_bytes` how many are asked of
    /// the socket at once, at most.
    #[must_use]
    pub fn new(
        socket: OwnedFd,
        stream_position: StreamPosition,
        rest: &[u8],
        frame_bytes: usize,
        read_bytes: usize,
    ) -> Self {
        let mut buffer = vec![0; read_bytes.max(HEAD + rest.len())];
        buffer[..rest.len()].copy_from_slice(rest);
        let socket = TcpStream::from(socket);
        Following {
            socket,
            buffer,
            filled: rest.len(),
            stream_position,
            frame_bytes,
            has_received: false,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn stream_position(&self) -> StreamPosition {
        self.stream_position
    }

    /// What came and was not taken.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// Whether anything came since this was asked last.
    pub fn has_received(&mut self) -> bool {
        std::mem::take(&mut self.has_received)
    }

    /// Takes what came; false: something else than the next part of the log stands first.
    fn take(&mut self, path: &FastPath) -> Result<bool, StoreError> {
        let mut at = 0;
        let mut is_next = true;
        while at < self.filled {
            let bytes = &self.buffer[at..self.filled];
            let stream_position = &mut self.stream_position;
            if stream_position.left == 0 {
                let Some((offset, size)) = head_of(bytes) else { break };
                let (true, Ok(size)) = (offset == stream_position.position, usize::try_from(size))
                else {
                    is_next = false;
                    break;
                };
                stream_position.left = size;
                at += HEAD;
                continue;
            }
            let body = &bytes[..stream_position.left.min(bytes.len())];
            stream_position.end = path.append_log(stream_position.position, body)?;
            stream_position.position += body.len() as i64;
            stream_position.left -= body.len();
            at += body.len();
        }
        self.buffer.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(is_next)
    }

    /// Reports how far the log is. A master that takes no report now gets a later one.
    fn report(&mut self, until: Instant) -> io::Result<()> {
        let reached = self.stream_position.position.min(self.stream_position.end);
        if reached <= self.stream_position.reported {
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
        self.stream_position.reported = reached;
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
        let after_next =
            self.stream_position.left + HEAD - self.filled.min(HEAD) + self.frame_bytes;
        let wanted =
            if after_next <= room { after_next } else { self.stream_position.left.clamp(1, room) };
        match self.socket.read(&mut self.buffer[self.filled..][..wanted]) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.filled += count;
                self.has_received = true;
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
