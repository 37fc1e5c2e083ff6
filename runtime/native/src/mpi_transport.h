// Messages between nodes by MPI, over one communicator.
#pragma once

#include "mpi.h"
#include "network.h"

namespace fairlead {

class MpiTransport final : public Transport {
  public:
    // The communicator's ranks are the nodes.
    int set(Mpi &mpi, Mpi::Handle comm, Error *error);
    int send(const void *from, size_t bytes, int to, int tag, long *request, Error *error) override;
    int receive(void *to, size_t bytes, int from, int tag, long *request, Error *error) override;
    int test(long *request, bool *done, Error *error) override;
    bool sums() const override { return true; }
    int sum(void *data, uint64_t count, Form form, long *request, Error *error) override;

  private:
    Mpi *mpi_ = nullptr;
    Mpi::Handle comm_ = 0;
};

}  // namespace fairlead
