//! A loopback proxy with true delay, shared bandwidth and seeded faults, for tests.
//!
//! ```text
//! slowwire --upstream 127.0.0.1:8333 --rtt-ms 50 --rate-mb 100 --tail 0.01:20 --seed 7
//! ```
//!
//! prints one line of JSON with the addresses it listens on and runs until it is killed. Bytes are held for
//! half a round trip in each direction, however many are under way, so pipelining and parallel requests
//! cost what they cost on a long wire. The cap is one bottleneck that all connections share in turn.
//! Faults belong to requests and depend on nothing but the seed, the request's target and range, and how
//! often that one was asked for before, so a run can be repeated whatever the arrival order.
//! See `settings.rs` for every setting; all of them can be changed while it runs, over the control address.

mod control;
mod fate;
mod http;
mod lane;
mod proxy;
mod settings;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use settings::Settings;

const USAGE: &str = "usage: slowwire --upstream HOST:PORT [--listen HOST:PORT] [--control HOST:PORT] [--SETTING VALUE]…";

struct Arguments {
    listen: SocketAddr,
    control: SocketAddr,
    upstream: SocketAddr,
    settings: Settings,
}

fn arguments() -> Result<Arguments, String> {
    let mut listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut control = listen;
    let mut upstream = None;
    let mut settings = Settings::default();
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let name = flag
            .strip_prefix("--")
            .ok_or_else(|| format!("{flag:?} is no flag\n{USAGE}"))?;
        let value = words
            .next()
            .ok_or_else(|| format!("{flag} needs a value\n{USAGE}"))?;
        let address = || {
            value
                .parse::<SocketAddr>()
                .map_err(|_| format!("{flag}: {value:?} is no ADDRESS:PORT"))
        };
        match name {
            "listen" => listen = address()?,
            "control" => control = address()?,
            "upstream" => upstream = Some(address()?),
            other => settings.set(&other.replace('-', "_"), &value)?,
        }
    }
    Ok(Arguments {
        listen,
        control,
        upstream: upstream.ok_or_else(|| format!("--upstream is missing\n{USAGE}"))?,
        settings,
    })
}

fn run(arguments: Arguments) -> std::io::Result<()> {
    let wire = TcpListener::bind(arguments.listen)?;
    let knobs = TcpListener::bind(arguments.control)?;
    println!(
        "{{\"listen\": \"{}\", \"control\": \"{}\"}}",
        wire.local_addr()?,
        knobs.local_addr()?
    );
    std::io::stdout().flush()?;
    let shared = Arc::new(control::Shared::new(arguments.settings));
    let served = Arc::clone(&shared);
    std::thread::spawn(move || control::serve(&knobs, &served));
    proxy::Proxy::new(wire, arguments.upstream, shared)?.run()
}

fn main() -> ExitCode {
    let outcome = arguments().and_then(|given| run(given).map_err(|error| error.to_string()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("slowwire: {message}");
            ExitCode::FAILURE
        }
    }
}
