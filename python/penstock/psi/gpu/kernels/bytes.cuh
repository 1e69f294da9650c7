// Rows of 8-bit words: the fast way. The four columns of a lane lie in two registers, the even ones and the odd ones, each in
// 16 bits: sums and differences need no care for what they carry over, and only the low 8 bits of a half count.
#pragma once
#include "tile.cuh"

#define PSI_LOW8 0x00FF00FFu
#define PSI_LENT 0x01000100u // lent to each half, so that no difference borrows from the other

struct Pair {
    u32 even, odd;
};

// Signed halves of bytes; above the low 8 bits anything may stand.
PSI_FN u32 half2(u32 a) { return choose_bits(0x007F007Fu, a >> 1, a); }
PSI_FN u32 unzigzag4(u32 a) { return ((a >> 1) & 0x7F7F7F7Fu) ^ ((a & 0x01010101u) * 255u); }
PSI_FN u32 packed(const Pair& pair) { return pick_bytes(pair.even, pair.odd, 0x6240); }

// What a lane knows of the predictors of one channel.
struct BytePredictor {
    u32 above, plane, half;  // masks: the low bytes of both halves where that predictor is used
    u32 base;                // the last lane up to this one that is predicted from above, else 0
};

PSI_FN BytePredictor byte_predictor(u32 which, u32 below) {
    BytePredictor predictor;
    predictor.above = which == 1 ? ~0u : 0u;
    predictor.plane = which == 2 ? PSI_LOW8 : 0u;
    predictor.half = which == 3 ? PSI_LOW8 : 0u;
    u32 resets = ballot(which == 1) & (below | 1u << lane_id());
    predictor.base = resets == 0 ? 0 : 31 - leading_zeros(resets);
    return predictor;
}

// Residuals plus what is known of each sample, summed inside the lane where the left neighbour counts.
PSI_FN Pair sum_inside(u32 residuals, const Pair& up, const BytePredictor& predictor, u32 first) {
    u32 corner = pick_bytes(from_left(up.odd), up.odd, 0x5432);
    // The first sample of a row always has its upper neighbour for a start: `first` is 0xFFFF in lane 0, where nothing else counts.
    u32 slope_even = (up.even + PSI_LENT - corner) & ~first, slope_odd = up.odd + PSI_LENT - up.even;
    u32 even = (up.even & (predictor.above | first)) | (slope_even & predictor.plane);
    u32 odd = (up.odd & predictor.above) | (slope_odd & predictor.plane);
    even |= half2(slope_even) & predictor.half;
    odd |= half2(slope_odd) & predictor.half;
    u32 plain = unzigzag4(residuals);
    even += plain & PSI_LOW8;
    odd = odd + pick_bytes(plain, 0, 0x4341) + (even & ~predictor.above);
    u32 carry = (odd & ~predictor.above) << 16;
    Pair sums = {even + carry, odd + carry};
    return sums;
}

// Rebuilds one row of all channels: residuals in, samples out, in `rows`, which hold the row above.
template <int channels>
PSI_FN void rebuild_bytes(const u32 (&residuals)[channels], const BytePredictor (&predictors)[channels], Pair (&rows)[channels],
                          u32 first) {
    Pair sums[channels];
    PSI_UNROLL
    for (int c = 0; c < channels; c++) sums[c] = sum_inside(residuals[c], rows[c], predictors[c], first);
    // Running sums over the lanes, of up to three channels at once in fields of 10 bits, modulo 256.
    PSI_UNROLL
    for (int c = 0; c < channels; c += 3) {
        const u32 fields = 0x0FF3FCFFu;
        u32 own = sums[c].odd >> 16 & 255;
        if (c + 1 < channels) own |= (sums[c + 1 < channels ? c + 1 : c].odd >> 6) & (255u << 10);
        if (c + 2 < channels) own |= (sums[c + 2 < channels ? c + 2 : c].odd << 4) & (255u << 20);
        u32 all = add_from_below<1>(own);
        all = add_from_below<2>(all) & fields;
        all = add_from_below<4>(all);
        all = add_from_below<8>(all) & fields;
        all = add_from_below<16>(all);
        // The sum of the lanes below; 256 is lent to each field, so that none borrows from the next.
        u32 before = (((all & fields) | 0x10040100u) - own) & fields;
        PSI_UNROLL
        for (int i = 0; i < 3 && c + i < channels; i++) {
            u32 at_base = shuffle(before, predictors[c + i].base);
            u32 carry = ((before >> (10 * i)) - (at_base >> (10 * i))) & 255;
            rows[c + i].even = (sums[c + i].even + carry * 0x00010001u) & PSI_LOW8;
            rows[c + i].odd = (sums[c + i].odd + carry * 0x00010001u) & PSI_LOW8;
        }
    }
}

// Means with weights that sum to 16, rounded down; above the low 8 bits anything may stand, but no carry.
PSI_FN u32 mean2(u32 a, u32 weight, u32 b) { return (a * weight + b * (16 - weight)) >> 4; }

// Undoes the colour transform of the first three channels: bytes of a register for each.
template <int channels> PSI_FN void colours_of_bytes(const Tile& tile, const Pair (&rows)[channels], u32 (&out)[channels]) {
    PSI_UNROLL
    for (int c = 0; c < channels; c++) out[c] = packed(rows[c]);
    if (channels < 3 || tile.colours == 0) return;
    const int two = channels > 1 ? 1 : 0, three = channels > 2 ? 2 : 0;
    const Pair first = rows[0], second = rows[two], third = rows[three];
    Pair red, green, blue;
    if (tile.colours == 3) {
        const Pair middle = {first.even + PSI_LENT - (half2(third.even) & PSI_LOW8),
                             first.odd + PSI_LENT - (half2(third.odd) & PSI_LOW8)};
        blue.even = middle.even + PSI_LENT - (half2(second.even) & PSI_LOW8);
        blue.odd = middle.odd + PSI_LENT - (half2(second.odd) & PSI_LOW8);
        red.even = blue.even + second.even;
        red.odd = blue.odd + second.odd;
        green.even = third.even + middle.even;
        green.odd = third.odd + middle.odd;
    } else {
        red.even = (second.even + first.even) & PSI_LOW8;
        red.odd = (second.odd + first.odd) & PSI_LOW8;
        green = first;
        blue.even = third.even + mean2(green.even, tile.weight, red.even);
        blue.odd = third.odd + mean2(green.odd, tile.weight, red.odd);
    }
    const u32 r = packed(red), g = packed(green);
    out[0] = tile.swap ? g : r;
    out[two] = tile.swap ? r : g;
    out[three] = packed(blue);
}
