/* The token filters of one row. top_k, top_p and min_p yield the smallest scaled logit that is kept, and typical_p a
 * range of scaled logits. draftwire_core/engine/sampling/token_filters.py and kept_range.py define them and compute the
 * same with torch. Probability mass is counted in integers, whose sums do not depend on their order.
 */
#ifndef DRAFTWIRE_FILTERS_H
#define DRAFTWIRE_FILTERS_H

#include "ops.h"
#include "vectors.h"

#include <math.h>
#include <stdlib.h>

#define MASS_UNIT 0x1p42f
#define DEPTH 30            /* e^-30 of the largest mass is below one unit */
#define BINS_PER_UNIT 128
#define BINS (DEPTH * BINS_PER_UNIT + 1)

/* A token of the bin with the edge of the typical range: its surprise's distance from the entropy, and its mass. */
typedef struct {
    float distance;
    int64_t mass;
} EdgeToken;

/* Working memory of the filters, reused for each row. */
typedef struct {
    float *scaled; /* [vocabulary] logit / temperature */
    float *picked; /* [vocabulary] */
    int64_t *bins; /* [BINS] */
    EdgeToken *edge_tokens; /* [vocabulary] */
} FilterScratch;

INLINE int64_t mass_of(float relative) {
    vec one = {relative};
    return (int64_t)(exp_vec(one)[0] * MASS_UNIT);
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Returns the k-th largest of `count` values, k >= 1. Reorders the values so that the k largest come first. */
static float kth_largest(float *values, int64_t count, int64_t k) {
    int64_t first = 0, last = count - 1;
    while (first < last) {
        float pivot = values[first + (last - first) / 2];
        int64_t i = first, j = last;
        while (i <= j) {
            while (values[i] > pivot) i++;
            while (values[j] < pivot) j--;
            if (i > j) break;
            float other = values[i];
            values[i++] = values[j], values[j--] = other;
        }
        if (k - 1 <= j) last = j;
        else if (k - 1 >= i) first = i;
        else break;
    }
    return values[k - 1];
}

/* Returns the value at which the running sum of masses, largest value first, reaches the target. Sorts the values. */
static float value_reaching(float *values, int64_t count, float top, int64_t running, double target) {
    qsort(values, (size_t)count, sizeof *values, descending);
    int64_t i = 0;
    for (; i < count - 1; i++) {
        running += mass_of(values[i] - top);
        if ((double)running >= target) break;
    }
    return values[i];
}

/* Returns the smallest value that top_p keeps of the k largest, ties with the k-th included. tops: [blocks], the
 * largest logit of each block */
static float least_of_top_k(const Filters *f, const FilterScratch *s, int64_t vocabulary, const float *tops,
                            int64_t blocks, float temperature, float top) {
    /* The k blocks with the largest tops hold at least k values that are not below the smallest of those tops. */
    float bound = -INFINITY;
    if (f->top_k <= blocks) {
        for (int64_t b = 0; b < blocks; b++) s->picked[b] = tops[b] / temperature;
        bound = kth_largest(s->picked, blocks, f->top_k);
    }
    int64_t count = 0, kept = 0;
    for (int64_t token = 0; token < vocabulary; token++)
        if (s->scaled[token] >= bound) s->picked[count++] = s->scaled[token];
    float least = kth_largest(s->picked, count, f->top_k);
    if (f->top_p >= 1) return least;
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++)
        if (s->picked[i] >= least) {
            float value = s->picked[i];
            s->picked[kept++] = value;
            total += mass_of(value - top);
        }
    return value_reaching(s->picked, kept, top, 0, f->top_p * (double)total);
}

/* Returns the smallest value that top_p keeps. Values are binned; only the bin with the nucleus's edge is sorted. */
static float least_of_top_p(const Filters *f, const FilterScratch *s, int64_t vocabulary, float top) {
    memset(s->bins, 0, BINS * sizeof *s->bins);
    int64_t total = 0, running = 0, count = 0, edge = 0;
    for (int64_t first = 0; first < vocabulary; first += LANES) {
        const int64_t width = vocabulary - first < LANES ? vocabulary - first : LANES;
        float relative[LANES], mass[LANES];
        vec all;
        for (int64_t i = 0; i < LANES; i++) relative[i] = i < width ? s->scaled[first + i] - top : -INFINITY;
        memcpy(&all, relative, sizeof all);
        all = exp_vec(all) * MASS_UNIT;
        memcpy(mass, &all, sizeof all);
        for (int64_t i = 0; i < width; i++) {
            if (relative[i] < -DEPTH) continue;
            total += (int64_t)mass[i];
            s->bins[(int64_t)(relative[i] * -BINS_PER_UNIT)] += (int64_t)mass[i];
        }
    }
    const double target = f->top_p * (double)total;
    for (; edge < BINS - 1 && (double)(running + s->bins[edge]) < target; edge++) running += s->bins[edge];
    for (int64_t token = 0; token < vocabulary; token++) {
        float relative = s->scaled[token] - top;
        if (relative >= -DEPTH && (int64_t)(relative * -BINS_PER_UNIT) == edge) s->picked[count++] = s->scaled[token];
    }
    return value_reaching(s->picked, count, top, running, target);
}

static int by_distance(const void *a, const void *b) {
    float x = ((const EdgeToken *)a)->distance, y = ((const EdgeToken *)b)->distance;
    return (x > y) - (x < y);
}

/* Narrows *least and *most to the range that typical_p keeps of the values not below *least. */
INLINE void keep_typical(const Filters *f, const FilterScratch *s, int64_t vocabulary, float top, float *least,
                         float *most) {
    float *masses = s->picked;
    int64_t total = 0, moment = 0, running = 0, count = 0, edge = 0;
    for (int64_t first = 0; first < vocabulary; first += LANES) {
        const int64_t width = vocabulary - first < LANES ? vocabulary - first : LANES;
        float relative[LANES], mass[LANES];
        vec all;
        for (int64_t i = 0; i < LANES; i++)
            relative[i] = i < width && s->scaled[first + i] >= *least ? s->scaled[first + i] - top : -INFINITY;
        memcpy(&all, relative, sizeof all);
        all = exp_vec(all) * MASS_UNIT;
        memcpy(mass, &all, sizeof all);
        for (int64_t i = 0; i < width; i++) {
            if (relative[i] < -DEPTH) mass[i] = 0;
            masses[first + i] = mass[i];
            if (mass[i] < 1) continue;
            total += (int64_t)mass[i];
            moment += (int64_t)(mass[i] * relative[i]);
        }
    }
    const float mean = (float)((double)moment / (double)total);
    const double target = f->typical_p * (double)total;
    memset(s->bins, 0, BINS * sizeof *s->bins);
    for (int64_t token = 0; token < vocabulary; token++) {
        if (masses[token] < 1) continue;
        s->bins[(int64_t)(fabsf(s->scaled[token] - top - mean) * BINS_PER_UNIT)] += (int64_t)masses[token];
    }
    for (; edge < BINS - 1 && (double)(running + s->bins[edge]) < target; edge++) running += s->bins[edge];
    for (int64_t token = 0; token < vocabulary; token++) {
        float distance = fabsf(s->scaled[token] - top - mean);
        if (masses[token] >= 1 && (int64_t)(distance * BINS_PER_UNIT) == edge)
            s->edge_tokens[count++] = (EdgeToken){distance, (int64_t)masses[token]};
    }
    qsort(s->edge_tokens, (size_t)count, sizeof *s->edge_tokens, by_distance);
    int64_t last = 0;
    for (; last < count - 1; last++) {
        running += s->edge_tokens[last].mass;
        if ((double)running >= target) break;
    }
    const float reach = s->edge_tokens[last].distance;
    *least = INFINITY, *most = -INFINITY;
    for (int64_t token = 0; token < vocabulary; token++) {
        float scaled = s->scaled[token];
        if (masses[token] < 1 || fabsf(scaled - top - mean) > reach) continue;
        if (scaled < *least) *least = scaled;
        if (scaled > *most) *most = scaled;
    }
}

/* Returns the smallest scaled logit that top_k, top_p and min_p keep. top: the largest scaled logit, finite */
INLINE float least_kept(const Filters *f, const FilterScratch *s, int64_t vocabulary, const float *tops, int64_t blocks,
                        float temperature, float top) {
    float least = -INFINITY;
    if (f->top_k && f->top_k < vocabulary) least = least_of_top_k(f, s, vocabulary, tops, blocks, temperature, top);
    else if (f->top_p < 1) least = least_of_top_p(f, s, vocabulary, top);
    return top + f->log_min_p > least ? top + f->log_min_p : least;
}

#endif
