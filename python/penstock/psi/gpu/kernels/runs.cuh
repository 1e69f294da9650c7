// Tiles of runs: one channel whose rows say where their runs end, seen from where those of the row above end. All lanes read
// the same bits and do the same; each holds the labels of its four columns, as bytes of one register. Label maps are mostly
// rows without a change, and few runs: simple before fast.
#pragma once
#include "tile.cuh"

#define PSI_AFTER 3
#define PSI_PASS 4

struct Bits {
    const u8* data;  // aligned to 4
    u32 length;      // bytes, a multiple of 4
    u32 at;          // next bit
};

// The next 32 bits, zeros behind the end.
PSI_FN u32 peek(const Bits& bits) {
    u32 byte = (bits.at >> 5) * 4;
    u32 low = byte < bits.length ? load_u32(bits.data + byte) : 0;
    u32 high = byte + 4 < bits.length ? load_u32(bits.data + byte + 4) : 0;
    return funnel_right(low, high, bits.at & 31);
}
PSI_FN u32 take_bits(Bits& bits, u32 count) {
    u32 value = peek(bits) & low_ones(count);
    bits.at += count;
    return value;
}
PSI_FN u32 lowest_bit(u32 value) { return 31 - leading_zeros(value & (0u - value)); } // of a value that is not 0
// The zeros in front of the next one, which is taken too; 32 where there is none.
PSI_FN u32 take_zeros(Bits& bits) {
    u32 next = peek(bits), zeros = next == 0 ? 32 : lowest_bit(next);
    bits.at += zeros == 32 ? 32 : zeros + 1;
    return zeros;
}

// A row of labels: this lane's four, and the last of the lane below.
struct Row {
    u32 four, before;
};

// The first column from `from` on for whose bit in `wanted` (a bit for each of a lane's columns) says yes; `width` where none.
PSI_FN u32 first_column(u32 wanted, u32 from, u32 width) {
    PSI_UNROLL
    for (u32 k = 0; k < 4; k++) {
        u32 column = 4 * lane_id() + k;
        if (column < from || column >= width) wanted &= ~(1u << k);
    }
    u32 lanes = ballot(wanted != 0);
    if (lanes == 0) return width;
    u32 lane = lowest_bit(lanes);
    return 4 * lane + lowest_bit(shuffle(wanted, lane) | 16);
}

PSI_FN u32 columns_of(u32 four, u32 label) {
    u32 same = 0;
    PSI_UNROLL
    for (u32 k = 0; k < 4; k++) same |= ((four >> (8 * k) & 255) == label ? 1u : 0u) << k;
    return same;
}

// Where the first run of `label` that ends at or behind `from` ends, at least at 1.
PSI_FN u32 edge_of(const Row& row, u32 from, u32 label, u32 width) {
    u32 here = columns_of(row.four, label), left = (here << 1 | (row.before == label ? 1 : 0)) & 15;
    return first_column(left & ~here, larger(from, 1), width);
}

PSI_FN u32 label_at(const Row& row, u32 column) { return shuffle(row.four, column >> 2) >> (8 * (column & 3)) & 255; }

PSI_FN u32 bits_below(u32 count) { return count <= 1 ? 0 : 32 - leading_zeros(count - 1); }

// One row that is not as the one above. False where the bits make no sense.
PSI_FN bool read_runs(Bits& bits, const Row& above, u32 labels, u32 width, u32& four) {
    u32 x = 0, label = label_at(above, 0), from = edge_of(above, 1, label, width);
    four = 0;
    // Each turn moves `x` or `from` on: geometry bounds them.
    for (u32 turn = 0; turn < 2 * width + 2; turn++) {
        u32 zeros = take_zeros(bits);
        if (zeros == PSI_PASS) {
            if (from >= width) return false;
            u32 again = first_column(columns_of(above.four, label), from, width);
            from = edge_of(above, again + 1, label, width);
            continue;
        }
        if (zeros > 9) return false;
        u32 end = from;
        if (zeros == PSI_AFTER) {
            end = x + take_bits(bits, bits_below(width - x + 1));
        } else if (zeros != 0) {
            u32 low = zeros < PSI_AFTER ? zeros - 1 : zeros - 3;
            u32 distance = (1u << low) + take_bits(bits, low);
            end = take_bits(bits, 1) ? from - distance : from + distance; // below 0: far too large
        }
        if (end > width || end < x || (end == x && x > 0)) return false;
        PSI_UNROLL
        for (u32 k = 0; k < 4; k++) {
            u32 column = 4 * lane_id() + k;
            if (column >= x && column < end) four |= label << (8 * k);
        }
        if (end == width) return true;
        u32 there = label_at(above, end);
        if (zeros != PSI_AFTER && from < width) {
            label = label_at(above, from);
            from = edge_of(above, from + 1, label, width);
        } else {
            if (there != label && take_bits(bits, 1)) {
                label = there;
            } else {
                label = take_bits(bits, bits_below(labels));
                if (label >= labels) return false;
            }
            from = edge_of(above, end + 1, label, width);
        }
        x = end;
    }
    return false;
}

// The rows of a tile, one after the other.
struct Runs {
    Bits bits;
    const u8* list; // the words of labels
    u32 labels, repeats;
    u32 four;       // labels of the last row
    bool fine, fresh; // fresh: the stream says next how many rows are as the one above

    PSI_METHOD explicit Runs(const Tile& tile) {
        labels = tile.labels;
        list = tile.body;
        u32 length = divide_up(labels * (PSI_BITS / 8), 4) * 4;
        fine = length <= tile.body_length;
        bits.data = tile.body + length;
        bits.length = fine ? tile.body_length - length : 0;
        bits.at = 0;
        four = repeats = 0;
        fresh = true;
    }
    PSI_METHOD void next(u32 width, u32 rows_left) {
        if (!fine) return;
        if (fresh) {
            u32 zeros = take_zeros(bits);
            fine = zeros <= 12;
            if (!fine) return;
            repeats = (1u << zeros) + take_bits(bits, zeros) - 1;
            fine = repeats <= rows_left;
            fresh = false;
        }
        if (repeats > 0) {
            repeats--;
            return;
        }
        fresh = true;
        u32 made;
        Row above = {four, from_left(four) >> 24};
        fine = fine && read_runs(bits, above, labels, width, made);
        if (fine) four = made;
    }
    // The word of this lane's column `k`: labels are below the length of the list, which was checked.
    PSI_METHOD u32 word(u32 k) const {
        u32 at = (four >> (8 * k) & 255) * (PSI_BITS / 8), value = 0;
        PSI_UNROLL
        for (u32 b = 0; b < PSI_BITS / 8; b++) value |= load_u8(list + at + b) << (8 * b);
        return value;
    }
    // After the last row.
    PSI_METHOD bool complete() const { return fine && divide_up(bits.at, 32) * 4 == bits.length; }
};
