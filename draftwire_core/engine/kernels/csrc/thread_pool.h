/* Thread pools that share the work of a call with its caller. */
#ifndef DRAFTWIRE_THREAD_POOL_H
#define DRAFTWIRE_THREAD_POOL_H

#include <stdint.h>

/* Processes items `first` to `last` - 1 of `work`. thread_id: 0 in the caller's thread, and a distinct number below the
 * number of threads in every other thread */
typedef void (*Task)(const void *work, int64_t first, int64_t last, int32_t thread_id);

/* Processes items 0 to `count` - 1 on up to `threads` threads, including the caller's, and returns when all are done.
 * Items are assigned to threads nondeterministically, so an item's result must not depend on its thread. least: the
 * fewest items that are worth waking a thread for */
void draftwire_parallel_for(Task task, const void *work, int64_t count, int64_t least, int32_t threads);

#endif
