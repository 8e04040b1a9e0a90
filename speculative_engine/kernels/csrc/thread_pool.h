/* A pool of threads that share the work of one call with its caller. */
#ifndef DRAFTWIRE_THREAD_POOL_H
#define DRAFTWIRE_THREAD_POOL_H

#include <stdint.h>

/* Does items `first` to before `last` of `work`. thread_id: 0 in the caller's thread, and in each other thread another
 * number below the number of threads. */
typedef void (*Task)(const void *work, int64_t first, int64_t last, int32_t thread_id);

/* Does items 0 to before `count` on up to `threads` threads, the caller's included, and returns when all are done.
 * Which thread does which item is left to chance, so an item's result must not depend on it. least: the fewest items
 * that are worth waking a thread for. */
void draftwire_parallel_for(Task task, const void *work, int64_t count, int64_t least, int32_t threads);

#endif
