//! The geometry of a frame: how samples of each component lie in blocks and MCUs.
#![forbid(unsafe_code)]

use crate::error::{malformed, unsupported, Error};

/// One component as its frame header describes it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Component {
    pub id: u8,
    /// Sampling factors, 1..=4.
    pub h: usize,
    pub v: usize,
    /// Index of the quantisation table.
    pub table: usize,
    /// Samples that belong to the picture.
    pub width: usize,
    pub height: usize,
    /// Blocks that hold those samples; scans of one component code just these.
    pub blocks_x: usize,
    pub blocks_y: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Frame {
    pub progressive: bool,
    pub width: usize,
    pub height: usize,
    pub components: Vec<Component>,
    pub h_max: usize,
    pub v_max: usize,
    /// MCUs of a scan over several components.
    pub mcus_x: usize,
    pub mcus_y: usize,
}

impl Frame {
    /// Reads the body of a SOF0, SOF1 or SOF2 segment.
    pub fn parse(body: &[u8], progressive: bool) -> Result<Self, Error> {
        let [precision, h1, h0, w1, w0, count, rest @ ..] = body else {
            return Err(malformed("frame header is shorter than 6 bytes"));
        };
        if *precision != 8 {
            return Err(unsupported(format!(
                "{precision}-bit samples; only 8-bit JPEG is read"
            )));
        }
        let height = usize::from(u16::from_be_bytes([*h1, *h0]));
        let width = usize::from(u16::from_be_bytes([*w1, *w0]));
        if height == 0 {
            return Err(unsupported(
                "height 0 in the frame header (number of lines given later)",
            ));
        }
        if width == 0 {
            return Err(malformed("width 0 in the frame header"));
        }
        let count = usize::from(*count);
        if !matches!(count, 1 | 3 | 4) {
            return Err(unsupported(format!(
                "{count} components; 1, 3 or 4 are read"
            )));
        }
        if rest.len() != 3 * count {
            return Err(malformed(format!(
                "frame header of {} bytes for {count} components",
                body.len()
            )));
        }
        let mut frame = Frame {
            progressive,
            width,
            height,
            ..Frame::default()
        };
        for spec in rest.chunks_exact(3) {
            let (h, v) = (usize::from(spec[1] >> 4), usize::from(spec[1] & 15));
            if !(1..=4).contains(&h) || !(1..=4).contains(&v) {
                return Err(malformed(format!(
                    "sampling factors {h}x{v} are outside 1..4"
                )));
            }
            if spec[2] > 3 {
                return Err(malformed(format!(
                    "quantisation table {} is outside 0..3",
                    spec[2]
                )));
            }
            if frame.components.iter().any(|c| c.id == spec[0]) {
                return Err(malformed(format!("component {} occurs twice", spec[0])));
            }
            // a component alone is not interleaved: its factors mean nothing
            let (h, v) = if count == 1 { (1, 1) } else { (h, v) };
            frame.h_max = frame.h_max.max(h);
            frame.v_max = frame.v_max.max(v);
            frame.components.push(Component {
                id: spec[0],
                h,
                v,
                table: usize::from(spec[2]),
                ..Component::default()
            });
        }
        let (h_max, v_max) = (frame.h_max, frame.v_max);
        for c in &mut frame.components {
            if h_max % c.h != 0 || v_max % c.v != 0 {
                return Err(unsupported(format!(
                    "sampling factors {}x{} beside {h_max}x{v_max} (a fractional ratio)",
                    c.h, c.v
                )));
            }
            c.width = (width * c.h).div_ceil(h_max);
            c.height = (height * c.v).div_ceil(v_max);
            c.blocks_x = c.width.div_ceil(8);
            c.blocks_y = c.height.div_ceil(8);
        }
        frame.mcus_x = width.div_ceil(8 * h_max);
        frame.mcus_y = height.div_ceil(8 * v_max);
        Ok(frame)
    }
}
