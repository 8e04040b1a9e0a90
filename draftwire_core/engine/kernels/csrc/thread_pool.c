/* Thread pools that share the work of a call with its caller.
 *
 * A model's step makes hundreds of calls, some of them tens of microseconds long and microseconds apart. Workers
 * therefore spin briefly before they sleep. A caller never waits for a worker that has not joined: it starts at once,
 * and workers that join take from the remaining items, in ever smaller pieces (guided self-scheduling, Polychronopoulos
 * and Kuck 1987). If another process occupies a worker's core, the caller does nearly all of the work itself.
 */
#include "thread_pool.h"

#if defined(__unix__) || defined(__APPLE__)

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define POOLS 4 /* concurrent callers; any further one works alone */
#define MOST_WORKERS 255
#define SPIN_NANOSECONDS 400000 /* about the longest gap between two calls of a step */
#define SPINS 32 /* before the core is yielded */

/* A pool's state is a single word, so that a worker cannot join a call that has ended. From the lowest bit: busy
 * workers (16 bits), threads that may still join (16 bits), number of the call (32 bits). */
#define WORKING 0xffffull
#define JOINABLE_THREAD 0x10000ull
#define JOINABLE_THREADS (0xffffull * JOINABLE_THREAD)
#define CALL 0x100000000ull

typedef struct {
    atomic_flag taken; /* by a caller */
    _Atomic uint64_t state __attribute__((aligned(128)));
    _Atomic int64_t next __attribute__((aligned(128)));
    Task task __attribute__((aligned(128)));
    const void *work;
    int64_t count, least;
    int32_t threads, workers;
    _Atomic int32_t asleep;
    pthread_mutex_t mutex;
    pthread_cond_t woken;
} Pool;

static Pool pools[POOLS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_pieces(Pool *pool, int32_t thread_id) {
    const int64_t count = pool->count;
    for (;;) {
        int64_t first = atomic_load_explicit(&pool->next, memory_order_relaxed), piece;
        do {
            if (first >= count) return;
            piece = (count - first) / (2 * pool->threads);
            if (piece < pool->least) piece = pool->least;
            if (piece > count - first) piece = count - first;
        } while (!atomic_compare_exchange_weak_explicit(&pool->next, &first, first + piece, memory_order_relaxed,
                                                        memory_order_relaxed));
        pool->task(pool->work, first, first + piece, thread_id);
    }
}

static int can_join(uint64_t state, uint64_t last_call) {
    return (state & JOINABLE_THREADS) && state / CALL != last_call;
}

static uint64_t wait_for_call(Pool *pool, uint64_t last_call) {
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        for (int i = 0; i < SPINS; i++) {
            uint64_t state = atomic_load(&pool->state);
            if (can_join(state, last_call)) return state;
            pause_briefly();
        }
        sched_yield(); /* the caller or another process may need this core */
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - began.tv_sec) * 1000000000 + now.tv_nsec - began.tv_nsec < SPIN_NANOSECONDS);
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->asleep, 1); /* before reading the state: the caller writes the state, then reads this */
    uint64_t state;
    while (!can_join(state = atomic_load(&pool->state), last_call)) pthread_cond_wait(&pool->woken, &pool->mutex);
    atomic_fetch_sub(&pool->asleep, 1);
    pthread_mutex_unlock(&pool->mutex);
    return state;
}

static void *run_worker(void *of) {
    Pool *pool = of;
    uint64_t last_call = 0;
    for (;;) {
        uint64_t state = wait_for_call(pool, last_call);
        while (can_join(state, last_call))
            if (atomic_compare_exchange_weak(&pool->state, &state, state + 1 - JOINABLE_THREAD)) {
                last_call = state / CALL;
                take_pieces(pool, (int32_t)((state & JOINABLE_THREADS) / JOINABLE_THREAD));
                atomic_fetch_sub(&pool->state, 1);
                break;
            }
    }
    return 0;
}

/* Also runs in the child after a fork: it has no workers, and a mutex may be held by a thread that no longer exists. */
static void reset(void) {
    memset(pools, 0, sizeof pools);
    for (int i = 0; i < POOLS; i++) {
        atomic_flag_clear(&pools[i].taken);
        pthread_mutex_init(&pools[i].mutex, 0);
        pthread_cond_init(&pools[i].woken, 0);
    }
}

static void begin(void) {
    reset();
    pthread_atfork(0, 0, reset);
}

static void add_workers(Pool *pool, int32_t wanted) {
    if (pool->workers >= wanted) return;
    sigset_t all, before; /* signals belong to the application's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; pool->workers < wanted; pool->workers++) {
        if (pthread_create(&thread, 0, run_worker, pool)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

static void wake_workers(Pool *pool, int32_t wanted) {
    if (!atomic_load(&pool->asleep)) return;
    pthread_mutex_lock(&pool->mutex);
    int32_t asleep = atomic_load(&pool->asleep), missing = wanted - (pool->workers - asleep);
    for (int32_t i = 0; i < missing && i < asleep; i++) pthread_cond_signal(&pool->woken);
    pthread_mutex_unlock(&pool->mutex);
}

void draftwire_parallel_for(Task task, const void *work, int64_t count, int64_t least, int32_t threads) {
    if (least < 1) least = 1;
    if (threads > count / least) threads = (int32_t)(count / least);
    if (threads > MOST_WORKERS + 1) threads = MOST_WORKERS + 1;
    Pool *pool = 0;
    if (threads > 1) {
        pthread_once(&once, begin);
        for (int i = 0; i < POOLS && !pool; i++)
            if (!atomic_flag_test_and_set(&pools[i].taken)) pool = pools + i;
    }
    if (!pool) {
        if (count > 0) task(work, 0, count, 0);
        return;
    }
    add_workers(pool, threads - 1);
    pool->task = task, pool->work = work, pool->count = count, pool->least = least, pool->threads = threads;
    atomic_store(&pool->next, 0);
    uint64_t call = atomic_load(&pool->state) / CALL + 1;
    atomic_store(&pool->state, call * CALL + (uint64_t)(threads - 1) * JOINABLE_THREAD);
    wake_workers(pool, threads - 1);
    take_pieces(pool, 0);
    uint64_t state = atomic_fetch_and(&pool->state, ~JOINABLE_THREADS);
    for (int64_t spins = 1; state & WORKING; spins++, state = atomic_load(&pool->state)) {
        if (spins % SPINS) pause_briefly();
        else sched_yield();
    }
    atomic_flag_clear(&pool->taken);
}

#else

void draftwire_parallel_for(Task task, const void *work, int64_t count, int64_t least, int32_t threads) {
    (void)least, (void)threads;
    if (count > 0) task(work, 0, count, 0);
}

#endif
