// No contraction into fused multiply-adds (-ffp-contract=off): every instruction set gives the same bits.
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace fairlead {
namespace {

// IEEE 754 binary16, with integer arithmetic.
[[maybe_unused]] float f16_to_f32(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff, bits;
    if (exponent == 31) bits = 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0);
    else if (exponent) bits = (exponent + 112) << 23 | fraction << 13;
    else {
        float value = float(fraction) * 0x1p-24f;
        memcpy(&bits, &value, 4);
    }
    bits |= sign;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}
[[maybe_unused]] uint16_t f32_to_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return uint16_t(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (size < 0x38800000) {  // below 2^-14: the addition shifts it into place and rounds to even
        float shifted;
        memcpy(&shifted, &size, 4);
        shifted += 0.5f;
        memcpy(&size, &shifted, 4);
        return uint16_t(sign | (size - 0x3f000000));
    }
    return uint16_t(sign | (((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10)));
}

#define NAMESPACE baseline
#define VECTORS 0
#include "kernels_for.inc"
#undef NAMESPACE
#undef VECTORS

#if defined(__x86_64__)
// Clang has no `prefer-vector-width` attribute; its command line sets it (-mprefer-vector-width=512).
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c,prefer-vector-width=256")
#endif
#define NAMESPACE avx2
#define VECTORS 1
#include "kernels_for.inc"
#undef NAMESPACE
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,prefer-vector-width=512")
#endif
#define NAMESPACE avx512
#include "kernels_for.inc"
#undef NAMESPACE
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

const Kernels BASELINE = {
#if defined(__aarch64__)
    "neon",
#else
    "generic",
#endif
    baseline::convert, baseline::copy_past, baseline::sum, baseline::sum_shared};
#if defined(__x86_64__)
const Kernels AVX2 = {"avx2", avx2::convert, avx2::copy_past, avx2::sum, avx2::sum_shared}, AVX512 = {"avx512", avx512::convert, avx512::copy_past, avx512::sum, avx512::sum_shared};
#endif

#if defined(__x86_64__)
// What the processor supports and the system saves on a context switch. Not __builtin_cpu_supports: its data lies
// in libgcc for one compiler and in another library for the next.
struct Processor {
    bool avx2 = false, avx512 = false;
    Processor() {
        unsigned a, b, c, d, saved, high;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_F16C)) return;
        asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        const unsigned ymm = 0x06, zmm = 0xe6, wide = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
        avx2 = (saved & ymm) == ymm && (b & bit_AVX2);
        avx512 = avx2 && (saved & zmm) == zmm && (b & wide) == wide;
    }
};
#endif

const Kernels &choose() {
    const char *asked = getenv("FAIRLEAD_COMM_KERNELS");
    (void)asked;
#if defined(__x86_64__)
    const Processor has;
    if (has.avx512 && (!asked || !*asked || !strcmp(asked, "avx512"))) return AVX512;
    if (has.avx2 && (!asked || !*asked || !strcmp(asked, "avx2") || !strcmp(asked, "avx512"))) return AVX2;
#endif
    return BASELINE;
}

}  // namespace

const Kernels &kernels() {
    static const Kernels *chosen;  // two threads may both choose: the result is the same
    const Kernels *known = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (!known) __atomic_store_n(&chosen, known = &choose(), __ATOMIC_RELAXED);
    return *known;
}

}  // namespace fairlead
