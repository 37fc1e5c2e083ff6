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

constexpr double MEET_S = 2;       // limit for making a connection; a rank may come a little later
constexpr double ADDRESS_S = 0.5;  // of that, for one of several addresses
constexpr double GUEST_S = 0.5;    // limit for a caller to say who it is
constexpr int GUESTS = 16;         // callers who have not: the oldest gives way to a new one
constexpr char HERE = 'h', BYE = 'b', LEAVES = 'l';

// The first message of the connecting rank: whom it calls, and who it is.
struct Greeting {
    uint64_t token;
    int64_t rank;
};

void keep_alive(int file) {
    // About 20 seconds without an answer: the machine is gone, or the network to it.
    const int on = 1, idle = 10, each = 5, times = 2, most_ms = 20000;
    setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPINTVL, &each, sizeof each);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    setsockopt(file, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof most_ms);
}

sockaddr_in at(uint32_t host, uint16_t port) {
    sockaddr_in made = {};
    made.sin_family = AF_INET, made.sin_port = port, made.sin_addr.s_addr = host;
    return made;
}

int call(uint32_t host, uint16_t port) {
    const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const sockaddr_in to = at(host, port);
    if (file < 0 || !connect(file, reinterpret_cast<const sockaddr *>(&to), sizeof to) || errno == EINPROGRESS) return file;
    ::close(file);
    return -1;
}

int listen_at(uint32_t host, uint16_t *port) {
    sockaddr_in here = at(host, 0);
    socklen_t size = sizeof here;
    const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0) return -1;
    if (bind(file, reinterpret_cast<sockaddr *>(&here), size) || ::listen(file, 64) || getsockname(file, reinterpret_cast<sockaddr *>(&here), &size)) {
        ::close(file);
        return -1;
    }
    *port = here.sin_port;
    return file;
}

}  // namespace

void Lifeline::addresses(Home *home) {
    ifaddrs *found = nullptr;
    if (getifaddrs(&found)) return;
    for (const ifaddrs *one = found; one && home->count < HOSTS; one = one->ifa_next) {
        if (!one->ifa_addr || !one->ifa_netmask || one->ifa_addr->sa_family != AF_INET || one->ifa_flags & IFF_LOOPBACK || !(one->ifa_flags & IFF_UP)) continue;
        sockaddr_in host, mask;
        memcpy(&host, one->ifa_addr, sizeof host), memcpy(&mask, one->ifa_netmask, sizeof mask);
        home->hosts[home->count] = host.sin_addr.s_addr, home->masks[home->count++] = mask.sin_addr.s_addr;
    }
    freeifaddrs(found);
}

// The addresses at which one rank calls another, the same for both: those in a network of the caller's, else all. An
// address that the caller has as well, such as that of a container bridge, does not lead to the other.
int Lifeline::ways(const Home &caller, const Home &called, bool same_host, uint32_t *to) {
    int count = 0;
    if (same_host) to[count++] = htonl(INADDR_LOOPBACK);
    for (const bool near : {true, false}) {
        for (int i = 0; i < called.count; i++) {
            bool here = false, nearby = false;
            for (int j = 0; j < caller.count; j++) here = here || caller.hosts[j] == called.hosts[i], nearby = nearby || !((caller.hosts[j] ^ called.hosts[i]) & caller.masks[j]);
            if (nearby == near && !here) to[count++] = called.hosts[i];
        }
        if (count) break;
    }
    return count;
}

int Lifeline::open(Mpi &mpi, Mpi::Handle leaders, const World &world, Error *error) {
    int nodes = 0, node = 0;
    if (int bad = mpi.check(mpi.Comm_size(leaders, &nodes), "MPI_Comm_size", error)) return bad;
    if (int bad = mpi.check(mpi.Comm_rank(leaders, &node), "MPI_Comm_rank", error)) return bad;
    const size_t next = size_t(node + 1) % size_t(nodes), before = size_t(node + nodes - 1) % size_t(nodes);
    Room<Home> homes;
    Room<Doors> doors;
    Room<int64_t> met;
    if (!homes.room(size_t(nodes)) || !doors.room(size_t(nodes)) || !met.room(size_t(nodes))) return error->set(FAIRLEAD_NO_MEMORY, "no memory for the addresses of %d nodes", nodes);
    auto share = [&](const void *mine, size_t size, void *all) { return mpi.check(mpi.Allgather(mine, int(size), mpi.byte, all, int(size), mpi.byte, leaders), "MPI_Allgather", error); };
    auto same_host = [&](const Home &a, const Home &b) { return !strcmp(world.host(int(a.rank)), world.host(int(b.rank))); };
    Home home = {};
    home.rank = rank_ = world.rank;
    addresses(&home);
    if (int bad = share(&home, sizeof home, homes.at())) return bad;
    uint32_t hosts[DOORS];
    int listeners[DOORS];
    Doors mine = {};
    const int count = ways(homes[before], home, same_host(homes[before], home), hosts);
    const bool drawn = syscall(SYS_getrandom, &mine.token, sizeof mine.token, 0) == sizeof mine.token;
    for (int i = 0; i < count; i++) listeners[i] = drawn ? listen_at(hosts[i], &mine.ports[i]) : -1;
    int bad = share(&mine, sizeof mine, doors.at());
    ahead_.rank = int(homes[next].rank), behind_.rank = int(homes[before].rank);
    if (!bad) {
        uint32_t to[DOORS];
        meet(listeners, count, to, ways(home, homes[next], same_host(home, homes[next]), to), mine, doors[next]);
    }
    for (int i = 0; i < count; i++)
        if (listeners[i] >= 0) ::close(listeners[i]);
    const int64_t connected = ahead_.file >= 0;
    if (!bad) bad = share(&connected, sizeof connected, met.at());
    if (bad) return bad;
    // The other end of a connection that came too late has been closed: that is not a loss.
    if (!met[before] && behind_.file >= 0) ::close(behind_.file), behind_.file = -1;
    int unwatched = 0;
    size_t first = 0;
    for (size_t i = size_t(nodes); i-- > 0;)
        if (!met[i]) unwatched++, first = i;
    if (!unwatched || node) return 0;
    const int from = int(homes[first].rank), to = int(homes[(first + 1) % size_t(nodes)].rank);
    char line[500];
    const int length = snprintf(line, sizeof line, "fairlead.comm: %d of %d links between nodes are not watched: rank %d (%s) cannot reach rank %d (%s) by TCP; a node that fails there is waited for (FAIRLEAD_COMM_LIFELINE=0 stops the attempt)\n",
                                unwatched, nodes, from, world.host(from), to, world.host(to));
    if (length > 0 && write(2, line, least(size_t(length), sizeof line - 1)) < 0) return 0;
    return 0;
}

// Connects to the next rank and accepts the previous one, if both are there in time.
void Lifeline::meet(const int *listeners, int doors, const uint32_t *hosts, int count, const Doors &mine, const Doors &next) {
    struct Guest {
        int file;
        double since;
    };
    Guest guests[GUESTS];
    int visitors = 0, tried = 0, ahead = -1;
    bool greeted = false;
    const double begun = now_s();
    double called = 0, now = begun;
    auto leave = [&](int i) {
        visitors--;
        memmove(guests + i, guests + i + 1, size_t(visitors - i) * sizeof *guests);  // the oldest stays first
    };
    auto dismiss = [&](int i) { ::close(guests[i].file), leave(i); };
    auto give_up = [&] { ::close(ahead), ahead = -1; };
    for (; now - begun < MEET_S; now = now_s()) {
        const bool calls = ahead_.file < 0, waits = behind_.file < 0;
        if (!calls && !waits) break;
        if (calls && ahead >= 0 && now - called > ADDRESS_S) give_up();
        // A rank that was turned away, or came too early, calls again.
        if (calls && ahead < 0 && tried == count && now - called > 0.1) tried = 0;
        while (calls && ahead < 0 && tried < count) {
            const int way = tried++;
            called = now, greeted = false;
            if (next.ports[way]) ahead = call(hosts[way], next.ports[way]);
        }
        pollfd files[1 + DOORS + GUESTS] = {{calls ? ahead : -1, short(greeted ? POLLIN : POLLOUT), 0}};
        pollfd *const at_doors = files + 1, *const of_guests = at_doors + doors;
        for (int i = 0; i < doors; i++) at_doors[i] = {waits ? listeners[i] : -1, POLLIN, 0};
        for (int i = 0; i < visitors; i++) of_guests[i] = {guests[i].file, POLLIN, 0};
        if (poll(files, nfds_t(1 + doors + visitors), 50) < 0) continue;
        if (files[0].revents && !greeted) {
            const Greeting words = {next.token, rank_};
            greeted = send(ahead, &words, sizeof words, MSG_NOSIGNAL) == ssize_t(sizeof words);
            if (!greeted) give_up();
        } else if (files[0].revents) {
            char word = 0;
            if (recv(ahead, &word, 1, 0) == 1 && word == HERE) ahead_.file = ahead, ahead = -1;
            else give_up();
        }
        for (int i = visitors - 1; i >= 0; i--) {
            const int guest = guests[i].file;
            Greeting words = {};
            // So few bytes come at once, or are not from a rank.
            if (of_guests[i].revents && recv(guest, &words, sizeof words, 0) == ssize_t(sizeof words) && words.token == mine.token && words.rank == behind_.rank && behind_.file < 0 && send(guest, &HERE, 1, MSG_NOSIGNAL) == 1) {
                behind_.file = guest;
                leave(i);
            } else if (of_guests[i].revents || now - guests[i].since > GUEST_S) dismiss(i);
        }
        for (int i = 0; i < doors; i++) {
            const int guest = at_doors[i].revents ? accept4(listeners[i], nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
            if (guest < 0) continue;
            if (visitors == GUESTS) dismiss(0);
            guests[visitors++] = {guest, now};
        }
    }
    while (visitors) dismiss(visitors - 1);
    if (ahead >= 0) give_up();
    for (const Wire *wire : {&ahead_, &behind_})
        if (wire->file >= 0) keep_alive(wire->file);
}

int Lifeline::lost() {
    if (load(&lost_) >= 0 || pthread_mutex_trylock(&mutex_)) return load(&lost_);
    for (Wire *wire : {&ahead_, &behind_}) {
        if (wire->file < 0) continue;
        char words[1 + sizeof came_] = "";
        const ssize_t got = recv(wire->file, words, sizeof words, MSG_DONTWAIT | MSG_PEEK);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        const char word = got > 0 ? words[0] : 0;
        if (got > 0 && got < ssize_t(sizeof words) && word == LEAVES) continue;  // the rest is on its way
        if (word == LEAVES)
            for (int i = 0; i < LANES; i++) {
                uint64_t calls = 0;
                memcpy(&calls, words + 1 + size_t(i) * sizeof calls, sizeof calls);
                store(&came_[i], calls);
            }
        const bool ended = got >= 0 || errno == ECONNRESET || errno == EPIPE;
        ::close(wire->file);
        wire->file = -1;
        if (word == BYE) continue;
        store(&silent_, !ended);
        store(&lost_, wire->rank);
        break;
    }
    pthread_mutex_unlock(&mutex_);
    return load(&lost_);
}

void Lifeline::close() {
    for (const Wire *wire : {&ahead_, &behind_})
        if (wire->file >= 0 && send(wire->file, &BYE, 1, MSG_NOSIGNAL) < 0) continue;  // it has ended before
    drop();
}

void Lifeline::leave(const uint64_t *calls) {
    Lock lock(mutex_);
    for (const Wire *wire : {&ahead_, &behind_}) {
        if (wire->file < 0) continue;
        if (send(wire->file, &LEAVES, 1, MSG_NOSIGNAL | MSG_MORE) == 1 && send(wire->file, calls, sizeof came_, MSG_NOSIGNAL) < 0) continue;  // it has ended before
    }
    drop();
}

void Lifeline::drop() {
    for (Wire *wire : {&ahead_, &behind_})
        if (wire->file >= 0) ::close(wire->file), wire->file = -1;
}

}  // namespace fairlead
