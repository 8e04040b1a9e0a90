/* Threads that share the work of one call with its caller. */
#ifndef DRAFTWIRE_THREAD_POOL_H
#define DRAFTWIRE_THREAD_POOL_H

#include <stdint.h>

/* Does items `first` to before `last` of `work`. `thread_id`: 0 for the caller, others for others, less than the threads. */
typedef void (*Task)(const void *work, int64_t first, int64_t last, int32_t thread_id);

/* Does items 0 to before `count`, on up to `threads` threads with the caller's, and returns when all is done. Who takes
 * which is left to chance, so an item's result must not depend on it. `least`: items that are worth a thread's while. */
void draftwire_parallel_for(Task task, const void *work, int64_t count, int64_t least, int32_t threads);

#endif
