// One tile: where it lies in its picture, in its file and in the output. All of it is the same for the 32 lanes.
#pragma once
#include "picture.cuh"

enum Mode : u32 { RAW = 0, CONSTANT = 1, DENSE = 2, PACKED = 3, RUNS = 4 };

struct Tile {
    u32 number;     // in the file
    u32 channels;   // in this tile
    u32 first_channel;
    u32 slice;
    u32 x, y;       // of its first sample, in the picture
    u32 width, height;
    u32 rows;       // to decode: up to the last that the region needs
    const u8* bytes;
    u32 length;     // a multiple of 4
    u32 mode;
    u32 colours;    // what stands for red, green and blue: 0 as they are, 3 YCoCg-R, else green, red minus green, blue minus a mean
    u32 weight;     // of green in that mean, of 16
    bool swap;      // red and green stand for each other
    u32 block_x, block_y, planes;
    u32 labels;     // of a tile of runs
    const u8* body; // behind the head
    u32 body_length;
};

// What a tile takes in shared memory.
#define PSI_TILE_BYTES 128

PSI_FN u32 divide_up(u32 value, u32 by) { return (value + by - 1) / by; }
PSI_FN u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
PSI_FN u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// Number of tiles that the region touches, in all groups and slices.
PSI_FN u32 tiles_of(const Picture& picture) {
    return picture.tiles_x * picture.tiles_y * picture.groups * picture.box_depth;
}

// The tile with that number among those that the region touches.
PSI_FN Tile place_of(const Picture& picture, u32 number) {
    Tile tile;
    u32 column = picture.tile_x + number % picture.tiles_x;
    number /= picture.tiles_x;
    u32 row = picture.tile_y + number % picture.tiles_y;
    number /= picture.tiles_y;
    u32 group = number % picture.groups;
    tile.slice = picture.z + number / picture.groups;
    tile.number = ((tile.slice * picture.groups + group) * picture.down + row) * picture.across + column;
    tile.first_channel = group * 4;
    tile.channels = smaller(picture.coded_channels - tile.first_channel, 4);
    tile.x = column * picture.tile_width;
    tile.y = row * picture.tile_height;
    tile.width = smaller(picture.width - tile.x, picture.tile_width);
    tile.height = smaller(picture.height - tile.y, picture.tile_height);
    tile.rows = smaller(tile.height, picture.y + picture.box_height - tile.y);
    return tile;
}

PSI_FN u32 hash_step(u32 chain, u32 word) {
    u32 mixed = (chain ^ word) * 0x9E3779B1u;
    return mixed ^ (mixed >> 15);
}

// The hash of a tile's bytes: 32 chains, one a lane, folded at the end.
PSI_FN u32 hash_of(const u8* bytes, u32 length, u32 number) {
    u32 lane = lane_id(), chain = lane + 1;
    u32 rows = length >> 7, row = 0;
    const u8* at = bytes + 4 * lane;
    for (; row + 8 <= rows; row += 8, at += 1024) {
        u32 words[8];
        PSI_UNROLL
        for (u32 i = 0; i < 8; i++) words[i] = load_u32(at + 128 * i);
        PSI_UNROLL
        for (u32 i = 0; i < 8; i++) chain = hash_step(chain, words[i]);
    }
    for (; row < rows; row++, at += 128) chain = hash_step(chain, load_u32(at));
    if (4 * lane < (length & 127)) chain = hash_step(chain, load_u32(at));
    u32 all = length;
    for (u32 from = 0; from < 32; from++) all = hash_step(all, shuffle(chain, from));
    return all ^ number * 0x85EBCA6Bu;
}

// Finds the tile's bytes and reads its head. False, with the status raised, where that cannot be.
PSI_FN bool open_tile(const Job& job, const Picture& picture, Tile& tile) {
    u32* status = job.status + picture.index;
    const u8* file = job.blob + picture.file;
    u64 start = 4ull * load_u32(file + picture.offsets + 4ull * tile.number);
    u64 end = 4ull * load_u32(file + picture.offsets + 4ull * tile.number + 4);
    if (end < start + 4 || picture.payload + end > picture.file_bytes) {
        if (lane_id() == 0) raise(status, BAD_RANGE);
        return false;
    }
    tile.bytes = file + picture.payload + start;
    tile.length = (u32)(end - start);
    u32 head = load_u32(tile.bytes);
    tile.mode = head & 255;
    tile.colours = head >> 8 & 15;
    tile.weight = tile.colours == 1 ? 8 : tile.colours == 2 ? 16 : tile.colours;
    tile.swap = (head >> 12 & 1) != 0;
    tile.block_x = head >> 16 & 15;
    tile.block_y = head >> 20 & 15;
    tile.planes = head >> 24;
    tile.body = tile.bytes + 4;
    tile.body_length = tile.length - 4;
    if (tile.mode < DENSE) tile.colours = 0;
    tile.labels = (head >> 16 & 255) + 1;
    bool fine = tile.mode <= RUNS && (head >> 13 & 7) == 0 && (tile.colours == 0 ? !tile.swap : tile.channels >= 3);
    if (tile.mode == RUNS) {
        fine = fine && tile.channels == 1 && tile.colours == 0 && tile.planes == 0;
    } else if (tile.mode >= DENSE) {
        fine = fine && tile.block_x >= 2 && tile.block_x <= 7 && tile.block_y <= 12 &&
               (tile.planes == 1 || tile.planes == tile.channels);
    }
    if (!fine && lane_id() == 0) raise(status, BAD_HEAD);
    return fine;
}

// Whether the tile's bytes are those that were written; raises the status where not.
PSI_CALL bool check_hash(const Job& job, const Picture& picture, const Tile& tile) {
    u32 expected = load_u32(job.blob + picture.file + picture.hashes + 4ull * tile.number);
    bool fine = hash_of(tile.bytes, tile.length, tile.number) == expected;
    if (!fine && lane_id() == 0) raise(job.status + picture.index, BAD_HASH);
    return fine;
}

// Predictor maps of a predicted tile: two bits a block.
struct Maps {
    const u8* bytes;
    u32 length;  // in the body, padded to words
    u32 across, down;
};

PSI_FN Maps maps_of(const Tile& tile) {
    Maps maps;
    maps.bytes = tile.body;
    maps.across = divide_up(tile.width, 1u << tile.block_x);
    maps.down = divide_up(tile.height, 1u << tile.block_y);
    maps.length = divide_up(maps.across * maps.down * tile.planes, 16) * 4;
    return maps;
}

// The predictor of this lane in one channel and row of blocks.
PSI_FN u32 predictor_of(const Tile& tile, const Maps& maps, u32 channel, u32 block_row) {
    u32 lane = smaller(lane_id(), (tile.width - 1) >> 2);
    u32 plane = tile.planes == 1 ? 0 : channel;
    u32 at = (plane * maps.down + block_row) * maps.across + ((4 * lane) >> tile.block_x);
    return load_u8(maps.bytes + (at >> 2)) >> (2 * (at & 3)) & 3;
}
