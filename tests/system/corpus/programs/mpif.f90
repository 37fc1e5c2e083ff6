program look
  implicit none
  include 'mpif.h'
  interface
    subroutine tell(rank, size, sum, version) bind(c)
      use iso_c_binding
      integer(c_int) :: rank, size
      real(c_double) :: sum
      character(kind=c_char) :: version(*)
    end subroutine
  end interface
  integer :: rank, size, length, error
  double precision :: given, sum
  character(len=MPI_MAX_LIBRARY_VERSION_STRING) :: version
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, size, error)
  call MPI_Get_library_version(version, length, error)
  given = rank + 1
  call MPI_Allreduce(given, sum, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  version(length + 1:length + 1) = char(10)
  call tell(rank, size, sum, version)
  call MPI_Finalize(error)
end program
