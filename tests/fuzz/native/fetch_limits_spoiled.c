/* The judge of Fetches over random and hostile rows, beside a plain reference; built with sanitizers by
 * test_native_fetch_limits.py.
 *
 * usage: fetch_limits_spoiled SEED ROUNDS. Each round judges one Fetch of up to MOST partitions, NULL among them. Rows, leases,
 * questions and results have memory of their very size; a lease is freed as soon as no row has it. */
#include <math.h>
#include <rows.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

enum { ROWS = 40, LEASES = 6, MOST = 200, FIELDS = 6 };
#define NOW 10.0

static pt_fidelity *fidelities[2];
static pt_row *rows[ROWS];
static pt_lease *leases[LEASES];
static int64_t stable[ROWS]; /* what Transactions says */
static struct {
    uint64_t compared, readable, ends, unsettled;
} seen;

static int64_t draw_offset(void) {
    static const int64_t edges[] = {-1, -2, 0, INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, INT64_MAX - 2};
    return draw(12) ? (int64_t)draw(30) : edges[draw(8)];
}

static int64_t draw_epoch(void) {
    static const int64_t edges[] = {-2, 4, 6, INT32_MIN, INT32_MAX};
    return draw(25) ? (draw(2) ? 5 : -1) : edges[draw(5)];
}

/* -- rows ---------------------------------------------------------------------------------------------------------------- */

static void replace_lease(uint64_t which) {
    pt_lease *lease = allocate(sizeof *lease), *old = leases[which];
    lease->until = draw(6) ? NOW + 1 : draw(2) ? NOW : -INFINITY;
    leases[which] = lease;
    for (int number = 0; number < ROWS; number++) {
        if (rows[number] != NULL && rows[number]->lease == old) {
            rows[number]->lease = lease;
        }
    }
    free(old);
}

static void change_row(int number) {
    pt_row *row = rows[number];
    row->lease = leases[draw(LEASES)];
    row->epoch = draw(20) ? 5 : -1;
    row->led_epoch = draw(6) ? row->epoch : 4;
    row->frozen = draw(20) == 0;
    row->old_format = draw(20) == 0;
    row->zstd = draw(4) == 0;
    row->high_watermark = draw(4) ? 20 + (int64_t)draw(10) : draw_offset();
    row->last_stable_offset = draw(2) ? row->high_watermark : draw_offset();
    row->log_start_offset = draw(3) ? 0 : draw_offset();
    row->tail = draw_offset();
    row->known_from = draw(2) ? 0 : draw_offset();
    row->observed_end = draw(2) ? row->high_watermark : draw_offset();
    row->first_open = draw(2) ? -1 : draw_offset();
    stable[number] = draw(2) ? row->high_watermark : draw_offset();
}

static void begin(void) {
    for (uint64_t which = 0; which < LEASES; which++) {
        replace_lease(which);
    }
    for (int number = 0; number < ROWS; number++) {
        rows[number] = pt_new_row(number, fidelities[number % 2]);
        MUST(rows[number] != NULL && !(NOW < rows[number]->lease->until)); /* a new row has no lease */
        change_row(number);
    }
}

/* -- the reference ------------------------------------------------------------------------------------------------------- */

static int64_t find_end(int64_t slot, int64_t offset) { /* of the stored run: some hold, some end at once, some are stale */
    uint64_t kind = (uint64_t)slot % 5;
    return offset < 0 || kind == 4 ? -3 : kind == 3 ? offset : offset >= 25 ? offset : 25;
}

static int is_served(const pt_row *row, const pt_asked *asked, int version) {
    if (row->epoch == -1 || !(row->lease->until > NOW) || row->frozen || row->old_format) return 0;
    if (asked->leader_epoch != -1 && asked->leader_epoch != row->epoch) return 0;
    if (asked->fetched_epoch != -1 && asked->fetched_epoch != row->epoch) return 0;
    if (asked->fetch_offset < row->log_start_offset || asked->max_bytes < 0) return 0;
    if (version < 10 && row->zstd) return 0;
    return version >= 11 || row->led_epoch == row->epoch;
}

static int64_t expect(const pt_row *row, const pt_asked *asked, int version, int committed) {
    if (row == NULL || !is_served(row, asked, version)) {
        return PT_UNREADABLE;
    }
    int64_t offset = asked->fetch_offset, limit = row->high_watermark;
    if (committed && row->last_stable_offset < limit) {
        limit = stable[row->slot];
        seen.unsettled++;
    }
    if (offset >= limit) {
        int is_at_end = limit >= 0 && limit != INT64_MAX && offset <= row->high_watermark;
        return is_at_end ? PT_AT_END_BELOW - limit : PT_UNREADABLE;
    }
    int64_t end = find_end(row->slot, offset), wanted = limit < row->tail ? limit : row->tail;
    if (end <= offset || (row->fidelity->may_be_compacted && end < wanted)) {
        return PT_UNREADABLE;
    }
    if (!committed) {
        return limit;
    }
    if (row->known_from < 0 || offset < row->known_from || offset >= row->observed_end) {
        return PT_UNREADABLE;
    }
    limit = row->observed_end < limit ? row->observed_end : limit;
    if (row->first_open >= 0 && row->first_open <= offset) {
        return PT_UNREADABLE;
    }
    return row->first_open >= 0 && row->first_open < limit ? row->first_open : limit;
}

/* -- one Fetch ----------------------------------------------------------------------------------------------------------- */

static void judge(int64_t count, int version, int committed) {
    static const int64_t bytes[] = {-1, INT32_MIN, INT64_MIN, 0};
    size_t words = (size_t)count * sizeof(int64_t);
    pt_row **named = allocate((size_t)count * sizeof *named);
    pt_asked *asked = allocate((size_t)count * sizeof *asked);
    int64_t *memory[FIELDS] = {0};
    for (int field = 0; field < FIELDS; field++) {
        memory[field] = allocate(field == 2 ? 2 * words : words);
    }
    pt_judged out = {.limits = memory[0], .numbers = memory[1], .places = memory[2],
                     .stored_numbers = memory[3], .least_ends = memory[4], .ends = memory[5]};
    for (int64_t n = 0; n < count; n++) {
        named[n] = draw(15) ? rows[draw(ROWS)] : NULL;
        asked[n] = (pt_asked){draw_epoch(), draw_offset(), draw_epoch(), draw(20) ? 1 << 20 : bytes[draw(4)]};
    }
    pt_find_limits(named, asked, count, version, committed, NOW, &out);
    for (int64_t place = 0; place < out.unsettled; place++) {
        int64_t n = out.numbers[place];
        MUST(n >= 0 && n < count && out.limits[n] == PT_UNREADABLE);
        pt_settle(named[n], asked, n, stable[named[n]->slot], &out);
    }
    MUST(out.stored >= 0 && out.stored <= count);
    for (int64_t place = 0; place < out.stored; place++) {
        out.ends[place] = find_end(out.places[2 * place], out.places[2 * place + 1]);
    }
    pt_find_stored(&out);
    for (int64_t n = 0; n < count; n++) {
        MUST(out.limits[n] == expect(named[n], asked + n, version, committed));
        seen.readable += out.limits[n] >= 0;
        seen.ends += out.limits[n] <= PT_AT_END_BELOW;
    }
    seen.compared += (uint64_t)count;
    for (int field = 0; field < FIELDS; field++) {
        free(memory[field]);
    }
    free(asked);
    free(named);
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    state = strtoull(argv[1], NULL, 10);
    uint64_t rounds = strtoull(argv[2], NULL, 10);
    for (int which = 0; which < 2; which++) {
        fidelities[which] = allocate(sizeof *fidelities[which]);
        *fidelities[which] = (pt_fidelity){.may_be_compacted = which};
    }
    begin();
    for (uint64_t round = 0; round < rounds; round++) {
        judge((int64_t)(draw(3) ? draw(10) : draw(MOST + 1)), 4 + (int)draw(15), (int)draw(2));
        change_row((int)draw(ROWS));
        replace_lease(draw(LEASES));
        fidelities[draw(2)]->may_be_compacted = draw(2);
    }
    for (int number = 0; number < ROWS; number++) {
        pt_free_row(rows[number]);
    }
    for (int which = 0; which < LEASES; which++) {
        free(leases[which]);
    }
    free(fidelities[0]);
    free(fidelities[1]);
    printf("compared %llu readable %llu ends %llu unsettled %llu\n", (unsigned long long)seen.compared,
           (unsigned long long)seen.readable, (unsigned long long)seen.ends, (unsigned long long)seen.unsettled);
    return 0;
}
