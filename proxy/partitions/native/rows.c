/* Rows of partitions, and produced batches from the forwarding of a request until they are stored. */
#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "topic_hash.h"

#define MAGIC_V2 2
#define CODEC_MASK 7
#define ZSTD 4
#define NOT_PLAIN 0x30 /* transactional, control: DefaultRecordBatch */
#define PRODUCERS_LIMIT 1000
#define UNKNOWN -1
#define OFFSET_MAX (INT64_MAX - INT32_MAX - 1) /* base offset of a batch whose end can be added up, however long it is */

typedef struct {
    int64_t slot, start, end, base_offset, leader_epoch, run_end, clock;
} placed_batch;

_Static_assert(sizeof(po_row) == PT_BATCH_WORDS * 8, "po_row");
_Static_assert(sizeof(po_produced) == PT_PRODUCED_WORDS * 8, "po_produced");
_Static_assert(sizeof(placed_batch) == PT_PLACED_WORDS * 8, "placed_batch");
_Static_assert(sizeof(((pt_row *)0)->run_offsets) == PT_RUN_POINTS * 8, "run_offsets");
_Static_assert(sizeof(((pt_forwarded *)0)->batch) == sizeof(po_row), "batch");
_Static_assert(sizeof(((pt_forwarded *)0)->produced) == sizeof(po_produced), "produced");

static const pt_lease no_lease = {-INFINITY};

pt_row *pt_new_row(int64_t slot, const pt_fidelity *fidelity) {
    pt_row *row = calloc(1, sizeof *row);
    if (row == NULL) {
        return NULL;
    }
    row->fidelity = fidelity;
    row->ledger.leader_epoch = -1;
    row->ledger.limit = PRODUCERS_LIMIT;
    row->slot = slot;
    row->epoch = row->led_epoch = row->suggested_epoch = -1;
    row->high_watermark = row->last_stable_offset = row->log_start_offset = -1;
    row->proven_at = -INFINITY;
    row->is_followed = true;
    row->tail = row->probe_offset = row->acknowledged_end = row->produced_from = row->young_from = -1;
    row->known_from = row->observed_end = row->first_open = -1;
    row->lease = &no_lease;
    return row;
}

void pt_free_row(pt_row *row) {
    if (row != NULL) {
        free(row->ledger.producers);
        free(row->ahead);
        free(row->run_parts);
        free(row->view);
        free(row);
    }
}

static po_row read_batch(const pt_forwarded *one) {
    po_row batch;
    memcpy(&batch, one->batch, sizeof batch);
    return batch;
}

static po_produced read_produced(const void *words) {
    po_produced said;
    memcpy(&said, words, sizeof said);
    return said;
}

int64_t pt_forward(const void *batches, pt_row *const *rows, int64_t count, int64_t stamp, pt_forwarded *out) {
    int64_t found = 0;
    for (int64_t number = 0; number < count; number++) {
        pt_row *row = rows[number];
        po_row batch;
        memcpy(&batch, (const uint8_t *)batches + number * (int64_t)sizeof batch, sizeof batch);
        if (row == NULL || batch.magic < 0) {
            continue;
        }
        if (row->view != NULL) {
            pt_look(row);
        }
        if (row->stamp != stamp) {
            row->stamp = stamp;
            row->forwarded_at = found++;
        }
        pt_forwarded *one = out + row->forwarded_at;
        *one = (pt_forwarded){.row = row, .number = number, .epoch = row->epoch, .high_watermark = row->high_watermark,
                              .generation = row->fidelity->generation, .verdict = PT_FORWARDED};
        memcpy(one->batch, &batch, sizeof batch);
        one->duplicate_check = pt_note_producer(&row->ledger, row->epoch, batch.producer_id, batch.producer_epoch,
                                                batch.base_sequence, batch.record_count);
    }
    return found;
}

static uint64_t hash_partition(uint64_t topic, int64_t partition) {
    uint64_t hash = (topic ^ (uint64_t)partition) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

/* Numbers of batches, found by topic and partition: open addressing, -1 where a cell is free. */
typedef struct {
    int64_t *cells;
    uint64_t mask;
    const uint64_t *key;
} batch_table;

static int is_about(const uint8_t *frame, const pt_forwarded *one, const uint8_t *answer, const po_produced *said) {
    po_row batch = read_batch(one);
    int64_t size = batch.topic_end - batch.topic_start;
    return batch.partition == said->partition && size == said->topic_end - said->topic_start &&
           memcmp(frame + batch.topic_start, answer + said->topic_start, (size_t)size) == 0;
}

typedef struct { /* the topic of the last row: the rows of a topic follow each other */
    int64_t start;
    uint64_t hash;
} last_topic;

static uint64_t hash_topic(const batch_table *table, last_topic *last, const uint8_t *bytes, int64_t start, int64_t end) {
    if (start != last->start) {
        *last = (last_topic){start, pt_hash_topic(table->key, bytes + start, (uint64_t)(end - start))};
    }
    return last->hash;
}

static int open_table(batch_table *table, const uint8_t *frame, const pt_forwarded *forwarded, int64_t count) {
    uint64_t size = 4;
    while (size < 2 * (uint64_t)count) {
        size *= 2;
    }
    table->mask = size - 1;
    table->cells = malloc(size * sizeof *table->cells);
    if (table->cells == NULL) {
        return 0;
    }
    memset(table->cells, 0xff, size * sizeof *table->cells);
    last_topic last = {-1, 0};
    for (int64_t number = 0; number < count; number++) {
        po_row batch = read_batch(forwarded + number);
        uint64_t topic = hash_topic(table, &last, frame, batch.topic_start, batch.topic_end);
        uint64_t at = hash_partition(topic, batch.partition);
        while (table->cells[at & table->mask] >= 0) {
            at++;
        }
        table->cells[at & table->mask] = number;
    }
    return 1;
}

/* The batch that a row of the response is about; -1: none. `topic`: the hash of its topic. */
static int64_t find_forwarded(const batch_table *table, const uint8_t *frame, const pt_forwarded *forwarded,
                              const uint8_t *answer, const po_produced *said, uint64_t topic) {
    uint64_t at = hash_partition(topic, said->partition);
    int64_t number;
    while ((number = table->cells[at++ & table->mask]) >= 0) {
        if (is_about(frame, forwarded + number, answer, said)) {
            return number;
        }
    }
    return -1;
}

/* If another epoch is proven by now than when the batch was forwarded, its records may have been truncated: Python ends the
 * lease. Returns whether it is so. */
static int acknowledge(pt_forwarded *one, const po_produced *said) {
    pt_row *row = one->row;
    one->verdict = PT_UNJUDGED;
    memcpy(one->produced, said, sizeof *said);
    if (one->epoch >= 0 && one->epoch != row->epoch) {
        return 1;
    }
    int64_t base = said->base_offset, end = base + read_batch(one).record_count;
    row->led_epoch = one->epoch > row->led_epoch ? one->epoch : row->led_epoch;
    row->probe_offset = row->probe_offset < base ? base : row->probe_offset;
    row->young_from = row->young_from < 0 ? base : row->young_from;
    row->acknowledged_end = row->acknowledged_end < end ? end : row->acknowledged_end;
    return 0;
}

static void note(pt_forwarded *forwarded, int64_t which, const po_produced *said, pt_work *work) {
    int is_success = said->error_code == 0 && said->base_offset >= UNKNOWN && said->base_offset <= OFFSET_MAX;
    if (is_success && which >= 0 && forwarded[which].verdict == PT_FORWARDED) {
        work->changed += acknowledge(forwarded + which, said);
        work->stamped += said->log_append_time_ms >= 0;
        work->order[work->acknowledged++] = which;
    }
}

/* Those that the response acknowledges. */
static void find_acknowledged(const uint8_t *frame, pt_forwarded *forwarded, int64_t count, const uint8_t *answer,
                              const void *produced, int64_t answered, pt_work *work) {
    batch_table table = {.key = work->key};
    if (!open_table(&table, frame, forwarded, count)) {
        return;
    }
    last_topic last = {-1, 0};
    for (int64_t number = 0; number < answered && work->acknowledged < count; number++) {
        po_produced said = read_produced((const uint8_t *)produced + number * (int64_t)sizeof said);
        uint64_t topic = hash_topic(&table, &last, answer, said.topic_start, said.topic_end);
        int64_t which = said.error_code == 0 ? find_forwarded(&table, frame, forwarded, answer, &said, topic) : -1;
        note(forwarded, which, &said, work);
    }
    free(table.cells);
}

void pt_acknowledge(const uint8_t *frame, pt_forwarded *forwarded, int64_t count, const uint8_t *answer,
                    const void *produced, int64_t answered, pt_work *work) {
    work->acknowledged = work->stamped = work->placed = work->appended = work->stored = work->any_left = 0;
    work->changed = 0;
    if (answered != PT_ALL_TOLD) {
        find_acknowledged(frame, forwarded, count, answer, produced, answered, work);
    }
    for (int64_t number = 0; answered == PT_ALL_TOLD && number < count; number++) {
        po_produced said = read_produced(forwarded[number].produced);
        note(forwarded, number, &said, work);
    }
    if (!work->stamped) {
        pt_place(forwarded, work);
    }
}

int pt_judge(const pt_row *row, int64_t magic, int64_t attributes, int64_t duplicate_check, int64_t epoch,
             int64_t high_watermark, int64_t generation, int64_t base_offset) {
    const pt_fidelity *fidelity = row->fidelity;
    if (epoch < 0 || epoch != row->epoch || row->frozen || !row->is_followed || magic != MAGIC_V2 ||
        duplicate_check != PT_NOT_DUPLICATE || base_offset < 0 || base_offset < high_watermark ||
        base_offset < row->log_start_offset || fidelity->log_append_time < 0 || generation != fidelity->generation) {
        return PT_NOT_STORED;
    }
    int64_t codec = attributes & CODEC_MASK;
    if (!(fidelity->equal_codecs >> codec & 1)) {
        return PT_SAMPLED;
    }
    if (fidelity->log_append_time > 0 || attributes & NOT_PLAIN || (codec == ZSTD && !row->zstd)) {
        return PT_STAMPED;
    }
    return PT_AS_SENT;
}

static void judge(pt_forwarded *one) {
    po_row batch = read_batch(one);
    po_produced said = read_produced(one->produced);
    if (said.log_append_time_ms < 0) {
        one->verdict = pt_judge(one->row, batch.magic, batch.attributes, one->duplicate_check, one->epoch,
                                one->high_watermark, one->generation, said.base_offset);
    }
}

void pt_place(pt_forwarded *forwarded, pt_work *work) {
    work->placed = work->appended = 0;
    for (int64_t number = 0; number < work->acknowledged; number++) {
        int64_t which = work->order[number];
        pt_forwarded *one = forwarded + which;
        judge(one);
        if (one->verdict != PT_AS_SENT) {
            work->others[number - work->placed] = which;
            continue;
        }
        po_row batch = read_batch(one);
        po_produced said = read_produced(one->produced);
        placed_batch place = {one->row->slot, batch.start, batch.end, said.base_offset, one->epoch, 0, 0};
        memcpy(work->places + work->placed * PT_PLACED_WORDS, &place, sizeof place);
        work->order[work->placed++] = which;
    }
}

/* What C may not decide of the end of a run that was stored at `base`. */
static int64_t move_tail(pt_row *row, int64_t base, int64_t run_end) {
    if (base > row->tail) {
        return 0; /* acknowledgements of several connections have crossed, and another comes first */
    }
    if (run_end < row->tail) {
        return PT_LEFT_TAIL;
    }
    row->tail = run_end;
    return 0;
}

/* Sees that a line from the last point comes within PT_RUN_TOLERANCE of all batches since, this one included; where none
 * does, what came last becomes a point. 0, and nothing is changed: there is no room for it. */
static int fit_run(pt_row *row, int64_t offset, int64_t clock) {
    int64_t count = row->run_points;
    double offsets = (double)(offset - (count > 0 ? row->run_offsets[count - 1] : row->run_first));
    double bytes = (double)(clock - (count > 0 ? row->run_clocks[count - 1] : row->run_began));
    if (bytes < row->run_least * offsets || bytes > row->run_most * offsets) {
        if (count == PT_RUN_POINTS) {
            return 0;
        }
        row->run_offsets[count] = row->run_last;
        row->run_clocks[count] = row->run_before;
        row->run_points++;
        offsets = (double)(offset - row->run_last);
        bytes = (double)(clock - row->run_before);
        row->run_least = -INFINITY;
        row->run_most = INFINITY;
    }
    double least = (bytes - PT_RUN_TOLERANCE) / offsets, most = (bytes + PT_RUN_TOLERANCE) / offsets;
    row->run_least = least > row->run_least ? least : row->run_least;
    row->run_most = most < row->run_most ? most : row->run_most;
    return 1;
}

static void add_to_run(pt_row *row, int64_t first, int64_t following, int64_t size_bytes, int64_t batches, int64_t clock) {
    row->run_last = first;
    row->run_before = clock;
    row->run_piece = batches;
    row->run_following = following;
    row->run_ended = clock + size_bytes;
    row->run_bytes += size_bytes;
    row->run_batches += batches;
}

void pt_begin_run(pt_row *row, int64_t source, int64_t first, int64_t following, int64_t size_bytes, int64_t batches,
                  int64_t clock) {
    row->run_source = source;
    row->run_first = first;
    row->run_began = clock;
    row->run_bytes = row->run_batches = row->run_points = row->run_part_count = 0;
    row->run_least = -INFINITY;
    row->run_most = INFINITY;
    add_to_run(row, first, following, size_bytes, batches, clock);
}

static int follow_run(pt_row *row, const pt_run_part *part) {
    int has_step = row->run_piece > 1 && llabs(part->clock - row->run_ended) > PT_RUN_TOLERANCE; /* where no line fits */
    if (has_step || !fit_run(row, part->first, part->clock)) {
        return 0;
    }
    add_to_run(row, part->first, part->following, part->bytes, part->batches, part->clock);
    return 1;
}

static void drop_first_part(pt_row *row) {
    row->run_part_count--;
    memmove(row->run_parts, row->run_parts + 1, (size_t)row->run_part_count * sizeof *row->run_parts);
}

/* Puts `part`, which is ahead of the run, among those that are. 0, and nothing is changed: one has its offsets, or there is no
 * room. What comes behind one as its bytes did belongs to it. */
static int keep_part(pt_row *row, const pt_run_part *part) {
    pt_run_part *parts = row->run_parts;
    int64_t number = 0, count = row->run_part_count;
    while (number < count && parts[number].following <= part->first) {
        number++;
    }
    if (number < count && parts[number].first < part->following) {
        return 0;
    }
    pt_run_part *before = number > 0 ? parts + number - 1 : NULL;
    if (before != NULL && before->following == part->first && before->bytes + part->bytes <= PT_RUN_TOLERANCE * 3 / 4 &&
        llabs(part->clock - before->clock - before->bytes) <= PT_RUN_TOLERANCE / 4) {
        before->following = part->following;
        before->bytes += part->bytes;
        before->batches += part->batches;
        return 1;
    }
    if (count == PT_AHEAD || (parts == NULL && (parts = row->run_parts = calloc(PT_AHEAD, sizeof *parts)) == NULL)) {
        return 0;
    }
    memmove(parts + number + 1, parts + number, (size_t)(count - number) * sizeof *parts);
    parts[number] = *part;
    row->run_part_count++;
    return 1;
}

int pt_extend_run(pt_row *row, int64_t source, int64_t first, int64_t following, int64_t size_bytes, int64_t batches,
                  int64_t clock) {
    pt_run_part part = {first, following, size_bytes, batches, clock};
    if (row->run_source != source || first < row->run_following || following <= first) {
        return 0;
    }
    if (first > row->run_following) {
        return keep_part(row, &part);
    }
    if ((row->run_part_count > 0 && row->run_parts[0].first < following) || !follow_run(row, &part)) {
        return 0;
    }
    while (row->run_part_count > 0 && row->run_parts[0].first == row->run_following && follow_run(row, row->run_parts)) {
        drop_first_part(row);
    }
    return 1;
}

static int64_t greater(int64_t one, int64_t other) {
    return one > other ? one : other;
}

/* Takes out of the ranges from number `from` on those that begin at `end` or before. Returns where all of them end. */
static int64_t take_touching(pt_row *row, int64_t from, int64_t end) {
    int64_t after = from;
    if (row->ahead_count == 0) {
        return end;
    }
    while (after < row->ahead_count && row->ahead[after].first <= end) {
        end = greater(end, row->ahead[after++].end);
    }
    memmove(row->ahead + from, row->ahead + after, (size_t)(row->ahead_count - after) * sizeof *row->ahead);
    row->ahead_count -= after - from;
    return end;
}

int pt_note_ahead(pt_row *row, int64_t first, int64_t end) {
    int64_t number = 0;
    while (number < row->ahead_count && row->ahead[number].end < first) {
        number++;
    }
    if (number < row->ahead_count && row->ahead[number].first <= end) { /* it touches this one, and perhaps further ones */
        first = first < row->ahead[number].first ? first : row->ahead[number].first;
        end = take_touching(row, number, end);
    }
    if (row->ahead_count == PT_AHEAD ||
        (row->ahead == NULL && (row->ahead = calloc(PT_AHEAD, sizeof *row->ahead)) == NULL)) {
        return 0;
    }
    memmove(row->ahead + number + 1, row->ahead + number, (size_t)(row->ahead_count - number) * sizeof *row->ahead);
    row->ahead[number] = (pt_range){first, end};
    row->ahead_count++;
    return 1;
}

static int64_t observe(pt_row *row, int64_t base, int64_t following) {
    if (row->has_gap || base < row->observed_end) {
        return PT_LEFT_TRANSACTIONS;
    }
    if (base > row->observed_end) {
        return pt_note_ahead(row, base, following) ? 0 : PT_LEFT_TRANSACTIONS;
    }
    row->observed_end = take_touching(row, 0, following);
    return 0;
}

static int64_t note_stored(pt_forwarded *one, const placed_batch *place, _Bool has_runs, double epoch_since) {
    pt_row *row = one->row;
    int64_t base = place->base_offset, following = base + read_batch(one).last_delta + 1;
    if (row->produced_from < 0 || row->produced_from > base) {
        row->produced_from = base;
    }
    int64_t left = move_tail(row, base, place->run_end) | observe(row, base, following);
    one->clock = place->clock;
    int64_t size_bytes = place->end - place->start;
    if (has_runs && !pt_extend_run(row, PT_RUN_PRODUCE, base, following, size_bytes, 1, place->clock)) {
        left |= PT_LEFT_RUN;
    }
    return left | (row->proven_at < epoch_since ? PT_LEFT_EPOCH : 0);
}

void pt_note_stored(pt_forwarded *forwarded, pt_work *work, _Bool has_runs, double epoch_since) {
    for (int64_t number = 0; number < work->placed; number++) {
        pt_forwarded *one = forwarded + work->order[number];
        placed_batch place;
        memcpy(&place, work->places + number * PT_PLACED_WORDS, sizeof place);
        if (place.run_end < 0) {
            one->verdict = PT_UNJUDGED;
            continue;
        }
        work->stored++;
        one->left = note_stored(one, &place, has_runs, epoch_since);
        work->any_left |= one->left;
    }
}

void pt_store_placed(const uint8_t *frame, uint64_t size, pt_forwarded *forwarded, const void *store, _Bool has_runs,
                     double epoch_since, pt_work *work) {
    const pt_store *to = store;
    if (to->arena != NULL && work->appended < work->placed) {
        work->appended = (int64_t)to->append(to->arena, frame, size, work->places, (uint64_t)work->appended,
                                             (uint64_t)work->placed, to->used_max);
        if (work->appended == work->placed) {
            pt_note_stored(forwarded, work, has_runs, epoch_since);
        }
    }
}

void pt_admit(const uint8_t *frame, uint64_t size, pt_forwarded *forwarded, int64_t count, const uint8_t *answer,
              const void *produced, int64_t answered, const void *store, _Bool has_runs, double epoch_since, pt_work *work) {
    pt_acknowledge(frame, forwarded, count, answer, produced, answered, work);
    if (!work->stamped) {
        pt_store_placed(frame, size, forwarded, store, has_runs, epoch_since, work);
    }
}
