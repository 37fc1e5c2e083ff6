! What Fortran asks of its world: by mpif.h (-DMPIF), by `use mpi` (-DMODULE), by `use mpi_f08` (-DF08), or without any.
program hello
#if defined F08
  use mpi_f08
#elif defined MODULE
  use mpi
#endif
  implicit none
#if defined MPIF
  include 'mpif.h'
#elif !defined F08 && !defined MODULE
  integer, parameter :: MPI_COMM_WORLD = 0
#endif
  integer :: rank, size, error
  call mpi_init(error)
  call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
  call mpi_comm_size(MPI_COMM_WORLD, size, error)
  print '(a,i0,a,i0)', 'rank ', rank, ' of ', size
  call mpi_finalize(error)
end program
