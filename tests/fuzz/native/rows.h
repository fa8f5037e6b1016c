/* What the fuzz programs share: rows of little-endian numbers and bytes on stdin, and a check. */
#ifndef ROWS_H
#define ROWS_H

#include <stdint.h>

#include "../../blockcache/native/must.h"

static inline uint64_t read_little(const uint8_t *at, int width) {
    uint64_t value = 0;
    for (int i = width; i-- > 0;) {
        value = value << 8 | at[i];
    }
    return value;
}

#endif
