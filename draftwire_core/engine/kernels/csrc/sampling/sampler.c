/* The best tokens of each row under coupled noise, in one call. draftwire_core/engine/sampling/coupled_sampler.py
 * computes the same with torch, and gumbel.py defines the noise.
 *
 * A row's blocks of 64 token ids are opened in descending order of the highest score that a token in them can have,
 * until no further block can hold one of the best tokens. The result is exact, and independent of the other rows.
 */
#include "sampling/filters.h"
#include "logarithm.h"

#define NOISE_BLOCK 64

enum { BLOCK_FIRST, BLOCK_WINNER, TOKEN }; /* domains of the noise (gumbel.py) */

typedef struct {
    int64_t row, blocks;
    float temperature, least, most;
    uint64_t seed;
    uint32_t position;
    int greedy;
    float *top;    /* [blocks] the largest logit of each block */
    float *bound;  /* [blocks, rounded up to vectors] the highest possible score of each block, -inf once opened */
    float *noise;  /* [blocks] the largest noise of each block */
    double *first; /* [blocks] the arrival time of that noise */
} Row;

static void philox(uint32_t index, uint32_t position, uint32_t domain, uint64_t seed, uint32_t words[4]) {
    uint32_t c0 = index, c1 = position, c2 = 0, c3 = domain, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t left = (uint64_t)0xD2511F53u * c0, right = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(right >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)right;
        c2 = (uint32_t)(left >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)left;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

static double exponential(uint32_t bits) { return -logarithm(((double)bits + 0.5) * 0x1p-32); }

INLINE float logit(const Sample *call, int64_t row, int64_t token) {
    int64_t at = row * call->stride + token;
    if (!call->bf16) return ((const float *)call->logits)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)call->logits)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Stores the largest logit of each block. Returns the largest of all, or NaN if any logit is NaN. */
INLINE float block_tops(const Sample *call, const Row *r, int bf16) {
    const int64_t whole = call->vocabulary / NOISE_BLOCK * NOISE_BLOCK, at = r->row * call->stride;
    float largest = -INFINITY, last = -INFINITY;
    ivec odd = {0};
    for (int64_t begin = 0; begin < whole; begin += NOISE_BLOCK) {
        vec a = load_vec(call->logits, at + begin, bf16), b = load_vec(call->logits, at + begin + LANES, bf16);
        vec c = load_vec(call->logits, at + begin + 2 * LANES, bf16);
        vec d = load_vec(call->logits, at + begin + 3 * LANES, bf16);
        odd |= is_nan_vec(a) | is_nan_vec(b) | is_nan_vec(c) | is_nan_vec(d);
        float top = largest_of_vec(larger_vec(larger_vec(a, b), larger_vec(c, d)));
        r->top[begin / NOISE_BLOCK] = top;
        if (top > largest) largest = top;
    }
    int nan = 0;
    for (int64_t token = whole; token < call->vocabulary; token++) {
        float value = logit(call, r->row, token);
        nan |= value != value;
        if (value > last) last = value;
    }
    if (whole < call->vocabulary) r->top[r->blocks - 1] = last;
    for (int i = 0; i < LANES; i++) nan |= odd[i] != 0;
    return nan ? NAN : last > largest ? last : largest;
}

static void bound_blocks(Row *r) {
    for (int64_t b = 0; b < r->blocks; b++) {
        if (!r->greedy && b % 4 == 0) {
            uint32_t words[4];
            philox((uint32_t)(b / 4), r->position, BLOCK_FIRST, r->seed, words);
            for (int lane = 0; lane < 4 && b + lane < r->blocks; lane++) {
                r->first[b + lane] = exponential(words[lane]) * (1.0 / NOISE_BLOCK);
                r->noise[b + lane] = (float)-logarithm(r->first[b + lane]);
            }
        }
        float scaled = r->top[b] / r->temperature;
        if (scaled > r->most) scaled = r->most;
        r->bound[b] = scaled >= r->least && scaled > -INFINITY ? scaled + (r->greedy ? 0.0f : r->noise[b]) : -INFINITY;
    }
    for (int64_t b = r->blocks; b % LANES; b++) r->bound[b] = -INFINITY;
}

/* Returns the block with the highest bound. */
INLINE int64_t most_promising(const Row *r) {
    vec most = load_vec(r->bound, 0, 0);
    for (int64_t b = LANES; b < r->blocks; b += LANES) most = larger_vec(most, load_vec(r->bound, b, 0));
    const float highest = largest_of_vec(most);
    int64_t best = 0;
    while (r->bound[best] != highest) best++;
    return best;
}

/* Inserts a token among the `found` best so far, if it is one of them. Returns the new count. */
static int64_t insert(int64_t *tokens, float *scores, int64_t found, int64_t wanted, int64_t token, float score) {
    int64_t place = found < wanted ? found : wanted - 1;
    if (found == wanted && (score < scores[place] || (score == scores[place] && token > tokens[place]))) return found;
    for (; place > 0 && (score > scores[place - 1] || (score == scores[place - 1] && token < tokens[place - 1])); place--)
        tokens[place] = tokens[place - 1], scores[place] = scores[place - 1];
    tokens[place] = token, scores[place] = score;
    return found < wanted ? found + 1 : found;
}

static int64_t open_block(const Sample *call, const Row *r, int64_t b, int64_t *tokens, float *scores, int64_t found) {
    int64_t begin = b * NOISE_BLOCK;
    int64_t end = begin + NOISE_BLOCK < call->vocabulary ? begin + NOISE_BLOCK : call->vocabulary;
    uint32_t words[4] = {0};
    int64_t drawn = -1, winner = -1;
    const float most = r->greedy ? 0.0f : r->noise[b];
    for (int64_t token = begin; token < end; token++) {
        float scaled = logit(call, r->row, token) / r->temperature;
        if (!(scaled >= r->least && scaled <= r->most) || scaled == -INFINITY) continue;
        if (found == call->wanted && scaled + most < scores[found - 1]) continue;
        float noise = most;
        if (!r->greedy) {
            if (winner < 0) {
                uint32_t lanes[4];
                philox((uint32_t)(b / 4), r->position, BLOCK_WINNER, r->seed, lanes);
                winner = begin + (lanes[b % 4] >> 26);
            }
            if (token != winner) {
                if (drawn != token / 4) {
                    drawn = token / 4;
                    philox((uint32_t)drawn, r->position, TOKEN, r->seed, words);
                }
                noise = (float)-logarithm(r->first[b] + exponential(words[token % 4]));
                if (noise > most) noise = most; /* rounding of the logarithm may exceed it */
            }
        }
        found = insert(tokens, scores, found, call->wanted, token, scaled + noise);
    }
    return found;
}

/* Returns log sum exp(logit / temperature - top). */
INLINE double log_mass(const Sample *call, const Row *r, float top, int bf16) {
    double mass = 0;
    int64_t c = 0;
    const int64_t at = r->row * call->stride;
    for (; c + LANES <= call->vocabulary; c += LANES)
        mass += (double)sum_vec(exp_vec(load_vec(call->logits, at + c, bf16) / r->temperature - top));
    for (; c < call->vocabulary; c++) mass += (double)exp_vec((vec){logit(call, r->row, c) / r->temperature - top})[0];
    return logarithm(mass);
}

/* Finds the range of logit / temperature that the row keeps. */
INLINE void filter(const Sample *call, Row *r, const FilterScratch *scratch, float largest, int bf16) {
    r->least = -INFINITY, r->most = INFINITY;
    if (!call->filters || r->greedy) return; /* greedy takes the largest, whatever the filters */
    int64_t c = 0, at = r->row * call->stride;
    for (; c + LANES <= call->vocabulary; c += LANES) {
        vec scaled = load_vec(call->logits, at + c, bf16) / r->temperature;
        memcpy(scratch->scaled + c, &scaled, sizeof scaled);
    }
    for (; c < call->vocabulary; c++) scratch->scaled[c] = logit(call, r->row, c) / r->temperature;
    const Filters *filters = call->filters + r->row;
    const float top = largest / r->temperature;
    r->least = least_kept(filters, scratch, call->vocabulary, r->top, r->blocks, r->temperature, top);
    if (filters->typical_p < 1) keep_typical(filters, scratch, call->vocabulary, top, &r->least, &r->most);
}

INLINE void best_of_row_body(const Sample *call, Row *r, const FilterScratch *scratch) {
    int64_t *tokens = call->tokens + r->row * call->wanted, found = 0;
    float *scores = call->scores + r->row * call->wanted;
    float largest = call->bf16 ? block_tops(call, r, 1) : block_tops(call, r, 0);
    if (isfinite(largest)) {
        if (call->bf16) filter(call, r, scratch, largest, 1);
        else filter(call, r, scratch, largest, 0);
        bound_blocks(r);
        for (;;) {
            int64_t b = most_promising(r);
            if (r->bound[b] == -INFINITY || (found == call->wanted && r->bound[b] < scores[found - 1])) break;
            r->bound[b] = -INFINITY;
            found = open_block(call, r, b, tokens, scores, found);
        }
    }
    for (int64_t i = found; i < call->wanted; i++) tokens[i] = -1, scores[i] = -INFINITY;
    if (!call->log_probs) return;
    float *log_probs = call->log_probs + r->row * call->wanted, top = largest / r->temperature;
    double mass = found ? (call->bf16 ? log_mass(call, r, top, 1) : log_mass(call, r, top, 0)) : 0;
    for (int64_t i = 0; i < call->wanted; i++)
        log_probs[i] = i < found ? (float)((double)(logit(call, r->row, tokens[i]) / r->temperature - top) - mass)
                                 : -INFINITY;
}

CLONED(best_of_row, (const Sample *call, Row *r, const FilterScratch *scratch), (call, r, scratch))

int32_t draftwire_sample(const Sample *call) {
    const int64_t blocks = (call->vocabulary + NOISE_BLOCK - 1) / NOISE_BLOCK;
    const int64_t room = (blocks + LANES - 1) / LANES * LANES;
    const int64_t filtered = call->filters ? call->vocabulary : 0;
    double *memory = malloc((size_t)room * (sizeof(double) + 3 * sizeof(float)) + 2 * (size_t)filtered * sizeof(float) +
                            (filtered ? BINS * sizeof(int64_t) + (size_t)filtered * sizeof(EdgeToken) : 0));
    if (!memory) return 1;
    int64_t *bins = (int64_t *)(memory + room);
    EdgeToken *edge_tokens = (EdgeToken *)(bins + (filtered ? BINS : 0));
    float *rest = (float *)(edge_tokens + filtered);
    FilterScratch scratch = {
        .bins = bins, .edge_tokens = edge_tokens, .scaled = rest + 3 * room, .picked = rest + 3 * room + filtered,
    };
    for (int64_t row = 0; row < call->row_count; row++) {
        Row r = {
            .row = row, .blocks = blocks, .temperature = call->temperatures[row],
            .seed = (uint64_t)call->seeds[row], .position = (uint32_t)call->positions[row],
            .greedy = call->greedy[row],
            .first = memory, .top = rest, .bound = rest + room, .noise = rest + 2 * room,
        };
        best_of_row(call, &r, &scratch);
    }
    free(memory);
    return 0;
}
