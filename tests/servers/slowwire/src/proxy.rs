//! The event loop: one thread, edge-triggered epoll, a heap of moments, and the bottleneck that all share.

use std::collections::{BinaryHeap, VecDeque};
use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{epoll, Timespec};

use crate::control::Shared;
use crate::fate::{Fate, Fates, Hurt};
use crate::http::{self, Body, Reader, Step};
use crate::lane::{Flow, Lane, Moment};
use crate::settings::Settings;

/// Bytes taken from a socket at once.
const PIECE: usize = 256 * 1024;
/// Pieces taken from one connection before the others have their turn.
const TURNS: usize = 4;
/// How far the bottleneck is booked ahead. It absorbs the time in which the loop is not scheduled.
const BOOKED: Moment = 4_000_000;
const LISTENER: u64 = u64::MAX;
const SLACK: Option<NonZeroU64> = NonZeroU64::new(1);

/// An answer that is awaited, in the order of the requests.
struct Awaited {
    to_head: bool,
    fate: Fate,
    /// Answered here, not before this moment.
    local: Option<Moment>,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    client_readable: bool,
    server_readable: bool,
    /// The other side has ended its direction.
    client_ended: bool,
    server_ended: bool,
    up: Lane,
    down: Lane,
    requests: Reader,
    responses: Reader,
    /// The body of the present request is not passed on.
    swallow: bool,
    awaited: VecDeque<Awaited>,
    /// In the body of a response: bytes until the hurt, and which.
    hurt: Option<(Hurt, u64)>,
    /// Waits for its turn at the bottleneck.
    queued: bool,
    armed: Moment,
}

/// The proxy; [`Proxy::run`] does not return while it works.
pub struct Proxy {
    start: Instant,
    epoll: std::os::fd::OwnedFd,
    listener: TcpListener,
    server: SocketAddr,
    shared: Arc<Shared>,
    generation: u64,
    settings: Settings,
    delay: Moment,
    fates: Fates,
    connections: Vec<Option<Box<Connection>>>,
    vacant: Vec<usize>,
    timers: BinaryHeap<std::cmp::Reverse<(Moment, usize)>>,
    /// Connections whose server has bytes, in turn.
    turn: VecDeque<usize>,
    /// The moment at which the bottleneck has passed everything booked.
    link_free: Moment,
    scratch: Vec<u8>,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}

impl Proxy {
    pub fn new(
        listener: TcpListener,
        server: SocketAddr,
        shared: Arc<Shared>,
    ) -> std::io::Result<Self> {
        rustix::thread::set_current_timer_slack(SLACK)?;
        listener.set_nonblocking(true)?;
        // A thousand clients may come at once.
        socket2::SockRef::from(&listener).listen(4096)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )?;
        Ok(Self {
            start: Instant::now(),
            epoll,
            listener,
            server,
            settings: shared.settings(),
            shared,
            generation: 0,
            delay: 0,
            fates: Fates::default(),
            connections: Vec::new(),
            vacant: Vec::new(),
            timers: BinaryHeap::new(),
            turn: VecDeque::new(),
            link_free: 0,
            scratch: vec![0; PIECE],
        })
    }

    fn now(&self) -> Moment {
        self.start.elapsed().as_nanos() as Moment
    }

    pub fn run(mut self) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(1024);
        loop {
            let timeout = self.sleep().map(|time| Timespec {
                tv_sec: (time / 1_000_000_000) as i64,
                tv_nsec: (time % 1_000_000_000) as _,
            });
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            self.refresh();
            for event in &events {
                let token = event.data.u64();
                if token == LISTENER {
                    self.accept();
                } else {
                    let flags = event.flags;
                    self.event((token >> 1) as usize, token & 1 == 1, flags);
                }
            }
            let now = self.now();
            while let Some(std::cmp::Reverse((moment, index))) = self.timers.peek().copied() {
                if moment > now {
                    break;
                }
                self.timers.pop();
                self.visit(index, |_, connection| {
                    if connection.armed == moment {
                        connection.armed = 0;
                    }
                });
            }
            self.take_turns();
        }
    }

    /// How long the loop may sleep; None for as long as nothing happens.
    fn sleep(&self) -> Option<Moment> {
        let timer = self.timers.peek().map(|entry| entry.0 .0);
        let turn = (!self.turn.is_empty()).then(|| self.link_free.saturating_sub(BOOKED / 2));
        let next = match (timer, turn) {
            (Some(one), Some(two)) => one.min(two),
            (one, two) => one.or(two)?,
        };
        Some(next.saturating_sub(self.now()))
    }

    fn refresh(&mut self) {
        let generation = self.shared.generation.load(Relaxed);
        if generation != self.generation {
            self.generation = generation;
            self.settings = self.shared.settings();
            self.delay = self.settings.rtt.as_nanos() as Moment / 2;
            if self.settings.rate.is_none() {
                self.link_free = 0;
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((client, _)) = self.listener.accept() {
            // Out of descriptors or memory: the client sees its connection closed, and the wire lives on.
            let _ = self.adopt(client);
        }
    }

    fn adopt(&mut self, client: TcpStream) -> std::io::Result<()> {
        client.set_nonblocking(true)?;
        client.set_nodelay(true)?;
        let domain = socket2::Domain::for_address(self.server);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        // Whether it succeeds is seen at the first read.
        let _ = socket.connect(&self.server.into());
        let server = TcpStream::from(socket);

        let index = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let token = (index as u64) << 1;
        epoll::add(
            &self.epoll,
            &client,
            epoll::EventData::new_u64(token),
            flags,
        )?;
        epoll::add(
            &self.epoll,
            &server,
            epoll::EventData::new_u64(token | 1),
            flags,
        )?;
        let mut up = Lane::default();
        if self.settings.handshake && self.delay > 0 {
            up.hold_until(self.now() + 3 * self.delay);
        }
        self.connections[index] = Some(Box::new(Connection {
            client,
            server,
            client_readable: false,
            server_readable: false,
            client_ended: false,
            server_ended: false,
            up,
            down: Lane::default(),
            requests: Reader::new(),
            responses: Reader::new(),
            swallow: false,
            awaited: VecDeque::new(),
            hurt: None,
            queued: false,
            armed: 0,
        }));
        add(&self.shared.stats.connections, 1);
        add(&self.shared.stats.open, 1);
        Ok(())
    }

    fn event(&mut self, index: usize, server: bool, flags: epoll::EventFlags) {
        let ended = epoll::EventFlags::ERR | epoll::EventFlags::HUP | epoll::EventFlags::RDHUP;
        let readable = flags.intersects(epoll::EventFlags::IN | ended);
        let writable = flags.intersects(epoll::EventFlags::OUT | ended);
        self.visit(index, |_, connection| {
            if server {
                connection.server_readable |= readable;
                connection.up.writable |= writable;
            } else {
                connection.client_readable |= readable;
                connection.down.writable |= writable;
            }
        });
    }

    /// Does `change`, then everything that the connection can do now.
    fn visit(&mut self, index: usize, change: impl FnOnce(&mut Self, &mut Connection)) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else {
            return;
        };
        change(self, &mut connection);
        let now = self.now();
        let mut flow = self.upward(&mut connection, now);
        for (lane, to) in [
            (&mut connection.up, &connection.server),
            (&mut connection.down, &connection.client),
        ] {
            if flow == Flow::Open {
                flow = lane.flush(to, now);
            }
        }
        if flow == Flow::Closed {
            // The client's half may end first; the answers still come. The server's end is the end.
            let down = connection.down.flush(&connection.client, now);
            flow = if down == Flow::Open {
                Flow::Open
            } else {
                Flow::Dead
            };
        }
        if flow != Flow::Open {
            let stats = &self.shared.stats;
            stats
                .in_flight
                .fetch_sub(connection.awaited.len() as u64, Relaxed);
            stats.open.fetch_sub(1, Relaxed);
            self.vacant.push(index);
            return;
        }
        let readable = connection.server_readable && !connection.server_ended;
        if readable && !connection.queued && connection.down.held < self.settings.window {
            connection.queued = true;
            self.turn.push_back(index);
        }
        let due = [connection.up.due(now), connection.down.due(now)];
        if let Some(moment) = due.into_iter().flatten().min() {
            if connection.armed == 0 || moment < connection.armed {
                connection.armed = moment;
                self.timers.push(std::cmp::Reverse((moment, index)));
            }
        }
        self.connections[index] = Some(connection);
    }

    /// Reads from the client.
    fn upward(&mut self, connection: &mut Connection, now: Moment) -> Flow {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut flow = Flow::Open;
        while flow == Flow::Open
            && connection.client_readable
            && !connection.client_ended
            && connection.up.held < self.settings.window
        {
            match (&connection.client).read(&mut scratch) {
                Ok(0) => {
                    connection.client_ended = true;
                    connection.up.close(now + self.delay);
                }
                Ok(count) => {
                    add(&self.shared.stats.bytes_up, count as u64);
                    flow = self.requests(connection, &scratch[..count], now);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => connection.client_readable = false,
                    ErrorKind::Interrupted => {}
                    _ => flow = Flow::Dead,
                },
            }
        }
        self.scratch = scratch;
        flow
    }

    fn requests(&mut self, connection: &mut Connection, mut bytes: &[u8], now: Moment) -> Flow {
        while !bytes.is_empty() {
            let (taken, step) = match connection.requests.step(bytes) {
                Ok(step) => step,
                Err(http::Malformed) => {
                    let held = std::mem::take(&mut connection.requests.head);
                    connection.requests.give_up();
                    connection.responses.give_up();
                    let moment = now + self.delay;
                    connection.up.send(&connection.server, &held, moment, now);
                    continue;
                }
            };
            match step {
                Step::More => {}
                Step::Head => self.request(connection, now),
                Step::Body { .. } if connection.swallow => {}
                Step::Body { .. } => {
                    let moment = now + self.delay;
                    let flow = connection
                        .up
                        .send(&connection.server, &bytes[..taken], moment, now);
                    if flow == Flow::Dead {
                        return flow;
                    }
                }
            }
            bytes = &bytes[taken..];
        }
        Flow::Open
    }

    fn request(&mut self, connection: &mut Connection, now: Moment) {
        let head = std::mem::take(&mut connection.requests.head);
        let Ok(request) = http::request(&head) else {
            connection.requests.give_up();
            connection.responses.give_up();
            connection
                .up
                .send(&connection.server, &head, now + self.delay, now);
            return;
        };
        let fate = self.fates.next(&self.settings, request.key, request.is_get);
        let stats = &self.shared.stats;
        add(&stats.requests, 1);
        let under_way = stats.in_flight.fetch_add(1, Relaxed) + 1;
        stats.in_flight_peak.fetch_max(under_way, Relaxed);
        connection.requests.expect(request.body);
        connection.swallow = fate.busy.is_some();
        let arrives = {
            connection.up.hold_until(now + self.delay);
            if fate.busy.is_none() {
                connection
                    .up
                    .send(&connection.server, &head, now + self.delay, now);
            }
            connection.up.latest()
        };
        connection.awaited.push_back(Awaited {
            to_head: request.is_head,
            fate,
            local: fate.busy.map(|_| arrives + self.delay),
        });
        if connection.awaited.len() == 1 {
            self.answer_here(connection, request.body != Body::Length(0), now);
        }
    }

    /// Answers the requests at the front that the server shall not see.
    fn answer_here(&self, connection: &mut Connection, close: bool, now: Moment) {
        while let Some(Awaited {
            local: Some(moment),
            fate,
            to_head,
        }) = connection.awaited.front()
        {
            let status = fate.busy.unwrap_or(503);
            let (code, text) = match status {
                429 => ("TooManyRequests", "Too Many Requests"),
                503 => ("SlowDown", "Service Unavailable"),
                _ => ("InternalError", "Fault"),
            };
            let body =
                format!("<Error><Code>{code}</Code><Message>made up by slowwire</Message></Error>");
            let answer = format!(
                "HTTP/1.1 {status} {text}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n{}\r\n{}",
                body.len(),
                if close { "Connection: close\r\n" } else { "" },
                if *to_head { "" } else { &body },
            );
            connection
                .down
                .send(&connection.client, answer.as_bytes(), *moment, now);
            if close {
                connection.down.close(*moment);
                connection.server_ended = true;
            }
            connection.awaited.pop_front();
            let stats = &self.shared.stats;
            add(&stats.busy, 1);
            stats.in_flight.fetch_sub(1, Relaxed);
        }
    }

    /// Lets connections pass the bottleneck in turn, as far as it may be booked.
    fn take_turns(&mut self) {
        let mut left = self.turn.len();
        while left > 0 {
            if self.settings.rate.is_some() && self.link_free > self.now() + BOOKED {
                return;
            }
            left -= 1;
            let Some(index) = self.turn.pop_front() else {
                return;
            };
            let mut again = false;
            self.visit(index, |proxy, connection| {
                connection.queued = false;
                again = proxy.downward(connection);
            });
            // `visit` has queued it again when there is more.
            if again && self.settings.rate.is_some() {
                left = self.turn.len();
            }
        }
    }

    /// Reads from the server. Returns whether there may be more at once.
    fn downward(&mut self, connection: &mut Connection) -> bool {
        let piece = match self.settings.rate {
            Some(rate) => ((rate * 0.5e-3) as usize).clamp(1_500, PIECE / 2),
            None => PIECE,
        };
        let turns = if self.settings.rate.is_some() {
            1
        } else {
            TURNS
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        for _ in 0..turns {
            if connection.server_ended || connection.down.held >= self.settings.window {
                break;
            }
            let now = self.now();
            match (&connection.server).read(&mut scratch[..piece]) {
                Ok(0) => {
                    connection.server_ended = true;
                    connection.down.close(now + self.delay);
                }
                Ok(count) => {
                    let mut passed = now;
                    if let Some(rate) = self.settings.rate {
                        let start = self.link_free.max(now);
                        passed = start + (count as f64 / rate * 1e9) as Moment;
                        self.link_free = passed;
                    }
                    add(&self.shared.stats.bytes_down, count as u64);
                    if self.responses(connection, &scratch[..count], passed + self.delay, now)
                        == Flow::Dead
                    {
                        // The client is gone: the next flush says so too.
                        connection.server_ended = true;
                        connection.down.reset(now);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => {
                        connection.server_readable = false;
                        break;
                    }
                    ErrorKind::Interrupted => {}
                    _ => {
                        connection.server_ended = true;
                        connection.down.reset(now + self.delay);
                    }
                },
            }
        }
        self.scratch = scratch;
        connection.server_readable
    }

    fn responses(
        &mut self,
        connection: &mut Connection,
        mut bytes: &[u8],
        moment: Moment,
        now: Moment,
    ) -> Flow {
        while !bytes.is_empty() && !connection.server_ended {
            let Ok((taken, step)) = connection.responses.step(bytes) else {
                let held = std::mem::take(&mut connection.responses.head);
                connection.responses.give_up();
                connection.down.send(&connection.client, &held, moment, now);
                continue;
            };
            let (piece, rest) = bytes.split_at(taken);
            bytes = rest;
            let flow = match step {
                Step::More => Flow::Open,
                Step::Head => self.response(connection, moment, now),
                Step::Body { last } => {
                    let flow = self.body(connection, piece, moment, now);
                    if last && flow == Flow::Open {
                        self.answered(connection, now);
                    }
                    flow
                }
            };
            if flow == Flow::Dead {
                return flow;
            }
        }
        Flow::Open
    }

    fn response(&mut self, connection: &mut Connection, mut moment: Moment, now: Moment) -> Flow {
        let head = std::mem::take(&mut connection.responses.head);
        let front = connection.awaited.front();
        let to_head = front.is_some_and(|awaited| awaited.to_head);
        let fate = front.map(|awaited| awaited.fate);
        let Ok(response) = http::response(&head, to_head) else {
            connection.responses.give_up();
            return connection.down.send(&connection.client, &head, moment, now);
        };
        let over = connection.responses.expect(response.body);
        let interim = response.status < 200 && response.status != 101;
        if let (Some(fate), false) = (fate, interim) {
            let stats = &self.shared.stats;
            if response.status >= 400 {
                add(&stats.refused, 1);
            }
            if fate.late > 0 {
                add(&stats.late, 1);
                moment += fate.late;
            }
            connection.hurt = fate.hurt.map(|(hurt, place)| {
                let length = match response.body {
                    Body::Length(length) => length,
                    Body::Chunked | Body::Rest => 1,
                };
                (hurt, (length as f64 * place) as u64)
            });
            if over
                && connection
                    .hurt
                    .is_some_and(|(hurt, _)| hurt != Hurt::Corrupt)
            {
                return self.injure(connection, moment);
            }
        }
        let flow = connection.down.send(&connection.client, &head, moment, now);
        if over && !interim && flow == Flow::Open {
            self.answered(connection, now);
        }
        flow
    }

    fn body(
        &mut self,
        connection: &mut Connection,
        piece: &[u8],
        moment: Moment,
        now: Moment,
    ) -> Flow {
        let Some((hurt, place)) = connection.hurt else {
            return connection.down.send(&connection.client, piece, moment, now);
        };
        if place >= piece.len() as u64 {
            connection.hurt = Some((hurt, place - piece.len() as u64));
            return connection.down.send(&connection.client, piece, moment, now);
        }
        let at = place as usize;
        if hurt == Hurt::Corrupt {
            connection.hurt = None;
            add(&self.shared.stats.corrupt, 1);
            let mut piece = piece.to_vec();
            piece[at] ^= 0x55;
            return connection
                .down
                .send(&connection.client, &piece, moment, now);
        }
        match connection
            .down
            .send(&connection.client, &piece[..at], moment, now)
        {
            Flow::Dead => Flow::Dead,
            _ => self.injure(connection, moment),
        }
    }

    /// Ends the connection as the hurt says; nothing more is taken from the server.
    fn injure(&mut self, connection: &mut Connection, moment: Moment) -> Flow {
        let stats = &self.shared.stats;
        connection.server_ended = true;
        match connection.hurt.take().map(|(hurt, _)| hurt) {
            Some(Hurt::Truncate) => {
                add(&stats.truncate, 1);
                connection.down.close(moment);
            }
            Some(Hurt::Stall) => {
                add(&stats.stall, 1);
                connection
                    .down
                    .reset(moment + self.settings.stall.1.as_nanos() as Moment);
            }
            _ => {
                add(&stats.reset, 1);
                connection.down.reset(moment);
            }
        }
        Flow::Open
    }

    fn answered(&mut self, connection: &mut Connection, now: Moment) {
        connection.hurt = None;
        if connection.awaited.pop_front().is_some() {
            self.shared.stats.in_flight.fetch_sub(1, Relaxed);
            add(&self.shared.stats.answered, 1);
        }
        self.answer_here(connection, false, now);
    }
}
