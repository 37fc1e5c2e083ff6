#include "fairlead_comm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define DO(x) do { int c_ = (x); if (c_) { fprintf(stderr, "%s: %d %s\n", #x, c_, fairlead_comm_error()); exit(3);} } while (0)
int main(int argc, char **argv) {
  DO(fairlead_comm_init());
  int rank = fairlead_comm_rank(), size = fairlead_comm_size();
  fairlead_layout l; DO(fairlead_comm_layout(&l));
  if (!rank) printf("%d ranks %d nodes shm=%d (%s) %s %s %s\n", l.size, l.nodes, l.shared_memory, l.why_not, l.mpi, l.library, l.kernels);
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  fairlead_team *team; DO(fairlead_comm_team(threads, &team));
  uint64_t sizes[] = {0,1,3,64,1000,2048,2049,5000,70000,262144,262145,1000003,5000001};
  const uint64_t largest = argc > 2 ? strtoull(argv[2], 0, 10) : UINT64_MAX;
#if defined(__x86_64__)
  /* A rank that flushes denormal numbers to zero in its own sums gets the same bits as the others. */
  unsigned mode = _mm_getcsr();
  if (rank % 2) _mm_setcsr(mode | 0x8040);
#endif
  for (int i = 0; i < 2; i++) {
    static const uint32_t smallest = 1;
    uint64_t n = i ? 100003 : 5;
    uint32_t *bits = malloc(4 * n);
    for (uint64_t j = 0; j < n; j++) bits[j] = smallest;
    fairlead_tensor t = {bits, bits, n, FAIRLEAD_FLOAT32, 0, 0};
    DO(fairlead_comm_aggregate(team, &t, 1, FAIRLEAD_SUM));
    for (uint64_t j = 0; j < n; j++) if (bits[j] != (uint32_t)size) { fprintf(stderr, "denormal %x\n", bits[j]); exit(11); }
    free(bits);
  }
#if defined(__x86_64__)
  if (_mm_getcsr() >> 15 != (rank % 2 ? 1u : 0u)) exit(12);
  _mm_setcsr(mode);
#endif
  for (int round = 0; round < 2; round++)
  for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    uint64_t n = sizes[s];
    if (n > largest) continue;
    float *a = malloc(4*n+4), *o = malloc(4*n+4); double *d = malloc(8*n+8);
    int64_t *k = malloc(8*n+8);
    for (uint64_t i = 0; i < n; i++) { a[i] = (float)(rank + 1) * (float)(i % 1000); d[i] = a[i] * 0.5; k[i] = (int64_t)i * (rank + 1); }
    fairlead_tensor t[3] = {{a, round ? a : o, n, FAIRLEAD_FLOAT32, 0, "a"}, {d, d, n, FAIRLEAD_FLOAT64, 0, "d"}, {k, k, n, FAIRLEAD_INT64, 0, "k"}};
    if (round) { uint64_t ticket; DO(fairlead_comm_start(team, t, 3, FAIRLEAD_SUM, &ticket)); DO(fairlead_comm_wait(team, ticket)); }
    else DO(fairlead_comm_aggregate(team, t, 3, FAIRLEAD_SUM));
    float *r = round ? a : o;
    double total = size * (size + 1) / 2.0;
    for (uint64_t i = 0; i < n; i++) if (r[i] != (float)(total * (i % 1000)) || d[i] != total * (i % 1000) * .5 || k[i] != (int64_t)i * (int64_t)total) { fprintf(stderr, "rank %d n %lu i %lu: %g %g %ld\n", rank, n, i, r[i], d[i], (long)k[i]); exit(4); }
    /* halves */
    uint16_t *h = malloc(2*n+2);
    for (uint64_t i = 0; i < n; i++) h[i] = 0x3f80; /* bf16 1 */
    fairlead_tensor b = {h, h, n, FAIRLEAD_BFLOAT16, 0, 0};
    DO(fairlead_comm_aggregate(team, &b, 1, FAIRLEAD_MEAN));
    for (uint64_t i = 0; i < n; i++) if (h[i] != 0x3f80) { fprintf(stderr, "bf16 %x\n", h[i]); exit(5); }
    for (int root = 0; root < size; root++) {
      for (uint64_t i = 0; i < n; i++) a[i] = (float)(rank * 7 + i % 100);
      fairlead_tensor c = {a, a, n, FAIRLEAD_FLOAT32, 0, 0};
      DO(fairlead_comm_broadcast(&c, 1, root));
      for (uint64_t i = 0; i < n; i++) if (a[i] != (float)(root * 7 + i % 100)) { fprintf(stderr, "bcast\n"); exit(6); }
      fairlead_match m; DO(fairlead_comm_match(&c, 1, &m));
      if (!m.matches) { fprintf(stderr, "no match\n"); exit(7); }
      if (n > 2 && rank == size - 1) a[n/2] += 1;
      DO(fairlead_comm_match(&c, 1, &m));
      if (n > 2 && size > 1 && (m.matches || m.tensor != 0 || m.rank != size - 1)) { fprintf(stderr, "match %d %d %ld\n", m.matches, m.rank, (long)m.tensor); exit(8); }
    }
    /* compressed */
    for (uint64_t i = 0; i < n; i++) a[i] = (float)(i % 8);
    fairlead_tensor w = {a, a, n, FAIRLEAD_FLOAT32, 0, 0};
    DO(fairlead_comm_aggregate(team, &w, 1, FAIRLEAD_MEAN | FAIRLEAD_BFLOAT16 << 8));
    for (uint64_t i = 0; i < n; i++) if (a[i] != (float)(i % 8)) { fprintf(stderr, "wire %g\n", a[i]); exit(9); }
    free(a); free(o); free(d); free(k); free(h);
  }
  double v = rank; DO(fairlead_comm_average(&v, 1)); if (v != (size - 1) / 2.0) exit(10);
  fairlead_stats st; DO(fairlead_comm_stats(team, &st));
  DO(fairlead_comm_barrier());
  if (!rank) printf("ok calls %lu wait %.3f move %.3f blocked %.3f\n", st.calls, st.wait_s, st.move_s, st.blocked_s);
  DO(fairlead_comm_finalize());
  return 0;
}
