/* Produced batches through the rows of their partitions, beside a plain reference that searches linearly; built with
 * sanitizers by test_native_partition_rows.py.
 *
 * usage: partition_rows_spoiled SEED ROUNDS. In each round one request is forwarded or one response processed, of several in
 * flight over the same partitions, and states change as proxy/partitions/ changes them. Each array has memory of its very
 * size, so that a read or write beyond it is seen. */
#include <math.h>
#include <rows.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

enum { TOPICS = 10, INDEXES = 32, ROWS = TOPICS * INDEXES, MOST = 300, IN_FLIGHT = 5, KNOWN = 8, TOPIC_ROOM = 16 };
#define GREATEST (INT64_MAX - INT32_MAX - 1)
#define WRAP (INT64_C(1) << 31)

typedef struct { /* of one batch in flight, as it must be */
    pt_forwarded want;
    int taken;
} expected;

typedef struct {
    uint8_t *frame;
    int64_t frame_bytes, named, count;
    po_row *batches;
    pt_row **rows;
    pt_forwarded *forwarded;
    expected want[MOST];
} request;

typedef struct {
    uint8_t *frame;
    po_produced *said;
    int64_t frame_bytes, count;
} answer;

static pt_fidelity fidelities[TOPICS];
static pt_row *rows[ROWS], want[ROWS];
static pt_producer producers[ROWS][KNOWN]; /* as they must be, the last noted first */
static uint32_t known[ROWS];
static request in_flight[IN_FLIGHT];
static int open_requests;
static uint64_t compared;
static struct {
    uint64_t acknowledged, stored, left, stamped, fresh, resent, ahead, united;
} seen;

static int64_t pick(int64_t usual, int64_t other) { return draw(8) ? usual : other; }

/* Topics: names behind their length for even numbers, ids for odd ones; some differ in the last byte alone. Number TOPICS and
 * above: unknown. */
static int64_t write_topic(uint8_t *out, int topic) {
    int64_t size = topic % 2 ? TOPIC_ROOM : 6;
    memset(out, topic % 2 ? 0 : 6, (size_t)size);
    out[size - 1] = (uint8_t)topic;
    return size;
}

/* -- the reference ------------------------------------------------------------------------------------------------------- */

static int64_t modulo(int64_t number) { return (number % WRAP + WRAP) % WRAP; }

/* The producer, moved to the front; `is_new`: it was not there, or with another epoch. */
static pt_producer *take_producer(int row, int64_t id, int64_t epoch, int *is_new) {
    uint32_t at = 0;
    while (at < known[row] && producers[row][at].id != id) {
        at++;
    }
    *is_new = at == known[row] || producers[row][at].epoch != epoch;
    pt_producer one = *is_new ? (pt_producer){id, -1, (int32_t)epoch, 0} : producers[row][at];
    if (at == known[row] && known[row] == want[row].ledger.limit) {
        at = --known[row];
    }
    known[row] += at == known[row];
    for (; at > 0; at--) {
        producers[row][at] = producers[row][at - 1];
    }
    producers[row][0] = one;
    return producers[row];
}

static int64_t expect_check(int row, const po_row *batch) {
    int is_new;
    if (batch->producer_id < 0) {
        return PT_NOT_DUPLICATE;
    }
    if (want[row].ledger.leader_epoch != want[row].epoch) {
        known[row] = 0;
        want[row].ledger.leader_epoch = want[row].epoch;
    }
    if (want[row].ledger.limit == 0) {
        return PT_UNDECIDED;
    }
    pt_producer *one = take_producer(row, batch->producer_id, batch->producer_epoch, &is_new);
    if (!is_new && batch->base_sequence != one->next_sequence) {
        if (modulo(one->next_sequence - batch->base_sequence) < WRAP / 2) {
            return PT_RESENT;
        }
        one->forwarded = 0;
    }
    one->next_sequence = modulo(batch->base_sequence + batch->record_count);
    one->forwarded += one->forwarded < 6;
    return one->forwarded < 6 ? PT_UNDECIDED : PT_NOT_DUPLICATE;
}

static int64_t expect_verdict(const expected *one, const po_row *batch, int64_t base) {
    const pt_row *row = &want[one->want.row->slot];
    const pt_fidelity *topic = row->fidelity;
    int as_forwarded = one->want.epoch >= 0 && one->want.epoch == row->epoch && one->want.generation == topic->generation;
    int is_new = base >= 0 && base >= one->want.high_watermark && base >= row->log_start_offset;
    if (!as_forwarded || !is_new || row->frozen || !row->is_followed || batch->magic != 2 || topic->log_append_time == -1 ||
        one->want.duplicate_check != PT_NOT_DUPLICATE) {
        return PT_NOT_STORED;
    }
    int codec = (int)(batch->attributes & 7);
    if ((topic->equal_codecs & INT64_C(1) << codec) == 0) {
        return PT_SAMPLED;
    }
    int is_changed = topic->log_append_time == 1 || (batch->attributes & 0x10) || (batch->attributes & 0x20);
    return is_changed || (codec == 4 && !row->zstd) ? PT_STAMPED : PT_AS_SENT;
}

static void expect_acknowledged(expected *one, const po_row *batch, const po_produced *said) {
    pt_row *row = &want[one->want.row->slot];
    one->taken = 1;
    one->want.verdict = PT_UNJUDGED;
    memcpy(one->want.produced, said, sizeof *said);
    if (one->want.epoch >= 0 && one->want.epoch != row->epoch) {
        return;
    }
    int64_t base = said->base_offset;
    if (one->want.epoch > row->led_epoch) row->led_epoch = one->want.epoch;
    if (base > row->probe_offset) row->probe_offset = base;
    if (row->young_from < 0) row->young_from = base;
    if (base + batch->record_count > row->acknowledged_end) row->acknowledged_end = base + batch->record_count;
}

/* Of all that is ahead and `added`: united where two touch, until none do, the first of them again and again. */
static int64_t unite(const pt_row *row, pt_range added, pt_range *to) {
    pt_range some[PT_AHEAD + 1];
    int64_t count = row->ahead_count + 1, found = 0;
    memcpy(some, row->ahead, PT_AHEAD * sizeof *row->ahead);
    some[count - 1] = added;
    while (count > 0) {
        int64_t least = 0;
        for (int64_t i = 1; i < count; i++) least = some[i].first < some[least].first ? i : least;
        pt_range one = some[least];
        some[least] = some[--count];
        if (found > 0 && one.first <= to[found - 1].end) {
            if (one.end > to[found - 1].end) to[found - 1].end = one.end;
        } else {
            to[found++] = one;
        }
    }
    return found;
}

static int expect_observed(pt_row *row, pt_range batch) {
    pt_range united[PT_AHEAD + 1];
    int64_t count = unite(row, batch, united), first = batch.first == row->observed_end;
    if (row->has_gap || batch.first < row->observed_end || count - first > PT_AHEAD) {
        return 0;
    }
    if (first) row->observed_end = united[0].end;
    seen.ahead += !first;
    seen.united += (uint64_t)(row->ahead_count + 1 - count);
    row->ahead_count = count - first;
    memcpy(row->ahead, united + first, (size_t)row->ahead_count * sizeof *united);
    return 1;
}

/* What a run and the parts ahead of it hold. They are in order, and apart. */
static pt_run_part sum_run(const pt_row *row) {
    pt_run_part all = {row->run_first, row->run_following, row->run_bytes, row->run_batches, 0};
    MUST(row->run_part_count >= 0 && row->run_part_count <= PT_AHEAD);
    for (int64_t i = 0; i < row->run_part_count; i++) {
        const pt_run_part *part = &row->run_parts[i];
        MUST(part->first >= all.following && part->following > part->first);
        all.following = part->following;
        all.bytes += part->bytes;
        all.batches += part->batches;
    }
    return all;
}

static int64_t expect_stored(expected *one, const po_row *batch, int64_t run_end, int64_t clock, int has_runs,
                             double since) {
    pt_row *row = &want[one->want.row->slot];
    int64_t base = ((const po_produced *)(const void *)one->want.produced)->base_offset, next = base + batch->last_delta + 1;
    int64_t left = row->proven_at < since ? PT_LEFT_EPOCH : 0;
    if (row->produced_from == -1 || base < row->produced_from) row->produced_from = base;
    if (base <= row->tail && run_end < row->tail) left |= PT_LEFT_TAIL;
    if (base <= row->tail && run_end > row->tail) row->tail = run_end;
    left |= expect_observed(row, (pt_range){base, next}) ? 0 : PT_LEFT_TRANSACTIONS;
    pt_run_part all = sum_run(row);
    int64_t following = row->run_following;
    if (has_runs && pt_extend_run(row, PT_RUN_PRODUCE, base, next, batch->end - batch->start, 1, clock)) {
        pt_run_part now = sum_run(row);
        MUST(now.bytes == all.bytes + batch->end - batch->start && now.batches == all.batches + 1);
        MUST(base == following ? row->run_following >= next : base > following && row->run_following == following);
    } else if (has_runs) {
        left |= PT_LEFT_RUN;
    }
    one->want.clock = clock;
    return left;
}

/* -- what is compared ---------------------------------------------------------------------------------------------------- */

static void check_row(int number) {
    const pt_row *is = rows[number], *must = &want[number];
    MUST(is->fidelity == must->fidelity && is->slot == number && is->epoch == must->epoch);
    MUST(is->led_epoch == must->led_epoch && is->suggested_epoch == must->suggested_epoch);
    MUST(is->high_watermark == must->high_watermark && is->last_stable_offset == must->last_stable_offset);
    MUST(is->log_start_offset == must->log_start_offset && !(is->proven_at < must->proven_at) && is->frozen == must->frozen);
    MUST(is->is_followed == must->is_followed && is->zstd == must->zstd && is->tail == must->tail);
    MUST(is->probe_offset == must->probe_offset && is->acknowledged_end == must->acknowledged_end);
    MUST(is->produced_from == must->produced_from && is->young_from == must->young_from);
    MUST(is->observed_end == must->observed_end && is->has_gap == must->has_gap);
    MUST(is->ahead_count == must->ahead_count && is->ahead_count <= PT_AHEAD);
    MUST(is->ahead_count == 0 || memcmp(is->ahead, must->ahead, (size_t)is->ahead_count * sizeof *is->ahead) == 0);
    MUST(is->run_source == must->run_source && is->run_first == must->run_first);
    MUST(is->run_following == must->run_following && is->run_bytes == must->run_bytes);
    MUST(is->run_batches == must->run_batches && is->run_began == must->run_began && is->run_ended == must->run_ended);
    MUST(is->run_part_count == must->run_part_count);
    MUST(is->run_part_count == 0 ||
         memcmp(is->run_parts, must->run_parts, (size_t)is->run_part_count * sizeof *is->run_parts) == 0);
    MUST(is->run_points == must->run_points && is->run_points >= 0 && is->run_points <= PT_RUN_POINTS);
    MUST(memcmp(is->run_offsets, must->run_offsets, sizeof is->run_offsets) == 0);
    MUST(memcmp(is->run_clocks, must->run_clocks, sizeof is->run_clocks) == 0);
    MUST(is->ledger.leader_epoch == must->ledger.leader_epoch && is->ledger.limit == must->ledger.limit);
    MUST(is->ledger.count == known[number] && is->ledger.count <= is->ledger.room);
    MUST(is->ledger.room <= is->ledger.limit);
    for (uint32_t i = 0; i < known[number]; i++) {
        const pt_producer *one = &is->ledger.producers[i], *other = &producers[number][i];
        MUST(one->id == other->id && one->epoch == other->epoch && one->next_sequence == other->next_sequence);
        MUST(one->forwarded == other->forwarded);
    }
    compared++;
}

static void check_forwarded(const request *one) {
    for (int64_t i = 0; i < one->count; i++) {
        const pt_forwarded *is = &one->forwarded[i], *must = &one->want[i].want;
        MUST(is->row == must->row && is->epoch == must->epoch && is->high_watermark == must->high_watermark);
        MUST(is->generation == must->generation && is->number == must->number && is->verdict == must->verdict);
        MUST(is->duplicate_check == must->duplicate_check && is->left == must->left && is->clock == must->clock);
        MUST(memcmp(is->batch, must->batch, sizeof is->batch) == 0);
        MUST(!one->want[i].taken || memcmp(is->produced, must->produced, sizeof is->produced) == 0);
    }
}

/* -- requests ------------------------------------------------------------------------------------------------------------ */

static po_row draw_batch(int64_t start, int64_t end, int64_t partition) {
    static const int64_t sequences[] = {-1, -100, INT32_MIN, INT32_MAX, INT32_MAX - 40, 1 << 30, -(1 << 30) - 50};
    static const int64_t counts[] = {0, 1, INT32_MAX, INT32_MAX - 1};
    static const int64_t attributes[] = {1, 4, 0x10, 0x20, -1, 0x34, 7};
    int64_t id = draw(3) ? (int64_t)draw(draw(4) ? 2 : KNOWN + 2) : pick(-1, INT64_MIN), count = pick(10, counts[draw(4)]);
    int64_t sequence = pick(10 * (int64_t)draw(12), sequences[draw(7)]), from = (int64_t)draw(1 << 20);
    po_row batch = {start, end, partition, from, from + 61 + (int64_t)draw(1000), pick(2, (int64_t)draw(4) - 1),
                    pick(0, attributes[draw(7)]), count ? count - 1 : 0, id, (int64_t)draw(10) ? 0 : 1, sequence, count};
    if (batch.magic < 2) {
        batch.attributes = batch.last_delta = batch.producer_id = batch.record_count = -1;
    }
    return batch;
}

/* Continues its producer, usually. */
static void follow_on(int number, po_row *batch) {
    for (uint32_t i = 0; i < known[number] && draw(10); i++) {
        if (producers[number][i].id == batch->producer_id) {
            batch->base_sequence = producers[number][i].next_sequence;
            batch->producer_epoch = producers[number][i].epoch;
        }
    }
}

/* The n-th partition that a request names: `one` becomes longer where another topic begins. */
static void name_partition(request *one, int64_t n, int *topic, int64_t *span) {
    uint8_t bytes[TOPIC_ROOM];
    if (n == 0 || draw(12) == 0) {
        *topic = (int)draw(TOPICS);
        int64_t size = write_topic(bytes, *topic);
        one->frame = realloc(one->frame, (size_t)(one->frame_bytes + size));
        MUST(one->frame != NULL);
        memcpy(one->frame + one->frame_bytes, bytes, (size_t)size);
        span[0] = one->frame_bytes;
        span[1] = one->frame_bytes += size;
    }
    int index = (int)draw(INDEXES), number = *topic * INDEXES + index;
    one->rows[n] = draw(20) ? rows[number] : NULL;
    one->batches[n] = draw_batch(span[0], span[1], index);
    follow_on(number, &one->batches[n]);
}

/* What must become of the n-th. Of a partition that is named repeatedly the last one counts. */
static void expect_forwarded(request *one, int64_t n) {
    pt_row *row = one->rows[n];
    if (row == NULL || one->batches[n].magic < 0) {
        return;
    }
    int64_t at = 0;
    while (at < one->count && one->want[at].want.row != row) {
        at++;
    }
    one->count += at == one->count;
    pt_forwarded *must = &one->want[at].want;
    *must = (pt_forwarded){.row = row, .number = n, .epoch = want[row->slot].epoch, .verdict = PT_FORWARDED,
                           .high_watermark = want[row->slot].high_watermark, .generation = row->fidelity->generation};
    memcpy(must->batch, &one->batches[n], sizeof must->batch);
    must->duplicate_check = expect_check((int)row->slot, &one->batches[n]);
    seen.fresh += must->duplicate_check == PT_NOT_DUPLICATE && one->batches[n].producer_id >= 0;
    seen.resent += must->duplicate_check == PT_RESENT;
}

static void send_request(request *one) {
    static int64_t stamp;
    int topic = 0;
    int64_t span[2] = {0, 0};
    memset(one, 0, sizeof *one);
    one->named = draw(3) ? 1 + (int64_t)draw(20) : 1 + (int64_t)draw(MOST);
    one->batches = allocate((size_t)one->named * sizeof *one->batches);
    one->rows = allocate((size_t)one->named * sizeof *one->rows);
    one->forwarded = allocate((size_t)one->named * sizeof *one->forwarded);
    int64_t named = one->named;
    for (int64_t n = 0; n < named; n++) {
        name_partition(one, n, &topic, span);
        expect_forwarded(one, n);
    }
    MUST(pt_forward(one->batches, one->rows, named, ++stamp, one->forwarded) == one->count);
    check_forwarded(one);
}

/* -- responses ----------------------------------------------------------------------------------------------------------- */

static void add_said(answer *out, const uint8_t *topic, int64_t size, int64_t partition, int64_t near) {
    static const int64_t offsets[] = {-1, INT64_MIN, INT64_MAX, GREATEST, GREATEST + 1, INT64_MAX - 100, 0};
    out->frame = realloc(out->frame, (size_t)(out->frame_bytes + size));
    out->said = realloc(out->said, (size_t)(out->count + 1) * sizeof *out->said);
    MUST(out->frame != NULL && out->said != NULL);
    memcpy(out->frame + out->frame_bytes, topic, (size_t)size);
    int64_t start = out->frame_bytes, base = draw(15) ? near + pick(0, (int64_t)draw(40) - 20) : offsets[draw(7)];
    out->frame_bytes += size;
    const po_produced *last = out->said + out->count - 1;
    if (out->count && last->topic_end - last->topic_start == size &&
        memcmp(out->frame + last->topic_start, topic, (size_t)size) == 0) {
        start = last->topic_start; /* another partition of the same topic */
    }
    out->said[out->count++] = (po_produced){start, start + size, partition, pick(0, 6), base,
                                            draw(150) ? -1 : 1000, -1};
}

/* Some of the request's partitions in any order, repeatedly, and others. */
static void draw_answer(const request *one, answer *out) {
    uint8_t bytes[TOPIC_ROOM];
    int64_t first = (int64_t)draw((uint64_t)one->named), step = draw(2) ? 1 : one->named - 1;
    for (int64_t n = 0; n < one->named; n++) {
        const po_row *batch = &one->batches[(first + n * step) % one->named];
        const uint8_t *topic = one->frame + batch->topic_start;
        int64_t size = batch->topic_end - batch->topic_start, times = draw(20) ? 1 : (int64_t)draw(4);
        int row = (int)(one->rows[(first + n * step) % one->named] ? one->rows[(first + n * step) % one->named]->slot : 0);
        for (; times > 0; times--) {
            add_said(out, topic, size, batch->partition, want[row].tail < GREATEST ? want[row].tail : GREATEST);
        }
        if (draw(30) == 0) {
            add_said(out, bytes, write_topic(bytes, (int)draw(TOPICS + 6)), (int64_t)draw(INDEXES) - 1, 5);
        }
    }
}

static int64_t find_expected(const request *one, const answer *of, const po_produced *said) {
    for (int64_t i = 0; i < one->count; i++) {
        po_row batch;
        memcpy(&batch, one->want[i].want.batch, sizeof batch);
        int64_t size = batch.topic_end - batch.topic_start;
        if (batch.partition == said->partition && said->topic_end - said->topic_start == size &&
            memcmp(one->frame + batch.topic_start, of->frame + said->topic_start, (size_t)size) == 0) {
            return i;
        }
    }
    return -1;
}

/* The numbers of the batches that `of` acknowledges, in its order. */
static int64_t expect_answer(request *one, const answer *of, int64_t *order, int64_t *stamped) {
    int64_t count = 0;
    for (int64_t n = 0; n < of->count; n++) {
        const po_produced *said = &of->said[n];
        int64_t at = find_expected(one, of, said);
        if (at < 0 || said->error_code || said->base_offset < -1 || said->base_offset > GREATEST || one->want[at].taken) {
            continue;
        }
        expect_acknowledged(&one->want[at], &one->batches[one->want[at].want.number], said);
        *stamped += said->log_append_time_ms >= 0;
        order[count++] = at;
    }
    return count;
}

/* Judges as it must be done; `order` keeps those that are placed, `others` gets the others. Returns the number of those. */
static int64_t expect_places(request *one, const pt_work *work, int64_t *order, int64_t count) {
    int64_t placed = 0, others = 0;
    for (int64_t n = 0; n < count; n++) {
        expected *must = &one->want[order[n]];
        const po_row *batch = &one->batches[must->want.number];
        po_produced said;
        memcpy(&said, must->want.produced, sizeof said);
        if (said.log_append_time_ms < 0) {
            must->want.verdict = expect_verdict(must, batch, said.base_offset);
        }
        if (must->want.verdict != PT_AS_SENT) {
            MUST(work->others[others++] == order[n]);
            continue;
        }
        const int64_t *place = work->places + placed * PT_PLACED_WORDS;
        MUST(place[0] == must->want.row->slot && place[1] == batch->start && place[2] == batch->end);
        MUST(place[3] == said.base_offset && place[4] == must->want.epoch && place[5] == 0 && place[6] == 0);
        MUST(work->order[placed] == order[n]);
        order[placed++] = order[n];
    }
    return placed;
}

static void store_placed(request *one, pt_work *work, const int64_t *order) {
    int has_runs = draw(2) == 0;
    int64_t stored = 0, left = 0;
    double since = (double)draw(3);
    for (int64_t n = 0; n < work->placed; n++) {
        expected *must = &one->want[order[n]];
        const po_row *batch = &one->batches[must->want.number];
        int64_t *place = work->places + n * PT_PLACED_WORDS, next = place[3] + batch->last_delta + 1;
        int64_t beyond = next < GREATEST && draw(6) == 0 ? (int64_t)draw(50) : 0;
        place[5] = draw(6) ? next + beyond : -1 - (int64_t)draw(9);
        if (place[5] < 0) {
            must->want.verdict = PT_UNJUDGED;
            continue;
        }
        place[6] = (int64_t)draw(4 * PT_RUN_TOLERANCE);
        must->want.left = expect_stored(must, batch, place[5], place[6], has_runs, since);
        left |= must->want.left;
        stored++;
    }
    pt_note_stored(one->forwarded, work, has_runs, since);
    MUST(work->stored == stored && work->any_left == left);
    seen.stored += (uint64_t)stored;
    seen.left += left != 0;
}

static void process(request *one, const answer *of) {
    size_t room = (size_t)one->count * sizeof(int64_t);
    int64_t *order = allocate(room), stamped = 0;
    pt_work work = {.key = {draw(UINT64_MAX), draw(UINT64_MAX)}, .order = allocate(room), .others = allocate(room),
                    .places = allocate(room * PT_PLACED_WORDS)};
    int64_t count = expect_answer(one, of, order, &stamped);
    pt_acknowledge(one->frame, one->forwarded, one->count, of->frame, of->said, of->count, &work);
    MUST(work.acknowledged == count && work.stamped == stamped);
    if (stamped) {
        check_forwarded(one);
        MUST(work.placed == 0 && memcmp(work.order, order, (size_t)count * sizeof *order) == 0);
        fidelities[draw(TOPICS)].generation += draw(4) == 0;
        pt_place(one->forwarded, &work);
    }
    MUST(expect_places(one, &work, order, count) == work.placed);
    check_forwarded(one);
    store_placed(one, &work, order);
    check_forwarded(one);
    seen.acknowledged += (uint64_t)count;
    seen.stamped += (uint64_t)stamped;
    free(order);
    free(work.order);
    free(work.others);
    free(work.places);
}

static void respond(int which) {
    answer of = {0};
    request *one = &in_flight[which];
    draw_answer(one, &of);
    process(one, &of);
    free(of.frame);
    free(of.said);
    free(one->frame);
    free(one->batches);
    free(one->rows);
    free(one->forwarded);
    memmove(one, one + 1, (size_t)(--open_requests - which) * sizeof *one);
}

/* -- changes beside them ------------------------------------------------------------------------------------------------- */

static void change_topic(pt_fidelity *topic) {
    if (draw(3)) { /* what most batches need */
        topic->equal_codecs = 0x11;
        topic->log_append_time = 0;
    } else {
        topic->generation++;
        topic->equal_codecs = (int64_t)draw(256);
        topic->log_append_time = (int64_t)draw(3) - 1;
    }
}

/* The memory at `to` once `from` is copied there; NULL: it has to be had first. */
static void *copy_of(void *to, const void *from, size_t size) {
    to = to == NULL ? allocate(size) : to;
    memcpy(to, from, size);
    return to;
}

static void change_row(int number) {
    pt_row *row = &want[number];
    int64_t offset = draw(50) ? (int64_t)draw(200) : GREATEST;
    row->epoch = draw(30) ? row->epoch : row->epoch + (int64_t)draw(2);
    row->frozen = draw(8) == 0;
    row->is_followed = draw(12) != 0;
    row->zstd = draw(2) == 0;
    row->high_watermark = (int64_t)draw(60) - 1;
    row->log_start_offset = (int64_t)draw(20) - 1;
    row->tail = draw(5) ? offset : -1;
    row->observed_end = draw(3) ? row->tail : offset;
    row->has_gap = draw(4) == 0;
    row->ahead_count = row->has_gap || row->observed_end >= GREATEST ? 0 : (int64_t)draw(PT_AHEAD + 1);
    for (int64_t i = 0, at = row->observed_end; i < row->ahead_count; i++) {
        row->ahead[i].first = at + 1 + (int64_t)draw(4);
        at = row->ahead[i].end = row->ahead[i].first + 1 + (int64_t)draw(3);
    }
    row->run_source = (int64_t)draw(3);
    row->run_following = draw(3) ? row->tail : offset;
    row->run_part_count = (int64_t)draw(4);
    for (int64_t i = 0, at = row->run_following + (int64_t)draw(4); i < row->run_part_count; i++, at += 3) {
        row->run_parts[i] = (pt_run_part){at, at + 1 + (int64_t)draw(3), 100, 1, row->run_before};
    }
    row->run_points = (int64_t)draw(PT_RUN_POINTS + 1);
    row->run_last = row->run_following - 1 - (int64_t)draw(9);
    row->run_before = (int64_t)draw(2 * PT_RUN_TOLERANCE);
    row->young_from = row->produced_from = draw(3) ? row->young_from : -1;
    row->proven_at = draw(5) ? (double)draw(4) : -INFINITY;
    pt_row kept = *rows[number];
    *rows[number] = *row;
    rows[number]->ledger = kept.ledger;
    rows[number]->stamp = kept.stamp;
    rows[number]->forwarded_at = kept.forwarded_at;
    rows[number]->ahead = copy_of(kept.ahead, row->ahead, PT_AHEAD * sizeof *row->ahead);
    rows[number]->run_parts = copy_of(kept.run_parts, row->run_parts, PT_AHEAD * sizeof *row->run_parts);
}

static void begin(void) {
    for (int number = 0; number < ROWS; number++) {
        rows[number] = pt_new_row(number, &fidelities[number / INDEXES]);
        MUST(rows[number] != NULL);
        want[number] = *rows[number];
        want[number].ahead = allocate(PT_AHEAD * sizeof *want[number].ahead);
        want[number].run_parts = allocate(PT_AHEAD * sizeof *want[number].run_parts);
        want[number].ledger.limit = rows[number]->ledger.limit = (uint32_t)draw(KNOWN + 1);
        change_row(number);
        check_row(number);
    }
    for (int topic = 0; topic < TOPICS; topic++) {
        change_topic(&fidelities[topic]);
    }
}

/* -- names that collide -------------------------------------------------------------------------------------------------- */

static uint64_t comparisons;

/* Counts: rows.c calls it for each batch that it looks at in search of a name of this length. */
int memcmp(const void *one, const void *other, size_t size) {
    const uint8_t *a = one, *b = other;
    comparisons++;
    while (size > 0 && *a == *b) {
        a++, b++, size--;
    }
    return size ? *a - *b : 0;
}

/* Whether the name is in the first cell where the hash is FNV-1a, with no secret or a bad one. */
static int is_unlucky(const uint8_t *name, uint64_t mask) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int i = 0; i < 8; i++) {
        hash = (hash ^ name[i]) * UINT64_C(1099511628211);
    }
    hash *= UINT64_C(0x9E3779B97F4A7C15);
    return ((hash ^ hash >> 32) & mask) == 0;
}

/* `count` topics with names that a client has chosen, in one request and its response; how many names were compared. */
static uint64_t count_comparisons(int64_t count, int is_chosen) {
    request one = {.named = count, .count = 0, .frame = allocate((size_t)count * 8)};
    pt_row *row = allocate((size_t)count * sizeof(pt_row));
    answer of = {.said = allocate((size_t)count * sizeof(po_produced)), .count = count};
    one.forwarded = allocate((size_t)count * sizeof *one.forwarded);
    uint64_t name = 0;
    for (int64_t n = 0; n < count; n++, name++) {
        memset(&row[n], 0, sizeof row[n]);
        row[n].fidelity = fidelities;
        po_row batch = {n * 8, n * 8 + 8, 0, 0, 100, 2, 0, 0, -1, -1, -1, 1};
        while (is_chosen && !is_unlucky((uint8_t *)&name, 2 * (uint64_t)count - 1)) {
            name++;
        }
        memcpy(one.frame + n * 8, &name, 8);
        one.forwarded[n] = (pt_forwarded){.row = &row[n], .verdict = PT_FORWARDED, .number = n};
        memcpy(one.forwarded[n].batch, &batch, sizeof batch);
        of.said[n] = (po_produced){n * 8, n * 8 + 8, 0, 0, 0, -1, -1};
    }
    pt_work work = {.key = {draw(UINT64_MAX), draw(UINT64_MAX)}, .order = allocate((size_t)count * 8), .others = allocate((size_t)count * 8),
                    .places = allocate((size_t)count * 8 * PT_PLACED_WORDS)};
    comparisons = 0;
    pt_acknowledge(one.frame, one.forwarded, count, one.frame, of.said, count, &work);
    uint64_t counted = comparisons;
    MUST(work.acknowledged == count);
    void *used[] = {one.frame, row, of.said, one.forwarded, work.order, work.others, work.places};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
        free(used[i]);
    }
    return counted;
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    state = strtoull(argv[1], NULL, 10);
    uint64_t rounds = strtoull(argv[2], NULL, 10);
    begin();
    for (uint64_t round = 0; round < rounds; round++) {
        if (open_requests < IN_FLIGHT && draw(2)) {
            send_request(&in_flight[open_requests++]);
        } else if (open_requests) {
            respond((int)draw((uint64_t)open_requests));
        }
        for (int number = 0; number < ROWS; number++) {
            check_row(number);
            if (draw(8) == 0) {
                change_row(number);
            }
        }
        change_topic(&fidelities[draw(TOPICS)]);
    }
    while (open_requests) {
        respond(0);
    }
    for (int number = 0; number < ROWS; number++) {
        pt_free_row(rows[number]);
        free(want[number].ahead);
        free(want[number].run_parts);
    }
    printf("compared %llu acknowledged %llu stored %llu left %llu stamped %llu fresh %llu resent %llu ahead %llu united %llu ",
           (unsigned long long)compared, (unsigned long long)seen.acknowledged, (unsigned long long)seen.stored,
           (unsigned long long)seen.left, (unsigned long long)seen.stamped, (unsigned long long)seen.fresh,
           (unsigned long long)seen.resent, (unsigned long long)seen.ahead, (unsigned long long)seen.united);
    printf("chosen %llu usual %llu\n", (unsigned long long)count_comparisons(512, 1),
           (unsigned long long)count_comparisons(512, 0));
    return 0;
}
