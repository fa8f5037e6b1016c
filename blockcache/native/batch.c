/* What the cache reads of a record batch v2's header (KIP-98; DefaultRecordBatch): offsets, length, epoch, producer. */
#include <string.h>

#include "pyfastcache.h"

static uint64_t read_big(const uint8_t *bytes, int width) {
    uint64_t value = 0;
    for (int i = 0; i < width; i++) {
        value = value << 8 | bytes[i];
    }
    return value;
}

/* Reads the header of a batch, whatever of the batch is there. */
int fc_read_head(const uint8_t *bytes, fc_batch *out) {
    if (bytes[16] != 2) {
        return FC_BAD_BATCH;
    }
    int32_t length = (int32_t)read_big(bytes + 8, 4);
    int32_t last_delta = (int32_t)read_big(bytes + 23, 4);
    out->base = (int64_t)read_big(bytes, 8);
    out->epoch = (int32_t)read_big(bytes + 12, 4);
    out->bytes = bytes;
    if (length < FC_BATCH_HEADER - 12 || last_delta < 0 || out->base < 0 || out->base >= INT64_MAX - last_delta) {
        return FC_BAD_BATCH;
    }
    out->length = (uint64_t)length + 12;
    out->last = out->base + last_delta;
    return 0;
}

/* Reads the header of the batch that starts `bytes`; it must lie wholly in `size`. */
int fc_read_batch(const uint8_t *bytes, uint64_t size, fc_batch *out) {
    if (size < FC_BATCH_HEADER || fc_read_head(bytes, out) < 0 || out->length > size) {
        return FC_BAD_BATCH;
    }
    return 0;
}

/* maxTimestamp of a batch (DefaultRecordBatch). */
int64_t fc_batch_timestamp(const uint8_t *bytes) {
    return (int64_t)read_big(bytes + FC_TIMESTAMP_END - 8, 8);
}

static void write_big(uint8_t *bytes, int width, uint64_t value) {
    for (int i = width - 1; i >= 0; i--, value >>= 8) {
        bytes[i] = (uint8_t)value;
    }
}

/* What the batch is stored with may not be what its bytes say: base offset and epoch, outside the CRC. */
void fc_write_head(uint8_t *stored, const fc_batch *batch) {
    write_big(stored, 8, (uint64_t)batch->base);
    write_big(stored + 12, 4, (uint32_t)batch->epoch);
}

/* Whether a stored batch of the same base offset, last offset and epoch came of the same append. Bytes and record
 * count may differ: the log cleaner drops records within a batch and keeps its offsets and producer fields. */
int fc_same_batch(const uint8_t *stored, const fc_batch *batch) {
    return memcmp(stored + FC_PRODUCER_AT, batch->bytes + FC_PRODUCER_AT, FC_PRODUCER_BYTES) == 0;
}
