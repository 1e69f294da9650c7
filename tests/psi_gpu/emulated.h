// A warp on a CPU: every lane a fiber, switched at each exchange between lanes. The kernels' source compiles against this
// instead of CUDA; every read of a file and every store is checked against the buffers that the test gave.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define PSI_FN static inline
#define PSI_CALL static
#define PSI_METHOD inline
#define PSI_UNROLL
#define PSI_KERNEL(warps, blocks) static void
#define PSI_SHARED(name) u8* name = emulated::shared.data()

namespace emulated {

struct Fault {
    const char* what;
};

struct Fiber {
    ucontext_t context;
    jmp_buf place;
    std::vector<char> stack;
    bool started = false, over = false;
    unsigned arrivals = 0;        // exchanges of this lane so far
    unsigned block_arrivals = 0;
};

inline std::vector<u8> shared;
inline std::vector<Fiber> fibers;
inline unsigned current, block, lanes_in_block;
inline jmp_buf scheduler;
inline const u8 *blob, *blob_end;
inline u8 *out, *out_end;
inline const char* fault = nullptr;
inline u32 exchange[2][64][32];
inline unsigned arrived[64];      // exchanges that all lanes of a warp have reached: counted in lanes
inline unsigned block_arrived;
inline void (*entry)();

inline void yield() {
    if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}

inline void fail(const char* what) {
    if (!fault) fault = what;
}

// Puts this lane's value down, waits for the other 31, and returns the values of all.
inline const u32* meet(u32 value) {
    unsigned warp = current / 32, lane = current % 32;
    Fiber& fiber = fibers[current];
    u32* values = exchange[fiber.arrivals & 1][warp];
    values[lane] = value;
    fiber.arrivals++;
    arrived[warp]++;
    while (arrived[warp] < 32 * fiber.arrivals) yield();
    return values;
}

inline void trampoline() {
    entry();
    fibers[current].over = true;
    _longjmp(scheduler, 1);
}

// Runs one block to its end. False where lanes wait for each other for ever.
inline bool run_block(unsigned number, unsigned lanes, void (*kernel)()) {
    block = number;
    lanes_in_block = lanes;
    entry = kernel;
    if (fibers.size() < lanes) fibers.resize(lanes);
    memset(arrived, 0, sizeof arrived);
    block_arrived = 0;
    for (unsigned i = 0; i < lanes; i++) {
        Fiber& fiber = fibers[i];
        fiber.stack.resize(64 << 10);
        fiber.started = fiber.over = false;
        fiber.arrivals = fiber.block_arrivals = 0;
    }
    volatile unsigned left = lanes, idle = 0;
    while (left > 0) {
        unsigned before = block_arrived;
        for (unsigned w = 0; w < lanes / 32; w++) before += arrived[w];
        unsigned ended = 0;
        for (unsigned i = 0; i < lanes; i++) {
            Fiber& fiber = fibers[i];
            if (fiber.over) continue;
            current = i;
            if (_setjmp(scheduler) == 0) {
                if (fiber.started) _longjmp(fiber.place, 1);
                fiber.started = true;
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.data();
                fiber.context.uc_stack.ss_size = fiber.stack.size();
                fiber.context.uc_link = nullptr;
                makecontext(&fiber.context, trampoline, 0);
                setcontext(&fiber.context);
            }
            if (fibers[current].over) ended++;
        }
        left = left - ended;
        unsigned after = block_arrived;
        for (unsigned w = 0; w < lanes / 32; w++) after += arrived[w];
        idle = after == before && ended == 0 ? idle + 1 : 0;
        if (idle > 2) {
            fail("lanes wait for each other for ever");
            return false;
        }
    }
    return true;
}

inline const u8* readable(const u8* at, size_t bytes) {
    static const u8 nothing[16] = {};
    if (at < blob || at + bytes > blob_end) {
        fail("a read outside of the files and the manifest");
        return nothing;
    }
    if ((uintptr_t)at % bytes != 0) fail("a read that is not aligned");
    return at;
}

inline void store(void* to, const void* from, size_t bytes) {
    u8* at = (u8*)to;
    if (at < out || at + bytes > out_end) return fail("a store outside of the output");
    if ((uintptr_t)at % bytes != 0) return fail("a store that is not aligned");
    memcpy(at, from, bytes);
}

}  // namespace emulated

PSI_FN u32 lane_id() { return emulated::current % 32; }
PSI_FN u32 warp_id() { return emulated::current / 32; }
PSI_FN u32 block_id() { return emulated::block; }
PSI_FN void block_barrier() {
    emulated::Fiber& fiber = emulated::fibers[emulated::current];
    fiber.block_arrivals++;
    emulated::block_arrived++;
    while (emulated::block_arrived < emulated::lanes_in_block * fiber.block_arrivals) emulated::yield();
}
PSI_FN void warp_barrier() { emulated::meet(0); }
PSI_FN u32 shuffle(u32 value, u32 lane) { return emulated::meet(value)[lane & 31]; }
PSI_FN u32 from_left(u32 value) { return shuffle(value, lane_id() == 0 ? 0 : lane_id() - 1); }
PSI_FN u32 from_right(u32 value) { return shuffle(value, lane_id() == 31 ? 31 : lane_id() + 1); }
PSI_FN u32 ballot(bool flag) {
    const u32* all = emulated::meet(flag);
    u32 bits = 0;
    for (u32 lane = 0; lane < 32; lane++) bits |= (all[lane] & 1) << lane;
    return bits;
}
PSI_FN u32 count_bits(u32 value) { return (u32)__builtin_popcount(value); }
PSI_FN u32 leading_zeros(u32 value) { return value == 0 ? 32 : (u32)__builtin_clz(value); }
PSI_FN u32 lanes_below() { return (1u << lane_id()) - 1; }
template <int distance> PSI_FN u32 add_from_below(u32 value) {
    const u32* all = emulated::meet(value);
    return lane_id() >= distance ? value + all[lane_id() - distance] : value;
}
PSI_FN u32 pick_bytes(u32 low, u32 high, u32 selector) {
    u64 both = (u64)high << 32 | low;
    u32 out = 0;
    for (u32 i = 0; i < 4; i++) out |= (u32)(both >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return out;
}
PSI_FN u32 sum_bytes(u32 b) { return (b & 255) + (b >> 8 & 255) + (b >> 16 & 255) + (b >> 24); }
PSI_FN u32 funnel_right(u32 low, u32 high, u32 bits) { return (u32)(((u64)high << 32 | low) >> bits); }
PSI_FN u32 low_ones(u32 count) { return count >= 32 ? ~0u : (1u << count) - 1; }
PSI_FN float as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
PSI_FN u32 float_bits(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}
PSI_FN float multiply_add(float a, float b, float c) {
    volatile float product = a * b;
    return product + c;
}
PSI_FN float divide(float a, float b) { return a / b; }
PSI_FN u32 half_bits(float value) {
    _Float16 half = (_Float16)value;
    u16 bits;
    memcpy(&bits, &half, 2);
    return bits;
}
PSI_FN u32 bfloat_bits(float value) {
    u32 bits = float_bits(value);
    if (value != value) return 0x7FFF;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
PSI_FN u32 pack_half(float first, float second) { return half_bits(first) | half_bits(second) << 16; }
PSI_FN u32 pack_bfloat(float first, float second) { return bfloat_bits(first) | bfloat_bits(second) << 16; }
PSI_FN float half_to_float(u32 bits) {
    u16 narrow = (u16)bits;
    _Float16 half;
    memcpy(&half, &narrow, 2);
    return (float)half;
}
PSI_FN u32 load_u32(const u8* at) {
    u32 value;
    memcpy(&value, emulated::readable(at, 4), 4);
    return value;
}
PSI_FN u32 load_u16(const u8* at) {
    u16 value;
    memcpy(&value, emulated::readable(at, 2), 2);
    return value;
}
PSI_FN u32 load_u8(const u8* at) { return *emulated::readable(at, 1); }
PSI_FN void store_u8(u8* at, u32 a) {
    u8 value = (u8)a;
    emulated::store(at, &value, 1);
}
PSI_FN void store_u16(void* at, u32 a) {
    u16 value = (u16)a;
    emulated::store(at, &value, 2);
}
PSI_FN void store_u32(void* at, u32 a) { emulated::store(at, &a, 4); }
PSI_FN void store_u64(void* at, u32 a, u32 b) {
    u32 values[2] = {a, b};
    emulated::store(at, values, 8);
}
PSI_FN void store_u128(void* at, u32 a, u32 b, u32 c, u32 d) {
    u32 values[4] = {a, b, c, d};
    emulated::store(at, values, 16);
}
PSI_FN void raise(u32* status, u32 code) {
    if (code > *status) *status = code;
}
PSI_FN u32 shared_address(const void* pointer) { return (u32)((const u8*)pointer - emulated::shared.data()); }
PSI_FN const u8* in_shared(u32 address, u32 bytes) {
    if (address % bytes != 0 || address + bytes > emulated::shared.size()) {
        emulated::fail("shared memory is read outside of it");
        return emulated::shared.data();
    }
    return emulated::shared.data() + address;
}
PSI_FN u32 shared_u32(u32 address) {
    u32 value;
    memcpy(&value, in_shared(address, 4), 4);
    return value;
}
PSI_FN u32 shared_u16(u32 address) {
    u16 value;
    memcpy(&value, in_shared(address, 2), 2);
    return value;
}
PSI_FN u32 choose_bits(u32 mask, u32 a, u32 b) { return (a & mask) | (b & ~mask); }
template <u32 bits> PSI_FN u32 look_up(u32 table, u32 index) { return shared_u32(table + 4 * (index & ((1u << bits) - 1))); }
template <u32 size> PSI_FN void take_words(u32& state, u32& at, u32 ring, u32 below) {
    bool wants = state < 65536;
    u32 wanting = ballot(wants);
    if (ring % size != 0) emulated::fail("a ring that is not aligned to its size");
    if (wants) state = state * 65536 + shared_u16(ring | ((at + 2 * count_bits(wanting & below)) & (size - 1)));
    at += 2 * count_bits(wanting);
}
PSI_FN void copy16(u32 to, const u8* from) {
    memcpy((u8*)in_shared(to, 16), emulated::readable(from, 16), 16);
}
PSI_FN void copies_commit() {}
PSI_FN void copies_wait() {}
