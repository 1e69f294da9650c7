//! Baseline and extended pictures in one scan: decoded MCU row by MCU row into bands, no more than is needed.
#![forbid(unsafe_code)]

use crate::bits::{find_marker, signed, Cursor, End, Overrun, Source, Window};
use crate::error::{malformed, Error};
use crate::frame::Frame;
use crate::header::Scan;
use crate::huffman::{
    coefficient, difference, AcTable, BadCode, Codes, Tables, PAIR_BITS, SKIP_BITS,
};
use crate::idct::{Group, Quantiser, LANES, PLACE};
use crate::planes::{Plane, Span};
use crate::render::Renderer;
use crate::simd::{self, Level};

/// What stops the decoding of a scan.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Overrun(End),
    Code,
    /// A coefficient past the last.
    Position,
}

impl From<Overrun> for Fault {
    #[cold]
    fn from(overrun: Overrun) -> Self {
        Self::Overrun(overrun.0)
    }
}

impl From<BadCode> for Fault {
    #[cold]
    fn from(_: BadCode) -> Self {
        Self::Code
    }
}

impl Fault {
    /// In words, for MCU row `row` of `rows`, each `height` rows high.
    #[cold]
    pub fn error(self, data: &[u8], frame: &Frame, line: usize) -> Error {
        let line = line.min(frame.height - 1);
        let place = format!("in row {line} of {}", frame.height);
        match self {
            Self::Overrun(End::File) => Error::new(
                crate::ErrorKind::Truncated,
                format!("JPEG ends after {} bytes, {place}", data.len()),
            ),
            Self::Overrun(End::Marker(at)) => malformed(format!(
                "a marker (FF {:02X}) at byte {at} cuts the scan short, {place}",
                data.get(at + 1).copied().unwrap_or(0)
            )),
            Self::Code => malformed(format!("a code that is in no Huffman table, {place}")),
            Self::Position => malformed(format!("a block of more than 64 coefficients, {place}")),
        }
    }
}

/// One block of an MCU.
pub(crate) struct BlockSpec<'a> {
    component: usize,
    dx: usize,
    dy: usize,
    h: usize,
    v: usize,
    group: usize,
    dc: &'a Codes,
    ac: &'a Codes,
    fast: &'a AcTable,
    quantiser: &'a Quantiser,
}

/// Everything about the scan that does not change while it is decoded.
pub(crate) struct Plan<'a> {
    level: Level,
    blocks: Vec<BlockSpec<'a>>,
    mcus_x: usize,
    mcus_y: usize,
    /// MCUs that hold anything needed.
    columns: Span,
    rows: Span,
}

/// What changes.
pub(crate) struct State<'a> {
    source: Source<'a>,
    window: &'a mut Window,
    cursor: Cursor,
    predictions: [i32; 4],
    groups: &'a mut [Group],
    planes: &'a mut [Plane],
}

/// Decodes one coefficient that the fast tables do not hold; gives its position, or what else ends the block.
///
/// Takes the cursor by value: one whose address is given away would live in memory, not in registers.
#[inline(never)]
fn slow_coefficient(
    codes: &Codes,
    mut cursor: Cursor,
    window: &Window,
    k: u32,
) -> Result<(Cursor, u32, i16), Fault> {
    let (advance, value) = coefficient(codes, &mut cursor, window)?;
    match k + advance {
        k @ (..=63 | 128..) => Ok((cursor, k, value)),
        _ => Err(Fault::Position),
    }
}

/// Finishes a block coefficient by coefficient.
#[inline(never)]
fn finish_block(
    codes: &Codes,
    mut cursor: Cursor,
    window: &Window,
    mut k: u32,
    mut store: Option<(&mut Group, usize)>,
) -> Result<Cursor, Fault> {
    while k < 63 {
        let value;
        (cursor, k, value) = slow_coefficient(codes, cursor, window, k)?;
        if let (Some((group, lane)), 0..=63) = (&mut store, k) {
            group.values[(usize::from(PLACE[k as usize]) + *lane) & 511] = value;
        }
    }
    Ok(cursor)
}

/// What is done with the coefficients of a block.
trait Sink {
    /// Decodes what one look at the fast table gives; false where that is nothing.
    fn step(&mut self, fast: &AcTable, cursor: &mut Cursor, k: &mut u32) -> bool;
    /// Takes one coefficient.
    fn put(&mut self, k: u32, value: i16);
    /// To give to [`finish_block`].
    fn store(&mut self) -> Option<(&mut Group, usize)>;
}

/// Keeps the coefficients in one lane of a group.
struct Keep<'a> {
    group: &'a mut Group,
    lane: usize,
}

impl Sink for Keep<'_> {
    #[inline(always)]
    fn step(&mut self, fast: &AcTable, cursor: &mut Cursor, k: &mut u32) -> bool {
        let pair = &fast.pairs[(cursor.bits >> (64 - PAIR_BITS)) as usize];
        if pair.bits == 0 {
            return false;
        }
        let value = signed(cursor.bits << (pair.before & 63), u32::from(pair.size));
        cursor.consume(u32::from(pair.bits));
        self.put(*k + u32::from(pair.first), pair.value);
        *k += u32::from(pair.last);
        self.put(*k, value as i16);
        true
    }

    #[inline(always)]
    fn put(&mut self, k: u32, value: i16) {
        let place = usize::from(PLACE[k as usize & 255]) + self.lane;
        self.group.values[place & 511] = value;
    }

    fn store(&mut self) -> Option<(&mut Group, usize)> {
        Some((self.group, self.lane))
    }
}

/// Drops them.
struct Drop;

impl Sink for Drop {
    #[inline(always)]
    fn step(&mut self, fast: &AcTable, cursor: &mut Cursor, k: &mut u32) -> bool {
        let skip = fast.skips[(cursor.bits >> (64 - SKIP_BITS)) as usize];
        cursor.consume(u32::from(skip.bits));
        *k += u32::from(skip.advance);
        skip.bits != 0
    }

    fn put(&mut self, _: u32, _: i16) {}

    fn store(&mut self) -> Option<(&mut Group, usize)> {
        None
    }
}

/// Reads the AC coefficients of a block.
#[inline(always)]
fn decode_ac(
    spec: &BlockSpec,
    cursor: &mut Cursor,
    window: &Window,
    mut sink: impl Sink,
) -> Result<(), Fault> {
    let mut k = 0u32;
    loop {
        cursor.refill(window);
        for _ in 0..2 {
            let before = (*cursor, k);
            if !sink.step(spec.fast, cursor, &mut k) {
                let value;
                (*cursor, k, value) = slow_coefficient(spec.ac, *cursor, window, k)?;
                sink.put(k, value);
                if k >= 63 {
                    return Ok(());
                }
                break;
            }
            if k >= 63 {
                if k != 63 && !(128..191).contains(&k) {
                    // the last but one ended the block, and the last belongs to the next
                    *cursor = finish_block(spec.ac, before.0, window, before.1, sink.store())?;
                }
                return Ok(());
            }
        }
    }
}

#[inline(always)]
fn decode_dc(
    spec: &BlockSpec,
    cursor: &mut Cursor,
    window: &Window,
    prediction: &mut i32,
) -> Result<(), Fault> {
    cursor.refill(window);
    *prediction = prediction.wrapping_add(difference(spec.dc, cursor)?);
    Ok(())
}

/// Decodes MCUs `run` of MCU row `row`; no restart lies within.
#[inline(always)]
pub(crate) fn decode_run(
    plan: &Plan,
    state: &mut State,
    row: usize,
    run: Span,
) -> Result<(), Fault> {
    let wanted = if plan.rows.contains(row) {
        plan.columns
    } else {
        Span::default()
    };
    let mut cursor = state.cursor;
    for x in run.from..run.to {
        cursor = state.source.ready(cursor, state.window)?;
        let window = &*state.window;
        if !wanted.contains(x) {
            for spec in &plan.blocks {
                let prediction = &mut state.predictions[spec.component & 3];
                decode_dc(spec, &mut cursor, window, prediction)?;
                decode_ac(spec, &mut cursor, window, Drop)?;
            }
            continue;
        }
        for spec in &plan.blocks {
            let prediction = &mut state.predictions[spec.component & 3];
            let plane = &mut state.planes[spec.component];
            let (column, line) = (x * spec.h + spec.dx, row * spec.v + spec.dy);
            if !plane.columns.contains(column) || !plane.rows.contains(line) {
                decode_dc(spec, &mut cursor, window, prediction)?;
                decode_ac(spec, &mut cursor, window, Drop)?;
                continue;
            }
            let lane = (column - plane.columns.from) % LANES;
            let group = &mut state.groups[spec.group];
            decode_dc(spec, &mut cursor, window, prediction)?;
            group.values[lane * 8] = *prediction as i16;
            let keep = Keep {
                group,
                lane: lane * 8,
            };
            decode_ac(spec, &mut cursor, window, keep)?;
            if lane == LANES - 1 || column + 1 == plane.columns.to {
                let stride = plane.stride();
                let out = plane.block(column - lane, line);
                simd::inverse(plan.level, group, spec.quantiser, out, stride);
                group.values[..256].fill(0);
            }
        }
    }
    state.cursor = cursor;
    Ok(())
}

/// The one place where samples of a finished MCU row get their edges and go to the renderer.
pub(crate) fn finish_row(frame: &Frame, planes: &mut [Plane], renderer: &mut Renderer, row: usize) {
    for (plane, c) in planes.iter_mut().zip(&frame.components) {
        for line in row * c.v..(row + 1) * c.v {
            if plane.rows.contains(line) {
                plane.extend_edges(line);
            }
        }
    }
    renderer.rows_until(planes, row);
}

/// MCU columns and rows that hold the blocks needed.
pub(crate) fn needed_mcus(frame: &Frame, planes: &[Plane]) -> (Span, Span) {
    let spans = planes
        .iter()
        .zip(&frame.components)
        .map(|(p, c)| (p.columns.in_units_of(c.h), p.rows.in_units_of(c.v)));
    spans
        .reduce(|a, b| (a.0.joined(b.0), a.1.joined(b.1)))
        .unwrap_or_default()
}

/// Memory that the decoding of a scan uses.
pub(crate) struct ScanMemory<'a> {
    pub window: &'a mut Window,
    pub groups: &'a mut Vec<Group>,
    pub planes: &'a mut [Plane],
}

/// Decodes what the planes need and hands it to the renderer; without one, walks through the whole scan.
#[allow(clippy::too_many_arguments)] // one call, in lib.rs
pub(crate) fn decode(
    level: Level,
    data: &[u8],
    frame: &Frame,
    scan: &Scan,
    tables: &mut Tables,
    restart_interval: usize,
    quantisers: &[Quantiser],
    memory: ScanMemory,
    mut renderer: Option<&mut Renderer>,
) -> Result<(), Error> {
    for c in &scan.components {
        tables.dc(c.dc)?;
        tables.prepare_ac(c.ac)?;
    }
    let mut blocks = Vec::new();
    let mut group = 0;
    for spec in &scan.components {
        let (h, v) = (
            frame.components[spec.index].h,
            frame.components[spec.index].v,
        );
        for i in 0..h * v {
            blocks.push(BlockSpec {
                component: spec.index,
                dx: i % h,
                dy: i / h,
                h,
                v,
                group: group + i / h,
                dc: tables.dc(spec.dc)?,
                ac: tables.ac(spec.ac)?,
                fast: tables.fast_ac(spec.ac),
                quantiser: &quantisers[spec.index],
            });
        }
        group += v;
    }
    memory.groups.clear();
    memory.groups.resize(group, Group::default());
    let (columns, rows) = needed_mcus(frame, memory.planes);
    let plan = Plan {
        level,
        blocks,
        mcus_x: frame.mcus_x,
        mcus_y: frame.mcus_y,
        columns,
        rows,
    };
    let mut state = State {
        source: Source::new(data, level),
        window: memory.window,
        cursor: Cursor::default(),
        predictions: [0; 4],
        groups: memory.groups,
        planes: memory.planes,
    };
    let total = plan.mcus_x * plan.mcus_y;
    let stop = match renderer {
        Some(_) => (rows.to - 1) * plan.mcus_x + columns.to,
        None => total,
    };
    let interval = match restart_interval {
        0 => total,
        n => n,
    };
    let line = |mcu: usize| mcu / plan.mcus_x * 8 * frame.v_max;
    let mut mcu = 0;
    // where the search for the next restart marker begins, if the last interval was passed over
    let mut passed = None;
    while mcu < stop {
        if mcu % interval == 0 {
            let mut position = scan.data;
            if mcu > 0 {
                let end = match passed.take() {
                    Some(from) => find_marker(data, from),
                    None => {
                        let check = state.source.check(&state.cursor);
                        check.map_err(|o| Fault::from(o).error(data, frame, line(mcu)))?;
                        state.source.next_marker()
                    }
                };
                position = match end {
                    End::Marker(at) if data[at + 1] == 0xD0 + ((mcu / interval - 1) & 7) as u8 => {
                        at + 2
                    }
                    end => return Err(Fault::Overrun(end).error(data, frame, line(mcu))),
                };
            }
            let end = (mcu + interval).min(total);
            if renderer.is_some() && end <= stop && !plan.wants(mcu, end) {
                passed = Some(position);
                finish_rows(frame, &plan, &mut state, &mut renderer, mcu, end);
                mcu = end;
                continue;
            }
            state.cursor = state.source.begin(position, state.window);
            state.predictions = [0; 4];
        }
        let (row, x) = (mcu / plan.mcus_x, mcu % plan.mcus_x);
        let end = (mcu + plan.mcus_x - x)
            .min(mcu - mcu % interval + interval)
            .min(stop);
        let run = Span {
            from: x,
            to: x + end - mcu,
        };
        simd::decode_run(&plan, &mut state, row, run)
            .map_err(|fault| fault.error(data, frame, line(mcu)))?;
        finish_rows(frame, &plan, &mut state, &mut renderer, mcu, end);
        mcu = end;
    }
    let check = state.source.check(&state.cursor);
    check.map_err(|o| Fault::from(o).error(data, frame, line(stop - 1)))?;
    if let Some(renderer) = renderer {
        finish_row(frame, state.planes, renderer, rows.to - 1);
    }
    Ok(())
}

/// Finishes the rows that end between MCUs `from` and `to`.
fn finish_rows(
    frame: &Frame,
    plan: &Plan,
    state: &mut State,
    renderer: &mut Option<&mut Renderer>,
    from: usize,
    to: usize,
) {
    if let Some(renderer) = renderer {
        for row in from / plan.mcus_x..to / plan.mcus_x {
            if plan.rows.contains(row) {
                finish_row(frame, state.planes, renderer, row);
            }
        }
    }
}

impl Plan<'_> {
    pub fn level(&self) -> Level {
        self.level
    }

    /// Whether any of MCUs `from..to` is needed.
    fn wants(&self, from: usize, to: usize) -> bool {
        (from / self.mcus_x..=(to - 1) / self.mcus_x).any(|row| {
            let left = from.saturating_sub(row * self.mcus_x);
            let right = (to - row * self.mcus_x).min(self.mcus_x);
            self.rows.contains(row) && left < self.columns.to && right > self.columns.from
        })
    }
}
