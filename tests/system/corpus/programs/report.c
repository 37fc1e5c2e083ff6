#include "report.h"
/* For Fortran. */
void tell(int *rank, int *size, double *sum, const char *version) { report(*rank, *size, *sum, version); }
