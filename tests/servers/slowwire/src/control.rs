//! The control address: `GET /stats`, `GET /settings`, `POST /settings?name=value&…`, `POST /clear`.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::settings::Settings;

macro_rules! stats {
    ($($(#[doc = $doc:literal])* $name:ident),+ $(,)?) => {
        /// Counters; one thread writes them.
        #[derive(Default)]
        pub struct Stats { $($(#[doc = $doc])* pub $name: AtomicU64),+ }

        impl Stats {
            fn json(&self) -> String {
                let mut text = String::from("{");
                $(let _ = write!(text, "\"{}\": {}, ", stringify!($name), self.$name.load(Relaxed));)+
                text.truncate(text.len() - 2);
                text + "}"
            }
        }
    };
}

stats! {
    /// Connections accepted.
    connections,
    /// Connections open now.
    open,
    /// Requests seen.
    requests,
    /// Requests without their whole answer now.
    in_flight,
    /// The most that were.
    in_flight_peak,
    /// Answers passed on whole.
    answered,
    /// Answers of the server with a status of 400 or more.
    refused,
    /// Bytes from client to server.
    bytes_up,
    /// Bytes from server to client.
    bytes_down,
    /// Faults by kind.
    late,
    reset,
    truncate,
    stall,
    corrupt,
    busy,
}

/// What the control thread and the wire share.
pub struct Shared {
    settings: Mutex<Settings>,
    pub generation: AtomicU64,
    pub stats: Stats,
}

impl Shared {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: Mutex::new(settings),
            generation: AtomicU64::new(1),
            stats: Stats::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn settings(&self) -> Settings {
        self.lock().clone()
    }

    fn change(&self, query: &str) -> Result<(), String> {
        let mut changed = self.settings();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            changed.set(name, &value.replace("%3A", ":"))?;
        }
        *self.lock() = changed;
        self.generation.fetch_add(1, Relaxed);
        Ok(())
    }

    fn clear(&self) {
        let stats = &self.stats;
        for counter in [
            &stats.connections,
            &stats.requests,
            &stats.answered,
            &stats.refused,
            &stats.bytes_up,
            &stats.bytes_down,
            &stats.late,
            &stats.reset,
            &stats.truncate,
            &stats.stall,
            &stats.corrupt,
            &stats.busy,
        ] {
            counter.store(0, Relaxed);
        }
        stats
            .in_flight_peak
            .store(stats.in_flight.load(Relaxed), Relaxed);
    }
}

/// Answers one request a connection, one after the other, for ever.
pub fn serve(listener: &TcpListener, shared: &Shared) {
    for stream in listener.incoming().flatten() {
        // A client that goes away in the middle is its own affair.
        let _ = answer(stream, shared);
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut head = Vec::new();
    let mut piece = [0u8; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = stream.read(&mut piece)?;
        if count == 0 || head.len() > 65_536 {
            return Ok(());
        }
        head.extend_from_slice(&piece[..count]);
    }
    let line = String::from_utf8_lossy(&head);
    let mut words = line.split_ascii_whitespace();
    let method = words.next().unwrap_or_default();
    let (path, query) = {
        let target = words.next().unwrap_or_default();
        target.split_once('?').unwrap_or((target, ""))
    };
    let (status, body) = match (method, path) {
        ("GET", "/stats") => ("200 OK", shared.stats.json()),
        ("GET", "/settings") => ("200 OK", shared.settings().json()),
        ("POST", "/settings") => match shared.change(query) {
            Ok(()) => ("200 OK", shared.settings().json()),
            Err(message) => ("400 Bad Request", format!("{{\"error\": {message:?}}}")),
        },
        ("POST", "/clear") => {
            shared.clear();
            ("200 OK", shared.stats.json())
        }
        _ => (
            "404 Not Found",
            String::from("{\"error\": \"GET /stats, GET or POST /settings, POST /clear\"}"),
        ),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
