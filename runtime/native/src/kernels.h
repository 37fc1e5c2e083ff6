// Sums and conversions over contiguous elements, chosen once for the processor.
#pragma once

#include "platform.h"

// FAIRLEAD_INDEPENDENT: no iteration of the following loop depends on another, whatever its pointers are.
// FAIRLEAD_UNROLLED: Clang does not unroll a loop of intrinsics by itself; GCC does.
#if defined(__clang__)
#define FAIRLEAD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define FAIRLEAD_UNROLLED _Pragma("clang loop unroll_count(4)")
#else
#define FAIRLEAD_INDEPENDENT _Pragma("GCC ivdep")
#define FAIRLEAD_UNROLLED
#endif

namespace fairlead {

// The representation of an element; the first six are those of fairlead_dtype.
enum Form : int { F32 = 0, F64 = 1, F16 = 2, BF16 = 3, I32 = 4, I64 = 5, RAW = 6 };

inline size_t width(Form form) { return form == F32 || form == I32 ? 4 : form == F16 || form == BF16 ? 2 : form == RAW ? 1 : 8; }
// The form in which its sums are kept.
inline Form summed_in(Form form) { return form == F16 || form == BF16 ? F32 : form; }

struct Kernels {
    const char *name;
    // to[i] = from[i], rounded to nearest even if `to_form` is narrower.
    void (*convert)(void *to, Form to_form, const void *from, Form from_form, size_t count);
    // The same bits with non-temporal stores, for memory larger than the caches. Call `written_past` before
    // another thread is notified.
    void (*copy_past)(void *to, const void *from, size_t bytes);
    // Adds sources[0][i] + sources[1][i] + … from the left in `summed_in(forms[0])`, multiplies by `scale`
    // (floating-point forms), and writes to `one` and, unless null, to `two`, each in its own form. `two` gets the
    // bits of `one`, converted. `past`: `two` may be written with non-temporal stores. Returns whether a sum,
    // before it was rounded to a half, is NaN or infinite; for floating-point forms.
    bool (*sum)(void *one, Form one_form, void *two, Form two_form, const void *const *sources, const Form *forms,
                int count_of_sources, size_t count, double scale, bool past);
    // The sums of `n` inputs, 2 to MOST_SHARED, in that order, to as many outputs; an output may be an input. Returns
    // how many elements it has done: with `look`, it stops before a block of BLOCK elements in which a sum is NaN or
    // infinite. `past`: with non-temporal stores.
    size_t (*sum_shared)(void *const *outs, const void *const *sources, int n, Form form, size_t count, double scale, bool look, bool past);
};

constexpr int MOST_SHARED = 256;
constexpr size_t BLOCK = 1024;  // elements whose sums stay in the first-level cache

const Kernels &kernels();

}  // namespace fairlead
