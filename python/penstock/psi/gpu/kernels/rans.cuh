// The entropy decoder: 32 states, one a lane, and one stream of 16-bit words that lanes take in lane order.
#pragma once
#include "tile.cuh"

// Tokens of the alphabet for words of PSI_BITS bits.
#define PSI_TOKENS (16 + 2 * (PSI_BITS - 4))
#define PSI_TABLES_MOST 16
#define PSI_CONTEXTS (33 * 16)
#define PSI_SLOT_BITS 10
#define PSI_SLOTS (1 << PSI_SLOT_BITS)

// Bytes of the ring in shared memory that a warp reads its stream through, and of one step of filling it.
#define PSI_RING 2048
#define PSI_FILL 512

// Raw bits behind a token, and the smallest residual of a token.
PSI_FN u32 raw_bits(u32 token) { return token < 16 ? 0 : (token >> 1) - 5; }
PSI_FN u32 token_base(u32 token) { return token < 16 ? token : (2 | (token & 1)) << raw_bits(token); }

// A slot: bits 21-31 frequency, 8-17 place within the token, and for 8-bit words 18-20 raw bits and 0-7 the smallest
// residual, for wider ones 0-7 the token.
PSI_FN u32 slot_of(u32 frequency, u32 within, u32 token) {
    u32 tail = PSI_BITS == 8 ? raw_bits(token) << 18 | token_base(token) : token;
    return frequency << 21 | within << 8 | tail;
}

// Fills the block's slots from the sums of frequencies, and for each context the address of its table.
PSI_FN void build_tables(const Job& job, const Picture& picture, u32* slots, u16* table_of, u32 warps) {
    const u8* tables = job.manifest + picture.tables;
    u32 pairs = picture.table_count * PSI_TOKENS;
    for (u32 pair = warp_id(); pair < pairs; pair += warps) {
        u32 table = pair / PSI_TOKENS, token = pair % PSI_TOKENS;
        const u8* sums = tables + 2 * (table * (PSI_TOKENS + 1) + token);
        u32 start = smaller(load_u16(sums), PSI_SLOTS), end = smaller(load_u16(sums + 2), PSI_SLOTS);
        for (u32 slot = start + lane_id(); slot < end; slot += 32)
            slots[table * PSI_SLOTS + slot] = slot_of(end - start, slot - start, token);
    }
    const u8* map = tables + 2 * picture.table_count * (PSI_TOKENS + 1);
    for (u32 entry = 32 * warp_id() + lane_id(); entry < 4 * PSI_CONTEXTS; entry += 32 * warps) {
        u32 channel = entry / PSI_CONTEXTS, above = entry % PSI_CONTEXTS / 16, second = entry % 16;
        u32 level = smaller(above < 2 ? above : above - 1, 31);
        u32 table = load_u8(map + 256 * channel + 8 * level + smaller(second, 7));
        table_of[entry] = (u16)shared_address(slots + smaller(table, picture.table_count - 1) * PSI_SLOTS);
    }
}

// A warp's stream: a ring in shared memory that runs ahead of what is read. Positions count bytes from an address that
// is a multiple of 16, and are the same in all lanes. Past the end of the blob nothing is loaded, so that a damaged
// stream reads what the ring held before: the states at the end then show it.
struct Stream {
    u32 ring;    // its address, a multiple of its size
    u32 at;      // the next word
    u32 loaded;  // bytes that were asked for
    const u8* from;
    u32 left;    // bytes from `from` to the end of the blob, as far as a tile can reach
};

// What was asked for at one call is there at the next but one: between two calls at most 768 bytes may be read.
PSI_FN void fill(Stream& stream) {
    warp_barrier(); // all lanes have read what is about to be overwritten
    while (stream.loaded + PSI_FILL <= stream.at + PSI_RING) {
        u32 byte = stream.loaded + 16 * lane_id();
        if (byte + 16 <= stream.left) copy16(stream.ring + (byte & (PSI_RING - 1)), stream.from + byte);
        stream.loaded += PSI_FILL;
    }
    copies_commit();
    copies_wait();
    warp_barrier();
}

// The position of the first word: files start at multiples of 16 in the blob, which starts at one itself.
PSI_FN u32 first_byte_of(const u8* start) { return (u32)((u64)start & 15); }

PSI_FN Stream open_stream(const Job& job, u32 ring, const u8* start) {
    u64 byte = (u64)(start - job.blob) & ~15ull;
    Stream stream;
    stream.ring = ring;
    stream.from = job.blob + byte;
    u64 left = job.blob_bytes - byte;
    stream.left = left < 0x7FFFFFFF ? (u32)left : 0x7FFFFFFF;
    stream.at = first_byte_of(start);
    stream.loaded = 0;
    fill(stream);
    copies_commit();
    copies_wait();
    warp_barrier();
    return stream;
}

// One residual in each lane that is active; the others give 0. `table` is the address of the lane's table.
template <bool full> PSI_FN u32 step(Stream& stream, u32& state, u32 table, bool active, u32 below) {
    u32 slot = look_up<PSI_SLOT_BITS>(table, state);
    u32 next = (slot >> 21) * (state >> 10) + (slot >> 8 & 1023);
    u32 value;
    if (PSI_BITS == 8) {
        u32 raw = slot >> 18 & 7;
        value = (next & low_ones(raw)) | slot; // only the low byte counts
        next >>= raw;
        if (full || active) state = next;
        if (!full && !active) value = 0;
        take_words<PSI_RING>(state, stream.at, stream.ring, below);
        return value;
    }
    if (full || active) state = next;
    u32 token = slot & 255;
    take_words<PSI_RING>(state, stream.at, stream.ring, below);
    u32 bits = raw_bits(token), low = smaller(bits, 16);
    if (!full && !active) bits = low = 0;
    value = token_base(token) + (state & low_ones(low));
    state >>= low;
    take_words<PSI_RING>(state, stream.at, stream.ring, below);
    if (PSI_BITS == 32) {
        u32 high = bits - low;
        value += (state & low_ones(high)) << 16;
        state >>= high;
        take_words<PSI_RING>(state, stream.at, stream.ring, below);
    }
    if (!full && !active) value = 0;
    return value;
}

// The context of a lane as the kernels count: 16 places for each level, of which those past 7 mean 7; and levels from 2 on one
// higher, since the bits of a float say exponent and first bit of the mantissa at once but take 1 and 2 for neighbours of
// an octave. `energy` is that above, `before` what other channels have, without its last division by 2 to the `halved`.
template <u32 halved> PSI_FN u32 context_of(u32 energy, u32 before) {
    if (PSI_BITS == 8) {
        u32 level = larger(float_bits((float)energy) >> 22, 253) - 253;
        u32 second = larger(float_bits((float)before) >> 23, 126 + halved) - (126 + halved);
        return level * 16 + second;
    }
    u32 level = energy;
    if (energy >= 2) {
        u32 exponent = 31 - leading_zeros(energy);
        level = smaller(2 * exponent + (energy >> (exponent - 1) & 1), 31) + 1;
    }
    return level * 16 + smaller(32 - leading_zeros(before >> (4 + halved)), 7);
}
