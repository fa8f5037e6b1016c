/* topic_hash: SipHash-1-3 (Aumasson and Bernstein, 2012) of a topic's bytes. The key is secret: clients choose topics' names,
 * and could choose names that collide, so that each response would be searched in quadratic time. */
#ifndef TOPIC_HASH_H
#define TOPIC_HASH_H
#include <stdint.h>

uint64_t pt_hash_topic(const uint64_t key[2], const uint8_t *bytes, uint64_t size);
#endif
