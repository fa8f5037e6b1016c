/* Spoiled Produces and their answers into the scanners that make rows of them; built with sanitizers by
 * test_native_produce_rows.py.
 *
 * usage: produce_rows_spoiled < rows. A row: version of an answer (1 byte), room for rows (1), received bytes (4), size (4),
 * all little-endian, and so many bytes. Each frame is copied to memory of its very size, and the rows have memory of theirs,
 * so that a read or write beyond them is seen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ordinary.h"
#include "rows.h"

enum { ROW_HEAD = 10, MOST = 500 };

static uint64_t requests, singles, answers;

static void check_row(const po_row *row, uint64_t size) {
    MUST(0 <= row->topic_start && row->topic_start < row->topic_end && (uint64_t)row->topic_end <= size);
    MUST((row->start == -1 && row->end == -1) || (row->topic_end < row->start && row->start <= row->end));
    MUST(row->end <= (int64_t)size && row->magic >= -1 && row->magic <= 2);
    MUST((row->magic == 2) == (row->last_delta >= 0) && (row->magic == 2) == (row->record_count >= 0));
}

static void scan_request(const uint8_t *frame, uint64_t size, int64_t room) {
    po_produce head;
    po_row *rows = malloc((size_t)room * sizeof *rows);
    MUST(rows != NULL);
    int64_t found = po_scan_produce(frame, size, MOST, &head, rows, room);
    MUST(found >= PO_WIDE);
    for (int64_t i = 0; i < found && i < room; i++) {
        check_row(&rows[i], size);
    }
    requests += found >= 0;
    free(rows);
}

static void scan_single(const uint8_t *frame, uint64_t size) {
    po_produce head, same;
    po_row row, again;
    if (po_scan_single(frame, size, size, &head, &row)) {
        check_row(&row, size);
        MUST(row.magic == 2 && head.route_end < row.start && head.acks != 0);
        MUST(po_scan_produce(frame, size, MOST, &same, &again, 1) == 1 && memcmp(&row, &again, sizeof row) == 0);
        singles++;
    }
}

static void scan_begun(const uint8_t *frame, uint64_t received, uint64_t size) {
    po_produce head;
    po_row row;
    uint8_t *begun = malloc(received);
    MUST(begun != NULL || received == 0);
    memcpy(begun, frame, received);
    if (po_scan_single(begun, received, size, &head, &row)) {
        check_row(&row, size);
    }
    free(begun);
}

static void scan_answer(const uint8_t *frame, uint64_t size, int version, int64_t room) {
    po_produced *rows = malloc((size_t)room * sizeof *rows);
    MUST(rows != NULL);
    int64_t found = po_scan_produced(frame, size, version, rows, room);
    MUST(found >= PO_MALFORMED);
    for (int64_t i = 0; i < found && i < room; i++) {
        MUST(0 < rows[i].topic_start && rows[i].topic_start < rows[i].topic_end && (uint64_t)rows[i].topic_end <= size);
    }
    answers += found >= 0;
    free(rows);
}

int main(void) {
    uint64_t rows = 0;
    uint8_t head[ROW_HEAD];
    for (; fread(head, 1, ROW_HEAD, stdin) == ROW_HEAD; rows++) {
        uint64_t received = read_little(head + 2, 4), size = read_little(head + 6, 4);
        uint8_t *frame = malloc(size);
        MUST(frame != NULL && fread(frame, 1, size, stdin) == size && received <= size);
        scan_request(frame, size, head[1]);
        scan_single(frame, size);
        scan_begun(frame, received, size);
        scan_answer(frame, size, head[0], head[1]);
        free(frame);
    }
    printf("rows %llu requests %llu singles %llu answers %llu\n", (unsigned long long)rows, (unsigned long long)requests,
           (unsigned long long)singles, (unsigned long long)answers);
    return 0;
}
