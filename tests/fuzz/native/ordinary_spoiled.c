/* Spoiled Produce frames into the scanner of ordinary ones; built with sanitizers by test_native_ordinary.py.
 *
 * usage: ordinary_spoiled < rows. A row: version (1 byte), where names start (2), where they end (2), size (4), all
 * little-endian, and so many bytes. Each row, and its names, are copied to memory of their very size, so that a read beyond
 * them is seen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ordinary.h"
#include "rows.h"

enum { ROW_HEAD = 9 };

int main(void) {
    uint64_t requests = 0, answers = 0, rows = 0;
    uint8_t head[ROW_HEAD];
    for (; fread(head, 1, ROW_HEAD, stdin) == ROW_HEAD; rows++) {
        uint64_t from = read_little(head + 1, 2), to = read_little(head + 3, 2), size = read_little(head + 5, 4);
        uint8_t *frame = malloc(size);
        MUST(frame != NULL && fread(frame, 1, size, stdin) == size && from <= to && to <= size);
        uint8_t *names = malloc(to - from);
        MUST(names != NULL);
        memcpy(names, frame + from, to - from);
        po_request request;
        if (po_scan_request(frame, size, &request)) {
            uint64_t start = (uint64_t)request.start, end = (uint64_t)request.end;
            MUST(start < end && end <= size && request.names_start < request.route_end);
            requests++;
        }
        answers += po_base_offset(frame, size, head[0], names, to - from) >= 0;
        free(names);
        free(frame);
    }
    printf("rows %llu requests %llu answers %llu\n", (unsigned long long)rows, (unsigned long long)requests,
           (unsigned long long)answers);
    return 0;
}
