/* An answer to a Fetch, versions 4 to 18, written without its records. */
#include <string.h>

#include "ordinary.h"

#define FLEXIBLE_FROM 12
#define SESSIONS_FROM 7
#define LOG_START_FROM 5
#define REPLICA_FROM 11
#define TOPIC_IDS_FROM 13
#define PAIR_WORDS 2

typedef struct {
    uint8_t *bytes;
    uint64_t room, at;
    int flexible;
} writing;

/* Big endian; where there is no room, nothing is written, and `at` passes `room`. */
static void write_int(writing *w, int64_t value, unsigned width) {
    if (w->at + width <= w->room) {
        for (unsigned i = 0; i < width; i++) {
            w->bytes[w->at + i] = (uint8_t)((uint64_t)value >> 8 * (width - 1 - i));
        }
    }
    w->at += width;
}

/* A length or count, -1 for null. */
static void write_count(writing *w, int64_t count) {
    if (!w->flexible) {
        write_int(w, count, 4);
        return;
    }
    uint64_t left = (uint64_t)count + 1;
    for (; left > 0x7f; left >>= 7) {
        write_int(w, (int64_t)(left | 0x80), 1);
    }
    write_int(w, (int64_t)left, 1);
}

static void write_bytes(writing *w, const uint8_t *bytes, uint64_t size) {
    if (w->at + size <= w->room) {
        memcpy(w->bytes + w->at, bytes, size);
    }
    w->at += size;
}

static void write_no_tags(writing *w) {
    if (w->flexible) {
        write_int(w, 0, 1);
    }
}

static void write_head(writing *w, const po_heading *heading) {
    write_int(w, 0, 4); /* the length, which is known last */
    write_int(w, heading->correlation_id, 4);
    write_no_tags(w);
    write_int(w, heading->throttle_time_ms, 4);
    if (heading->version >= SESSIONS_FROM) {
        write_int(w, heading->error_code, 2);
        write_int(w, heading->session_id, 4);
    }
}

/* Of one partition what stands between its index and its records; returns where its transactions end in `aborted`. */
static const int64_t *write_answered(writing *w, int64_t version, const po_answered *one, const int64_t *aborted) {
    write_int(w, one->error_code, 2);
    write_int(w, one->high_watermark, 8);
    write_int(w, one->last_stable_offset, 8);
    if (version >= LOG_START_FROM) {
        write_int(w, one->log_start_offset, 8);
    }
    write_count(w, one->aborted);
    for (int64_t i = 0; i < one->aborted; i++, aborted += PAIR_WORDS) {
        write_int(w, aborted[0], 8);
        write_int(w, aborted[1], 8);
        write_no_tags(w);
    }
    if (version >= REPLICA_FROM) {
        write_int(w, -1, 4); /* no preferred replica */
    }
    write_count(w, one->records_bytes);
    return aborted;
}

/* The answer ends at `at`, records of `size` apart: writes its length. Returns `at`, or PO_WIDE. */
static int64_t end_frame(uint8_t *out, uint64_t room, uint64_t at, uint64_t size) {
    if (at > room) {
        return PO_WIDE;
    }
    writing length = {out, room, 0, 0};
    write_int(&length, (int64_t)(at + size - 4), 4);
    return (int64_t)at;
}

int64_t po_build_heads(const po_heading *heading, const uint8_t *names, const uint32_t *name_ends,
                       const int64_t *words, uint64_t count, const int64_t *aborted, uint8_t *out, uint64_t room,
                       uint64_t *cuts) {
    const po_answered *answered = (const po_answered *)(const void *)words;
    writing w = {out, room, 0, heading->version >= FLEXIBLE_FROM};
    uint64_t name_at = 0, size = 0;
    write_head(&w, heading);
    for (uint64_t i = 0; i < count; i++) {
        write_bytes(&w, names + name_at, name_ends[i] - name_at);
        name_at = name_ends[i];
        aborted = write_answered(&w, heading->version, &answered[i], aborted);
        if (answered[i].records_bytes > 0) {
            *cuts++ = w.at;
            size += (uint64_t)answered[i].records_bytes;
        }
    }
    write_bytes(&w, names + name_at, name_ends[count] - name_at);
    return end_frame(out, room, w.at, size);
}

/* The number of slots of one topic that follow each other in the order, from `from`. */
static uint64_t count_alike(const po_ring *ring, uint64_t from) {
    uint64_t end = from;
    while (end < (uint64_t)ring->count && ring->topic_of[ring->order[end]] == ring->topic_of[ring->order[from]]) {
        end++;
    }
    return end - from;
}

static void write_topic(writing *w, int64_t version, const po_ring *ring, int64_t number) {
    const po_topic *topic = &ring->topic[number];
    int64_t size = topic->end - topic->start;
    if (version < TOPIC_IDS_FROM && w->flexible) {
        write_count(w, size);
    } else if (version < TOPIC_IDS_FROM) {
        write_int(w, size, 2);
    }
    write_bytes(w, ring->names + topic->start, (uint64_t)size);
}

int64_t po_build_ring(const po_heading *heading, const po_ring *ring, const int64_t *words, const int64_t *aborted,
                      uint8_t *out, uint64_t room, uint64_t *cuts) {
    const po_answered *answered = (const po_answered *)(const void *)words;
    writing w = {out, room, 0, heading->version >= FLEXIBLE_FROM};
    uint64_t count = (uint64_t)ring->count, size = 0, runs = 0;
    for (uint64_t i = 0; i < count; i += count_alike(ring, i)) {
        runs++;
    }
    write_head(&w, heading);
    write_count(&w, (int64_t)runs);
    for (uint64_t i = 0, end = 0; i < count;) {
        end = i + count_alike(ring, i);
        write_topic(&w, heading->version, ring, ring->topic_of[ring->order[i]]);
        write_count(&w, (int64_t)(end - i));
        for (; i < end; i++) {
            const po_answered *one = &answered[ring->order[i]];
            write_int(&w, ring->asked[ring->order[i]].partition, 4);
            aborted = write_answered(&w, heading->version, one, aborted);
            if (one->records_bytes > 0) {
                *cuts++ = w.at;
                size += (uint64_t)one->records_bytes;
            }
            write_no_tags(&w);
        }
        write_no_tags(&w);
    }
    write_no_tags(&w);
    return end_frame(out, room, w.at, size);
}
