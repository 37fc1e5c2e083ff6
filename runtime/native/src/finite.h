// Whether floating-point numbers are all finite.
#pragma once

#include "kernels.h"

namespace fairlead {

// False if one of them is NaN or infinite. True for integers.
bool finite(const void *numbers, Form form, size_t count);
// Index of the first that is not finite, and a description of it; `count` if there is none.
size_t first_odd(const void *numbers, Form form, size_t count, const char **what);

}  // namespace fairlead
