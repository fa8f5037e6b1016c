/* The lock of a shared arena: a robust mutex in its header, between all processes that map it.
 *
 * Owns: the mutex, what follows from the death of a process that held it, and how long others wait for one that was stopped
 * meanwhile (SIGSTOP, a debugger, swapped out). The only place that knows locks and clocks.
 * Invariants: the mutex is used only while `shared` is set. A process that dies in a call leaves one of two arenas: one that it
 * stood in the middle of a change of (`changes` odd), which is `torn` from then on for everybody; or one that is whole but for
 * one count of a pin, which whoever has the lock next undoes. */
#define _GNU_SOURCE /* pthread_mutex_clocklock, where the C library has it */
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "pyfastcache.h"

_Static_assert(sizeof(pthread_mutex_t) <= sizeof(((fc_arena *)0)->lock), "the lock's place holds a mutex");
_Static_assert(offsetof(fc_arena, lock) % 64 == 0, "a mutex is aligned");

static pthread_mutex_t *mutex_of(fc_arena *a) { return (pthread_mutex_t *)(void *)a->lock; }

#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 30)
#define HAS_CLOCKLOCK 1
#endif
#endif
#ifdef HAS_CLOCKLOCK
#define WAIT_CLOCK CLOCK_MONOTONIC
static int lock_until(pthread_mutex_t *mutex, const struct timespec *end) {
    return pthread_mutex_clocklock(mutex, WAIT_CLOCK, end);
}
#else
#define WAIT_CLOCK CLOCK_REALTIME /* who sets it back makes one wait longer */
static int lock_until(pthread_mutex_t *mutex, const struct timespec *end) { return pthread_mutex_timedlock(mutex, end); }
#endif

static uint64_t read_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* From now on each call takes the lock: before any other process maps the arena. Where others have it already, nothing.
 * FC_OTHER: the system has no such mutex. */
int fc_share(fc_arena *a) {
    pthread_mutexattr_t kind;
    if (a->shared) {
        a->keeper_pid = (uint64_t)getpid();
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
    a->keeper_pid = (uint64_t)getpid();
    __atomic_store_n(&a->shared, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&a->is_open, 1, __ATOMIC_RELEASE);
    return 0;
}

static int wait_until(fc_arena *a, uint64_t end_ns) {
    struct timespec end = {(time_t)(end_ns / 1000000000u), (long)(end_ns % 1000000000u)};
    return lock_until(mutex_of(a), &end);
}

/* Waits for the lock, and counts for how long. `bound_ns`: at most; 0: as long as it takes. Once a wait was in vain, no
 * bounded one begins before somebody has had the lock. */
static int wait_for(fc_arena *a, uint64_t bound_ns) {
    if (bound_ns > 0 && __atomic_load_n(&a->lock_stuck, __ATOMIC_RELAXED)) {
        return ETIMEDOUT;
    }
    uint64_t begun = read_ns(CLOCK_MONOTONIC);
    int rc = bound_ns > 0 ? wait_until(a, read_ns(WAIT_CLOCK) + bound_ns) : pthread_mutex_lock(mutex_of(a));
    if (rc == 0 || rc == EOWNERDEAD) {
        a->lock_waits++;
        a->lock_waited_ns += read_ns(CLOCK_MONOTONIC) - begun;
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

/* What an attempt to take the lock means: 0, FC_TORN, or FC_BUSY. */
static int enter(fc_arena *a, int rc) {
    if (rc == EOWNERDEAD) {
        rc = recover(a);
    }
    if (rc != 0) {
        return FC_TORN;
    }
    a->lock_calls++;
    if (a->lock_stuck) {
        a->lock_stuck = 0;
    }
    if (a->torn) {
        pthread_mutex_unlock(mutex_of(a));
        return FC_TORN;
    }
    return 0;
}

/* Takes the lock, again where this thread has it. FC_TORN: the lock is not held, and the arena is of no use. */
int fc_lock(fc_arena *a) {
    int rc = pthread_mutex_trylock(mutex_of(a));
    return enter(a, rc == EBUSY ? wait_for(a, 0) : rc);
}

/* The same for a call that only reads or counts pins. FC_BUSY: the caller is not the keeper, and did not get it in time. */
int fc_lock_to_read(fc_arena *a) {
    int rc = pthread_mutex_trylock(mutex_of(a));
    if (rc == EBUSY) {
        rc = wait_for(a, a->keeper_pid == (uint64_t)getpid() ? 0 : FC_LOCK_WAIT_NS);
    }
    if (rc == ETIMEDOUT) {
        __atomic_store_n(&a->lock_stuck, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&a->lock_refusals, 1, __ATOMIC_RELAXED);
        return FC_BUSY;
    }
    return enter(a, rc);
}

void fc_unlock(fc_arena *a) { pthread_mutex_unlock(mutex_of(a)); }
