//! Just enough HTTP/1.1 to know where messages begin and end. Bytes pass through unchanged.

const HEAD_LIMIT: usize = 64 * 1024;
const MOST_HEADERS: usize = 128;

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Chunked,
    /// Until the connection ends, or no HTTP at all.
    Rest,
}

/// A request's head, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub key: u64,
    pub is_get: bool,
    pub is_head: bool,
    pub body: Body,
}

/// A response's head, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub body: Body,
}

/// The bytes are no HTTP/1 message.
#[derive(Debug)]
pub struct Malformed;

/// Where the reader stands after some bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// All bytes taken, the head is not whole yet.
    More,
    /// `reader.head` holds a whole head; tell the reader what follows with [`Reader::expect`].
    Head,
    /// The bytes taken belong to the body; `last` when it ends with them.
    Body { last: bool },
}

#[derive(Clone, Copy)]
enum State {
    Head,
    Left(u64),
    Rest,
    ChunkSize(u64, bool),
    ChunkData(u64),
    ChunkEnd,
    Trailer(u32),
}

/// Cuts a stream of bytes into heads and bodies.
pub struct Reader {
    pub head: Vec<u8>,
    state: State,
}

impl Reader {
    pub fn new() -> Self {
        Self {
            head: Vec::new(),
            state: State::Head,
        }
    }

    /// Takes everything from here on as one body without end.
    pub fn give_up(&mut self) {
        self.state = State::Rest;
    }

    /// Says what follows the head that was just read. Returns whether the message is over with its head.
    pub fn expect(&mut self, body: Body) -> bool {
        self.head.clear();
        self.state = match body {
            Body::Length(0) => State::Head,
            Body::Length(length) => State::Left(length),
            Body::Chunked => State::ChunkSize(0, false),
            Body::Rest => State::Rest,
        };
        body == Body::Length(0)
    }

    /// Takes some of `input` (not empty), and says how many bytes and what they were. When it fails, `head`
    /// holds what was taken before and not yet passed on.
    pub fn step(&mut self, input: &[u8]) -> Result<(usize, Step), Malformed> {
        match self.state {
            State::Head => {
                let known = self.head.len();
                let room = HEAD_LIMIT.saturating_sub(known).min(input.len());
                self.head.extend_from_slice(&input[..room]);
                let from = known.saturating_sub(3);
                let found = self.head[from..]
                    .windows(4)
                    .position(|four| four == b"\r\n\r\n");
                match found {
                    // Another protocol is seen at its first byte, so that nobody waits for the end of a head.
                    _ if !self.head[0].is_ascii_uppercase() => {
                        self.head.truncate(known);
                        Err(Malformed)
                    }
                    Some(at) => {
                        self.head.truncate(from + at + 4);
                        Ok((self.head.len() - known, Step::Head))
                    }
                    None if self.head.len() >= HEAD_LIMIT => {
                        self.head.truncate(known);
                        Err(Malformed)
                    }
                    None => Ok((room, Step::More)),
                }
            }
            State::Left(left) => {
                let taken = left.min(input.len() as u64);
                let last = taken == left;
                self.state = if last {
                    State::Head
                } else {
                    State::Left(left - taken)
                };
                Ok((taken as usize, Step::Body { last }))
            }
            State::Rest => Ok((input.len(), Step::Body { last: false })),
            _ => self.chunked(input),
        }
    }

    fn chunked(&mut self, input: &[u8]) -> Result<(usize, Step), Malformed> {
        let mut at = 0;
        while at < input.len() {
            let byte = input[at];
            self.state = match self.state {
                State::ChunkData(left) => {
                    let taken = left.min((input.len() - at) as u64);
                    at += taken as usize;
                    if taken < left {
                        State::ChunkData(left - taken)
                    } else {
                        State::ChunkEnd
                    }
                }
                State::ChunkSize(size, extension) => {
                    at += 1;
                    match byte {
                        b'\n' if size == 0 => State::Trailer(0),
                        b'\n' => State::ChunkData(size),
                        b'\r' => State::ChunkSize(size, extension),
                        _ if extension || byte == b';' => State::ChunkSize(size, true),
                        _ => {
                            let digit = (byte as char).to_digit(16).ok_or(Malformed)?;
                            let size = size.checked_mul(16).ok_or(Malformed)?;
                            State::ChunkSize(size + u64::from(digit), false)
                        }
                    }
                }
                State::ChunkEnd => {
                    at += 1;
                    if byte == b'\n' {
                        State::ChunkSize(0, false)
                    } else {
                        State::ChunkEnd
                    }
                }
                State::Trailer(line) => {
                    at += 1;
                    match byte {
                        b'\n' if line == 0 => {
                            self.state = State::Head;
                            return Ok((at, Step::Body { last: true }));
                        }
                        b'\n' => State::Trailer(0),
                        b'\r' => State::Trailer(line),
                        _ => State::Trailer(line + 1),
                    }
                }
                State::Head | State::Left(_) | State::Rest => return Err(Malformed),
            };
        }
        Ok((at, Step::Body { last: false }))
    }
}

fn framing(headers: &[httparse::Header<'_>], otherwise: Body) -> Result<Body, Malformed> {
    let mut body = otherwise;
    for header in headers {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if header.value.to_ascii_lowercase().ends_with(b"chunked") {
                return Ok(Body::Chunked);
            }
        } else if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).map_err(|_| Malformed)?;
            body = Body::Length(text.trim().parse().map_err(|_| Malformed)?);
        }
    }
    Ok(body)
}

/// Reads a request's head.
pub fn request(head: &[u8]) -> Result<Request, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(head).map_err(|_| Malformed)?;
    let method = parsed.method.ok_or(Malformed)?;
    let range = parsed
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("range"))
        .map_or(&b""[..], |header| header.value);
    Ok(Request {
        key: crate::fate::key(&[
            method.as_bytes(),
            parsed.path.ok_or(Malformed)?.as_bytes(),
            range,
        ]),
        is_get: method == "GET",
        is_head: method == "HEAD",
        body: framing(parsed.headers, Body::Length(0))?,
    })
}

/// Reads a response's head; `to_head` when it answers a HEAD.
pub fn response(head: &[u8], to_head: bool) -> Result<Response, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Response::new(&mut headers);
    parsed.parse(head).map_err(|_| Malformed)?;
    let status = parsed.code.ok_or(Malformed)?;
    let body = match status {
        101 => Body::Rest,
        100..=199 | 204 | 304 => Body::Length(0),
        _ if to_head => Body::Length(0),
        _ => framing(parsed.headers, Body::Rest)?,
    };
    Ok(Response { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages as (head length, body length), whatever the pieces that the stream comes in.
    fn cut(stream: &[u8], piece: usize) -> Vec<(usize, usize)> {
        let mut reader = Reader::new();
        let mut found = Vec::new();
        for mut input in stream.chunks(piece) {
            while !input.is_empty() {
                let (taken, step) = reader.step(input).unwrap();
                input = &input[taken..];
                match step {
                    Step::More => {}
                    Step::Head => {
                        let body = response(&reader.head, false).unwrap().body;
                        found.push((reader.head.len(), 0));
                        reader.expect(body);
                    }
                    Step::Body { .. } => found.last_mut().unwrap().1 += taken,
                }
            }
        }
        found
    }

    #[test]
    fn messages_are_found_in_pieces_of_any_size() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\nTrailer: 1\r\n\r\n";
        let plain = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 7\r\n\r\nabc\r\n\r\n";
        let empty = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n";
        let mut stream = Vec::new();
        for message in [&chunked[..], plain, empty, chunked] {
            stream.extend_from_slice(message);
        }
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".len();
        let long = chunked.len() - head;
        let expected = vec![
            (head, long),
            (plain.len() - 7, 7),
            (empty.len(), 0),
            (head, long),
        ];
        for piece in 1..stream.len() {
            assert_eq!(cut(&stream, piece), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn an_endless_head_is_malformed() {
        let mut reader = Reader::new();
        assert_eq!(reader.step(b"GET ").unwrap(), (4, Step::More));
        assert!(reader.step(&vec![b'x'; HEAD_LIMIT]).is_err());
        assert_eq!(reader.head, b"GET ");
    }

    #[test]
    fn another_protocol_is_seen_at_its_first_byte() {
        assert!(Reader::new().step(&[0x16, 3, 1]).is_err());
    }

    #[test]
    fn the_range_is_part_of_the_key() {
        let one = request(b"GET /a HTTP/1.1\r\nRange: bytes=0-1\r\n\r\n").unwrap();
        let two = request(b"GET /a HTTP/1.1\r\nRange: bytes=2-3\r\n\r\n").unwrap();
        assert_ne!(one.key, two.key);
        assert_eq!(one.body, Body::Length(0));
    }
}
