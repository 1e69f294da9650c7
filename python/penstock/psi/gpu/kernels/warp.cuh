// What the kernels ask of a warp: 32 lanes that run in step. Everything else in this folder is written in these words, so
// that the same source runs on a GPU and, lane by lane, on a CPU in the tests (which define PSI_EMULATED).
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef PSI_EMULATED
#include "emulated.h"
#else

#define PSI_FN static __device__ __forceinline__
#define PSI_CALL static __device__ __noinline__
#define PSI_METHOD __device__ __forceinline__
#define PSI_KERNEL(warps, blocks) extern "C" __global__ void __launch_bounds__(32 * (warps), blocks)
#define PSI_UNROLL _Pragma("unroll")

PSI_FN u32 lane_id() { return threadIdx.x & 31; }
// The same in all lanes, which the exchange tells the compiler.
PSI_FN u32 warp_id() { return (u32)__shfl_sync(0xFFFFFFFFu, (int)(threadIdx.x >> 5), 0); }
PSI_FN u32 block_id() { return blockIdx.x; }
PSI_FN void block_barrier() { __syncthreads(); }
PSI_FN void warp_barrier() { __syncwarp(); }

// The value that another lane has.
PSI_FN u32 shuffle(u32 value, u32 lane) { return __shfl_sync(0xFFFFFFFFu, value, (int)lane); }
// The value of the lane below or above; its own at the ends.
PSI_FN u32 from_left(u32 value) { return __shfl_up_sync(0xFFFFFFFFu, value, 1); }
PSI_FN u32 from_right(u32 value) { return __shfl_down_sync(0xFFFFFFFFu, value, 1); }
// One bit a lane, in lane order.
PSI_FN u32 ballot(bool flag) { return __ballot_sync(0xFFFFFFFFu, flag); }
PSI_FN u32 count_bits(u32 value) { return (u32)__popc((int)value); }
PSI_FN u32 leading_zeros(u32 value) { return (u32)__clz((int)value); }
// Lanes below this one, as bits.
PSI_FN u32 lanes_below() {
    u32 mask;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
    return mask;
}
// value += the sum's part of the lane `distance` below, where there is one.
template <int distance> PSI_FN u32 add_from_below(u32 value) {
    asm("{ .reg .pred p; .reg .u32 t; shfl.sync.up.b32 t|p, %0, %1, 0, 0xffffffff; @p add.u32 %0, %0, t; }"
        : "+r"(value) : "n"(distance));
    return value;
}
// Bytes of (low, high) picked by the four nibbles of `selector`.
PSI_FN u32 pick_bytes(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }
// Sum of the four bytes of `bytes`.
PSI_FN u32 sum_bytes(u32 bytes) { return __dp4a(bytes, 0x01010101u, 0u); }
// The low word of (high:low) >> bits, for up to 32 bits.
PSI_FN u32 funnel_right(u32 low, u32 high, u32 bits) { return __funnelshift_rc(low, high, bits); }
// `count` ones from bit 0 on; count is below 32.
PSI_FN u32 low_ones(u32 count) {
    u32 mask;
    asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(mask) : "r"(count));
    return mask;
}
PSI_FN float as_float(u32 bits) { return __uint_as_float(bits); }
PSI_FN u32 float_bits(float value) { return __float_as_uint(value); }
// Rounded after each operation, as the CPU does it: the same numbers on both.
PSI_FN float multiply_add(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }
PSI_FN float divide(float a, float b) { return __fdiv_rn(a, b); }
// Two float16 or bfloat16, the first in the low half, rounded to nearest even.
PSI_FN u32 pack_half(float first, float second) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}
PSI_FN u32 pack_bfloat(float first, float second) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}
PSI_FN float half_to_float(u32 bits) {
    float value;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(bits));
    return value;
}
// Input bytes: read once or twice, never written while the kernel runs.
PSI_FN u32 load_u32(const u8* at) { return __ldg((const u32*)at); }
PSI_FN u32 load_u16(const u8* at) { return __ldg((const u16*)at); }
PSI_FN u32 load_u8(const u8* at) { return __ldg(at); }
PSI_FN void store_u8(u8* at, u32 a) { *at = (u8)a; }
PSI_FN void store_u16(void* at, u32 a) { *(u16*)at = (u16)a; }
PSI_FN void store_u32(void* at, u32 a) { *(u32*)at = a; }
PSI_FN void store_u64(void* at, u32 a, u32 b) { *(uint2*)at = make_uint2(a, b); }
PSI_FN void store_u128(void* at, u32 a, u32 b, u32 c, u32 d) { *(uint4*)at = make_uint4(a, b, c, d); }
PSI_FN void raise(u32* status, u32 code) { atomicMax(status, code); }

// The bits of `a` where `mask` is one, of `b` elsewhere.
PSI_FN u32 choose_bits(u32 mask, u32 a, u32 b) {
    u32 chosen;
    asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(chosen) : "r"(mask), "r"(a), "r"(b));
    return chosen;
}
// An element of a table of 4 << `bits` bytes in shared memory: the low bits of `index` say which.
template <u32 bits> PSI_FN u32 look_up(u32 table, u32 index) {
    u32 value;
    asm("{ .reg .u32 a; and.b32 a, %2, %3; mad.lo.u32 a, a, 4, %1; ld.shared.u32 %0, [a]; }"
        : "=r"(value) : "r"(table), "r"(index), "n"((1 << bits) - 1));
    return value;
}
// Shared memory by its 32-bit address.
PSI_FN u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
PSI_FN u32 shared_u32(u32 address) {
    u32 value;
    asm("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}
PSI_FN u32 shared_u16(u32 address) {
    u16 value;
    asm("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
    return value;
}
// Lanes whose state is below 2^16 take the 16-bit words that follow, in lane order: from `ring`, an address that is a multiple
// of its size, `at` bytes from there modulo that size. Moves `at` behind what was taken.
template <u32 size> PSI_FN void take_words(u32& state, u32& at, u32 ring, u32 below) {
    u32 wanting;
    asm volatile(
        "{ .reg .pred p; .reg .u32 n, v; .reg .u16 w;\n"
        "setp.lt.u32 p, %0, 65536;\n"
        "vote.sync.ballot.b32 %1, p, 0xffffffff;\n"
        "and.b32 n, %1, %4;\n"
        "popc.b32 n, n;\n"
        "mad.lo.u32 n, n, 2, %2;\n"
        "lop3.b32 n, n, %5, %3, 0xEA;\n"
        "ld.shared.u16 w, [n];\n" // by all lanes: the others read what the next that wants one reads
        "cvt.u32.u16 v, w;\n"
        "@p mad.lo.u32 %0, %0, 65536, v; }"
        : "+r"(state), "=r"(wanting)
        : "r"(at), "r"(ring), "r"(below), "n"(size - 1)
        : "memory");
    at += 2 * count_bits(wanting);
}

// 16 bytes from global to shared memory, in the background.
PSI_FN void copy16(u32 shared, const u8* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
PSI_FN void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all copies but those of the last commit.
PSI_FN void copies_wait() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

#define PSI_SHARED(name) extern __shared__ __align__(16) u8 name[]

#endif
