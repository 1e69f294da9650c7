//! What the encoder decides: predictors block by block, the colour transform, and which contexts share a table.

use crate::color;
use crate::header::{COLUMNS, GROUP, LANES};
use crate::predict::{residuals, ABOVE, HALF, PLANE};
use crate::tables::{Frequencies, Model, SLOTS, TABLES};
use crate::tile::{BAND, UNIT};
use crate::token::{raw_bits, token, CONTEXTS};
use crate::word::Word;

/// Columns that a plane of a tile is stored with.
pub(crate) const PITCH: usize = LANES * COLUMNS;

/// The words of one tile: up to four planes of `height` rows of [`PITCH`], zeros right of `width`.
pub(crate) struct Planes<W> {
    pub words: Vec<W>,
    pub channels: usize,
    pub width: usize,
    pub height: usize,
}

impl<W: Word> Planes<W> {
    pub fn plane(&self, channel: usize) -> &[W] {
        &self.words[channel * self.height * PITCH..][..self.height * PITCH]
    }

    /// The same tile under a colour transform.
    #[inline(always)]
    pub fn transformed(&self, transform: u8) -> Planes<W> {
        let mut words = self.words.clone();
        if transform != color::NONE {
            let size = self.height * PITCH;
            let (first, rest) = words.split_at_mut(size);
            let (second, rest) = rest.split_at_mut(size);
            for ((a, b), c) in first.iter_mut().zip(second).zip(rest) {
                [*a, *b, *c] = color::forward(transform, [*a, *b, *c]);
            }
        }
        Planes { words, ..*self }
    }
}

/// Approximate cost of a residual in sixteenths of a bit: the logarithm of one more, from the bits of a float.
#[inline(always)]
fn cost<W: Word>(residual: W) -> u32 {
    ((residual.get().min(i32::MAX as u32 - 1) + 1) as i32 as f32).to_bits().wrapping_sub(127 << 23) >> 19
}

/// Unsigned residuals of a row under each predictor, zeros right of the tile's width.
type Four<W> = [[W; PITCH]; 4];

/// A row and, for each of its samples, the neighbours to the left, above, and above to the left as prediction takes them.
#[inline(always)]
fn neighbours<W: Word>(plane: &[W], y: usize) -> [[W; PITCH]; 4] {
    let mut row = [W::default(); PITCH];
    row.copy_from_slice(&plane[y * PITCH..][..PITCH]);
    let (mut left, mut up, mut corner) = (row, [W::default(); PITCH], [W::default(); PITCH]);
    if y > 0 {
        up.copy_from_slice(&plane[(y - 1) * PITCH..][..PITCH]);
        corner[1..].copy_from_slice(&up[..PITCH - 1]);
        corner[0] = up[0];
    }
    left[1..].copy_from_slice(&row[..PITCH - 1]);
    left[0] = up[0];
    [row, left, up, corner]
}

#[inline(always)]
fn row_residuals<W: Word>(plane: &[W], width: usize, y: usize, out: &mut Four<W>) {
    let [row, left, up, corner] = neighbours(plane, y);
    let [a, b, c, d] = out;
    for x in 0..PITCH {
        let four = residuals(row[x], left[x], up[x], corner[x]);
        (a[x], b[x], c[x], d[x]) = (four[0].zigzag(), four[1].zigzag(), four[2].zigzag(), four[3].zigzag());
    }
    if y == 0 {
        (*b, *c, *d) = (*a, *a, *a);
    }
    if width < PITCH {
        out.iter_mut().for_each(|row| row[width..].fill(W::default()));
    }
}

/// Cost of each predictor in each block of a plane: `[block][predictor]`.
pub(crate) fn block_costs<W: Word>(
    tile: &Planes<W>,
    channel: usize,
    block: (u32, u32),
    mut cost: impl FnMut(usize, usize, W) -> u32,
) -> Vec<[u32; 4]> {
    let across = tile.width.div_ceil(1 << block.0);
    let down = tile.height.div_ceil(1 << block.1);
    let mut costs = vec![[0u32; 4]; across * down];
    let plane = tile.plane(channel);
    let mut four = [[W::default(); PITCH]; 4];
    for y in 0..tile.height {
        let line = &mut costs[(y >> block.1) * across..][..across];
        row_residuals(plane, tile.width, y, &mut four);
        for x in 0..tile.width {
            let sums = &mut line[x >> block.0];
            for (sum, row) in sums.iter_mut().zip(&four) {
                *sum += cost(x, y, row[x]);
            }
        }
    }
    costs
}

/// [`block_costs`] under the fixed cost of a residual.
#[inline(always)]
pub(crate) fn fixed_costs<W: Word>(tile: &Planes<W>, channel: usize, block: (u32, u32)) -> Vec<[u32; 4]> {
    let across = tile.width.div_ceil(1 << block.0);
    let down = tile.height.div_ceil(1 << block.1);
    let mut costs = vec![[0u32; 4]; across * down];
    let plane = tile.plane(channel);
    let mut four = [[W::default(); PITCH]; 4];
    let mut columns = [[0u32; PITCH]; 4];
    for y in 0..tile.height {
        row_residuals(plane, tile.width, y, &mut four);
        for (sums, row) in columns.iter_mut().zip(&four) {
            for x in 0..PITCH {
                sums[x] += cost(row[x]);
            }
        }
        if (y + 1) % (1 << block.1) == 0 || y + 1 == tile.height {
            let line = &mut costs[(y >> block.1) * across..][..across];
            for (predictor, sums) in columns.iter().enumerate() {
                for (total, part) in line.iter_mut().zip(sums.chunks(1 << block.0)) {
                    total[predictor] = part.iter().sum();
                }
            }
            columns = [[0; PITCH]; 4];
        }
    }
    costs
}

/// Bits that packing takes with each predictor in each block of a plane; blocks are 2³ × 2³ or larger.
#[inline(always)]
pub(crate) fn packed_costs<W: Word>(tile: &Planes<W>, channel: usize, block: (u32, u32)) -> Vec<[u32; 4]> {
    let across = tile.width.div_ceil(1 << block.0);
    let down = tile.height.div_ceil(1 << block.1);
    let mut costs = vec![[0u32; 4]; across * down];
    let plane = tile.plane(channel);
    let mut four = [[W::default(); PITCH]; 4];
    let mut any = four;
    for y in 0..tile.height {
        row_residuals(plane, tile.width, y, &mut four);
        for (all, row) in any.iter_mut().zip(&four) {
            for x in 0..PITCH {
                all[x] = all[x].or(row[x]);
            }
        }
        if y % BAND == BAND - 1 || y + 1 == tile.height {
            let line = &mut costs[(y >> block.1) * across..][..across];
            for (predictor, all) in any.iter().enumerate() {
                for (lane, unit) in all.chunks_exact(COLUMNS).take(tile.width.div_ceil(COLUMNS)).enumerate() {
                    let all = unit.iter().fold(0, |all, word| all | word.get());
                    line[(lane * COLUMNS) >> block.0][predictor] += (32 - all.leading_zeros()) * UNIT as u32;
                }
            }
            any = [[W::default(); PITCH]; 4];
        }
    }
    costs
}

/// The cheapest predictor of each block; the first of equals.
pub(crate) fn cheapest(costs: &[[u32; 4]]) -> Vec<u8> {
    costs.iter().map(|four| (0..4u8).min_by_key(|&which| (four[usize::from(which)], which)).unwrap_or(0)).collect()
}

/// The smallest blocks that [`blocks`] joins.
pub(crate) const FINEST: (u32, u32) = (2, 2);

/// The size of block, and whether the channels share their predictors, that cost least with the map counted in; and the
/// predictors. `costs` are those of [`FINEST`] blocks in sixteenths of a bit, for each channel.
pub(crate) fn blocks(costs: &[Vec<[u32; 4]>], width: usize, height: usize) -> ((u32, u32), Vec<Vec<u8>>) {
    let mut shared = vec![[0u32; 4]; costs[0].len()];
    for channel in costs {
        for (sums, four) in shared.iter_mut().zip(channel) {
            for (sum, cost) in sums.iter_mut().zip(four) {
                *sum += cost;
            }
        }
    }
    let single = [shared];
    let all = [costs, &single[..]];
    let sizes = (FINEST.0..=6).flat_map(|wide| (FINEST.1..=6).map(move |tall| (wide, tall)));
    let total = |maps: &[Vec<[u32; 4]>], block| -> u64 {
        let joined = maps.iter().flat_map(|map| join(map, width, height, block));
        joined.map(|four| 2 * 16 + u64::from(four.iter().copied().min().unwrap_or(0))).sum()
    };
    let best = sizes.flat_map(|block| all.map(|maps| (maps, block))).min_by_key(|&(maps, block)| total(maps, block));
    let (maps, block) = best.unwrap_or((costs, FINEST));
    (block, maps.iter().map(|map| cheapest(&join(map, width, height, block))).collect())
}

/// Costs of larger blocks from those of [`FINEST`] ones.
fn join(costs: &[[u32; 4]], width: usize, height: usize, block: (u32, u32)) -> Vec<[u32; 4]> {
    let fine = width.div_ceil(1 << FINEST.0);
    let across = width.div_ceil(1 << block.0);
    let mut out = vec![[0u32; 4]; across * height.div_ceil(1 << block.1)];
    for (index, four) in costs.iter().enumerate() {
        let (x, y) = ((index % fine) >> (block.0 - FINEST.0), (index / fine) >> (block.1 - FINEST.1));
        for (sum, cost) in out[y * across + x].iter_mut().zip(four) {
            *sum += cost;
        }
    }
    out
}

/// Unsigned residuals of a plane under the chosen predictors, in the pitch of the tile.
#[inline(always)]
pub(crate) fn chosen<W: Word>(tile: &Planes<W>, channel: usize, block: (u32, u32), predictors: &[u8], out: &mut [W]) {
    let across = tile.width.div_ceil(1 << block.0);
    let plane = tile.plane(channel);
    let mut masks = [[W::default(); PITCH]; 3];
    for y in 0..tile.height {
        let [row, left, up, corner] = neighbours(plane, y);
        if y == 1 || (y > 0 && y % (1 << block.1) == 0) {
            let line = &predictors[(y >> block.1) * across..][..across];
            for (mask, which) in masks.iter_mut().zip([ABOVE, PLANE, HALF]) {
                for (part, &predictor) in mask.chunks_mut(1 << block.0).zip(line) {
                    part.fill(W::of(if predictor == which { u32::MAX } else { 0 }));
                }
            }
        }
        let [above, plane, half] = &masks;
        let to = &mut out[y * PITCH..][..PITCH];
        for x in 0..PITCH {
            let slope = up[x].sub(corner[x]);
            let from_above = up[x].and(above[x]).add(slope.and(plane[x])).add(slope.half().and(half[x]));
            let known = from_above.add(left[x].sub(left[x].and(above[x])));
            to[x] = row[x].sub(known).zigzag();
        }
        to[tile.width..].fill(W::default());
    }
}

/// Cost of one channel made of the first three of some tiles, under the best predictor of each block.
#[inline(always)]
fn channel_cost<W: Word>(tiles: &[Planes<W>], make: impl Fn([W; 3]) -> W) -> u64 {
    let mut sum = 0;
    for tile in tiles {
        let mut words = vec![W::default(); tile.height * PITCH];
        for (word, ((&red, &green), &blue)) in
            words.iter_mut().zip(tile.plane(0).iter().zip(tile.plane(1)).zip(tile.plane(2)))
        {
            *word = make([red, green, blue]);
        }
        let plane = Planes { words, channels: 1, width: tile.width, height: tile.height };
        let blocks = fixed_costs(&plane, 0, (3, 3));
        sum += blocks.iter().map(|four| u64::from(four.iter().copied().min().unwrap_or(0))).sum::<u64>();
    }
    sum
}

/// The colour transform that makes the tiles cheapest.
#[inline(always)]
pub(crate) fn transform<W: Word>(tiles: &[Planes<W>]) -> u8 {
    if tiles.first().is_none_or(|tile| tile.channels < 3) {
        return color::NONE;
    }
    // Channels are weighed one by one: most transforms share most of theirs.
    let (red, green) = (channel_cost(tiles, |rgb| rgb[0]), channel_cost(tiles, |rgb| rgb[1]));
    let mut best = (red + green + channel_cost(tiles, |rgb| rgb[2]), color::NONE);
    let ycocg = (0..3).map(|channel| channel_cost(tiles, |rgb| color::forward(color::YCOCG, rgb)[channel])).sum();
    best = best.min((ycocg, color::YCOCG));
    let kept = red.min(green) + channel_cost(tiles, |rgb| rgb[0].sub(rgb[1]));
    let swap = red < green;
    for share in [8, 10, 12, 14, 16, 6, 4, 2, 0] {
        if let Some(transform) = color::blending(share, swap) {
            let weight = u32::from(share);
            let blended = channel_cost(tiles, |[red, green, blue]| blue.sub(green.blend(red, weight)));
            best = best.min((kept + blended, transform));
        }
    }
    best.1
}

/// How often each token came in each context: `[channel * CONTEXTS + context][token]`, flattened.
#[derive(Clone)]
pub(crate) struct Histograms {
    pub counts: Vec<u32>,
    pub tokens: usize,
}

impl Histograms {
    pub fn new<W: Word>() -> Self {
        Histograms { counts: vec![0; GROUP * CONTEXTS * W::TOKENS], tokens: W::TOKENS }
    }

    pub fn add(&mut self, other: &Histograms) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
    }

    /// Puts the contexts of `channels` channels into at most sixteen groups that each share a table.
    pub fn model(&self, channels: usize) -> Model {
        let channels = channels.min(GROUP);
        let rows: Vec<&[u32]> = self.counts.chunks_exact(self.tokens).take(channels * CONTEXTS).collect();
        let total = |row: &[u32]| row.iter().map(|&count| f64::from(count)).sum::<f64>();
        let mut used: Vec<(usize, f64, f64)> = rows
            .iter()
            .enumerate()
            .filter_map(|(context, row)| {
                let sum = total(row);
                let mean = row.iter().enumerate().map(|(token, &count)| token as f64 * f64::from(count)).sum::<f64>();
                (sum > 0.0).then(|| (context, sum, mean / sum))
            })
            .collect();
        let samples: f64 = used.iter().map(|row| row.1).sum();
        // A table costs about 30 bytes: it must have enough samples to earn them back.
        let count = ((samples / 3000.0) as usize).clamp(1, TABLES).min(used.len().max(1));
        used.sort_by(|a, b| a.2.total_cmp(&b.2));
        let mut group_of = vec![0usize; rows.len()];
        let mut before = 0.0;
        for &(context, sum, _) in &used {
            group_of[context] = (((before + sum / 2.0) / samples * count as f64) as usize).min(count - 1);
            before += sum;
        }
        let mut sums = vec![vec![0f64; self.tokens]; count];
        for round in 0..8 {
            for sum in &mut sums {
                sum.fill(0.0);
            }
            for &(context, _, _) in &used {
                for (sum, &count) in sums[group_of[context]].iter_mut().zip(rows[context]) {
                    *sum += f64::from(count);
                }
            }
            if round == 7 {
                break;
            }
            let bits: Vec<Vec<f64>> = sums
                .iter()
                .map(|row| {
                    let all: f64 = row.iter().sum::<f64>() + 0.02 * self.tokens as f64;
                    row.iter().map(|&count| ((all) / (count + 0.02)).log2()).collect()
                })
                .collect();
            let mut moved = false;
            for &(context, _, _) in &used {
                let nonzero: Vec<(usize, f64)> =
                    rows[context].iter().enumerate().filter(|(_, &n)| n > 0).map(|(t, &n)| (t, f64::from(n))).collect();
                let cost = |group: usize| nonzero.iter().map(|&(token, n)| n * bits[group][token]).sum::<f64>();
                let best = (0..count).map(|group| (group, cost(group))).min_by(|a, b| a.1.total_cmp(&b.1));
                if let Some((group, _)) = best {
                    moved |= group != group_of[context];
                    group_of[context] = group;
                }
            }
            if !moved && round < 6 {
                continue;
            }
        }
        // Groups that lost all their contexts go.
        let mut number = vec![None; count];
        let mut tables = Vec::new();
        for (group, sum) in sums.iter().enumerate() {
            if sum.iter().any(|&n| n > 0.0) {
                number[group] = Some(tables.len() as u8);
                tables.push(normalise(sum));
            }
        }
        if tables.is_empty() {
            tables.push(normalise(&sums[0]));
        }
        // Contexts that never come take the table of the one before them, which keeps the runs long.
        let mut of_context = Vec::with_capacity(rows.len());
        let mut last = 0;
        for (context, row) in rows.iter().enumerate() {
            if row.iter().any(|&n| n > 0) {
                last = number[group_of[context]].unwrap_or(0);
            }
            of_context.push(last);
        }
        Model { tables, of_context }
    }
}

/// Frequencies that sum to 1,024, at least 1 for each token that comes.
fn normalise(counts: &[f64]) -> Frequencies {
    let total: f64 = counts.iter().sum();
    let mut out = vec![0u16; counts.len()];
    if total == 0.0 {
        out[0] = SLOTS as u16;
        return out;
    }
    let mut sum = 0i32;
    for (frequency, &count) in out.iter_mut().zip(counts) {
        if count > 0.0 {
            *frequency = ((count * SLOTS as f64 / total).round() as u16).max(1);
            sum += i32::from(*frequency);
        }
    }
    // Give or take where a step of one changes the total length least.
    while sum != SLOTS as i32 {
        let step = (SLOTS as i32 - sum).signum();
        let change = |token: usize| {
            let frequency = f64::from(out[token]);
            counts[token] * (frequency / (frequency + f64::from(step))).log2()
        };
        let best = (0..out.len())
            .filter(|&token| out[token] > 0 && (step > 0 || out[token] > 1))
            .min_by(|&a, &b| change(a).total_cmp(&change(b)));
        let Some(token) = best else { break };
        out[token] = (i32::from(out[token]) + step) as u16;
        sum += step;
    }
    out
}

/// Sixteenths of a bit that each token takes in each table, raw bits included.
pub(crate) fn lengths(model: &Model) -> Vec<Vec<u32>> {
    model
        .tables
        .iter()
        .map(|frequencies| {
            frequencies
                .iter()
                .enumerate()
                .map(|(token, &frequency)| {
                    let coded = if frequency == 0 { 14.0 } else { (SLOTS as f64 / f64::from(frequency)).log2() };
                    (16.0 * coded).round() as u32 + 16 * raw_bits(token as u32)
                })
                .collect()
        })
        .collect()
}

/// Length of a residual under a table's [`lengths`].
#[inline(always)]
pub(crate) fn length<W: Word>(lengths: &[u32], residual: W) -> u32 {
    lengths[token(residual.get()) as usize]
}
