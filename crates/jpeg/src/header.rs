//! Walks the marker segments and keeps what they define, up to each scan.
#![forbid(unsafe_code)]

use crate::error::{ends_in, malformed, unsupported, Error};
use crate::frame::Frame;
use crate::huffman::Tables;

/// How the colours are coded, decided as libjpeg decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Grey,
    YCbCr,
    Rgb,
    Cmyk,
    Ycck,
}

/// One component of a scan and the Huffman tables it uses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScanComponent {
    pub index: usize,
    pub dc: usize,
    pub ac: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Scan {
    pub components: Vec<ScanComponent>,
    /// Spectral selection and successive approximation; 0, 63, 0, 0 in sequential frames.
    pub start: u8,
    pub end: u8,
    pub high: u8,
    pub low: u8,
    /// Where the entropy-coded bytes begin.
    pub data: usize,
}

/// What came before the next scan.
pub(crate) struct Headers<'a> {
    data: &'a [u8],
    at: usize,
    pub frame: Option<Frame>,
    pub quant: [Option<[u16; 64]>; 4],
    pub restart_interval: usize,
    pub orientation: u8,
    jfif: bool,
    adobe: Option<u8>,
}

const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;

impl<'a> Headers<'a> {
    pub fn new(data: &'a [u8]) -> Result<Self, Error> {
        match data {
            [0xFF, SOI, ..] => {}
            [] | [0xFF] => return Err(ends_in(data.len(), "the start marker")),
            _ => return Err(malformed("not a JPEG: it does not start with FF D8")),
        }
        Ok(Self {
            data,
            at: 2,
            frame: None,
            quant: [None; 4],
            restart_interval: 0,
            orientation: 1,
            jfif: false,
            adobe: None,
        })
    }

    /// Goes on at `at`, which lies somewhere in entropy-coded bytes or at a marker.
    pub fn resume(&mut self, at: usize) {
        self.at = at;
    }

    /// Reads segments up to and including the frame header.
    pub fn until_frame(&mut self) -> Result<&Frame, Error> {
        while self.frame.is_none() {
            let marker = self.marker()?;
            match marker {
                EOI | SOS => {
                    return Err(malformed(
                        "JPEG comes to its scan or end without a frame header",
                    ))
                }
                _ => self.segment(marker, None)?,
            }
        }
        self.frame
            .as_ref()
            .ok_or_else(|| malformed("JPEG has no frame header"))
    }

    /// Reads segments up to and including the next scan header; `None` at the end marker.
    pub fn until_scan(&mut self, tables: &mut Tables) -> Result<Option<Scan>, Error> {
        loop {
            match self.marker()? {
                EOI => return Ok(None),
                SOS => return self.scan().map(Some),
                marker => self.segment(marker, Some(tables))?,
            }
        }
    }

    /// Next marker code; bytes before it that are no marker are passed over, as libjpeg does.
    fn marker(&mut self) -> Result<u8, Error> {
        loop {
            let skip = crate::bits::find_ff(&self.data[self.at.min(self.data.len())..]);
            self.at += skip;
            match self.data.get(self.at + 1) {
                None => return Err(ends_in(self.data.len(), "its headers")),
                Some(0xFF) => self.at += 1,
                Some(0x00 | 0xD0..=0xD7) => self.at += 2,
                Some(&code) => {
                    self.at += 2;
                    return Ok(code);
                }
            }
        }
    }

    /// Body of the segment here; moves past it.
    fn body(&mut self, what: &str) -> Result<&'a [u8], Error> {
        let short = || ends_in(self.data.len(), what);
        let length = match self.data.get(self.at..self.at + 2) {
            Some(bytes) => usize::from(u16::from_be_bytes([bytes[0], bytes[1]])),
            None => return Err(short()),
        };
        if length < 2 {
            return Err(malformed(format!("{what} has length {length}")));
        }
        let body = self
            .data
            .get(self.at + 2..self.at + length)
            .ok_or_else(short)?;
        self.at += length;
        Ok(body)
    }

    fn segment(&mut self, marker: u8, tables: Option<&mut Tables>) -> Result<(), Error> {
        match marker {
            0x01 | SOI => {} // stand-alone
            0xC0..=0xC2 => {
                if self.frame.is_some() {
                    return Err(malformed("a second frame header"));
                }
                let body = self.body("the frame header")?;
                self.frame = Some(Frame::parse(body, marker == 0xC2)?);
            }
            0xC4 => {
                let body = self.body("a Huffman table")?;
                if let Some(tables) = tables {
                    tables.define(body)?;
                }
            }
            0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF | 0xC8 => {
                let what = match marker {
                    0xC3 => "lossless",
                    0xC5..=0xC7 => "hierarchical",
                    0xC9 | 0xCA => "arithmetic-coded",
                    _ => "lossless or hierarchical arithmetic-coded",
                };
                return Err(unsupported(format!(
                    "{what} JPEG (marker FF {marker:02X}); Huffman-coded baseline, extended and \
                     progressive are read"
                )));
            }
            0xCC => {
                return Err(unsupported("arithmetic-coded JPEG (marker FF CC)"));
            }
            0xDB => {
                let body = self.body("a quantisation table")?;
                self.quantisation(body)?;
            }
            0xDD => match self.body("the restart interval")? {
                [high, low] => {
                    self.restart_interval = usize::from(u16::from_be_bytes([*high, *low]));
                }
                _ => return Err(malformed("restart interval of a wrong length")),
            },
            0xDC => return Err(unsupported("number of lines defined after the first scan")),
            0xDE | 0xDF => return Err(unsupported("hierarchical JPEG")),
            0xE0 => {
                let body = self.body("an application segment")?;
                self.jfif |= body.len() >= 14 && body.starts_with(b"JFIF\0");
            }
            0xE1 => {
                let body = self.body("an application segment")?;
                if let Some(tiff) = body.strip_prefix(b"Exif\0\0") {
                    self.orientation = crate::exif::orientation(tiff).unwrap_or(1);
                }
            }
            0xEE => {
                let body = self.body("an application segment")?;
                if body.len() >= 12 && body.starts_with(b"Adobe") {
                    self.adobe = Some(body[11]);
                }
            }
            _ => {
                self.body("a marker segment")?;
            }
        }
        Ok(())
    }

    fn quantisation(&mut self, mut body: &[u8]) -> Result<(), Error> {
        while let [spec, rest @ ..] = body {
            let (wide, index) = (spec >> 4, usize::from(spec & 15));
            if wide > 1 || index > 3 {
                return Err(malformed(format!(
                    "quantisation table with header {spec:02X}"
                )));
            }
            let size = 64 * (1 + usize::from(wide));
            let Some(values) = rest.get(..size) else {
                return Err(malformed("quantisation table is cut short"));
            };
            let mut table = [0u16; 64];
            for (k, &natural) in ZIGZAG.iter().enumerate() {
                table[usize::from(natural)] = if wide == 1 {
                    u16::from_be_bytes([values[2 * k], values[2 * k + 1]])
                } else {
                    u16::from(values[k])
                };
            }
            self.quant[index] = Some(table);
            body = &rest[size..];
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<Scan, Error> {
        let body = self.body("a scan header")?;
        let frame = self
            .frame
            .as_ref()
            .ok_or_else(|| malformed("a scan before the frame header"))?;
        let count = usize::from(*body.first().unwrap_or(&0));
        if !(1..=4).contains(&count) || body.len() != 4 + 2 * count {
            return Err(malformed(format!(
                "scan header of {} bytes for {count} components",
                body.len()
            )));
        }
        let mut scan = Scan {
            data: self.at,
            ..Scan::default()
        };
        for spec in body[1..=2 * count].chunks_exact(2) {
            let index = frame.components.iter().position(|c| c.id == spec[0]);
            let Some(index) = index else {
                return Err(malformed(format!(
                    "scan of component {}, which is not in the frame",
                    spec[0]
                )));
            };
            if scan.components.iter().any(|c| c.index == index) {
                return Err(malformed(format!("component {} twice in a scan", spec[0])));
            }
            let (dc, ac) = (usize::from(spec[1] >> 4), usize::from(spec[1] & 15));
            if dc > 3 || ac > 3 {
                return Err(malformed(format!(
                    "Huffman table {dc} or {ac} is outside 0..3"
                )));
            }
            scan.components.push(ScanComponent { index, dc, ac });
        }
        if count > 1 {
            let blocks: usize = scan
                .components
                .iter()
                .map(|c| frame.components[c.index].h * frame.components[c.index].v)
                .sum();
            if blocks > MAX_BLOCKS {
                return Err(malformed(format!(
                    "{blocks} blocks in an MCU; at most {MAX_BLOCKS} are allowed"
                )));
            }
        }
        let progression = &body[1 + 2 * count..];
        if frame.progressive {
            scan.start = progression[0];
            scan.end = progression[1];
            scan.high = progression[2] >> 4;
            scan.low = progression[2] & 15;
            let band = if scan.start == 0 {
                scan.end == 0
            } else {
                scan.start <= scan.end && scan.end < 64 && count == 1
            };
            // a refinement adds exactly one bit
            let bits = scan.low <= 13 && (scan.high == 0 || scan.high == scan.low + 1);
            if !band || !bits {
                return Err(malformed(format!(
                    "progressive scan of coefficients {}..{}, bits {} to {}, over {count} components",
                    scan.start, scan.end, scan.high, scan.low
                )));
            }
        } else {
            scan.end = 63; // libjpeg takes wrong parameters of a sequential scan for the right ones too
        }
        Ok(scan)
    }

    pub fn colour(&self) -> Result<Colour, Error> {
        let Some(frame) = &self.frame else {
            return Err(malformed("JPEG has no frame header"));
        };
        let ids: Vec<u8> = frame.components.iter().map(|c| c.id).collect();
        Ok(match (ids.len(), self.adobe) {
            (1, _) => Colour::Grey,
            (3, _) if self.jfif => Colour::YCbCr,
            (3, Some(0)) => Colour::Rgb,
            (3, Some(_)) => Colour::YCbCr,
            (3, None) if ids == *b"RGB" => Colour::Rgb,
            (3, None) => Colour::YCbCr,
            (_, None | Some(0)) => Colour::Cmyk,
            _ => Colour::Ycck,
        })
    }
}

/// libjpeg's bound too, and the standard's.
pub(crate) const MAX_BLOCKS: usize = 10;

/// Natural position (row * 8 + column) of each coefficient in the order of the file.
pub(crate) const ZIGZAG: [u8; 64] = {
    let mut order = [0u8; 64];
    let (mut row, mut column, mut k) = (0i32, 0i32, 0);
    let mut up = true;
    while k < 64 {
        order[k] = (row * 8 + column) as u8;
        k += 1;
        if up {
            if column == 7 {
                row += 1;
                up = false;
            } else if row == 0 {
                column += 1;
                up = false;
            } else {
                row -= 1;
                column += 1;
            }
        } else if row == 7 {
            column += 1;
            up = true;
        } else if column == 0 {
            row += 1;
            up = true;
        } else {
            row += 1;
            column -= 1;
        }
    }
    order
};
