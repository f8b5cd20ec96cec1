/* Work shared out over the threads of the OpenMP runtime that is in the process already.
 *
 * The runtime is reached through a function pointer and not through pragmas, so that any C compiler serves and nothing
 * is linked against a second runtime. Without one, everything runs on the calling thread.
 */
#ifndef RADIXLOOP_THREADS_H
#define RADIXLOOP_THREADS_H

#include <stddef.h>

typedef void (*parallel_region)(void (*body)(void *), void *data, unsigned threads, unsigned flags);

static parallel_region gomp_parallel;

/* `region` is GOMP_parallel, or NULL. To be called once, before any kernel. */
void use_threads(void *region) { gomp_parallel = (parallel_region)region; }

/* One job: `run(data, item, worker)` for every item, each on one of at most `threads` workers, numbered from 0. */
struct job {
    void (*run)(const void *data, long item, int worker);
    const void *data;
    long items;
    long next;
    int workers;
};

static void job_worker(void *shared) {
    struct job *job = shared;
    int worker = __atomic_fetch_add(&job->workers, 1, __ATOMIC_RELAXED);
    for (;;) {
        long item = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (item >= job->items) break;
        job->run(job->data, item, worker);
    }
}

/* Items are taken one by one by whoever is free, in order: which worker gets which must not show in the result. */
static void share_out(void (*run)(const void *, long, int), const void *data, long items, int threads) {
    struct job job = {run, data, items, 0, 0};
    if (threads > items) threads = (int)items;
    if (threads > 1 && gomp_parallel != NULL)
        gomp_parallel(job_worker, &job, (unsigned)threads, 0);
    else
        job_worker(&job);
}

#endif
