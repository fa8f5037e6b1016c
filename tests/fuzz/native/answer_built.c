/* Answers of any numbers, built into memory of their very size; built with sanitizers by test_native_answers.py.
 *
 * usage: answer_built SEED ROUNDS. Each answer is built with all the room there may be, with exactly as much as it takes, and
 * with one byte less; what can be read back is what was given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ordinary.h"
#include "rows.h"

enum { MANY = 10000, LEAST_VERSION = 4, VERSIONS = 15, WITH_IDS = 13, ID_BYTES = 16, INDEX_BYTES = 4 };

static uint64_t seed;

static uint64_t below(uint64_t bound) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % bound;
}

static int64_t choose_number(void) {
    static const int64_t far[] = {INT64_MIN, -1, 0, 1, 127, 128, INT32_MAX, UINT32_MAX, INT64_MAX};
    return below(2) ? far[below(sizeof far / sizeof *far)] : (int64_t)below(1000);
}

typedef struct {
    po_heading heading;
    uint64_t count, pairs;
    uint8_t *names;
    uint32_t *ends;
    po_answered *answered;
    int64_t *aborted;
} given;

static uint64_t choose_answered(po_answered *one, int plain) {
    *one = (po_answered){choose_number(), choose_number(), choose_number(), choose_number(), -1, 0};
    if (!plain) {
        one->aborted = (int64_t)below(4) - 1;
        one->records_bytes = below(2) ? 0 : choose_number();
    }
    return one->aborted > 0 ? (uint64_t)one->aborted : 0;
}

/* `plain`: one topic of version 13, without transactions and records. */
static given choose(int plain) {
    given g = {.count = below(80) ? below(6) : MANY};
    g.heading = (po_heading){plain ? WITH_IDS : LEAST_VERSION + (int64_t)below(VERSIONS), choose_number(), choose_number(),
                             choose_number(), choose_number()};
    g.answered = malloc(g.count * sizeof *g.answered);
    g.ends = malloc((g.count + 1) * sizeof *g.ends);
    uint32_t size = 0;
    for (uint64_t i = 0; i <= g.count; i++) {
        g.pairs += i < g.count ? choose_answered(&g.answered[i], plain) : 0;
        size += plain ? INDEX_BYTES + 1 : (uint32_t)below(40);
        g.ends[i] = size;
    }
    g.names = malloc(size);
    for (uint32_t i = 0; i < size; i++) {
        g.names[i] = (uint8_t)below(256);
    }
    g.aborted = malloc(g.pairs * 2 * sizeof *g.aborted);
    for (uint64_t i = 0; i < g.pairs * 2; i++) {
        g.aborted[i] = choose_number();
    }
    return g;
}

static int64_t build(const given *g, uint8_t *out, uint64_t room, uint64_t *cuts) {
    const int64_t *words = (const int64_t *)(const void *)g->answered;
    return po_build_heads(&g->heading, g->names, g->ends, words, g->count, g->aborted, out, room, cuts);
}

/* Whether it has records. */
static int hold(const given *g) {
    uint64_t most = 64 + g->ends[g->count] + g->count * 50 + g->pairs * 17, with_records = 0;
    uint8_t *out = malloc(most), *exact, *less;
    for (uint64_t i = 0; i < g->count; i++) {
        with_records += g->answered[i].records_bytes > 0;
    }
    uint64_t *cuts = malloc(with_records * sizeof *cuts);
    int64_t size = build(g, out, most, cuts);
    MUST(size > 0 && (uint64_t)size <= most);
    for (uint64_t i = 0; i < with_records; i++) {
        MUST(cuts[i] <= (uint64_t)size && (i == 0 || cuts[i] > cuts[i - 1]));
    }
    exact = malloc((uint64_t)size);
    less = malloc((uint64_t)size - 1);
    MUST(build(g, exact, (uint64_t)size, cuts) == size && memcmp(exact, out, (uint64_t)size) == 0);
    MUST(build(g, less, (uint64_t)size - 1, cuts) == PO_WIDE);
    MUST(build(g, NULL, 0, cuts) == PO_WIDE);
    free(less);
    free(exact);
    free(cuts);
    free(out);
    return with_records > 0;
}

/* Names for one topic whose answer po_scan_rows reads. */
static void name_partitions(given *g) {
    uint8_t before[1 + ID_BYTES + 5] = {2};
    uint64_t width = 1 + ID_BYTES, left = g->count + 1;
    for (; left > 0x7f; left >>= 7) {
        before[width++] = (uint8_t)(left | 0x80);
    }
    before[width++] = (uint8_t)left;
    uint8_t *names = calloc(width + g->ends[g->count] + 2, 1);
    memcpy(names, before, width);
    for (uint64_t i = 0; i <= g->count; i++) {
        g->ends[i] = (uint32_t)(width + i * (INDEX_BYTES + 1) + INDEX_BYTES);
    }
    g->ends[g->count] -= 2; /* the tags of the last partition, of its topic, of the answer */
    free(g->names);
    g->names = names;
}

static int read_back(given *g) {
    if (g->count == 0) {
        return 0;
    }
    name_partitions(g);
    uint64_t room = 64 + g->ends[g->count] + g->count * 50;
    uint8_t *out = malloc(room);
    po_polled *rows = malloc(g->count * sizeof *rows);
    po_topic *topics = malloc(g->count * sizeof *topics);
    po_answer answer;
    int64_t size = build(g, out, room, NULL);
    MUST(po_scan_rows(out, (uint64_t)size, &answer, topics, rows, (int64_t)g->count) == (int64_t)g->count);
    MUST((int32_t)g->heading.session_id == answer.session_id && (int16_t)g->heading.error_code == answer.error_code);
    for (uint64_t i = 0; i < g->count; i++) {
        const po_answered *one = &g->answered[i];
        MUST(rows[i].high_watermark == one->high_watermark && rows[i].last_stable_offset == one->last_stable_offset);
        MUST(rows[i].log_start_offset == one->log_start_offset && rows[i].error_code == (int16_t)one->error_code);
        MUST(rows[i].start == rows[i].end);
    }
    MUST(answer.topics == 1 && topics[0].partitions == (int64_t)g->count);
    free(topics);
    free(rows);
    free(out);
    return 1;
}

static void let_go(given *g) {
    free(g->aborted);
    free(g->names);
    free(g->ends);
    free(g->answered);
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    seed = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    uint64_t rounds = strtoull(argv[2], NULL, 10), with_records = 0, read = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        given any = choose(0), plain = choose(1);
        with_records += (uint64_t)hold(&any);
        read += (uint64_t)read_back(&plain);
        let_go(&any);
        let_go(&plain);
    }
    printf("rounds %llu with_records %llu read %llu\n", (unsigned long long)rounds, (unsigned long long)with_records,
           (unsigned long long)read);
    return 0;
}
