// What the host tells the kernels: written by crates/psi/src/device.rs, field by field the same.
#pragma once
#include "warp.cuh"

// One picture of a batch. Its file has been checked by the host as far as the header goes; tile offsets and tile bytes have not.
struct Picture {
    u64 file;        // first byte of the file, from the start of the blob; a multiple of 16
    u64 file_bytes;
    u64 out;         // first element of the output, from its start
    i64 slice;       // distances in elements of the output
    i64 row;
    i64 column;
    i64 channel;
    u32 offsets;     // bytes from the start of the file
    u32 hashes;
    u32 payload;
    u32 palette;
    u32 palette_entries;
    u32 sample;      // type of a sample, as in the header
    u32 offset;      // of a coded word, after the shift
    u32 shift;
    u32 width, height, channels, coded_channels;
    u32 tile_width, tile_height, across, down, groups;
    u32 x, y, z, box_width, box_height, box_depth; // the region
    u32 flip;        // 1: mirrored left to right
    u32 tile_x, tile_y, tiles_x, tiles_y;          // tiles that the region touches, in each slice and group
    u32 tables;      // bytes from the start of the manifest to the tables
    u32 table_count;
    u32 index;       // in the batch: where its status is
    u32 unit;        // a float32: what whole numbers are divided by to give decimal samples; 0 where samples are none
};

// Warps of one block decode neighbouring tiles of one picture.
struct Block {
    u32 picture;
    u32 first_tile; // among the tiles that the region touches
};

// Tables of a picture: for each, PSI_TOKENS + 1 sums of frequencies (u16), then for each of 4 channels 256 numbers of tables (u8).

// What is wrong with a picture: the largest of its tiles' codes.
enum Status : u32 {
    FINE = 0,
    BAD_RANGE = 1,    // a tile's offsets point outside of the file
    BAD_HEAD = 2,     // a tile's head makes no sense
    BAD_STREAM = 3,   // a tile's stream does not end where it should
    BAD_HASH = 4,     // a tile's bytes are not those that were written: the cause of whatever else is wrong
};

struct Job {
    const u8* blob;         // files, each from a multiple of 16 on
    u64 blob_bytes;         // all reads of files stay below it, but for 32 bytes that must be readable too; a multiple of 16
    const u8* manifest;     // tables
    const Picture* pictures;
    const Block* blocks;
    u8* out;
    u32* status;
    const float* scale;     // by channel; null where samples are stored as they are
    const float* bias;
    u32 verify;             // 1: check the hash of each tile first
};
