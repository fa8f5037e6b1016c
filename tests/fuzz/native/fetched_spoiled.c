/* Spoiled Fetches and answers into the scanners of ordinary ones; built with sanitizers by test_native_fetched.py.
 *
 * usage: fetched_spoiled < rows. A row: version (1 byte), where names start (2), where they end (2), how much has come (4),
 * size (4), all little-endian, and so many bytes. What has come, and its names, are copied to memory of their very size, so
 * that a read beyond them is seen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ordinary.h"
#include "rows.h"

enum { ROW_HEAD = 13, MOST = 100, MOST_ROWS = 3 };

/* Against itself, against `names`, and against itself but for one byte: whether that byte may differ. */
static uint64_t hold_against(const uint8_t *frame, uint64_t size, const uint8_t *names, uint64_t from, uint64_t to) {
    uint8_t *last = malloc(size);
    MUST(last != NULL);
    memcpy(last, frame, size);
    int64_t changed[4];
    uint32_t at_offsets[2] = {(uint32_t)to, (uint32_t)(to + 8)}, at_end[1] = {(uint32_t)size + 1};
    int has_places = size >= 12 && from >= 12 && from + 4 <= to && to + 16 <= size;
    MUST(po_repeats(frame, size, last, size, 0, at_offsets, 0, changed) == (size >= 12));
    MUST(!po_repeats(frame, size, names, to - from, 0, at_offsets, 0, changed) || to - from == size);
    MUST(!po_repeats(frame, size, last, size, 0, at_end, 1, changed));
    MUST(po_repeats(frame, size, last, size, from, at_offsets, 2, changed) == has_places || from == 0);
    int may = 0;
    if (has_places) {
        uint64_t at = (from * 31 + to * 7 + size) % size;
        last[at] ^= 1;
        may = (at >= 8 && at < 12) || (at >= from && at < from + 4) || (at >= to && at < to + 16);
        MUST(po_repeats(frame, size, last, size, from, at_offsets, 2, changed) == may);
    }
    free(last);
    return (uint64_t)may;
}

/* Of an answer whose rows are in memory of their very size: whether it has so few. */
static uint64_t read_rows(const uint8_t *frame, uint64_t size) {
    po_answer answer;
    po_polled *rows = malloc(MOST_ROWS * sizeof *rows);
    MUST(rows != NULL);
    int64_t count = po_scan_rows(frame, size, &answer, rows, MOST_ROWS);
    MUST(count >= -1 && count <= MOST_ROWS);
    for (int64_t i = 0; i < count; i++) {
        MUST(rows[i].topic_at >= 0 && (uint64_t)rows[i].topic_at + 16 <= size);
        MUST(rows[i].start <= rows[i].end && (uint64_t)(rows[i].end + 1) <= size + 1);
    }
    free(rows);
    return count > 0;
}

int main(void) {
    uint64_t requests = 0, answers = 0, repeats = 0, weighed = 0, in_rows = 0, rows = 0;
    uint8_t head[ROW_HEAD];
    for (; fread(head, 1, ROW_HEAD, stdin) == ROW_HEAD; rows++) {
        uint64_t from = read_little(head + 1, 2), to = read_little(head + 3, 2);
        uint64_t received = read_little(head + 5, 4), size = read_little(head + 9, 4);
        uint8_t *frame = malloc(received), *names = malloc(to - from);
        MUST(frame != NULL && names != NULL && received <= size && from <= to && to <= received);
        MUST(fread(frame, 1, received, stdin) == received);
        memcpy(names, frame + from, to - from);
        po_fetch request;
        if (po_scan_fetch(frame, received, &request)) {
            MUST(request.names_start <= request.names_end && (uint64_t)request.names_end <= received);
            MUST(request.client_id_end <= request.body_start && request.body_start <= request.names_start);
            requests++;
        }
        po_fetched answer;
        if (po_scan_fetched(frame, received, size, head[0], names, to - from, &answer)) {
            MUST(answer.start <= answer.end && (uint64_t)answer.end <= size && (uint64_t)answer.start <= received);
            answers++;
        }
        for (int api_key = 0; api_key <= 1; api_key++) { /* Produce and Fetch */
            int64_t weight = po_weigh(frame, received, from, api_key, head[0], MOST);
            MUST(weight >= -1);
            weighed += weight > 0 && weight <= MOST;
        }
        in_rows += read_rows(frame, received);
        repeats += hold_against(frame, received, names, from, to);
        free(names);
        free(frame);
    }
    printf("rows %llu requests %llu answers %llu repeats %llu weighed %llu in_rows %llu\n", (unsigned long long)rows,
           (unsigned long long)requests, (unsigned long long)answers, (unsigned long long)repeats,
           (unsigned long long)weighed, (unsigned long long)in_rows);
    return 0;
}
