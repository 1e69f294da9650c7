//! Where everything lies in a file, for decoders that are not in this crate: on a GPU.

use crate::error::{Error, Result};
use crate::header::{padded, Header, Info, FIXED};
use crate::store::Region;
use crate::tables::Model;

/// A file's header with its sections, checked: every range lies inside the file.
#[derive(Debug, Clone)]
pub struct Layout<'a> {
    pub info: Info,
    /// Width of the coded words: 8, 16 or 32.
    pub coded_bits: u32,
    /// Added to a coded word after the shift to give the sample as an ordered integer.
    pub offset: u32,
    pub shift: u8,
    /// Channels that are coded: 1 where a palette stands for them.
    pub coded_channels: usize,
    /// Tiles along x, along y, and groups of channels; tiles are numbered `((slice·groups + group)·down + row)·across + column`.
    pub grid: [usize; 3],
    /// Colours, each a run of samples; empty without a palette.
    pub palette: &'a [u8],
    /// The coding tables as they stand in the file; empty where no tile needs any.
    pub tables: &'a [u8],
    /// The same, ready for use: one word for each slot of each of 16 tables. Empty where no tile needs any.
    pub slots: Vec<u32>,
    /// The table of each context, channel by channel of a group.
    pub of_context: Vec<u8>,
    /// Byte of the file where the payload starts.
    pub payload: usize,
    /// Bytes from there to the start of each tile, and to the end of the last.
    pub tile_offsets: Vec<u64>,
    /// The checksum of each tile.
    pub tile_hashes: Vec<u32>,
    /// Byte of the file where the coding tables start.
    pub tables_start: usize,
}

/// Reads and checks the header and where each tile lies; the tiles themselves are not looked at.
pub fn layout(file: &[u8]) -> Result<Layout<'_>> {
    let header = Header::parse(file)?;
    let tiles = header.info.tiles as usize;
    let mut tile_offsets = Vec::with_capacity(tiles + 1);
    let mut tile_hashes = Vec::with_capacity(tiles);
    let mut end = 0;
    for tile in 0..tiles {
        let (start, length) = header.tile_range(tile)?;
        tile_offsets.push(start as u64);
        tile_hashes.push(header.tile_hash(tile));
        end = (start + length) as u64;
    }
    tile_offsets.push(end);
    let (mut slots, mut of_context) = (Vec::new(), Vec::new());
    if !header.tables.is_empty() {
        let channels = header.coded_channels();
        let model = match header.coded_bits {
            8 => parsed::<u8>(header.tables, channels, &mut slots),
            16 => parsed::<u16>(header.tables, channels, &mut slots),
            _ => parsed::<u32>(header.tables, channels, &mut slots),
        }?;
        of_context = model.of_context;
    }
    let grid = header.grid();
    let before = [header.metadata.len(), header.palette.len()];
    Ok(Layout {
        coded_bits: header.coded_bits,
        offset: header.offset,
        shift: header.shift,
        coded_channels: header.coded_channels(),
        grid: [grid.across, grid.down, grid.groups],
        palette: header.palette,
        tables: header.tables,
        slots,
        of_context,
        payload: header.payload_start,
        tile_offsets,
        tile_hashes,
        tables_start: FIXED + before.iter().map(|&bytes| padded(bytes as u64) as usize).sum::<usize>(),
        info: header.info,
    })
}

fn parsed<W: crate::word::Word>(bytes: &[u8], channels: usize, slots: &mut Vec<u32>) -> Result<Model> {
    let model = Model::parse::<W>(bytes, channels)?;
    model.slots::<W>(slots);
    Ok(model)
}

impl Layout<'_> {
    /// Compares the checksums of the tiles that `region` touches, without decoding them.
    ///
    /// # Errors
    /// What is wrong with the header or a tile, or [`Error::Request`] for a region outside of the image.
    pub fn verify(file: &[u8], region: Region) -> Result<()> {
        let header = Header::parse(file)?;
        let (info, grid) = (&header.info, header.grid());
        let inside =
            |start: u32, size: u32, side: u32| size > 0 && u64::from(start) + u64::from(size) <= u64::from(side);
        if !inside(region.x, region.width, info.width)
            || !inside(region.y, region.height, info.height)
            || !inside(region.z, region.depth, info.depth)
        {
            return Err(Error::Request(format!("{region:?} does not lie inside the image")));
        }
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
}
