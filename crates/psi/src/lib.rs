//! PSI: a lossless image format made for parallel decoding, on a GPU's warps and a CPU's vectors alike.
//!
//! An image is cut into tiles that decode independently; within a tile, 32 lanes decode in step. `docs/psi.md` gives the
//! format byte by byte. Nothing here reads or writes files, and nothing knows of the program that uses it.
//!
//! ```
//! use penstock_psi::{decode, encode, info, DecodeOptions, Image, Options, SampleType};
//!
//! let pixels: Vec<u8> = (0..64 * 48 * 3).map(|i| (i / 7) as u8).collect();
//! let image = Image::interleaved(&pixels, 64, 48, 3, SampleType::U8);
//! let file = encode(&image, &Options::default()).unwrap();
//! assert_eq!(info(&file).unwrap().width, 64);
//! assert_eq!(decode(&file, &DecodeOptions::default()).unwrap(), pixels);
//! ```

// Lanes and columns are the indices of several arrays at once: loops over them say what is meant.
#![allow(clippy::needless_range_loop)]

mod bits;
mod choose;
mod chunks;
mod color;
mod decode;
pub mod device;
mod encode;
mod error;
mod hash;
mod header;
mod image;
mod mapping;
mod plan;
mod predict;
mod rans;
mod runs;
mod simd;
mod store;
mod tables;
#[doc(hidden)]
pub mod testing;
mod tile;
mod token;
mod word;
mod write;

pub use chunks::chunk;
pub use decode::{decode, decode_region, info, metadata, Backend, DecodeOptions, Scratch};
pub use encode::{encode, Level, Options};
pub use error::{Error, Result};
pub use header::{Info, SampleType};
pub use image::Image;
pub use store::{Region, Strides};
