/* Sums and means of any bits there are, in every kind of number, by every way that float32 travels; their digest is
 * printed by rank 0. Two processors whose digests are the same have added and rounded alike. Which bits a NaN carries is
 * the processor's own: every NaN counts as one. */
#include "fairlead_comm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define DO(x) do { if (x) { fprintf(stderr, "%s: %s\n", #x, fairlead_comm_error()); exit(3); } } while (0)

static uint64_t drawn(uint64_t *state) { /* splitmix64 */
  uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

static const int width[] = {4, 8, 2, 2, 4, 8};
static const uint64_t exponent[] = {0x7f800000, 0x7ffull << 52, 0x7c00, 0x7f80, 0, 0};
static const uint64_t fraction[] = {0x7fffff, (1ull << 52) - 1, 0x3ff, 0x7f, 0, 0};

static void fill(unsigned char *at, uint64_t count, int dtype, uint64_t seed) {
  for (uint64_t i = 0; i < count; i++) {
    uint64_t bits = drawn(&seed);
    if (dtype < 4) {
      if (i % 4 == 1) bits &= ~exponent[dtype];                                   /* too small to be normal */
      if (i % 64 == 2) bits = (bits & ~fraction[dtype]) | exponent[dtype];        /* infinite */
      if (i % 8 == 3 && dtype == 0) bits &= ~0x1fffull;                           /* ties when it travels as a half */
    }
    memcpy(at + i * width[dtype], &bits, width[dtype]); /* both processors keep the lower bytes first */
  }
}

static uint64_t digest(uint64_t h, const unsigned char *at, uint64_t count, int dtype) { /* FNV-1a */
  for (uint64_t i = 0; i < count; i++) {
    uint64_t bits = 0;
    memcpy(&bits, at + i * width[dtype], width[dtype]);
    if (dtype < 4 && (bits & exponent[dtype]) == exponent[dtype] && bits & fraction[dtype]) bits = exponent[dtype] | fraction[dtype];
    for (int b = 0; b < width[dtype]; b++) h = (h ^ (bits >> 8 * b & 255)) * 0x100000001b3ull;
  }
  return h;
}

int main(void) {
  DO(fairlead_comm_init());
  const int rank = fairlead_comm_rank();
  fairlead_layout layout;
  DO(fairlead_comm_layout(&layout));
  fairlead_team *team;
  DO(fairlead_comm_team(1, &team));
  const uint64_t counts[] = {1, 7, 1500, 70001};
  const int wires[] = {0, FAIRLEAD_FLOAT16 << 8, FAIRLEAD_BFLOAT16 << 8};
  uint64_t h = 0xcbf29ce484222325ull;
  for (int dtype = 0; dtype < 6; dtype++)
    for (int mean = 0; mean < (dtype < 4 ? 2 : 1); mean++)
      for (int wire = 0; wire < (dtype == 0 ? 3 : 1); wire++)
        for (int c = 0; c < 4; c++) {
          unsigned char *values = malloc(counts[c] * width[dtype]);
          fill(values, counts[c], dtype, 1000003ull * rank + 101 * dtype + c);
          fairlead_tensor t = {values, values, counts[c], dtype, 0, "bits"};
          DO(fairlead_comm_aggregate(team, &t, 1, mean | FAIRLEAD_ANY | wires[wire]));
          h = digest(h, values, counts[c], dtype);
          free(values);
        }
  DO(fairlead_comm_finalize());
  if (!rank) printf("%s %016llx\n", layout.kernels, (unsigned long long)h);
  return 0;
}
