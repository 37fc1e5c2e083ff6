#include "lifeline.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "lane.h"

namespace fairlead {
namespace {

constexpr double MEET_S = 2;     // limit for making a connection; a rank may come a little later
constexpr double ADDRESS_S = 0.5;  // of that, for one of several addresses
constexpr char HERE = 'h', BYE = 'b';

// The first message of the connecting rank: whom it calls, and who it is.
struct Greeting {
    uint64_t token;
    int64_t rank;
};

void keep_alive(int file) {
    // About 25 seconds without an answer: the machine is gone.
    const int on = 1, idle = 10, each = 5, times = 3;
    setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPINTVL, &each, sizeof each);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

int call(uint32_t host, uint16_t port) {
    const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET, to.sin_port = port, to.sin_addr.s_addr = host;
    if (file < 0 || !connect(file, reinterpret_cast<sockaddr *>(&to), sizeof to) || errno == EINPROGRESS) return file;
    ::close(file);
    return -1;
}

}  // namespace

// Listens at all addresses of this host, and publishes those that others can reach.
int Lifeline::listen(Door *door) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    socklen_t size = sizeof at;
    const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0) return -1;
    ifaddrs *found = nullptr;
    if (bind(file, reinterpret_cast<sockaddr *>(&at), size) || ::listen(file, 8) || getsockname(file, reinterpret_cast<sockaddr *>(&at), &size) || getifaddrs(&found)) {
        ::close(file);
        return -1;
    }
    door->port = at.sin_port;
    for (const ifaddrs *one = found; one && door->count < HOSTS; one = one->ifa_next) {
        if (!one->ifa_addr || !one->ifa_netmask || one->ifa_addr->sa_family != AF_INET || one->ifa_flags & IFF_LOOPBACK || !(one->ifa_flags & IFF_UP)) continue;
        sockaddr_in host, mask;
        memcpy(&host, one->ifa_addr, sizeof host), memcpy(&mask, one->ifa_netmask, sizeof mask);
        door->hosts[door->count] = host.sin_addr.s_addr, door->masks[door->count++] = mask.sin_addr.s_addr;
    }
    freeifaddrs(found);
    return file;
}

int Lifeline::open(Mpi &mpi, Mpi::Handle from, const World &world, bool first, Error *error) {
    Door mine = {};
    const int listener = first ? listen(&mine) : -1;
    mine.first = first;
    mine.token = mixed(mixed(uint64_t(getpid()), now_ns()), uint64_t(world.rank));
    Room<Door> doors;
    const size_t size = size_t(world.size), me = size_t(world.rank);
    int bad = doors.room(size) ? 0 : error->set(FAIRLEAD_NO_MEMORY, "no memory for the addresses of %d ranks", world.size);
    if (!bad) bad = mpi.check(mpi.Allgather(&mine, int(sizeof mine), mpi.byte, doors.at(), int(sizeof mine), mpi.byte, from), "MPI_Allgather", error);
    if (!bad && listener >= 0) {
        size_t next = me, before = me;
        do next = (next + 1) % size;
        while (!doors[next].first);
        do before = (before + size - 1) % size;
        while (!doors[before].first);
        ahead_.rank = doors[next].port ? int(next) : -1, behind_.rank = doors[before].port ? int(before) : -1;
        if (next != me) meet(listener, world.rank, mine, doors[next], !strcmp(world.host(int(next)), world.host(world.rank)));
    }
    if (listener >= 0) ::close(listener);
    return bad;
}

// Connects to the next rank and accepts the previous one, if both are there in time.
void Lifeline::meet(int listener, int rank, const Door &mine, const Door &next, bool same_host) {
    // Addresses of the next rank, those in a network of this host first. An address that this host has as well,
    // such as that of a container bridge, does not lead to the next.
    uint32_t hosts[HOSTS + 1];
    int count = 0;
    if (same_host) hosts[count++] = htonl(INADDR_LOOPBACK);
    for (const bool near : {true, false})
        for (int i = 0; i < next.count; i++) {
            bool here = false, nearby = false;
            for (int j = 0; j < mine.count; j++) here = here || mine.hosts[j] == next.hosts[i], nearby = nearby || !((mine.hosts[j] ^ next.hosts[i]) & mine.masks[j]);
            if (nearby == near && (same_host || !here)) hosts[count++] = next.hosts[i];
        }
    constexpr int GUESTS = 4;
    int guests[GUESTS], visitors = 0, tried = 0, ahead = -1;
    bool greeted = false;
    const double begun = now_s();
    double called = 0;
    while (now_s() - begun < MEET_S) {
        const bool calls = ahead_.rank >= 0 && ahead_.file < 0, waits = behind_.rank >= 0 && behind_.file < 0;
        if (!calls && !waits) break;
        if (calls && ahead >= 0 && now_s() - called > ADDRESS_S && tried < count) ::close(ahead), ahead = -1;
        while (calls && ahead < 0 && tried < count) ahead = call(hosts[tried++], next.port), called = now_s(), greeted = false;
        if (calls && ahead < 0) ahead_.rank = -1;  // no address is left to try
        pollfd files[2 + GUESTS] = {{waits ? listener : -1, POLLIN, 0}, {calls ? ahead : -1, short(greeted ? POLLIN : POLLOUT), 0}};
        for (int i = 0; i < visitors; i++) files[2 + i] = {guests[i], POLLIN, 0};
        if (poll(files, nfds_t(2 + visitors), 50) <= 0) continue;
        if (files[1].revents && !greeted) {
            const Greeting words = {next.token, rank};
            greeted = send(ahead, &words, sizeof words, MSG_NOSIGNAL) == ssize_t(sizeof words);
            if (!greeted) ::close(ahead), ahead = -1;
        } else if (files[1].revents) {
            char word = 0;
            if (recv(ahead, &word, 1, 0) == 1 && word == HERE) ahead_.file = ahead;
            else ::close(ahead);
            ahead = -1;
        }
        for (int i = visitors - 1; i >= 0; i--) {
            if (!files[2 + i].revents) continue;
            Greeting words = {};
            const int guest = guests[i];
            guests[i] = guests[--visitors];
            // So few bytes come at once, or are not from a rank.
            if (recv(guest, &words, sizeof words, 0) == ssize_t(sizeof words) && words.token == mine.token && words.rank == behind_.rank && behind_.file < 0 && send(guest, &HERE, 1, MSG_NOSIGNAL) == 1) behind_.file = guest;
            else ::close(guest);
        }
        if (files[0].revents && visitors < GUESTS) {
            const int guest = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (guest >= 0) guests[visitors++] = guest;
        }
    }
    for (int i = 0; i < visitors; i++) ::close(guests[i]);
    if (ahead >= 0) ::close(ahead);
    for (const Wire *wire : {&ahead_, &behind_})
        if (wire->file >= 0) keep_alive(wire->file);
}

int Lifeline::lost() {
    if (load(&lost_) >= 0 || pthread_mutex_trylock(&mutex_)) return load(&lost_);
    for (Wire *wire : {&ahead_, &behind_}) {
        if (wire->file < 0) continue;
        char word = 0;
        const ssize_t got = recv(wire->file, &word, 1, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        ::close(wire->file);
        wire->file = -1;
        if (got != 1 || word != BYE) store(&lost_, wire->rank);
    }
    pthread_mutex_unlock(&mutex_);
    return load(&lost_);
}

void Lifeline::close() {
    for (const Wire *wire : {&ahead_, &behind_})
        if (wire->file >= 0 && send(wire->file, &BYE, 1, MSG_NOSIGNAL) < 0) continue;  // it has ended before
    drop();
}

void Lifeline::drop() {
    for (Wire *wire : {&ahead_, &behind_})
        if (wire->file >= 0) ::close(wire->file), wire->file = -1;
}

}  // namespace fairlead
