#include "finite.h"

namespace fairlead {
namespace {

// Where all bits of the exponent are set.
template <class T> constexpr T exponent(Form form) {
    return form == F64 ? T(0x7ff0000000000000ull) : form == F32 ? T(0x7f800000u) : form == F16 ? T(0x7c00u) : T(0x7f80u);
}

#define LOOK                                                                          \
    typedef T Loose __attribute__((aligned(1), may_alias));                           \
    const Loose *at = static_cast<const Loose *>(numbers);                            \
    T odd = 0;                                                                        \
    for (size_t i = 0; i < count; i++) odd = T(odd | T((at[i] & mask) == mask));      \
    return !odd;

template <class T> bool look(const void *numbers, size_t count, T mask) { LOOK }
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,prefer-vector-width=256")
#endif
template <class T> bool look_avx2(const void *numbers, size_t count, T mask) { LOOK }
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#undef LOOK

template <class T> bool all_finite(const void *numbers, size_t count, T mask) {
#if defined(__x86_64__)
    if (!strncmp(kernels().name, "avx", 3)) return look_avx2<T>(numbers, count, mask);
#endif
    return look<T>(numbers, count, mask);
}

}  // namespace

bool finite(const void *numbers, Form form, size_t count) {
    switch (form) {
        case F32: return all_finite<uint32_t>(numbers, count, exponent<uint32_t>(form));
        case F64: return all_finite<uint64_t>(numbers, count, exponent<uint64_t>(form));
        case F16:
        case BF16: return all_finite<uint16_t>(numbers, count, exponent<uint16_t>(form));
        default: return true;
    }
}

size_t first_odd(const void *numbers, Form form, size_t count, const char **what) {
    const size_t w = width(form);
    const char *at = static_cast<const char *>(numbers);
    for (size_t i = 0; i < count; i++) {
        if (finite(at + i * w, form, 1)) continue;
        uint64_t bits = 0;
        memcpy(&bits, at + i * w, w);
        const uint64_t mask = form == F64 ? exponent<uint64_t>(form) : form == F32 ? exponent<uint32_t>(form) : exponent<uint16_t>(form);
        const uint64_t sign = uint64_t(1) << (8 * w - 1);
        *what = bits & ~mask & ~sign ? "NaN" : bits & sign ? "-infinity" : "infinity";
        return i;
    }
    return count;
}

}  // namespace fairlead
