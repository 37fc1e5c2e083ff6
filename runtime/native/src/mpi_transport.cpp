#include "mpi_transport.h"

namespace fairlead {

int MpiTransport::set(Mpi &mpi, Mpi::Handle comm, Error *error) {
    mpi_ = &mpi, comm_ = comm;
    if (int bad = mpi.check(mpi.Comm_rank(comm, &rank), "MPI_Comm_rank", error)) return bad;
    return mpi.check(mpi.Comm_size(comm, &size), "MPI_Comm_size", error);
}

int MpiTransport::send(const void *from, size_t bytes, int to, int tag, long *request, Error *error) {
    const MpiTurn turn(*mpi_);
    return mpi_->check(mpi_->Isend(from, int(bytes), mpi_->byte, to, tag, comm_, request), "MPI_Isend", error);
}

int MpiTransport::receive(void *to, size_t bytes, int from, int tag, long *request, Error *error) {
    const MpiTurn turn(*mpi_);
    return mpi_->check(mpi_->Irecv(to, int(bytes), mpi_->byte, from, tag, comm_, request), "MPI_Irecv", error);
}

int MpiTransport::test(long *request, bool *done, Error *error) {
    int flag = 0;
    const MpiTurn turn(*mpi_);
    const int bad = mpi_->check(mpi_->Test(request, &flag, mpi_->no_status), "MPI_Test", error);
    *done = flag != 0;
    return bad;
}

int MpiTransport::sum(void *data, uint64_t count, Form form, long *request, Error *error) {
    const Mpi &m = *mpi_;
    const Mpi::Handle type = form == F32 ? m.f32 : form == F64 ? m.f64 : form == I32 ? m.i32 : form == I64 ? m.i64 : m.i16;
    const Mpi::Handle operation = form == F16 ? m.sum_f16 : form == BF16 ? m.sum_bf16 : m.sum;
    const MpiTurn turn(*mpi_);
    return m.check(m.Iallreduce(m.in_place, data, int(count), type, operation, comm_, request), "MPI_Iallreduce", error);
}

}  // namespace fairlead
