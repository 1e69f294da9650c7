//! For decoders on another device: what their kernels are told of a batch of files.
//!
//! The host reads and checks headers, and lays down for each picture where its sections lie, which tiles the region
//! touches, and its coding tables; the device reads tile offsets and tiles by itself. The layout is that of
//! `python/penstock/psi/gpu/kernels/picture.cuh`: pictures, then blocks, then tables, all little-endian.

use crate::error::{Error, Result};
use crate::header::{padded, Header, SampleType, FIXED};
use crate::store::Region;
use crate::tables::{Model, SLOTS};
use crate::token::CONTEXTS;
use crate::word::Word;

/// Bytes of a picture's record, and of a block's.
const PICTURE: usize = 184;
/// Where the place of its tables is in it.
const TABLES_AT: usize = PICTURE - 16;
const BLOCK: usize = 8;
/// Channels of a group, each with its own map from contexts to tables.
const MAPS: usize = 4;

/// What is wanted of one file.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Where its bytes start on the device, from the start of all files; a multiple of 16.
    pub position: u64,
    /// What to decode; None is all of it.
    pub region: Option<Region>,
    /// Mirror left to right.
    pub flip: bool,
    /// First element of the output.
    pub out: u64,
    /// Distances in elements between slices, rows, columns and channels of the output.
    pub strides: [i64; 4],
}

/// One launch of the kernel: it is compiled for what the first four fields say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Width of the coded words.
    pub bits: u32,
    /// Channels of every tile, or 0 where they differ.
    pub channels: u32,
    /// Whether pictures have coding tables.
    pub tables: bool,
    /// Whether samples are plain bytes and rows of the output aligned.
    pub plain: bool,
    /// Blocks of this launch in the manifest.
    pub first_block: u32,
    pub blocks: u32,
}

/// What the kernels read, and how to launch them.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    pub bytes: Vec<u8>,
    /// First byte of the blocks; the pictures are at 0.
    pub blocks_at: usize,
    pub launches: Vec<Launch>,
}

/// Lays down a batch; `warps` is how many tiles one block decodes. The number in an error is the file's.
///
/// # Errors
/// What is wrong with a header, or with a request.
pub fn manifest(
    files: &[&[u8]],
    requests: &[Request],
    warps: u32,
    max_bytes: u64,
) -> std::result::Result<Manifest, (usize, Error)> {
    if files.len() != requests.len() || warps == 0 {
        return Err((0, Error::Request("there must be one request for each file, and at least one warp".into())));
    }
    let mut pictures = Vec::with_capacity(files.len());
    for (index, (file, request)) in files.iter().zip(requests).enumerate() {
        pictures.push(picture(file, request, index, max_bytes).map_err(|error| (index, error))?);
    }
    let mut kinds: Vec<Kind> = Vec::new();
    for picture in &pictures {
        if !kinds.contains(&picture.kind) {
            kinds.push(picture.kind);
        }
    }
    let mut blocks: Vec<[u32; 2]> = Vec::new();
    let mut launches = Vec::with_capacity(kinds.len());
    for kind in kinds {
        let first = blocks.len();
        for (number, picture) in pictures.iter().enumerate().filter(|(_, picture)| picture.kind == kind) {
            blocks.extend((0..picture.tiles).step_by(warps as usize).map(|tile| [number as u32, tile]));
        }
        launches.push(Launch {
            bits: kind.bits,
            channels: kind.channels,
            tables: kind.tables,
            plain: kind.plain,
            first_block: first as u32,
            blocks: (blocks.len() - first) as u32,
        });
    }
    let blocks_at = pictures.len() * PICTURE;
    let mut tables_at = blocks_at + blocks.len() * BLOCK;
    let mut bytes = Vec::with_capacity(tables_at + pictures.iter().map(|p| p.tables.len()).sum::<usize>());
    for picture in &mut pictures {
        let at = u32::try_from(tables_at).map_err(|_| (0, Error::TooLarge("the batch has too many tables".into())))?;
        picture.record[TABLES_AT..TABLES_AT + 4].copy_from_slice(&at.to_le_bytes());
        tables_at += picture.tables.len();
        bytes.extend_from_slice(&picture.record);
    }
    for block in blocks {
        block.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    }
    pictures.iter().for_each(|picture| bytes.extend_from_slice(&picture.tables));
    Ok(Manifest { bytes, blocks_at, launches })
}

/// Compares the checksums of the tiles that `region` touches, without decoding them: the device need not.
///
/// # Errors
/// What is wrong with the header or a tile, or [`Error::Request`] for a region outside of the image.
pub fn verify(file: &[u8], region: Region) -> Result<()> {
    let header = Header::parse(file)?;
    region.check(&header.info)?;
    if header.stored {
        return header.tile(0, true).map(|_| ());
    }
    let grid = header.grid();
    let along =
        |start: u32, size: u32, tile: usize| start as usize / tile..(start as usize + size as usize).div_ceil(tile);
    for slice in region.z as usize..(region.z + region.depth) as usize {
        for group in 0..grid.groups {
            for row in along(region.y, region.height, grid.tile_height) {
                for column in along(region.x, region.width, grid.tile_width) {
                    header.tile(grid.place(slice, group, row, column).index, true)?;
                }
            }
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    bits: u32,
    channels: u32,
    tables: bool,
    plain: bool,
}

struct Picture {
    record: Vec<u8>,
    tables: Vec<u8>,
    tiles: u32,
    kind: Kind,
}

fn picture(file: &[u8], request: &Request, index: usize, max_bytes: u64) -> Result<Picture> {
    let header = Header::parse(file)?;
    if header.stored {
        // Very many tiny tiles of noise: rare, and not worth a kernel.
        return Err(Error::Unsupported("samples that are stored as they are can be decoded on the CPU only".into()));
    }
    let info = &header.info;
    let region = request.region.unwrap_or(Region::whole(info));
    region.check(info)?;
    if request.position % 16 != 0 {
        return Err(Error::Request(format!("the file is at {}, which is no multiple of 16", request.position)));
    }
    let bytes = [region.height, region.depth, u32::from(info.channels), info.sample_type.bytes() as u32]
        .iter()
        .fold(u64::from(region.width), |all, &part| all.saturating_mul(u64::from(part)));
    if bytes > max_bytes {
        return Err(Error::TooLarge(format!("the region decodes to {bytes} bytes, and the limit is {max_bytes}")));
    }
    let (tables, table_count) = match header.coded_bits {
        8 => tables::<u8>(&header)?,
        16 => tables::<u16>(&header)?,
        _ => tables::<u32>(&header)?,
    };
    let grid = header.grid();
    let last = |start: u32, size: u32, tile: u32| (start + size).div_ceil(tile) - start / tile;
    let tile_box = [
        region.x / info.tile_width,
        region.y / info.tile_height,
        last(region.x, region.width, info.tile_width),
        last(region.y, region.height, info.tile_height),
    ];
    let plain = header.coded_bits == 8
        && info.sample_type == SampleType::U8
        && header.offset == 0
        && header.shift == 0
        && info.palette == 0
        && request.strides[2] == 1
        && request.out % 4 == 0
        && [(0, region.depth), (1, region.height), (3, u32::from(info.channels))]
            .iter()
            .all(|&(axis, length)| length == 1 || request.strides[axis] % 4 == 0);
    let coded = header.coded_channels();
    let kind = Kind {
        bits: header.coded_bits,
        channels: if coded <= MAPS { coded as u32 } else { 0 },
        tables: table_count > 0,
        plain,
    };
    let mut record = Vec::with_capacity(PICTURE);
    for value in [request.position, file.len() as u64, request.out] {
        record.extend_from_slice(&value.to_le_bytes());
    }
    for stride in request.strides {
        record.extend_from_slice(&stride.to_le_bytes());
    }
    if header.payload_start > u32::MAX as usize {
        return Err(Error::TooLarge("the header is larger than 4 GiB".into()));
    }
    // The last two sections in front of the payload: a word for each tile and one more, then a word for each tile.
    let hashes = header.payload_start - 4 * info.tiles as usize;
    let words = [
        (hashes - 4 * (info.tiles as usize + 1)) as u32,
        hashes as u32,
        header.payload_start as u32,
        (FIXED + padded(header.metadata.len() as u64) as usize) as u32,
        u32::from(info.palette),
        u32::from(info.sample_type.code()),
        header.offset,
        u32::from(header.shift),
        info.width,
        info.height,
        u32::from(info.channels),
        coded as u32,
        info.tile_width,
        info.tile_height,
        grid.across as u32,
        grid.down as u32,
        grid.groups as u32,
        region.x,
        region.y,
        region.z,
        region.width,
        region.height,
        region.depth,
        u32::from(request.flip),
        tile_box[0],
        tile_box[1],
        tile_box[2],
        tile_box[3],
        0, // the tables' place, once it is known
        table_count,
        index as u32,
        if header.order.decimal > 0 { header.order.unit().to_bits() } else { 0 },
    ];
    words.iter().for_each(|word| record.extend_from_slice(&word.to_le_bytes()));
    debug_assert_eq!(record.len(), PICTURE);
    let tiles = tile_box[2] * tile_box[3] * grid.groups as u32 * region.depth;
    Ok(Picture { record, tables, tiles, kind })
}

/// Sums of frequencies of each table, then the table of each context of each of four channels.
fn tables<W: Word>(header: &Header) -> Result<(Vec<u8>, u32)> {
    if header.tables.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let model = Model::parse::<W>(header.tables, header.coded_channels())?;
    let mut out = Vec::with_capacity(model.tables.len() * 2 * (W::TOKENS + 1) + MAPS * CONTEXTS);
    for frequencies in &model.tables {
        let mut sum = 0u16;
        for token in 0..W::TOKENS {
            out.extend_from_slice(&sum.to_le_bytes());
            sum += frequencies.get(token).copied().unwrap_or(0);
        }
        debug_assert_eq!(usize::from(sum), SLOTS);
        out.extend_from_slice(&sum.to_le_bytes());
    }
    out.extend_from_slice(&model.of_context);
    let count = model.tables.len() as u32;
    out.resize(2 * model.tables.len() * (W::TOKENS + 1) + MAPS * CONTEXTS, 0);
    out.resize(out.len().div_ceil(8) * 8, 0);
    Ok((out, count))
}
