//! The wire does what it says: measured against a small HTTP server in this process.
//!
//! `cargo test --release -p slowwire -- --ignored --nocapture` measures what it can carry.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Serves `GET /<number of bytes>/<anything>`; keeps connections open.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // With the usual backlog of 128, the 200th client at once waits a second for its second SYN.
    socket2::SockRef::from(&listener).listen(1024).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

fn serve(stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    let body = vec![b'x'; 1 << 20];
    loop {
        let mut first = String::new();
        reader
            .read_line(&mut first)
            .ok()
            .filter(|count| *count > 0)?;
        if !first.starts_with("GET") {
            // Any other protocol here is an echo of lines.
            stream.write_all(first.as_bytes()).ok()?;
            continue;
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            if line == "\r\n" {
                break;
            }
        }
        let mut left: usize = first.split(['/', ' ']).nth(2)?.parse().ok()?;
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n").as_bytes())
            .ok()?;
        while left > 0 {
            let count = left.min(body.len());
            stream.write_all(&body[..count]).ok()?;
            left -= count;
        }
    }
}

struct Wire {
    child: Child,
    listen: SocketAddr,
    control: SocketAddr,
}

impl Wire {
    fn start(upstream: SocketAddr, settings: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_slowwire"))
            .args(["--upstream", &upstream.to_string()])
            .args(settings)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let words: Vec<&str> = line.split('"').collect();
        Self {
            child,
            listen: words[3].parse().unwrap(),
            control: words[7].parse().unwrap(),
        }
    }

    fn client(&self) -> Client {
        Client::new(self.listen)
    }

    fn control(&self, method: &str, target: &str) -> String {
        let mut stream = TcpStream::connect(self.control).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "{method} {target} HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn stat(&self, name: &str) -> u64 {
        let text = self.control("GET", "/stats");
        let (_, rest) = text.split_once(&format!("\"{name}\": ")).unwrap();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Whole { status: u16, clean: bool },
    Short,
    Reset,
    Stalled,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            buffer: vec![0; 1 << 18],
        }
    }

    fn ask(&mut self, target: &str) {
        self.stream
            .write_all(format!("GET /{target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
            .unwrap();
    }

    fn answer(&mut self) -> Answer {
        let mut head = Vec::new();
        let mut byte = [0u8];
        while !head.ends_with(b"\r\n\r\n") {
            match self.stream.read(&mut byte) {
                Ok(0) => return Answer::Short,
                Ok(_) => head.push(byte[0]),
                Err(error) => return broken(&error),
            }
        }
        let text = String::from_utf8(head).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, rest) = text.split_once("Content-Length: ").unwrap();
        let mut left: usize = rest.lines().next().unwrap().parse().unwrap();
        let mut clean = true;
        while left > 0 {
            let most = left.min(self.buffer.len());
            match self.stream.read(&mut self.buffer[..most]) {
                Ok(0) => return Answer::Short,
                Ok(count) => {
                    clean &= self.buffer[..count].iter().all(|byte| *byte == b'x');
                    left -= count;
                }
                Err(error) => return broken(&error),
            }
        }
        Answer::Whole { status, clean }
    }

    fn get(&mut self, target: &str) -> Answer {
        self.ask(target);
        self.answer()
    }
}

fn broken(error: &std::io::Error) -> Answer {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Answer::Stalled,
        _ => Answer::Reset,
    }
}

const FINE: Answer = Answer::Whole {
    status: 200,
    clean: true,
};

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The lowest tenth: what the wire does when the machine is not busy with something else.
fn low(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

#[test]
fn a_round_trip_takes_what_was_set_within_five_percent() {
    let upstream = server();
    let wire = Wire::start(upstream, &[]);
    let mut client = wire.client();
    let mut trips = |count: usize| {
        low((0..count)
            .map(|_| timed(|| assert_eq!(client.get("1000"), FINE)))
            .collect())
    };
    let bare = trips(200);
    for (set, count) in [(1.0, 100), (10.0, 20), (50.0, 10), (150.0, 5)] {
        wire.control("POST", &format!("/settings?rtt_ms={set}"));
        trips(2);
        let found = (trips(count) - bare) * 1e3;
        assert!(
            (found / set - 1.0).abs() < 0.05,
            "{found:.3} ms for {set} ms"
        );
    }
}

#[test]
fn a_new_connection_costs_one_round_trip_more() {
    let wire = Wire::start(server(), &["--rtt-ms", "40"]);
    let mut client = wire.client();
    let first = timed(|| assert_eq!(client.get("10"), FINE));
    let second = timed(|| assert_eq!(client.get("10"), FINE));
    assert!((0.079..0.1).contains(&first), "{first}");
    assert!((0.039..0.06).contains(&second), "{second}");
}

#[test]
fn delay_limits_neither_pipelining_nor_parallel_connections() {
    let wire = Wire::start(server(), &["--rtt-ms", "100", "--handshake", "0"]);
    let mut client = wire.client();
    let pipelined = timed(|| {
        for i in 0..50 {
            client.ask(&format!("10000/{i}"));
        }
        for _ in 0..50 {
            assert_eq!(client.answer(), FINE);
        }
    });
    assert!((0.099..0.2).contains(&pipelined), "{pipelined}");

    let mut clients: Vec<_> = (0..200).map(|_| wire.client()).collect();
    let parallel = timed(|| {
        for client in &mut clients {
            client.ask("1000");
        }
        for client in &mut clients {
            assert_eq!(client.answer(), FINE);
        }
    });
    assert!((0.099..0.2).contains(&parallel), "{parallel}");
    assert!(wire.stat("in_flight_peak") >= 200);
    assert_eq!(wire.stat("in_flight"), 0);
}

#[test]
fn the_cap_is_shared_by_all_within_five_percent() {
    let upstream = server();
    for (rate, connections, each) in [
        (20.0, 8, 500_000),
        (100.0, 16, 2_000_000),
        (300.0, 4, 20_000_000),
    ] {
        let wire = Wire::start(upstream, &["--rate-mb", &rate.to_string()]);
        let barrier = Arc::new(Barrier::new(connections + 1));
        let threads: Vec<_> = (0..connections)
            .map(|_| {
                let (mut client, barrier) = (wire.client(), Arc::clone(&barrier));
                std::thread::spawn(move || {
                    barrier.wait();
                    timed(|| assert_eq!(client.get(&each.to_string()), FINE))
                })
            })
            .collect();
        barrier.wait();
        let whole = timed(|| {
            let times: Vec<f64> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            let first = times.iter().copied().fold(f64::MAX, f64::min);
            let last = times.iter().copied().fold(0.0, f64::max);
            assert!(first > 0.6 * last, "unfair: {first} to {last} s");
        });
        let found = (connections * each) as f64 / whole / 1e6;
        assert!(
            (found / rate - 1.0).abs() < 0.05,
            "{found:.1} MB/s for {rate}"
        );
    }
}

#[test]
fn delay_and_cap_are_independent() {
    let wire = Wire::start(
        server(),
        &["--rtt-ms", "100", "--rate-mb", "50", "--handshake", "0"],
    );
    let mut client = wire.client();
    let time = timed(|| assert_eq!(client.get("20000000"), FINE));
    assert!((0.5 * 0.95..0.5 * 1.05).contains(&time), "{time}");
}

#[test]
fn the_tail_falls_on_the_same_requests_every_time() {
    let upstream = server();
    let slow = |seed: &str| -> Vec<bool> {
        let wire = Wire::start(
            upstream,
            &["--tail", "0.2:30", "--tail-floor-ms", "1", "--seed", seed],
        );
        let mut client = wire.client();
        let slow: Vec<bool> = (0..100)
            .map(|i| timed(|| assert_eq!(client.get(&format!("10/{i}")), FINE)) > 0.028)
            .collect();
        let late = wire.stat("late");
        // A busy machine can make a request slow that was not to be; it can't make one fast.
        let found = slow.iter().filter(|slow| **slow).count() as u64;
        assert!(
            late <= found && (10..30).contains(&late),
            "{late} late, {found} found"
        );
        slow
    };
    let (one, two, other) = (slow("1"), slow("1"), slow("2"));
    let differing = |other: &[bool]| one.iter().zip(other).filter(|(a, b)| a != b).count();
    assert!(differing(&two) <= 3, "{}", differing(&two));
    assert!(differing(&other) > 10, "{}", differing(&other));
}

#[test]
fn each_fault_is_what_its_name_says() {
    let upstream = server();
    let ask = |settings: &[&str], patience: Duration| {
        let wire = Wire::start(upstream, settings);
        let mut client = wire.client();
        client.stream.set_read_timeout(Some(patience)).unwrap();
        client.get("500000")
    };
    assert_eq!(ask(&["--reset", "1"], PATIENCE), Answer::Reset);
    assert_eq!(ask(&["--truncate", "1"], PATIENCE), Answer::Short);
    assert_eq!(
        ask(&["--corrupt", "1"], PATIENCE),
        Answer::Whole {
            status: 200,
            clean: false
        }
    );
    let brief = Duration::from_millis(300);
    assert_eq!(ask(&["--stall", "1:60000"], brief), Answer::Stalled);
    assert_eq!(ask(&["--stall", "1:50"], PATIENCE), Answer::Reset);
    let busy = ask(&["--busy", "1:1:429"], PATIENCE);
    assert!(
        matches!(busy, Answer::Whole { status: 429, .. }),
        "{busy:?}"
    );
}

#[test]
fn busy_answers_keep_their_place_and_the_connection_goes_on() {
    let wire = Wire::start(server(), &["--busy", "0.3:1:503", "--rtt-ms", "2"]);
    let mut client = wire.client();
    for i in 0..60 {
        client.ask(&format!("{}/{i}", 1000 + i));
    }
    let mut refused = 0;
    for _ in 0..60 {
        match client.answer() {
            Answer::Whole { status: 503, .. } => refused += 1,
            other => assert_eq!(other, FINE),
        }
    }
    assert_eq!(wire.stat("busy"), refused);
    assert_eq!(wire.stat("answered"), 60 - refused);
    assert!((5..35).contains(&refused), "{refused}");
}

#[test]
fn faults_can_be_set_and_counted_while_it_runs() {
    let wire = Wire::start(server(), &["--seed", "3"]);
    let mut client = wire.client();
    assert_eq!(client.get("100"), FINE);
    assert!(wire
        .control("POST", "/settings?reset=1")
        .starts_with("HTTP/1.1 200"));
    assert_eq!(client.get("100"), Answer::Reset);
    assert!(wire.control("POST", "/settings?reset=2").contains("reset"));
    assert!(wire.control("GET", "/settings").contains("\"reset\": 1"));
    assert!(wire.control("GET", "/nothing").starts_with("HTTP/1.1 404"));
    assert_eq!((wire.stat("requests"), wire.stat("reset")), (2, 1));
    wire.control("POST", "/clear");
    assert_eq!(wire.stat("requests"), 0);
}

#[test]
fn another_protocol_passes_with_the_same_delay() {
    let wire = Wire::start(
        server(),
        &["--rtt-ms", "30", "--handshake", "0", "--reset", "1"],
    );
    let mut stream = TcpStream::connect(wire.listen).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let time = timed(|| {
        stream.write_all(b"\x16hello\n").unwrap();
        let mut back = [0u8; 7];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"\x16hello\n");
    });
    assert!((0.029..0.06).contains(&time), "{time}");
}

#[test]
fn a_server_that_is_not_there_is_a_broken_connection_at_once() {
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let wire = Wire::start(nobody, &["--rtt-ms", "20"]);
    let mut client = wire.client();
    let time = timed(|| {
        client.ask("10");
        assert!(matches!(client.answer(), Answer::Reset | Answer::Short));
    });
    assert!(time < 1.0, "{time}");
}

#[test]
#[ignore = "a measurement: cargo test --release -p slowwire -- --ignored --nocapture"]
fn it_carries_more_than_a_gigabyte_a_second() {
    let upstream = server();
    let rate = |address: SocketAddr| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let mut client = Client::new(address);
                std::thread::spawn(move || {
                    for _ in 0..5_000 {
                        client.ask("110000");
                        let mut left =
                            110_000 + b"HTTP/1.1 200 OK\r\nContent-Length: 110000\r\n\r\n".len();
                        while left > 0 {
                            left -= client.stream.read(&mut client.buffer).unwrap();
                        }
                    }
                })
            })
            .collect();
        let time = timed(|| {
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap())
        });
        4.0 * 5_000.0 * 110_000.0 / time / 1e9
    };
    let wire = Wire::start(upstream, &[]);
    let (direct, through) = (rate(upstream), rate(wire.listen));
    println!("110 KB objects, 4 connections: {direct:.2} GB/s without the wire, {through:.2} GB/s through it");
    assert!(through >= 1.0, "{through:.2} GB/s");
}
