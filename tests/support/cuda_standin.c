/* As much of CUDA's driver and runtime as net plugins ask for before they move host memory, on a machine without a GPU.
 * Compiled as libcuda.so, and by a version script as libcudart.so.12. */
#include <string.h>

enum { VERSION = 12040, HOST = 1 };

static int nothing(void) { return 0; }

int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuPointerGetAttribute(void *data, int what, unsigned long at) { (void)what; (void)at; *(int *)data = HOST; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetAttribute(int *value, int what, int device) { (void)what; (void)device; *value = 0; return 0; }
int cuFlushGPUDirectRDMAWrites(int target, int scope) { (void)target; (void)scope; return 0; }

int cudaDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = VERSION; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaDeviceFlushGPUDirectRDMAWrites(int target, int scope) { (void)target; (void)scope; return 0; }

int cudaPointerGetAttributes(int *attributes, const void *at) {
    (void)at;
    attributes[0] = attributes[1] = 0; /* memory that CUDA does not know, of device 0 */
    return 0;
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *result) {
    (void)flags;
    *function = (void *)nothing;
    if (!strcmp(name, "cuCtxGetDevice")) *function = (void *)cuCtxGetDevice;
    if (!strcmp(name, "cuDeviceGetAttribute")) *function = (void *)cuDeviceGetAttribute;
    if (result) *result = 0;
    return 0;
}
