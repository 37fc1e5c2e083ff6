/* An MPI code as it exists already: the Euclidean norm of each column over all ranks.
 *
 *   mpicc -shared -fPIC -O2 -o norms.so norms.c -lm
 */
#include <math.h>
#include <mpi.h>

int column_norms(MPI_Comm comm, const double *rows, long number, long columns, double *norms)
{
    for (long j = 0; j < columns; j++)
        norms[j] = 0.0;
    for (long i = 0; i < number; i++)
        for (long j = 0; j < columns; j++)
            norms[j] += rows[i * columns + j] * rows[i * columns + j];
    int failed = MPI_Allreduce(MPI_IN_PLACE, norms, (int)columns, MPI_DOUBLE, MPI_SUM, comm);
    for (long j = 0; j < columns; j++)
        norms[j] = sqrt(norms[j]);
    return failed;
}
