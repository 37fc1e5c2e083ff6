program look
  use mpi_f08
  implicit none
  interface
    subroutine tell(rank, size, sum, version) bind(c)
      use iso_c_binding
      integer(c_int) :: rank, size
      real(c_double) :: sum
      character(kind=c_char) :: version(*)
    end subroutine
  end interface
  integer :: rank, size, length
  double precision :: given, sum
  character(len=MPI_MAX_LIBRARY_VERSION_STRING) :: version
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  call MPI_Get_library_version(version, length)
  given = rank + 1
  call MPI_Allreduce(given, sum, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
  version(length + 1:length + 1) = char(10)
  call tell(rank, size, sum, version)
  call MPI_Finalize()
end program
