/* SipHash with one round for each word and three at the end. */
#include "topic_hash.h"

#include <string.h>

static uint64_t rotate(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

static void mix(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static void add_word(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    mix(v);
    v[0] ^= word;
}

uint64_t pt_hash_topic(const uint64_t key[2], const uint8_t *bytes, uint64_t size) {
    uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                     key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};
    uint64_t at = 0, word;
    for (; at + sizeof word <= size; at += sizeof word) {
        memcpy(&word, bytes + at, sizeof word);
        add_word(v, word);
    }
    word = 0;
    memcpy(&word, bytes + at, (size_t)(size - at));
    add_word(v, word | size << 56);
    v[2] ^= 0xff;
    for (int round = 0; round < 3; round++) {
        mix(v);
    }
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
