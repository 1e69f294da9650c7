// The decoder: one warp a tile, lane l the columns 4·l … 4·l+3, a row at a time.
//
// Compiled once for each of: PSI_BITS (8, 16, 32) of a coded word; PSI_CHANNELS of a tile, 0 where tiles of one picture
// differ; PSI_TABLES (1: pictures have coding tables); PSI_PLAIN (1: bytes that are stored as they are or as numbers, in
// aligned rows); PSI_OUT, see output.cuh. PSI_WARPS is the number of warps of a block.
//
// Whatever the input: trip counts come from the geometry alone, reads stay inside the blob, writes inside the region's own
// samples. What is wrong with a picture is in its status when the kernel has ended.
#include "tile.cuh"
#include "rans.cuh"
#include "bytes.cuh"
#include "words.cuh"
#include "output.cuh"
#include "runs.cuh"

// What a warp needs while it decodes one tile; the tile itself is in shared memory, which leaves registers for the lanes.
struct Warp {
    const Job& job;
    const Picture& picture;
    const Tile& tile;
    u32 table_of; // address in shared memory: for each channel and context, the address of its table
    u32 ring;     // likewise
    u32 lanes;    // that have samples
};

template <int channels> struct ByteRows {
    Pair rows[channels];
    BytePredictor predictors[channels];
    u32 first;
    u32 change; // the row in which predictors change next: the second, whose first row had none, then each row of blocks

    PSI_METHOD void start() {
        PSI_UNROLL
        for (int c = 0; c < channels; c++) {
            rows[c].even = rows[c].odd = 0;
            predictors[c].above = predictors[c].plane = predictors[c].half = predictors[c].base = 0;
        }
        change = 1;
        first = lane_id() == 0 ? 0xFFFF : 0;
    }
    PSI_METHOD void begin(const Tile& tile, u32 y) {
        if (y != change) return;
        const Maps maps = maps_of(tile);
        change = ((y >> tile.block_y) + 1) << tile.block_y;
        PSI_UNROLL
        for (int c = 0; c < channels; c++)
            predictors[c] = byte_predictor(predictor_of(tile, maps, c, y >> tile.block_y), lanes_below());
    }
    PSI_METHOD void rebuild(const u32 (&residuals)[channels]) { rebuild_bytes<channels>(residuals, predictors, rows, first); }
};

template <int channels> struct WordRows {
    u32 rows[channels][4];
    u32 which[channels], base[channels];
    u32 change;

    PSI_METHOD void start() {
        PSI_UNROLL
        for (int c = 0; c < channels; c++) {
            PSI_UNROLL
            for (int k = 0; k < 4; k++) rows[c][k] = 0;
            which[c] = base[c] = 0;
        }
        change = 1;
    }
    PSI_METHOD void begin(const Tile& tile, u32 y) {
        if (y != change) return;
        const Maps maps = maps_of(tile);
        change = ((y >> tile.block_y) + 1) << tile.block_y;
        PSI_UNROLL
        for (int c = 0; c < channels; c++) {
            which[c] = predictor_of(tile, maps, c, y >> tile.block_y);
            base[c] = reset_lane(which[c], lanes_below());
        }
    }
};

// Where a tile's rows go, one after the other.
struct Output {
    const Warp& warp;
    ByteSink sink;
    Lane lane;
    u32 skip; // rows of the tile above the region
    float scale[4], bias[4];

    PSI_METHOD explicit Output(const Warp& warp) : warp(warp) {
        const Picture& picture = warp.picture;
        const Tile& tile = warp.tile;
        skip = picture.y > tile.y ? picture.y - tile.y : 0;
        if (PSI_PLAIN) {
            sink = sink_of(warp.job, picture, tile);
            sink.at += (i64)skip * sink.row;
        } else {
            lane = lane_of(picture, tile);
        }
        PSI_UNROLL
        for (u32 c = 0; c < 4; c++) {
            bool used = PSI_NUMBERS && c < tile.channels && tile.first_channel + c < picture.channels;
            scale[c] = used ? warp.job.scale[tile.first_channel + c] : 1.0f;
            bias[c] = used ? warp.job.bias[tile.first_channel + c] : 0.0f;
        }
    }

    template <int channels> PSI_METHOD void rows(u32 y, const Pair (&rows)[channels]) {
        if (y < skip) return;
        u32 colours[channels];
        colours_of_bytes<channels>(warp.tile, rows, colours);
        bytes<channels>(y, colours);
    }
    template <int channels> PSI_METHOD void bytes(u32 y, const u32 (&colours)[channels]) {
        if (y < skip) return;
        if (PSI_PLAIN && sink.simple) {
            PSI_UNROLL
            for (u32 c = 0; c < channels; c++) store_four(sink.at + c * sink.channel, colours[c], scale[c], bias[c]);
        } else if (PSI_PLAIN) {
            PSI_UNROLL
            for (u32 c = 0; c < channels; c++)
                store_bytes(sink, sink.at + c * sink.channel, colours[c], scale[c], bias[c]);
        } else {
            PSI_UNROLL
            for (u32 c = 0; c < channels; c++) {
                u32 four[4] = {colours[c] & 255, colours[c] >> 8 & 255, colours[c] >> 16 & 255, colours[c] >> 24};
                store_words(warp.job, warp.picture, warp.tile, lane, y, c, four);
            }
        }
        if (PSI_PLAIN) sink.at += sink.row;
    }
    template <int channels> PSI_METHOD void words(u32 y, const u32 (&rows)[channels][4]) {
        if (y < skip) return;
        u32 colours[channels][4];
        colours_of_words<channels>(warp.tile, rows, colours);
        PSI_UNROLL
        for (u32 c = 0; c < channels; c++) store_words(warp.job, warp.picture, warp.tile, lane, y, c, colours[c]);
    }
};

template <bool full> PSI_FN bool is_active(u32 width, u32 column) { return full || 4 * lane_id() + column < width; }

PSI_FN void complain(const Warp& warp, u32 code) {
    if (lane_id() == 0) raise(warp.job.status + warp.picture.index, code);
}

#if PSI_TABLES
template <int channels, bool full> PSI_FN void decode_dense(const Warp& warp) {
    const u32 lanes = full ? 32 : warp.lanes, width = warp.tile.width, in_front = maps_of(warp.tile).length + 4 * lanes;
    if (in_front > warp.tile.body_length) return complain(warp, BAD_STREAM);
    const u8* start = warp.tile.body + in_front;
    u32 state = 65536;
    if (lane_id() < lanes) state = load_u32(start - 4 * (lanes - lane_id()));
    bool fine = state >= 65536;
    if (!fine) state = 65536;
    Stream stream = open_stream(warp.job, warp.ring, start);

    // Energies of the two rows above and of this one: sums of a lane's four residuals.
    const u32 unknown = 4u << ((PSI_BITS < 16 ? PSI_BITS : 16) / 4 + 1);
    u32 above[channels], above2[channels], current[channels] = {};
    PSI_UNROLL
    for (int c = 0; c < channels; c++) above[c] = above2[c] = unknown;
#if PSI_BITS == 8
    ByteRows<channels> rows;
#else
    WordRows<channels> rows;
#endif
    rows.start();
    Output output(warp);
    const u32 below = lanes_below(), count = warp.tile.rows;
    for (u32 y = 0; y < count; y++) {
        rows.begin(warp.tile, y);
        if (PSI_BITS == 8 && channels < 4) fill(stream);
        u32 residuals[channels];
        PSI_UNROLL
        for (int c = 0; c < channels; c++) {
            const int two = channels > 1 ? 1 : 0, three = channels > 2 ? 2 : 0;
            if (PSI_BITS != 8 || channels == 4) fill(stream);
            u32 right = full ? from_right(above[c]) : shuffle(above[c], smaller(lane_id() + 1, lanes - 1));
            u32 energy = 3 * above[c] + above2[c] + from_left(above[c]) + right;
            u32 context;
            if (c == 0)
                context = context_of<1>(energy, (channels > 1 ? above[two] : 0) + (channels > 2 ? above[three] : 0));
            else if (c == 2)
                context = context_of<2>(energy, current[0] + 3 * current[two]);
            else
                context = context_of<0>(energy, current[0]);
            u32 table = shared_u16(warp.table_of + 2 * (PSI_CONTEXTS * c + context));
#if PSI_BITS == 8
            u32 a = step<full>(stream, state, table, is_active<full>(width, 0), below);
            u32 b = step<full>(stream, state, table, is_active<full>(width, 1), below);
            u32 ab = pick_bytes(a, b, 0x0040);
            a = step<full>(stream, state, table, is_active<full>(width, 2), below);
            b = step<full>(stream, state, table, is_active<full>(width, 3), below);
            residuals[c] = pick_bytes(ab, pick_bytes(a, b, 0x0040), 0x5410);
            current[c] = sum_bytes(residuals[c]);
#else
            u32 four[4], sum = 0;
            PSI_UNROLL
            for (u32 k = 0; k < 4; k++) {
                four[k] = step<full>(stream, state, table, is_active<full>(width, k), below);
                sum += PSI_BITS == 32 ? four[k] >> 16 : four[k];
            }
            current[c] = sum;
            rebuild_words(four, rows.which[c], rows.base[c], rows.rows[c]);
#endif
        }
        PSI_UNROLL
        for (int c = 0; c < channels; c++) {
            above2[c] = above[c];
            above[c] = current[c];
        }
#if PSI_BITS == 8
        rows.rebuild(residuals);
        output.template rows<channels>(y, rows.rows);
#else
        (void)residuals;
        output.template words<channels>(y, rows.rows);
#endif
    }
    if (count == warp.tile.height) {
        // Every state is back where the encoder started, and every word was used but for padding.
        u32 used = stream.at - first_byte_of(start), length = warp.tile.body_length - in_front;
        fine = fine && state == 65536 && used <= length && length - used <= 2;
    }
    if (ballot(!fine) != 0) complain(warp, BAD_STREAM);
}
#endif

// Bits of a packed residual by its code, and the sum of bytes of units in front of this lane's, for one channel.
PSI_FN u32 packed_bits(u32 code) {
    if (PSI_BITS == 8) return smaller(code, 8);
    if (PSI_BITS == 16) return code == 15 ? 16 : code;
    return code == 15 ? 32 : 2 * code;
}

// Four bytes of a packed stream from any even address, nothing past the end.
PSI_FN u32 packed_word(const u8* data, u32 length, u32 at) {
    u32 low = at + 2 <= length ? load_u16(data + at) : 0;
    u32 high = at + 4 <= length ? load_u16(data + at + 2) : 0;
    return low | high << 16;
}

// The codes of a lane's units of one band, the first of which has the number `unit`; 0 where the lane has none.
template <int channels> PSI_FN void width_codes(const u8* codes, u32 unit, bool here, u32 lanes, u32 (&out)[channels]) {
    PSI_UNROLL
    for (int c = 0; c < channels; c++, unit += lanes)
        out[c] = here ? load_u8(codes + (unit >> 1)) >> (4 * (unit & 1)) & 15 : 0;
}

template <int channels> PSI_FN void decode_packed(const Warp& warp) {
    const Tile& tile = warp.tile;
    const Maps maps = maps_of(tile);
    u32 units = divide_up(tile.height, 4) * channels * warp.lanes;
    u32 code_bytes = divide_up(units, 8) * 4;
    if (maps.length + code_bytes > tile.body_length) return complain(warp, BAD_STREAM);
    const u8* codes = tile.body + maps.length;
    const u8* data = codes + code_bytes;
    u32 length = tile.body_length - maps.length - code_bytes;
    bool here = lane_id() < warp.lanes;
    u32 at = 0; // of the band's first unit in the data; the same in all lanes
#if PSI_BITS == 8
    ByteRows<channels> rows;
#else
    WordRows<channels> rows;
#endif
    rows.start();
    Output output(warp);
    const u32 rows_wanted = tile.rows;
    u32 next[channels]; // width codes of the band that comes: asked for while the one before is rebuilt
    width_codes<channels>(codes, lane_id(), here, warp.lanes, next);
    for (u32 band = 0; 4 * band < rows_wanted; band++) {
        // Widths of the lane's units, and where they start: the sums of the lanes below, three channels at once in fields of
        // 10 bits for words of 8 bits.
        u32 bits[channels], from[channels];
        PSI_UNROLL
        for (int c = 0; c < channels; c++) bits[c] = packed_bits(next[c]);
        const int together = PSI_BITS == 8 ? 3 : 1;
        PSI_UNROLL
        for (int c = 0; c < channels; c += together) {
            u32 own = 0;
            PSI_UNROLL
            for (int i = 0; i < together && c + i < channels; i++) own |= 2 * bits[c + i] << (10 * i);
            u32 sum = add_from_below<1>(own);
            sum = add_from_below<2>(sum);
            sum = add_from_below<4>(sum);
            sum = add_from_below<8>(sum);
            sum = add_from_below<16>(sum);
            const u32 all = shuffle(sum, 31), field = together == 1 ? ~0u : 1023;
            sum -= own;
            PSI_UNROLL
            for (int i = 0; i < together && c + i < channels; i++) {
                from[c + i] = at + (sum >> (10 * i) & field);
                at += all >> (10 * i) & field;
            }
        }
#if PSI_BITS == 8
        // Sixteen residuals of up to 8 bits: whole 32-bit words around the unit's bytes, put right by a shift of 0 or 16 bits. What
        // lies behind the unit is read too, and not used; past the data a damaged tile reads what follows its last bytes, up to 20.
        u32 unit[channels][4];
        PSI_UNROLL
        for (int c = 0; c < channels; c++) {
            u32 start = smaller(from[c], length), words[5];
            const u8* aligned = data + (start & ~2u);
            PSI_UNROLL
            for (u32 i = 0; i < 4; i++) words[i] = load_u32(aligned + 4 * i);
            words[4] = bits[c] == 8 ? load_u32(aligned + 16) : 0;
            PSI_UNROLL
            for (u32 i = 0; i < 4; i++) words[i] = funnel_right(words[i], words[i + 1], 8 * (start & 2));
            // Row by row: four residuals become bytes, and the next four come down.
            const u32 width = bits[c], ones = low_ones(width) * 0x00010001u;
            PSI_UNROLL
            for (int line = 0; line < 4; line++) {
                u32 halves = pick_bytes(words[0], words[0] >> (2 * width), 0x5410);
                unit[c][line] = (halves & ones) + (halves >> width & ones) * 256;
                PSI_UNROLL
                for (int i = 0; i < 3 - line; i++) words[i] = funnel_right(words[i], words[i + 1], 4 * width);
            }
        }
#endif
        if (4 * band + 4 < rows_wanted)
            width_codes<channels>(codes, (band + 1) * channels * warp.lanes + lane_id(), here, warp.lanes, next);
        PSI_UNROLL
        for (u32 line = 0; line < 4; line++) {
            u32 y = 4 * band + line;
            if (y >= rows_wanted) break;
            rows.begin(tile, y);
#if PSI_BITS == 8
            u32 residuals[channels];
            PSI_UNROLL
            for (int c = 0; c < channels; c++) residuals[c] = unit[c][line];
            rows.rebuild(residuals);
            output.template rows<channels>(y, rows.rows);
#else
            PSI_UNROLL
            for (int c = 0; c < channels; c++) {
                u32 four[4];
                PSI_UNROLL
                for (u32 k = 0; k < 4; k++) {
                    u32 bit = (4 * line + k) * bits[c];
                    u32 byte = from[c] + (bit >> 4) * 2;
                    u32 low = packed_word(data, length, byte), high = packed_word(data, length, byte + 4);
                    u32 value = funnel_right(low, high, bit & 15);
                    four[k] = bits[c] == 32 ? value : value & low_ones(bits[c]);
                }
                rebuild_words(four, rows.which[c], rows.base[c], rows.rows[c]);
            }
            output.template words<channels>(y, rows.rows);
#endif
        }
    }
    bool fine = at <= length && (tile.rows < tile.height || divide_up(at, 4) * 4 == length);
    if (!fine) complain(warp, BAD_STREAM);
}

// Raw and constant tiles: words as they are, with no colour transform.
template <int channels> PSI_FN void decode_stored(const Warp& warp) {
    const Tile& tile = warp.tile;
    const u32 bytes = PSI_BITS / 8;
    u64 needed = tile.mode == CONSTANT ? (u64)channels * bytes : (u64)tile.width * tile.height * channels * bytes;
    if (needed > tile.body_length) return complain(warp, BAD_STREAM);
    Output output(warp);
    for (u32 y = 0; y < tile.rows; y++) {
        u32 words[channels][4];
        PSI_UNROLL
        for (u32 c = 0; c < channels; c++) {
            PSI_UNROLL
            for (u32 k = 0; k < 4; k++) {
                u32 x = smaller(4 * lane_id() + k, tile.width - 1);
                u32 index = tile.mode == CONSTANT ? c : (c * tile.height + y) * tile.width + x;
                u32 word = 0;
                PSI_UNROLL
                for (u32 b = 0; b < bytes; b++) word |= load_u8(tile.body + index * bytes + b) << (8 * b);
                words[c][k] = word;
            }
        }
#if PSI_BITS == 8
        u32 packed[channels];
        PSI_UNROLL
        for (u32 c = 0; c < channels; c++)
            packed[c] = words[c][0] | words[c][1] << 8 | words[c][2] << 16 | words[c][3] << 24;
        output.template bytes<channels>(y, packed);
#else
        output.template words<channels>(y, words);
#endif
    }
}

PSI_FN void decode_runs(const Warp& warp) {
    const Tile& tile = warp.tile;
    Runs runs(tile);
    if (!runs.fine) return complain(warp, BAD_STREAM);
    Output output(warp);
    for (u32 y = 0; y < tile.rows; y++) {
        runs.next(tile.width, tile.height - y);
        u32 words[1][4];
        PSI_UNROLL
        for (u32 k = 0; k < 4; k++) words[0][k] = runs.word(k);
#if PSI_BITS == 8
        u32 packed[1] = {words[0][0] | words[0][1] << 8 | words[0][2] << 16 | words[0][3] << 24};
        output.template bytes<1>(y, packed);
#else
        output.template words<1>(y, words);
#endif
    }
    if (tile.rows == tile.height ? !runs.complete() : !runs.fine) complain(warp, BAD_STREAM);
}

template <int channels> PSI_FN void decode_tile(const Warp& warp) {
    if (warp.tile.mode <= CONSTANT) {
        decode_stored<channels>(warp);
    } else if (warp.tile.mode == PACKED) {
        decode_packed<channels>(warp);
    } else if (warp.tile.mode == RUNS) {
        if (channels == 1) decode_runs(warp);
    } else {
#if PSI_TABLES
        if (warp.tile.width == 128)
            decode_dense<channels, true>(warp);
        else
            decode_dense<channels, false>(warp);
#else
        complain(warp, BAD_HEAD);
#endif
    }
}

PSI_KERNEL(PSI_WARPS, PSI_BLOCKS) psi_decode(const Job job) {
    PSI_SHARED(memory);
    const Block block = job.blocks[block_id()];
    const Picture& picture = job.pictures[block.picture];
    // Tables, whose addresses must stay below 2^16; a record of each warp's tile; rings from a multiple of their size on.
    u32* slots = (u32*)memory;
    u16* table_of = (u16*)(slots + PSI_TABLES_MOST * PSI_SLOTS);
    u8* tiles = PSI_TABLES ? (u8*)(table_of + 4 * PSI_CONTEXTS) : memory;
    u32 rings = (shared_address(tiles + PSI_WARPS * PSI_TILE_BYTES) + PSI_RING - 1) / PSI_RING * PSI_RING;
#if PSI_TABLES
    build_tables(job, picture, slots, table_of, PSI_WARPS);
    block_barrier();
#endif
    u32 number = block.first_tile + warp_id();
    if (number >= tiles_of(picture)) return;
    // Hashes are bound by memory and all else by arithmetic: half of the warps check theirs at the end.
    const bool last = (warp_id() & 1) != 0;
    Tile* tile = (Tile*)(tiles + warp_id() * PSI_TILE_BYTES);
    {
        Tile made = place_of(picture, number);
        if (!open_tile(job, picture, made)) return;
        if (job.verify && !last && !check_hash(job, picture, made)) return;
        if (lane_id() == 0) *tile = made;
        warp_barrier();
    }
    const Warp warp = {job, picture, *tile, shared_address(table_of), rings + warp_id() * PSI_RING, divide_up(tile->width, 4)};
#if PSI_CHANNELS
    if (tile->channels == PSI_CHANNELS) decode_tile<PSI_CHANNELS>(warp);
#else
    if (tile->channels == 1) decode_tile<1>(warp);
    if (tile->channels == 2) decode_tile<2>(warp);
    if (tile->channels == 3) decode_tile<3>(warp);
    if (tile->channels == 4) decode_tile<4>(warp);
#endif
    if (job.verify && last) check_hash(job, picture, *tile);
}
