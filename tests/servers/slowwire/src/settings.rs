//! What the wire is like: the same names on the command line (`--rtt-ms 50`) and at the control address
//! (`POST /settings?rtt_ms=50&rate_mb=100`).

use std::fmt::Write as _;
use std::time::Duration;

/// A share of requests, as a probability.
pub type Share = f64;

/// Everything that can be set; the defaults are a perfect wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `rtt_ms`: the round trip. Half of it is added in each direction.
    pub rtt: Duration,
    /// `handshake` (0 or 1): the first bytes of a connection wait one round trip more, as they do behind a real handshake.
    pub handshake: bool,
    /// `rate_mb`: bytes from server to client, over all connections, in 10⁶ bytes a second; 0 is without a cap.
    pub rate: Option<f64>,
    /// `window_mb`: bytes held for one connection and direction before its sender is no longer read, in 10⁶ bytes.
    pub window: usize,
    /// `seed`: of every draw below.
    pub seed: u64,
    /// `tail` = `share:factor`: these responses begin `factor − 1` round trips late …
    pub tail: (Share, f64),
    /// … where a round trip counts as at least `tail_floor_ms`.
    pub tail_floor: Duration,
    /// `reset` = share: the connection is reset somewhere in the body.
    pub reset: Share,
    /// `truncate` = share: the connection is closed in good order somewhere in the body.
    pub truncate: Share,
    /// `stall` = `share:ms`: the body stops somewhere, and the connection is reset after that time.
    pub stall: (Share, Duration),
    /// `corrupt` = share: one byte of the body is another one.
    pub corrupt: Share,
    /// `busy` = `share:run:status`: `run` requests in a row are answered with `status` and never reach the server.
    pub busy: (Share, u64, u16),
    /// `faults_on`: `GET` (default) or `all` methods. The tail is for all methods.
    pub faults_on_all: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rtt: Duration::ZERO,
            handshake: true,
            rate: None,
            window: 16_000_000,
            seed: 0,
            tail: (0.0, 1.0),
            tail_floor: Duration::from_millis(1),
            reset: 0.0,
            truncate: 0.0,
            stall: (0.0, Duration::from_secs(30)),
            corrupt: 0.0,
            busy: (0.0, 8, 503),
            faults_on_all: false,
        }
    }
}

fn number(name: &str, text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(format!("{name}: {text:?} is no number of 0 or more")),
    }
}

fn share(name: &str, text: &str) -> Result<Share, String> {
    let value = number(name, text)?;
    if value > 1.0 {
        return Err(format!("{name}: {text:?} is no share between 0 and 1"));
    }
    Ok(value)
}

fn millis(name: &str, text: &str) -> Result<Duration, String> {
    let value = number(name, text)?;
    if value > 3_600_000.0 {
        return Err(format!("{name}: {text:?} is more than an hour"));
    }
    Ok(Duration::from_secs_f64(value / 1e3))
}

impl Settings {
    /// Sets one setting from text; the error names it and what it may be.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        let mut parts = text.split(':');
        let first = parts.next().unwrap_or_default();
        let (second, third, rest) = (parts.next(), parts.next(), parts.next());
        let most = match name {
            "busy" => 3,
            "tail" | "stall" => 2,
            _ => 1,
        };
        if [Some(first), second, third, rest].iter().flatten().count() > most {
            return Err(format!("{name}: {text:?} has more than {most} parts"));
        }
        match name {
            "rtt_ms" => self.rtt = millis(name, first)?,
            "handshake" => self.handshake = number(name, first)? != 0.0,
            "rate_mb" => {
                self.rate = Some(number(name, first)? * 1e6).filter(|rate| *rate > 0.0);
            }
            "window_mb" => {
                self.window = (number(name, first)?.min(1e6) * 1e6).max(65_536.0) as usize
            }
            "seed" => {
                self.seed = first
                    .parse()
                    .map_err(|_| format!("seed: {first:?} is no whole number"))?;
            }
            "tail" => {
                self.tail.0 = share(name, first)?;
                if let Some(factor) = second {
                    self.tail.1 = number(name, factor)?.max(1.0);
                }
            }
            "tail_floor_ms" => self.tail_floor = millis(name, first)?,
            "reset" => self.reset = share(name, first)?,
            "truncate" => self.truncate = share(name, first)?,
            "stall" => {
                self.stall.0 = share(name, first)?;
                if let Some(time) = second {
                    self.stall.1 = millis(name, time)?;
                }
            }
            "corrupt" => self.corrupt = share(name, first)?,
            "busy" => {
                self.busy.0 = share(name, first)?;
                if let Some(run) = second {
                    self.busy.1 = (number(name, run)? as u64).max(1);
                }
                if let Some(status) = third {
                    self.busy.2 = match status.parse() {
                        Ok(code @ 400..=599) => code,
                        _ => return Err(format!("busy: {status:?} is no status of 400 to 599")),
                    };
                }
            }
            "faults_on" => {
                self.faults_on_all = match first {
                    "GET" => false,
                    "all" => true,
                    _ => return Err(format!("faults_on: {first:?} is neither GET nor all")),
                };
            }
            _ => return Err(format!("{name:?} is no setting of slowwire")),
        }
        if self.reset + self.truncate + self.stall.0 + self.corrupt > 1.0 {
            return Err("reset + truncate + stall + corrupt is more than 1".to_owned());
        }
        Ok(())
    }

    /// The settings as JSON, under the names by which they are set.
    pub fn json(&self) -> String {
        let mut text = String::from("{");
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let _ = write!(
            text,
            "\"rtt_ms\": {}, \"handshake\": {}, \"rate_mb\": {}, \"window_mb\": {}, \"seed\": {}, \
             \"tail\": \"{}:{}\", \"tail_floor_ms\": {}, \"reset\": {}, \"truncate\": {}, \"stall\": \"{}:{}\", \
             \"corrupt\": {}, \"busy\": \"{}:{}:{}\", \"faults_on\": \"{}\"}}",
            ms(self.rtt),
            u8::from(self.handshake),
            self.rate.unwrap_or(0.0) / 1e6,
            self.window as f64 / 1e6,
            self.seed,
            self.tail.0,
            self.tail.1,
            ms(self.tail_floor),
            self.reset,
            self.truncate,
            self.stall.0,
            ms(self.stall.1),
            self.corrupt,
            self.busy.0,
            self.busy.1,
            self.busy.2,
            if self.faults_on_all { "all" } else { "GET" },
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_can_be_set_from_text() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("rtt_ms", "12.5"),
            ("handshake", "0"),
            ("rate_mb", "100"),
            ("window_mb", "4"),
            ("seed", "7"),
            ("tail", "0.01:20"),
            ("tail_floor_ms", "2"),
            ("reset", "0.1"),
            ("truncate", "0.1"),
            ("stall", "0.1:500"),
            ("corrupt", "0.1"),
            ("busy", "0.2:4:429"),
            ("faults_on", "all"),
        ] {
            let before = settings.clone();
            settings.set(name, value).unwrap();
            assert_ne!(before, settings, "{name} changed nothing");
        }
        assert_eq!(settings.rtt, Duration::from_micros(12_500));
        assert_eq!(settings.busy, (0.2, 4, 429));
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        for (name, value) in [
            ("rtt_ms", "-1"),
            ("rtt_ms", "NaN"),
            ("reset", "1.5"),
            ("busy", "0.1:2:200"),
            ("tail", "0.1:2:3"),
            ("colour", "red"),
        ] {
            let message = Settings::default().set(name, value).unwrap_err();
            assert!(message.contains(name), "{message}");
        }
        let mut settings = Settings::default();
        settings.set("reset", "0.6").unwrap();
        assert!(settings.set("truncate", "0.6").is_err());
    }
}
