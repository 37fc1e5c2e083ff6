/* Data-parallel training's collectives in C, over any MPI; compiled without one. From the checkout:
 *
 *     $ python3 -m fairlead.native build && cc -I build -o build/comm_c examples/comm.c -L build -lfairlead_comm -ldl -Wl,-rpath,'$ORIGIN' && fairlead run -n 2 mpi-base -- build/comm_c
 */
#include "fairlead_comm.h"

#include <stdio.h>
#include <stdlib.h>

/* Every call gives a status; the words that go with it name the rank, the host and the tensor. */
static void check(int status) {
    if (status == FAIRLEAD_OK) return;
    fprintf(stderr, "error %d: %s\n", status, fairlead_comm_error());
    exit(1); /* the other ranks learn of it, and which rank it was */
}

int main(void) {
    enum { COUNT = 100000 };
    static float weights[COUNT], gradients[COUNT];
    static double loss;

    check(fairlead_comm_init());
    const int rank = fairlead_comm_rank(), size = fairlead_comm_size();
    fairlead_team *team; /* its helper thread does what is started in the background */
    check(fairlead_comm_team(1, &team));

    /* Every rank begins with rank 0's weights. */
    for (int i = 0; i < COUNT; i++) weights[i] = (float)rank;
    const fairlead_tensor model = {weights, weights, COUNT, FAIRLEAD_FLOAT32, 0, "weights"};
    check(fairlead_comm_broadcast(&model, 1, 0));

    for (int step = 0; step < 10; step++) {
        for (int i = 0; i < COUNT; i++) gradients[i] = (float)(rank + 1) * (float)(step + 1);
        loss = rank;

        /* The mean over all ranks, in place, while this thread does something else. */
        const fairlead_tensor update = {gradients, gradients, COUNT, FAIRLEAD_FLOAT32, 0, "gradients"};
        uint64_t ticket;
        check(fairlead_comm_start(team, &update, 1, FAIRLEAD_MEAN, &ticket));
        check(fairlead_comm_average(&loss, 1));
        check(fairlead_comm_wait(team, ticket));

        for (int i = 0; i < COUNT; i++) weights[i] -= 0.01f * gradients[i];
    }

    /* All ranks hold the same bits. */
    fairlead_match match;
    check(fairlead_comm_match(&model, 1, &match));
    if (!match.matches) {
        fprintf(stderr, "rank %d has other weights than rank 0\n", match.rank);
        return 1;
    }
    fairlead_layout layout;
    check(fairlead_comm_layout(&layout));
    if (rank == 0)
        printf("%d ranks on %d node(s), shared memory: %s, MPI: %s\nthe same weights on every rank, %.3f; mean loss %.1f\n", size, layout.nodes,
               layout.shared_memory ? "yes" : layout.why_not, layout.mpi, weights[0], loss);
    check(fairlead_comm_finalize());
    return 0;
}
