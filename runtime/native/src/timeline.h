// What the lanes of this process did, and when: a ring of events in a mapped file, so that they survive however
// the process ends. fairlead/trace reads it and merges all ranks into one trace.
#pragma once

#include "platform.h"

namespace fairlead {

// Stages of a collective that take a thread's time, except NETWORK, which runs in the background.
enum Stage : uint32_t { PACK = 0, SUM = 1, NETWORK = 2, TAKE = 3, STAGES = 4 };

// One call, or with FAIRLEAD_COMM_TIMELINE_CHUNKS one stage of a chunk. Times are those of CLOCK_MONOTONIC, in ns.
struct Event {
    uint64_t number;              // 1 + its index among all events; 0: being written. Written last
    uint64_t begin, agreed, end;  // agreed: when all ranks had come; 0: they have not, or it is a stage
    uint64_t call, bytes;
    uint32_t what;     // as Call::kind: the kind, the operation from bit 8; STAGE with a Stage
    uint32_t lane;
    uint32_t count;    // of tensors; of a stage: the chunk
    int32_t status;
    uint64_t stages[STAGES];  // ns in each
    static constexpr uint32_t STAGE = 0x80000000u;
};
static_assert(sizeof(Event) == 96, "fairlead/trace.py reads it");

class Timeline {
  public:
    static constexpr int LANES = 257;  // those of the watch, and one for all others

    // Opens a timeline if FAIRLEAD_COMM_TIMELINE asks for one. If it cannot, this rank reports so and goes on.
    // `run` is the same number on all ranks, and differs between runs.
    void open(int rank, int size, const char *host, uint64_t run, double mb, bool chunks);
    bool on() const { return head_ != nullptr; }
    bool chunks() const { return chunks_; }
    void name(int lane, const char *name, int part);
    void add(const Event &event);
    // Other hosts can read it from here on.
    void flush();

  private:
    struct Head {
        char magic[8];
        uint32_t head_bytes, event_bytes;
        int32_t rank, size;
        uint64_t run, capacity, written;
        int64_t wall_ns;  // wall clock minus the clock of the events
        int32_t process, unused;
        char host[64], clock[128];  // `clock`: equal on ranks that share a clock
        char names[LANES][24];
    };
    int map(const char *folder, const char *name, size_t size);

    Head *head_ = nullptr;
    Event *events_ = nullptr;
    size_t size_ = 0;
    bool chunks_ = false;
};

// Time that one call of a lane spends in its stages. Without a timeline it costs a branch.
class Laps {
  public:
    void on(Timeline *timeline) { timeline_ = timeline && timeline->on() ? timeline : nullptr; }
    bool on() const { return timeline_ != nullptr; }
    void begin(uint32_t lane, uint64_t call) {
        lane_ = lane, call_ = call, under_way_ = 0;
        memset(ns_, 0, sizeof ns_);
    }
    void add(Event event) {
        memcpy(event.stages, ns_, sizeof ns_);
        event.lane = lane_;
        timeline_->add(event);
    }

    // Keep it for as long as the stage takes.
    class Lap {
      public:
        Lap(Laps &laps, Stage stage, uint64_t chunk) : laps_(laps), stage_(stage), chunk_(chunk), begun_(laps.timeline_ ? now_ns() : 0) {}
        ~Lap() {
            if (begun_) laps_.took(stage_, chunk_, begun_, now_ns());
        }
        Lap(const Lap &) = delete;

      private:
        Laps &laps_;
        const Stage stage_;
        const uint64_t chunk_, begun_;
    };
    // A chunk is in flight; it has arrived.
    void posted(uint64_t chunk) {
        if (timeline_) post(chunk, now_ns());
    }
    void arrived(uint64_t chunk) {
        if (timeline_) arrive(chunk, now_ns());
    }

  private:
    static constexpr int MOST = 16;  // in flight at once
    void took(Stage stage, uint64_t chunk, uint64_t begun, uint64_t ended);
    void post(uint64_t chunk, uint64_t now);
    void arrive(uint64_t chunk, uint64_t now);

    Timeline *timeline_ = nullptr;
    uint32_t lane_ = 0;
    uint64_t call_ = 0, ns_[STAGES] = {}, since_ = 0, posted_[MOST] = {};
    int under_way_ = 0;
};

}  // namespace fairlead
