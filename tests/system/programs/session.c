/* Starts MPI by a session, as MPI 4 allows. */
#include <stdio.h>
int MPI_Session_init(int info, int errors, int *session), MPI_Session_finalize(int *session);

int main(void)
{
    int session;
    if (MPI_Session_init(0x1c000000 /* MPI_INFO_NULL of MPICH */, 0x54000000 /* MPI_ERRORS_ARE_FATAL */, &session))
        return 3;
    printf("in a session\n");
    return MPI_Session_finalize(&session);
}
