//! Sends messages as fast as a broker answers: `secured_load --broker HOST:PORT --topic T ...`.
//!
//! One thread, so many connections with so many requests open on each. Prints one line of JSON:
//! what was answered in the measured seconds, by code, and the processor time that went into it
//! here and in the processes of `--pid`.

mod frames;
mod trust;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use frames::{Account, FIRST_OPAQUE, Template};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

const READ_BYTES: usize = 256 * 1024;

struct Connection {
    socket: TcpStream,
    tls: Option<ClientConnection>,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    next_queue: usize,
    opaque: u32,
}

impl Connection {
    fn ask(&mut self, templates: &[Template]) {
        let template = &templates[self.next_queue];
        self.next_queue = (self.next_queue + 1) % templates.len();
        self.opaque = FIRST_OPAQUE + (self.opaque - FIRST_OPAQUE + 1) % 1_000_000_000;
        let start = self.out.len();
        self.out.extend_from_slice(&template.bytes);
        let digits = self.opaque.to_string();
        let at = start + template.opaque_at;
        self.out[at..at + digits.len()].copy_from_slice(digits.as_bytes());
    }

    /// Writes what the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        let Self { socket, tls, out, sent, .. } = self;
        let result = match tls {
            Some(tls) => (|| {
                loop {
                    while tls.wants_write() {
                        tls.write_tls(socket)?;
                    }
                    if *sent == out.len() || tls.is_handshaking() {
                        return Ok(());
                    }
                    *sent += tls.writer().write(&out[*sent..])?;
                }
            })(),
            None => (|| {
                while *sent < out.len() {
                    *sent += socket.write(&out[*sent..])?;
                }
                Ok(())
            })(),
        };
        if *sent == out.len() {
            out.clear();
            *sent = 0;
        }
        until_blocked(result)
    }

    /// Reads what the socket has.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let Self { socket, tls, input, .. } = self;
        let result = (|| {
            loop {
                let count = match tls {
                    Some(tls) => {
                        let count = tls.read_tls(socket)?;
                        let state = tls.process_new_packets().map_err(io::Error::other)?;
                        let plain = state.plaintext_bytes_to_read();
                        let start = input.len();
                        input.resize(start + plain, 0);
                        tls.reader().read_exact(&mut input[start..])?;
                        count
                    }
                    None => {
                        let count = socket.read(buffer)?;
                        input.extend_from_slice(&buffer[..count]);
                        count
                    }
                };
                if count == 0 {
                    return Err(io::Error::other("the broker closed a connection"));
                }
            }
        })();
        until_blocked(result)
    }

    /// The codes of the whole answers that came.
    fn answers(&mut self, mut each: impl FnMut(i64)) -> usize {
        let (mut at, mut count) = (0, 0);
        while let Some(head) = self.input.get(at..at + 8) {
            let word = |from: usize| u32::from_be_bytes(head[from..from + 4].try_into().expect("4"));
            let size = word(0) as usize;
            let Some(frame) = self.input.get(at + 8..at + 4 + size) else { break };
            let header = &frame[..(word(4) & 0x00ff_ffff) as usize];
            each(frames::code_of(header, word(4) >> 24 == 0).unwrap_or(-1));
            at += 4 + size;
            count += 1;
        }
        self.input.drain(..at);
        count
    }
}

fn until_blocked(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        other => other,
    }
}

struct Options(HashMap<String, Vec<String>>);

impl Options {
    fn read() -> Self {
        let mut options: HashMap<String, Vec<String>> = HashMap::new();
        let mut words = std::env::args().skip(1).peekable();
        while let Some(word) = words.next() {
            let value = words.next_if(|next| !next.starts_with("--")).unwrap_or_default();
            options.entry(word.trim_start_matches("--").to_owned()).or_default().push(value);
        }
        Self(options)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(|values| values.last()).map(String::as_str)
    }

    fn number(&self, name: &str, default: f64) -> f64 {
        self.text(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("--{name}: {text} is no number")))
    }
}

/// Seconds of processor time of a process, all its threads together.
fn cpu_seconds(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn connect(address: &str, config: Option<&Arc<ClientConfig>>) -> io::Result<Connection> {
    let stream = std::net::TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let tls = config.map(|config| {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut tls = ClientConnection::new(config.clone(), name).expect("a valid configuration");
        tls.set_buffer_limit(Some(1 << 20));
        tls
    });
    Ok(Connection {
        socket: TcpStream::from_std(stream),
        tls,
        out: Vec::new(),
        sent: 0,
        input: Vec::new(),
        next_queue: 0,
        opaque: FIRST_OPAQUE,
    })
}

fn main() -> io::Result<()> {
    let options = Options::read();
    let address = options.text("broker").expect("--broker HOST:PORT").to_owned();
    let topic = options.text("topic").unwrap_or("secured");
    let queues = options.number("queues", 4.0) as usize;
    let size = options.number("size", 128.0) as usize;
    let count = options.number("connections", 64.0) as usize;
    let open_max = options.number("inflight", 4.0) as usize;
    let warm_up = Duration::from_secs_f64(options.number("warmup", 1.0));
    let seconds = options.number("seconds", 5.0);
    let account = options.text("sign").map(|text| {
        let (access_key, secret_key) = text.split_once(':').expect("--sign ACCESS_KEY:SECRET_KEY");
        Account { access_key: access_key.to_owned(), secret_key: secret_key.to_owned() }
    });
    let config = options.0.contains_key("tls").then(trust::config);
    let templates: Vec<Template> =
        (0..queues).map(|queue| frames::send(topic, queue, size, account.as_ref())).collect();

    let mut poll = Poll::new()?;
    let mut connections = Vec::with_capacity(count);
    for place in 0..count {
        let mut connection = connect(&address, config.as_ref())?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut connection.socket, Token(place), interest)?;
        connection.next_queue = place % queues;
        (0..open_max).for_each(|_| connection.ask(&templates));
        connections.push(connection);
    }
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; READ_BYTES];
    let mut codes: BTreeMap<i64, u64> = BTreeMap::new();
    let no_pids = Vec::new();
    let pids = options.0.get("pid").unwrap_or(&no_pids);
    let cpu_now = || (cpu_seconds("self"), pids.iter().map(|pid| cpu_seconds(pid)).sum::<f64>());
    let mut start = Instant::now();
    let mut cpu = cpu_now();
    let mut is_warm = false;
    loop {
        let elapsed = start.elapsed();
        if !is_warm && elapsed >= warm_up {
            is_warm = true;
            codes.clear();
            start = Instant::now();
            cpu = cpu_now();
        } else if is_warm && elapsed.as_secs_f64() >= seconds {
            break;
        }
        poll.poll(&mut events, Some(Duration::from_millis(20)))?;
        for event in &events {
            let connection = &mut connections[event.token().0];
            if event.is_readable() {
                connection.fill(&mut buffer)?;
                let done = connection.answers(|code| *codes.entry(code).or_default() += 1);
                (0..done).for_each(|_| connection.ask(&templates));
            }
            connection.flush()?;
        }
    }
    let measured = start.elapsed().as_secs_f64();
    let (here, there) = cpu_now();
    let answered: u64 = codes.values().sum();
    let per_message = |seconds: f64| seconds * 1e6 / answered.max(1) as f64;
    let by_code: Vec<String> = codes.iter().map(|(code, count)| format!("\"{code}\":{count}")).collect();
    println!(
        "{{\"messages_per_s\":{:.0},\"codes\":{{{}}},\"broker_cpu_us\":{:.3},\"generator_cpu_us\":{:.3}}}",
        answered as f64 / measured,
        by_code.join(","),
        per_message(there - cpu.1),
        per_message(here - cpu.0),
    );
    Ok(())
}
