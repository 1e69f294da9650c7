// Rows of 8-bit words, four neighbouring columns of a lane packed into 32 bits: the fast way.
#pragma once
#include "tile.cuh"

#define PSI_LOW7 0x7F7F7F7Fu
#define PSI_TOP1 0x80808080u

// Sums, differences and halves byte by byte, modulo 256.
PSI_FN u32 add4(u32 a, u32 b) { return ((a & PSI_LOW7) + (b & PSI_LOW7)) ^ ((a ^ b) & PSI_TOP1); }
PSI_FN u32 subtract4(u32 a, u32 b) { return ((a | PSI_TOP1) - (b & PSI_LOW7)) ^ ((a ^ ~b) & PSI_TOP1); }
PSI_FN u32 half4(u32 a) { return choose_bits(PSI_LOW7, a >> 1, a); } // signed
// Means of two rows with weights that sum to 16, rounded down.
PSI_FN u32 mean4(u32 a, u32 weight, u32 b) {
    u32 even = (a & 0x00FF00FFu) * weight + (b & 0x00FF00FFu) * (16 - weight);
    u32 odd = (a >> 8 & 0x00FF00FFu) * weight + (b >> 8 & 0x00FF00FFu) * (16 - weight);
    return (even >> 4 & 0x00FF00FFu) | (odd << 4 & 0xFF00FF00u);
}
PSI_FN u32 unzigzag4(u32 a) { return ((a >> 1) & PSI_LOW7) ^ ((a & 0x01010101u) * 255u); }

// What a lane knows of the predictors of one channel.
struct BytePredictor {
    u32 above, plane, half;  // masks: all ones where that predictor is used
    u32 base;                // the last lane up to this one that is predicted from above, else 0
};

PSI_FN BytePredictor byte_predictor(u32 which, u32 below) {
    BytePredictor predictor;
    predictor.above = which == 1 ? ~0u : 0u;
    predictor.plane = which == 2 ? ~0u : 0u;
    predictor.half = which == 3 ? ~0u : 0u;
    u32 resets = ballot(which == 1) & (below | 1u << lane_id());
    predictor.base = resets == 0 ? 0 : 31 - leading_zeros(resets);
    return predictor;
}

// Even and odd bytes of a row after the running sum inside the lane, in 16-bit halves.
struct Sums {
    u32 even, odd;
};

// Residuals plus what is known of each sample, summed inside the lane where the left neighbour counts.
PSI_FN Sums sum_inside(u32 residuals, u32 up, const BytePredictor& predictor, u32 corner, u32 first) {
    u32 north_west = pick_bytes(up, from_left(up), corner);
    u32 slope = subtract4(up, north_west);
    u32 known = (up & predictor.above) | (slope & predictor.plane);
    // The first sample of a row always has its upper neighbour for a start: `first` is 255 in lane 0.
    known |= up & first;
    known |= half4(slope) & predictor.half;
    u32 start = add4(unzigzag4(residuals), known);
    u32 even = start & 0x00FF00FFu, odd = start >> 8 & 0x00FF00FFu;
    u32 both = odd + (even & ~predictor.above);
    u32 carry = (both & ~predictor.above) << 16;
    Sums sums = {even + carry, both + carry};
    return sums;
}

// Rebuilds one row of all channels: residuals in, samples out, in `rows`, which hold the row above.
template <int channels>
PSI_FN void rebuild_bytes(const u32 (&residuals)[channels], const BytePredictor (&predictors)[channels], u32 (&rows)[channels],
                          u32 corner, u32 first) {
    Sums sums[channels];
    PSI_UNROLL
    for (int c = 0; c < channels; c++)
        sums[c] = sum_inside(residuals[c], rows[c], predictors[c], corner, first);
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
            u32 even = sums[c + i].even + carry * 0x00010001u;
            u32 odd = sums[c + i].odd + carry * 0x00010001u;
            rows[c + i] = pick_bytes(even, odd, 0x6240);
        }
    }
}

// Undoes the colour transform of the first three channels.
template <int channels> PSI_FN void colours_of_bytes(const Tile& tile, const u32 (&rows)[channels], u32 (&out)[channels]) {
    PSI_UNROLL
    for (int c = 0; c < channels; c++) out[c] = rows[c];
    if (channels < 3 || tile.colours == 0) return;
    const int two = channels > 1 ? 1 : 0, three = channels > 2 ? 2 : 0;
    u32 first = rows[0], second = rows[two], third = rows[three];
    u32 red, green, blue;
    if (tile.colours == 3) {
        u32 middle = subtract4(first, half4(third));
        blue = subtract4(middle, half4(second));
        red = add4(blue, second);
        green = add4(third, middle);
    } else {
        red = add4(second, first);
        green = first;
        blue = add4(third, mean4(green, tile.weight, red));
    }
    out[0] = tile.swap ? green : red;
    out[two] = tile.swap ? red : green;
    out[three] = blue;
}
