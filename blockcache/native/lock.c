/* The lock of a shared arena: a robust mutex in its header, between all processes that map it.
 *
 * Owns: the mutex, and what follows from the death of a process that held it. The only place that knows locks and clocks.
 * Invariants: the mutex is used only while `shared` is set. A process that dies in a call leaves one of two arenas: one that it
 * stood in the middle of a change of (`changes` odd), which is `torn` from then on for everybody; or one that is whole but for
 * one count of a pin, which whoever has the lock next undoes. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "pyfastcache.h"

_Static_assert(sizeof(pthread_mutex_t) <= sizeof(((fc_arena *)0)->lock), "the lock's place holds a mutex");
_Static_assert(offsetof(fc_arena, lock) % 64 == 0, "a mutex is aligned");

static pthread_mutex_t *mutex_of(fc_arena *a) { return (pthread_mutex_t *)(void *)a->lock; }

static uint64_t read_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* From now on each call takes the lock: before any other process maps the arena. Where others have it already, nothing.
 * FC_OTHER: the system has no such mutex. */
int fc_share(fc_arena *a) {
    pthread_mutexattr_t kind;
    if (a->shared) {
        a->is_open = !a->torn;
        return a->torn ? FC_TORN : 0;
    }
    if (pthread_mutexattr_init(&kind) != 0) {
        return FC_OTHER;
    }
    int rc = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    rc = rc == 0 ? pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) : rc;
    rc = rc == 0 ? pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE) : rc;
    rc = rc == 0 ? pthread_mutex_init(mutex_of(a), &kind) : rc;
    pthread_mutexattr_destroy(&kind);
    if (rc != 0) {
        return FC_OTHER;
    }
    __atomic_store_n(&a->shared, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&a->is_open, 1, __ATOMIC_RELEASE);
    return 0;
}

/* Waits for the lock, and counts for how long. */
static int wait_for(fc_arena *a) {
    uint64_t begun = read_ns();
    int rc = pthread_mutex_lock(mutex_of(a));
    if (rc == 0 || rc == EOWNERDEAD) {
        a->lock_waits++;
        a->lock_waited_ns += read_ns() - begun;
    }
    return rc;
}

/* The process that had the lock is dead. */
static int recover(fc_arena *a) {
    if (a->changes % 2 != 0) {
        a->torn = 1;
    } else {
        fc_undo_pin(a);
    }
    return pthread_mutex_consistent(mutex_of(a));
}

/* Takes the lock, again where this thread has it. FC_TORN: the lock is not held, and the arena is of no use. */
int fc_lock(fc_arena *a) {
    int rc = pthread_mutex_trylock(mutex_of(a));
    if (rc == EBUSY) {
        rc = wait_for(a);
    }
    if (rc == EOWNERDEAD) {
        rc = recover(a);
    }
    if (rc != 0) {
        return FC_TORN;
    }
    a->lock_calls++;
    if (a->torn) {
        pthread_mutex_unlock(mutex_of(a));
        return FC_TORN;
    }
    return 0;
}

void fc_unlock(fc_arena *a) { pthread_mutex_unlock(mutex_of(a)); }
