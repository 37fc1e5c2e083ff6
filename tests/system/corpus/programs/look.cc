// The C++ bindings that MPI 3 removed.
#include <mpi.h>
extern "C" {
#include "report.h"
}

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING * 2];
    int length;
    MPI::Init(argc, argv);
    double given = MPI::COMM_WORLD.Get_rank() + 1, sum = 0;
    MPI::COMM_WORLD.Allreduce(&given, &sum, 1, MPI::DOUBLE, MPI::SUM);
    MPI_Get_library_version(version, &length);
    report(MPI::COMM_WORLD.Get_rank(), MPI::COMM_WORLD.Get_size(), sum, version);
    MPI::Finalize();
}
