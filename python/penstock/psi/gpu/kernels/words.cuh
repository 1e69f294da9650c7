// Rows of words of any width, one word a register: the general way, for 16 and 32 bits.
#pragma once
#include "tile.cuh"

#define PSI_MASK (PSI_BITS == 32 ? ~0u : (1u << (PSI_BITS & 31)) - 1)

PSI_FN u32 half_word(u32 value) {
    if (PSI_BITS == 32) return (u32)((i32)value >> 1);
    return ((u32)((i32)(value << (32 - PSI_BITS)) >> 1)) >> (32 - PSI_BITS);
}
PSI_FN u32 unzigzag_word(u32 value) { return ((value >> 1) ^ (0u - (value & 1))) & PSI_MASK; }
PSI_FN u32 mean_word(u32 a, u32 weight, u32 b) { return (u32)(((u64)a * weight + (u64)b * (16 - weight)) >> 4); }

// Rebuilds one row of one channel; `row` holds the row above. `which` is the lane's predictor, `base` the last lane up to
// this one that is predicted from above, else 0.
PSI_FN void rebuild_words(const u32 (&residuals)[4], u32 which, u32 base, u32 (&row)[4]) {
    u32 lane = lane_id();
    u32 corner = from_left(row[3]);
    if (lane == 0) corner = row[0];
    u32 start = lane == 0 ? row[0] : 0;
    u32 sums[4], left = 0;
    PSI_UNROLL
    for (int column = 0; column < 4; column++) {
        u32 up = row[column], slope = up - corner;
        u32 known = which == 1 ? up : which == 2 ? slope : which == 3 ? half_word(slope & PSI_MASK) : 0;
        if (column == 0 && which != 1) known += start;
        left = unzigzag_word(residuals[column]) + known + (which == 1 ? 0 : left);
        sums[column] = left;
        corner = up;
    }
    u32 all = add_from_below<1>(left);
    all = add_from_below<2>(all);
    all = add_from_below<4>(all);
    all = add_from_below<8>(all);
    all = add_from_below<16>(all);
    u32 before = all - left;
    u32 carry = before - shuffle(before, base);
    PSI_UNROLL
    for (int column = 0; column < 4; column++) row[column] = (sums[column] + carry) & PSI_MASK;
}

PSI_FN u32 reset_lane(u32 which, u32 below) {
    u32 resets = ballot(which == 1) & (below | 1u << lane_id());
    return resets == 0 ? 0 : 31 - leading_zeros(resets);
}

template <int channels>
PSI_FN void colours_of_words(const Tile& tile, const u32 (&rows)[channels][4], u32 (&out)[channels][4]) {
    const int two = channels > 1 ? 1 : 0, three = channels > 2 ? 2 : 0;
    PSI_UNROLL
    for (int column = 0; column < 4; column++) {
        PSI_UNROLL
        for (int c = 0; c < channels; c++) out[c][column] = rows[c][column];
        if (channels < 3 || tile.colours == 0) continue;
        u32 first = rows[0][column], second = rows[two][column], third = rows[three][column];
        u32 red, green, blue;
        if (tile.colours == 3) {
            u32 middle = (first - half_word(third)) & PSI_MASK;
            blue = (middle - half_word(second)) & PSI_MASK;
            red = (blue + second) & PSI_MASK;
            green = (third + middle) & PSI_MASK;
        } else {
            red = (second + first) & PSI_MASK;
            green = first;
            blue = (third + mean_word(green, tile.weight, red)) & PSI_MASK;
        }
        out[0][column] = tile.swap ? green : red;
        out[two][column] = tile.swap ? red : green;
        out[three][column] = blue;
    }
}
