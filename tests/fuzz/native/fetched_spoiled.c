/* Spoiled Fetches and answers into their scanners; built with sanitizers by test_native_fetched.py.
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

/* Of a request whose topics and rows are in memory of their very size, for `room` of each: whether it is one. */
static uint64_t read_request(const uint8_t *frame, uint64_t size, int64_t room, int64_t most) {
    po_fetch head;
    po_topic *topics = malloc((size_t)room * sizeof *topics);
    po_asked *rows = malloc((size_t)room * sizeof *rows);
    MUST(room == 0 || (topics != NULL && rows != NULL));
    int64_t count = po_scan_fetch(frame, size, most, &head, topics, rows, room);
    MUST(count >= PO_WIDE);
    if (count >= 0) {
        MUST(head.topics <= count && head.partitions + head.forgotten <= count);
        MUST(head.partitions >= 0 && head.forgotten >= 0 && (uint64_t)count <= size);
        MUST(14 <= head.client_id_end && head.client_id_end <= head.body_start && head.body_start < head.names_start);
        MUST(head.names_start < head.names_end && (uint64_t)head.names_end <= size);
        MUST(head.session_at == -1 || (head.body_start < head.session_at && head.session_at < head.names_start));
        MUST(head.rack_start <= head.rack_end && (uint64_t)head.rack_end <= size);
        for (int64_t i = 0; i < head.topics && i < room; i++) {
            MUST(head.names_start < topics[i].start && topics[i].start <= topics[i].end);
            MUST((uint64_t)topics[i].end <= size && topics[i].partitions >= 0);
        }
    }
    free(rows);
    free(topics);
    return count >= 0;
}

/* Of an answer whose rows are in memory of their very size: whether it has so few. */
static uint64_t read_rows(const uint8_t *frame, uint64_t size) {
    po_answer answer;
    po_topic *topics = malloc(MOST_ROWS * sizeof *topics);
    po_polled *rows = malloc(MOST_ROWS * sizeof *rows);
    MUST(topics != NULL && rows != NULL);
    int64_t count = po_scan_rows(frame, size, &answer, topics, rows, MOST_ROWS), named = 0;
    MUST(count >= -1 && count <= MOST_ROWS);
    for (int64_t i = 0; count >= 0 && i < answer.topics; i++) {
        MUST(topics[i].start >= 0 && topics[i].end == topics[i].start + 16 && (uint64_t)topics[i].end <= size);
        named += topics[i].partitions;
    }
    MUST(count < 0 || (named == count && answer.topics <= MOST_ROWS));
    for (int64_t i = 0; i < count; i++) {
        MUST(rows[i].start <= rows[i].end && (uint64_t)(rows[i].end + 1) <= size + 1);
    }
    free(rows);
    free(topics);
    return count > 0;
}

int main(void) {
    uint64_t requests = 0, answers = 0, weighed = 0, in_rows = 0, rows = 0;
    uint8_t head[ROW_HEAD];
    for (; fread(head, 1, ROW_HEAD, stdin) == ROW_HEAD; rows++) {
        uint64_t from = read_little(head + 1, 2), to = read_little(head + 3, 2);
        uint64_t received = read_little(head + 5, 4), size = read_little(head + 9, 4);
        uint8_t *frame = malloc(received), *names = malloc(to - from);
        MUST(frame != NULL && names != NULL && received <= size && from <= to && to <= received);
        MUST(fread(frame, 1, received, stdin) == received);
        memcpy(names, frame + from, to - from);
        requests += read_request(frame, received, (int64_t)(to % 5), received % 2 ? MOST / 20 : (int64_t)received);
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
        free(names);
        free(frame);
    }
    printf("rows %llu requests %llu answers %llu weighed %llu in_rows %llu\n", (unsigned long long)rows,
           (unsigned long long)requests, (unsigned long long)answers, (unsigned long long)weighed,
           (unsigned long long)in_rows);
    return 0;
}
