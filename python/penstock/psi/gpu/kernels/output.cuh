// Where samples go: the region, mirrored or not, in the type and the strides that were asked for. No address depends on
// decoded data.
#pragma once
#include "tile.cuh"

// What the output holds: samples as they are, in 1, 2 or 4 bytes, or numbers after scale and bias.
#define PSI_OUT_HALF 12
#define PSI_OUT_BFLOAT 22
#define PSI_OUT_FLOAT 14
#define PSI_OUT_BYTES (PSI_OUT == 22 ? 2 : PSI_OUT > 10 ? PSI_OUT - 10 : PSI_OUT)
#define PSI_NUMBERS (PSI_OUT > 10)

// How the four columns of this lane lie in the output, the same for every row of the tile.
struct Lane {
    i32 column;     // output column of the lane's lowest sample
    u32 inside;     // bit i: the sample at `column` + i is in the region, and in the tile
};

// Bits of `wanted` whose sample at `column` + i lies in a row of `width`.
PSI_FN u32 inside_row(i32 column, u32 width, u32 wanted) {
    u32 inside = 0;
    PSI_UNROLL
    for (i32 i = 0; i < 4; i++)
        if (column + i >= 0 && column + i < (i32)width) inside |= wanted & (1u << i);
    return inside;
}

// Samples that a lane of the tile has, in output order.
PSI_FN u32 samples_of(const Tile& tile, u32 lane, u32 flip) {
    u32 left = tile.width > 4 * lane ? smaller(tile.width - 4 * lane, 4) : 0;
    u32 own = (1u << left) - 1;
    return flip ? (own << (4 - left)) & 15 : own;
}

PSI_FN Lane lane_of(const Picture& picture, const Tile& tile) {
    Lane lane;
    i32 x = (i32)(tile.x + 4 * lane_id()) - (i32)picture.x;
    lane.column = picture.flip ? (i32)picture.box_width - 4 - x : x;
    lane.inside = inside_row(lane.column, picture.box_width, samples_of(tile, lane_id(), picture.flip));
    return lane;
}

// The fast way out, for rows of bytes whose columns follow each other and whose groups of four are aligned: each lane stores
// one group, of its own bytes and of its neighbour's on the high side.
struct ByteSink {
    u8* at;             // this lane's group in the row that comes next, channel 0
    i64 row, channel;   // distances in bytes
    // Bits 0-3: columns of the group that come from this tile and lie in the region. 4-7: columns in front of the group that no
    // lane of this tile has in its group.
    u32 bits;
    // Bits 0-4: how far (neighbour:own) is shifted right; 8: mirrored. The same in all lanes, mostly 0.
    u32 turn;
    bool simple;        // every lane stores its own four bytes as they are
};

PSI_FN ByteSink sink_of(const Job& job, const Picture& picture, const Tile& tile) {
    Lane lane = lane_of(picture, tile);
    u32 flip = picture.flip, phase = (u32)lane.column & 3;
    i32 group = phase == 0 ? lane.column : lane.column + (i32)(4 - phase);
    u32 own = samples_of(tile, lane_id(), flip);
    u32 next = flip ? lane_id() - 1 : lane_id() + 1; // none below 0: its number is far too large
    u32 joined = phase == 0 ? own : (own | samples_of(tile, next, flip) << 4) >> (4 - phase) & 15;
    u32 low_end = flip ? (tile.width - 1) >> 2 : 0;
    u32 leading = phase != 0 && lane_id() == low_end ? lane.inside & ((1u << (4 - phase)) - 1) : 0;
    ByteSink sink;
    sink.bits = inside_row(group, picture.box_width, joined) | leading << 4;
    sink.turn = shuffle((phase == 0 ? 0 : 8 * (4 - phase)) | flip << 8, 0);
    sink.simple = ballot(sink.bits == 15 && sink.turn == 0) == ~0u;
    i64 first = (i64)picture.out + (i64)(tile.slice - picture.z) * picture.slice +
                ((i64)tile.y - (i64)picture.y) * picture.row + (i64)tile.first_channel * picture.channel;
    sink.at = job.out + (first + group) * PSI_OUT_BYTES;
    sink.row = picture.row * PSI_OUT_BYTES;
    sink.channel = picture.channel * PSI_OUT_BYTES;
    return sink;
}

PSI_FN void store_number(u8* at, float value) {
    if (PSI_OUT == PSI_OUT_FLOAT)
        store_u32(at, float_bits(value));
    else
        store_u16(at, PSI_OUT == PSI_OUT_HALF ? pack_half(value, 0.0f) : pack_bfloat(value, 0.0f));
}

// One byte as a number: the bits of a float that is 2^23 more.
PSI_FN float number_of_byte(u32 bytes, u32 which) {
    return as_float(pick_bytes(bytes, 0x4B000000u, 0x7540 | which)) - 8388608.0f;
}

// Stores four bytes at once, as they are or as numbers.
PSI_FN void store_four(u8* to, u32 bytes, float scale, float bias) {
    if (!PSI_NUMBERS) return store_u32(to, bytes);
    float numbers[4];
    PSI_UNROLL
    for (u32 i = 0; i < 4; i++) numbers[i] = multiply_add(number_of_byte(bytes, i), scale, bias);
    if (PSI_OUT == PSI_OUT_FLOAT)
        store_u128(to, float_bits(numbers[0]), float_bits(numbers[1]), float_bits(numbers[2]), float_bits(numbers[3]));
    else if (PSI_OUT == PSI_OUT_HALF)
        store_u64(to, pack_half(numbers[0], numbers[1]), pack_half(numbers[2], numbers[3]));
    else
        store_u64(to, pack_bfloat(numbers[0], numbers[1]), pack_bfloat(numbers[2], numbers[3]));
}

PSI_FN void store_one(u8* to, u32 bytes, u32 which, float scale, float bias) {
    if (!PSI_NUMBERS)
        store_u8(to, bytes >> (8 * which));
    else
        store_number(to, multiply_add(number_of_byte(bytes, which), scale, bias));
}

// Stores the bytes of one channel of a row where lanes are shifted, mirrored or cut. Called by all lanes together.
PSI_FN void store_bytes(const ByteSink& sink, u8* to, u32 bytes, float scale, float bias) {
    u32 shift = sink.turn & 31, flip = sink.turn >> 8;
    if (flip) bytes = pick_bytes(bytes, 0, 0x0123);
    u32 group = funnel_right(bytes, flip ? from_left(bytes) : from_right(bytes), shift);
    if (sink.bits == 15) return store_four(to, group, scale, bias);
    for (u32 i = 0; i < 4; i++)
        if (sink.bits >> i & 1) store_one(to + i * PSI_OUT_BYTES, group, i, scale, bias);
    to -= shift / 8 * PSI_OUT_BYTES;
    for (u32 i = 0; i < 3; i++)
        if (sink.bits >> (4 + i) & 1) store_one(to + i * PSI_OUT_BYTES, bytes, i, scale, bias);
}

enum SampleType : u32 { U8 = 0, I8 = 1, U16 = 2, I16 = 3, F16 = 4, F32 = 5, U32 = 6, I32 = 7 };

PSI_FN u32 sample_bytes(u32 sample) { return sample <= I8 ? 1 : sample <= F16 ? 2 : 4; }

// The bits of a sample from its ordered integer.
PSI_FN u32 sample_bits(u32 sample, u32 ordered) {
    switch (sample) {
        case U8: return ordered & 0xFF;
        case U16: return ordered & 0xFFFF;
        case I8: return (ordered ^ 0x80) & 0xFF;
        case I16: return (ordered ^ 0x8000) & 0xFFFF;
        case I32: return ordered ^ 0x80000000u;
        case F16: return (ordered & 0x8000 ? ordered ^ 0x8000 : ordered ^ 0xFFFF) & 0xFFFF;
        case F32: return ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered;
        default: return ordered;
    }
}

// The bits of a float32 sample that is a whole number over a power of ten; -1 - m stands for minus m.
PSI_FN u32 decimal_bits(u32 unit, u32 ordered) {
    i32 value = (i32)(ordered ^ 0x80000000u);
    i32 whole = value ^ (value >> 31);
    return float_bits(divide((float)whole, as_float(unit))) | ((u32)value & 0x80000000u);
}

PSI_FN float sample_number(u32 sample, u32 bits) {
    switch (sample) {
        case I8: return (float)(i32)(signed char)bits;
        case I16: return (float)(i32)(short)bits;
        case I32: return (float)(i32)bits;
        case F16: return half_to_float(bits);
        case F32: return as_float(bits);
        default: return (float)bits;
    }
}

PSI_FN void store_sample(u8* out, i64 at, u32 sample, u32 bits, float scale, float bias) {
    u8* to = out + at * PSI_OUT_BYTES;
    if (PSI_NUMBERS)
        store_number(to, multiply_add(sample_number(sample, bits), scale, bias));
    else if (PSI_OUT == 1)
        store_u8(to, bits);
    else if (PSI_OUT == 2)
        store_u16(to, bits);
    else
        store_u32(to, bits);
}

// The general way: four words of one channel, in any strides, type and mapping. With a palette the one coded channel
// stands for all. Called, not inlined: there are many places for it, and it is long.
PSI_CALL void store_general(const Job& job, const Picture& picture, const Tile& tile, i32 column, u32 inside, u32 y, u32 channel,
                            u32 a, u32 b, u32 c, u32 d) {
    const Lane lane = {column, inside};
    const u32 words[4] = {a, b, c, d};
    i64 row = (i64)picture.out + (i64)(tile.slice - picture.z) * picture.slice + (i64)(tile.y + y - picture.y) * picture.row;
    u32 coded = tile.first_channel + channel;
    u32 bytes = sample_bytes(picture.sample);
    PSI_UNROLL
    for (u32 k = 0; k < 4; k++) {
        u32 place = picture.flip ? 3 - k : k;
        if (!(lane.inside >> place & 1)) continue;
        i64 at = row + (lane.column + (i32)place) * picture.column;
        if (picture.palette_entries != 0) {
            u32 entry = words[k] < picture.palette_entries ? words[k] : 0;
            const u8* colour = job.blob + picture.file + picture.palette + (u64)entry * picture.channels * bytes;
            for (u32 part = 0; part < picture.channels; part++) {
                u32 bits = 0;
                for (u32 i = 0; i < bytes; i++) bits |= load_u8(colour + part * bytes + i) << (8 * i);
                float scale = PSI_NUMBERS ? job.scale[part] : 1.0f, bias = PSI_NUMBERS ? job.bias[part] : 0.0f;
                store_sample(job.out, at + part * picture.channel, picture.sample, bits, scale, bias);
            }
        } else {
            u32 ordered = (words[k] << picture.shift) + picture.offset;
            u32 bits = picture.unit ? decimal_bits(picture.unit, ordered) : sample_bits(picture.sample, ordered);
            float scale = PSI_NUMBERS ? job.scale[coded] : 1.0f, bias = PSI_NUMBERS ? job.bias[coded] : 0.0f;
            store_sample(job.out, at + coded * picture.channel, picture.sample, bits, scale, bias);
        }
    }
}

PSI_FN void store_words(const Job& job, const Picture& picture, const Tile& tile, const Lane& lane, u32 y, u32 channel,
                        const u32 (&words)[4]) {
    store_general(job, picture, tile, lane.column, lane.inside, y, channel, words[0], words[1], words[2], words[3]);
}
