// What a call does while it cannot proceed.
#pragma once

#include "lane.h"

namespace fairlead {

// What a call does while it cannot proceed: spin, then yield, then sleep.
class Lane::Wait {
  public:
    Wait(Lane &lane, bool helper, uint64_t kind) : lane_(lane), helper_(helper), kind_(kind) {}
    ~Wait() { moved(); }
    bool network = false;  // a request is in flight, which completes only when polled
    // The counter waited for, for messages, and whose: one seat's, or every seat's (-1).
    uint64_t Seat::*counter = &Seat::arrived;
    uint64_t wanted = 0;
    int whose = -1;

    void moved() {
        if (armed_) store(&lane_.segment_.mine().waiting, uint32_t(0));
        armed_ = false;
        turns_ = 0;
        if (shown_) store(&lane_.segment_.mine().awaited, uint64_t(0)), shown_ = false;
    }
    int idle(Error *error) {
        if (++turns_ == 1) {
            begun_ = now_s();
            lane_.segment_.ring(true);
        }
        const long spin_us = helper_ || lane_.world_->watch->crowded ? 0 : lane_.settings_->spin_us;
        if (turns_ < 128 && spin_us) {
            // A pause may take 140 cycles, as long as the transfer of a cache line; spin without it at first.
            if (turns_ > 32) relax();
            return 0;
        }
        const double now = now_s();
        if ((now - begun_) * 1e6 < double(spin_us)) {
            for (int i = 0; i < 8; i++) relax();
            return 0;
        }
        if (!helper_ && yields_++ % 16 < 8) {
            sched_yield();
            return look(now, error);
        }
        // A helper polls again after an eighth of the time waited: at once while messages follow each other, and seldom
        // where a rank is late, since the core belongs to the computation.
        if (network) sleep_us(helper_ ? least(lane_.settings_->poll_us, most(SOON_US, long((now - begun_) * 1e6 / 8))) : 20);
        else sleep();
        return look(now, error);
    }

  private:
    // The caller looks once more between setting `waiting` and sleeping: it sees what came before, and what comes
    // later rings.
    void sleep() {
        Seat &mine = lane_.segment_.mine();
        if (!armed_) {
            bell_ = load(&mine.bell);
            store(&mine.waiting, uint32_t(1));
            __atomic_thread_fence(__ATOMIC_SEQ_CST);
            armed_ = true;
        } else {
            futex_wait(&mine.bell, bell_, 2000);
            store(&mine.waiting, uint32_t(0));
            armed_ = false;
        }
    }

    int look(double now, Error *error) {
        if (now - looked_ < 0.1) return 0;
        looked_ = now;
        Exchange &others = lane_.world_->watch->exchange;
        if (int bad = look_here(now, error)) {
            if (bad == FAIRLEAD_DIFFER || bad == FAIRLEAD_PEER_LOST) others.report(*error, gone_ == 0);
            return bad;
        }
        if (const int bad = node_gone(now, error)) {
            others.report(*error, gone_ == 0);
            return bad;
        }
        if (agrees() && !shown_) {
            store(&lane_.segment_.mine().kind, kind_), store(&lane_.segment_.mine().awaited, wanted);
            shown_ = true;
        }
        return others.look(now - begun_, error);
    }

    // Whether all ranks of another node have ended. Ranks that were notified of an error first are not lost: the
    // notification is on its way here, or another thread has received it.
    int node_gone(double now, Error *error) {
        const World &world = *lane_.world_;
        const int rank = world.watch->lifeline.lost();
        if (rank < 0) return 0;
        if (world.watch->lifeline.came(lane_.id_, lane_.calls_)) return 0;  // it has done its part
        if (gone_since_ == 0) gone_since_ = now;
        if (now - gone_since_ < GRACE_S) return 0;
        if (const int bad = world.watch->exchange.verdict(error)) return bad;
        gone_ = rank;
        const char *what = world.watch->lifeline.silent() ? "rank %d (%s): its host cannot be reached; rank %d waits in %s, call %llu of %s" : "rank %d (%s) has ended without fairlead_comm_finalize; rank %d waits in %s, call %llu of %s";
        return error->by(rank, FAIRLEAD_PEER_LOST, what, rank, world.host(rank), world.rank, kind_name(kind_), static_cast<unsigned long long>(lane_.calls_), lane_.name_);
    }

    // What the seats of this node show.
    int look_here(double now, Error *error) {
        Segment &segment = lane_.segment_;
        const World &world = *lane_.world_;
        if (int bad = crossed(error)) return bad;
        for (int i = 0; i < segment.ranks(); i++) {
            const int rank = segment.seat(i).rank;
            if (counter == &Seat::agreed && i) continue;  // they have come
            if (load(&(segment.seat(i).*counter)) >= wanted) continue;
            uint32_t ended = load(&segment.seat(i).ended);
            // One that had come to this call before has done its part, or a thread of its is about to.
            if (ended == LEFT && most(load(&segment.seat(i).arrived), load(&segment.seat(i).promised)) >= lane_.calls_) ended = GOES_ON;
            if (ended) gone_ = rank;
            if (ended == FINALIZED && lane_.id_ == 0)
                return error->by(rank, FAIRLEAD_PEER_LOST, "rank %d (%s) ended after a call of its had failed; rank %d waits for it in %s, call %llu of %s", rank, world.host(rank), world.rank, kind_name(kind_),
                                  static_cast<unsigned long long>(lane_.calls_), lane_.name_);
            if (ended == FINALIZED)
                return error->by(rank, FAIRLEAD_DIFFER, "rank %d (%s) called finalize while rank %d (%s) called %s: call %llu of %s", rank, world.host(rank), world.rank, world.host(world.rank),
                                  kind_name(kind_), static_cast<unsigned long long>(lane_.calls_), lane_.name_);
            if (ended != LEFT && segment.alive(i)) continue;
            if (load(&(segment.seat(i).*counter)) >= wanted) continue;  // it came, then ended
            gone_ = rank;
            return error->by(rank, FAIRLEAD_PEER_LOST, "rank %d (%s) has ended without fairlead_comm_finalize; rank %d waits for it in %s, call %llu of %s", rank, world.host(rank), world.rank,
                              kind_name(kind_), static_cast<unsigned long long>(lane_.calls_), lane_.name_);
        }
        if (lane_.abandoned_ && load(lane_.abandoned_)) return error->set(FAIRLEAD_MPI_FAILED, "another part of the call failed");
        if (!helper_ && Watch::interrupted())
            return error->set(FAIRLEAD_INTERRUPTED, "rank %d (%s) was interrupted in %s, call %llu of %s", world.rank, world.host(world.rank), kind_name(kind_),
                              static_cast<unsigned long long>(lane_.calls_), lane_.name_);
        const double waited = now - begun_;
        const Settings &settings = *lane_.settings_;
        if (settings.stall_s > 0 && waited > settings.stall_s * double(warned_ + 1)) warn(waited);
        if (settings.timeout_s > 0 && waited > settings.timeout_s) {
            char who[400];
            missing(who, sizeof who);
            return error->set(FAIRLEAD_TIMEOUT, "rank %d (%s) waited %.0f s in %s, call %llu of %s, for %s", world.rank, world.host(world.rank), waited, kind_name(kind_),
                              static_cast<unsigned long long>(lane_.calls_), lane_.name_, who);
        }
        return 0;
    }

    // Whether another rank's only thread waits for this rank in another lane while this rank's only thread waits
    // for it here: a deadlock. Detected within a node; `Exchange` detects it between nodes.
    int crossed(Error *error) {
        Segment &segment = lane_.segment_;
        Watch &watch = *lane_.world_->watch;
        const Segment &first = watch.lanes[0]->segment_;
        if (counter != &Seat::arrived || first.ranks() != segment.ranks()) return 0;
        const uint64_t ours = load(&first.seat(first.place()).blocked);
        if (!ours || int(ours >> 48) != lane_.id_) return 0;
        for (int i = 0; i < segment.ranks(); i++) {
            const uint64_t theirs = load(&first.seat(i).blocked), call = theirs & CALL;
            const int other = int(theirs >> 48);
            if (!theirs || other == lane_.id_ || other >= load(&watch.count) || first.seat(i).rank != segment.seat(i).rank) continue;
            const Lane &there = *watch.lanes[other];
            if (load(&segment.seat(i).arrived) >= wanted || load(&segment.seat(i).promised) >= wanted) continue;
            if (load(&segment.seat(i).ended)) continue;  // reported as such, which is more specific
            const Seat &mine = there.segment_.seat(there.segment_.place());
            if (load(&mine.arrived) >= call || load(&mine.promised) >= call) continue;
            // Confirmed after a while: the first values may have been read at different times.
            if (i != crossed_with_ || theirs != crossed_) crossed_with_ = i, crossed_ = theirs, crossed_since_ = looked_;
            if (looked_ - crossed_since_ < 0.5 && segment.alive(i)) return 0;  // the other rank may report it first
            const World &world = *lane_.world_;
            const int rank = segment.seat(i).rank;
            return error->set(FAIRLEAD_DIFFER, "rank %d (%s) waits in call %llu of %s while rank %d (%s) waits in %s, call %llu of %s: one of them has skipped a call or added one", rank, world.host(rank),
                              static_cast<unsigned long long>(call), there.name_, world.rank, world.host(world.rank), kind_name(kind_), static_cast<unsigned long long>(lane_.calls_), lane_.name_);
        }
        crossed_with_ = -1;
        return 0;
    }

    // Waits for the agreement, of this node's ranks or of all nodes.
    bool agrees() const { return counter == &Seat::arrived || counter == &Seat::agreed; }

    // The first rank of this node, which waits for other nodes, is not what is missing.
    bool awaits(int place) const {
        if (counter == &Seat::agreed) return false;
        const uint64_t has = load(&(lane_.segment_.seat(place).*counter));
        return (whose < 0 || whose == place) && has < wanted;
    }

    void missing(char *to, size_t size) {
        Segment &segment = lane_.segment_;
        size_t used = 0;
        int left_out = 0;
        to[0] = 0;
        for (int i = 0; i < segment.ranks(); i++) {
            if (i == segment.place() || !awaits(i)) continue;
            const int rank = segment.seat(i).rank;
            if (used + 120 > size) left_out++;
            else used += size_t(snprintf(to + used, size - used, "%srank %d (%s)", used ? ", " : "", rank, lane_.world_->host(rank)));
        }
        if (left_out) snprintf(to + used, size - used, " and %d more", left_out);
        else if (!used && !(agrees() && lane_.id_ >= 0 && lane_.world_->watch->exchange.missing(uint32_t(lane_.id_), wanted, to, size)))
            snprintf(to, size, "ranks on other hosts");
    }

    void warn(double waited) {
        warned_++;
        lane_.spend(&Spent::stalls, 1);
        // One rank of a node reports for all that wait.
        Segment &segment = lane_.segment_;
        for (int i = 0; i < segment.place(); i++)
            if (!awaits(i)) return;
        char who[400], line[900];
        missing(who, sizeof who);
        const World &world = *lane_.world_;
        int n = snprintf(line, sizeof line, "fairlead.comm: rank %d (%s) has waited %.0f s in %s (call %llu of %s) for %s\n", world.rank, world.host(world.rank), waited, kind_name(kind_),
                         static_cast<unsigned long long>(lane_.calls_), lane_.name_, who);
        if (n > 0 && write(2, line, least(size_t(n), sizeof line - 1)) < 0) return;
    }

    Lane &lane_;
    const bool helper_;
    const uint64_t kind_;
    long turns_ = 0, yields_ = 0;
    double begun_ = 0, looked_ = 0;
    int warned_ = 0;
    bool armed_ = false, shown_ = false;
    int gone_ = -1;  // the rank that was found to have ended
    uint32_t bell_ = 0;
    static constexpr uint64_t CALL = (uint64_t(1) << 48) - 1;
    int crossed_with_ = -1;
    uint64_t crossed_ = 0;
    double crossed_since_ = 0;
    static constexpr double GRACE_S = 1;
    static constexpr long SOON_US = 5;
    double gone_since_ = 0;
};

template <class Ready> int Lane::until(Ready &&ready, Wait &wait, Error *error) {
    while (!ready())
        if (int bad = wait.idle(error)) return bad;
    wait.moved();
    return 0;
}

inline bool Lane::all(uint64_t Seat::*counter, uint64_t wanted) {
    // The rank that was late last time is likely to be late again.
    if (load(&(segment_.seat(slowest_).*counter)) < wanted) return false;
    for (int i = 0; i < locals_; i++)
        if (load(&(segment_.seat(i).*counter)) < wanted) {
            slowest_ = i;
            return false;
        }
    return true;
}

}  // namespace fairlead
