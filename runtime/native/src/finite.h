// Whether floating numbers are all finite.
#pragma once

#include "kernels.h"

namespace fairlead {

// False if one of them is NaN or infinite. True of integers.
bool finite(const void *numbers, Form form, size_t count);
// The first that is not, and in words what it is; `count` if there is none.
size_t first_odd(const void *numbers, Form form, size_t count, const char **what);

}  // namespace fairlead
