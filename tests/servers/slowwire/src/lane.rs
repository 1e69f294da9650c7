//! One direction of one connection: bytes that wait for their moment, and how the direction ends.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};

/// Nanoseconds since the proxy started.
pub type Moment = u64;

enum Parcel {
    Bytes { data: Vec<u8>, sent: usize },
    Close,
    Reset,
}

/// What became of the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Open,
    Closed,
    /// Reset is due, or the receiver is gone: the connection is over.
    Dead,
}

/// Bytes in order, each with the moment it may be delivered at; moments never go back.
#[derive(Default)]
pub struct Lane {
    parcels: VecDeque<(Moment, Parcel)>,
    latest: Moment,
    pub held: usize,
    pub writable: bool,
    closed: bool,
}

impl Lane {
    /// Delivers `bytes` at `moment`, or at once when that has come and nothing waits before them.
    pub fn send(&mut self, to: &TcpStream, bytes: &[u8], moment: Moment, now: Moment) -> Flow {
        let mut sent = 0;
        self.latest = self.latest.max(moment);
        if self.parcels.is_empty() && self.writable && self.latest <= now {
            match write(to, bytes, &mut sent, &mut self.writable) {
                Flow::Open => {}
                other => return other,
            }
        }
        if sent < bytes.len() {
            self.held += bytes.len() - sent;
            let data = bytes[sent..].to_vec();
            self.parcels
                .push_back((self.latest, Parcel::Bytes { data, sent: 0 }));
        }
        Flow::Open
    }

    /// No byte is sent before `moment`.
    pub fn hold_until(&mut self, moment: Moment) {
        self.latest = self.latest.max(moment);
    }

    /// The moment of the last byte.
    pub fn latest(&self) -> Moment {
        self.latest
    }

    /// Ends the direction in good order at `moment`, after everything before it.
    pub fn close(&mut self, moment: Moment) {
        self.latest = self.latest.max(moment);
        self.parcels.push_back((self.latest, Parcel::Close));
    }

    /// Resets the connection at `moment`, after everything before it.
    pub fn reset(&mut self, moment: Moment) {
        self.latest = self.latest.max(moment);
        self.parcels.push_back((self.latest, Parcel::Reset));
    }

    /// The moment of the next parcel, when it is still to come.
    pub fn due(&self, now: Moment) -> Option<Moment> {
        self.parcels
            .front()
            .map(|(moment, _)| *moment)
            .filter(|moment| *moment > now)
    }

    /// Delivers what is due.
    pub fn flush(&mut self, to: &TcpStream, now: Moment) -> Flow {
        while let Some((moment, parcel)) = self.parcels.front_mut() {
            if *moment > now {
                break;
            }
            match parcel {
                Parcel::Bytes { data, sent } => {
                    if !self.writable {
                        break;
                    }
                    let before = *sent;
                    let flow = write(to, data, sent, &mut self.writable);
                    self.held -= *sent - before;
                    if flow != Flow::Open {
                        return flow;
                    }
                    if *sent < data.len() {
                        break;
                    }
                }
                Parcel::Close => {
                    let _ = to.shutdown(Shutdown::Write);
                    self.closed = true;
                }
                Parcel::Reset => {
                    let _ = socket2::SockRef::from(to).set_linger(Some(std::time::Duration::ZERO));
                    return Flow::Dead;
                }
            }
            self.parcels.pop_front();
        }
        if self.closed {
            Flow::Closed
        } else {
            Flow::Open
        }
    }
}

fn write(mut to: &TcpStream, data: &[u8], sent: &mut usize, writable: &mut bool) -> Flow {
    while *sent < data.len() {
        match to.write(&data[*sent..]) {
            Ok(0) => return Flow::Dead,
            Ok(count) => *sent += count,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::NotConnected => {
                    *writable = false;
                    return Flow::Open;
                }
                ErrorKind::Interrupted => {}
                _ => return Flow::Dead,
            },
        }
    }
    Flow::Open
}
