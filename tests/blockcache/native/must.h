/* A check of the C test programs: what does not hold is said with its line, and ends the program with 1. */
#ifndef MUST_H
#define MUST_H

#include <stdio.h>
#include <stdlib.h>

#define MUST(condition)                                                     \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);         \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

#endif
